"""What evaluation will cost, from a part of it: some chunks of each layer, or some mini-batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import Graph
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.features import as_tensor, stored_rows
from gnntrain.models import GNN, PlainModel
from gnntrain.planning.measured import EvaluationCost
from gnntrain.planning.resident import OwnPeak, resident
from gnntrain.sampling.block import Block
from gnntrain.tasks import Task
from gnntrain.training.buffers import Buffers
from gnntrain.training.evaluation import (
    ROW_COST,
    SPLITS,
    Evaluator,
    LayerwiseEvaluator,
    Rows,
    SampledEvaluator,
    SplitMetrics,
)
from gnntrain.training.forward import OnBatch

_MOST_CHUNKS = 12
_SECONDS = 1.5  # of a layer, or of a split
_STAND_IN_BYTES = 1 << 28  # beyond any cache
_MOST_JUDGED = 1 << 17

Ranges = Sequence[tuple[int, int]]


class PartialEvaluator:
    """In the place of a run's evaluator: computes a part, and scales up what it took.

    A layer's whole input exists only in a full evaluation. Random rows stand in for it, fewer than
    there are nodes but more than caches hold: an edge still costs a read from memory. A GPU, which
    is fast enough, evaluates the whole.

    Args:
        evaluator: The run's evaluator.
        task: Seeds, targets and metrics.
        graph: The graph.
        context: This rank.
        peak: Watches this process's memory.

    Attributes:
        cost: What all nodes would take; None before `evaluate`.
        own_peak: Most memory of its own until `evaluate` was called.
        own_before: Memory of its own when `evaluate` was called.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        task: Task,
        graph: Graph,
        context: DistributedContext,
        peak: OwnPeak,
    ) -> None:
        self.cost: EvaluationCost | None = None
        self.own_peak = self.own_before = 0
        self._evaluator = evaluator
        self._task = task
        self._graph = graph
        self._context = context
        self._device = context.device
        self._peak = peak
        self._extra = 0

    @torch.no_grad()
    def evaluate(self, model: GNN | PlainModel) -> SplitMetrics:
        """Measure; no metric comes of it."""
        self.own_peak, self.own_before = self._peak.so_far(), resident().own
        was_training = model.training
        model.eval()
        evaluator = self._evaluator
        widths: tuple[int, ...] = ()
        self._context.barrier()
        if self._device.type == "cuda":  # it takes a GPU no longer than a part takes a CPU
            seconds = [self._whole(model)]
        elif isinstance(evaluator, LayerwiseEvaluator):
            assert isinstance(model, GNN)
            seconds, widths = self._by_layer(model, evaluator)
        else:
            assert isinstance(evaluator, SampledEvaluator)
            seconds = [self._split(model, evaluator, split) for split in SPLITS]
        if self._device.type != "cuda":
            seconds.append(self._judge())
        self.cost = EvaluationCost(tuple(seconds), self._extra, widths)
        model.train(was_training)
        return {split: {} for split in SPLITS}

    def _whole(self, model: GNN | PlainModel) -> float:
        """Seconds of the run's own evaluation, metrics included."""
        began = time.perf_counter()
        before = resident().own
        self._peak.begin()
        self._evaluator.evaluate(model)
        self._extra = self._peak.so_far() - before
        return time.perf_counter() - began

    def _by_layer(
        self, model: GNN, evaluator: LayerwiseEvaluator
    ) -> tuple[list[float], tuple[int, ...]]:
        ranges = list(evaluator.chunks(model))
        stored = LazyFeatures(stored_rows(self._graph))
        num_rows = [b - a for a, b in ranges]
        if not model.uses_graph:
            taken = self._scaled(ranges, num_rows, lambda a, b: model(stored.read(a, b), ()))
            return [taken], (0,)
        seconds, widths = [], []
        indptr = self._graph.indptr
        work = [int(indptr[b] - indptr[a]) + ROW_COST * (b - a) for a, b in ranges]
        for i in range(model.num_layers):
            began = resident().own
            self._peak.begin()
            layer = _Layer(model, i, self._graph, stored, self._context, evaluator.buffers)
            taken = 0.0
            if model.conv(i).has_transform:
                taken = self._scaled(ranges, num_rows, layer.transform)
                layer.make_given()
            seconds.append(taken + self._scaled(ranges, work, layer.compute))
            widths.append(layer.width)
            self._extra = max(self._extra, self._peak.so_far() - began - layer.stand_in_bytes)
            del layer
        self._extra += 4 * model.jk_channels * sum(num_rows)
        return seconds, tuple(widths)

    def _scaled(
        self, ranges: Ranges, work: Sequence[int], compute: Callable[[int, int], Tensor]
    ) -> float:
        """Seconds for all ranges, from those that were computed in a little time."""
        if not ranges:  # a rank that takes no part
            return 0.0
        picked = _spread(len(ranges))
        out = torch.empty_like(compute(*ranges[picked[0]]))  # kernels are loaded, memory is there
        began = time.perf_counter()
        done = 0
        for number in picked:
            rows = compute(*ranges[number])
            out = torch.empty_like(rows)  # as untouched as the matrix that they go to
            out[:] = rows
            done += work[number]
            seconds = time.perf_counter() - began
            if seconds > _SECONDS:
                break
        del out
        return seconds * sum(work) / max(1, done)

    def _split(self, model: GNN | PlainModel, evaluator: SampledEvaluator, split: str) -> float:
        loader = evaluator.loaders[split]
        module = OnBatch(model)
        is_idle = loader.plan.world_size == 1 and not self._context.is_main
        if len(loader) == 0 or is_idle:
            return 0.0
        loader.set_epoch(0)
        self._peak.begin()
        before = resident().own
        began = time.perf_counter()
        done = 0
        for batch in loader:
            module(batch.to(self._device)).float().cpu()
            done += 1
            seconds = time.perf_counter() - began
            if seconds > _SECONDS:
                break
        self._extra = max(self._extra, self._peak.so_far() - before)
        return seconds * len(loader) / done

    def _judge(self) -> float:
        """Seconds for the metrics; also loads what they need, as a run does once."""
        if not self._context.is_main:
            return 0.0
        task, total = self._task, 0.0
        for split in SPLITS:
            seeds = task.seeds(split)
            some = seeds[:_MOST_JUDGED]
            outputs = torch.randn(len(some), task.num_outputs)
            targets = task.targets[as_tensor(some)]
            task.metrics(outputs, targets)
            began = time.perf_counter()
            task.metrics(outputs, targets)
            taken = time.perf_counter() - began
            total += taken * len(seeds) / max(1, len(some))
        return total


class _FoldedEvaluator(LayerwiseEvaluator):
    """Computes on matrices of fewer rows than there are nodes: node v has row v modulo that."""

    def _read(self, source: Rows, a: int, b: int) -> Tensor:
        return source[: b - a] if isinstance(source, Tensor) else source.read(a, b)

    def _view(self, model: GNN, i: int, given: Rows, a: int, b: int) -> tuple[Block, Rows]:
        block, rows = super()._view(model, i, given, a, b)
        is_short = isinstance(rows, Tensor) and len(rows) < block.num_src
        return (_folded(block, len(rows)) if is_short else block), rows


class _Layer:
    """One layer of a model over chunks of nodes, with random rows for what came before."""

    def __init__(
        self,
        model: GNN,
        i: int,
        store: Graph,
        stored: LazyFeatures,
        context: DistributedContext,
        buffers: Buffers,
    ) -> None:
        self._model, self._i = model, i
        self._num_nodes = store.num_nodes
        self._evaluator = _FoldedEvaluator(store, context, buffers, all_ranks=False)
        self.stand_in_bytes = 0
        self.width = 0
        self._source: Rows = stored if i == 0 else self._stand_in(model.hidden_channels)
        self._given = self._source

    def transform(self, a: int, b: int) -> Tensor:
        """What the nodes `a … b − 1` send."""
        rows = self._evaluator.transform(self._model, self._i, self._source, a, b)
        self.width = rows.shape[1]
        return rows

    def make_given(self) -> None:
        """Make what the layer aggregates, once `transform` has shown how wide it is."""
        if self.width:  # else this rank computes nothing
            self._given = self._stand_in(self.width)

    def compute(self, a: int, b: int) -> Tensor:
        """The layer's output for the nodes `a … b − 1`."""
        model, i = self._model, self._i
        h = self._evaluator.layer(model, i, self._source, self._given, a, b)
        before = torch.zeros(len(h), model.jk_channels) if i > 0 else None
        state = model.jk_update(i, before, h)
        return model.readout(state) if i == model.num_layers - 1 else h

    def _stand_in(self, width: int) -> Tensor:
        num_rows = min(self._num_nodes, max(1 << 16, _STAND_IN_BYTES // (4 * width)))
        self.stand_in_bytes += 4 * num_rows * width
        return torch.rand(num_rows, width)


def _folded(block: Block, num_rows: int) -> Block:
    """The block over fewer sources: node v is read as row v modulo their number."""
    offset = block.dst_offset % max(1, num_rows - block.num_dst)
    norm = None if block.norm is None else block.norm[:num_rows]
    return replace(
        block,
        indices=block.indices % num_rows,
        num_src=num_rows,
        dst_offset=offset,
        norm=norm,
        derived={},
    )


def _spread(number: int) -> list[int]:
    """A few of the numbers below `number`, evenly spread, in random order."""
    picked = np.unique(np.linspace(0, number - 1, min(number, _MOST_CHUNKS)).astype(int))
    return list(map(int, np.random.default_rng(0).permutation(picked)))
