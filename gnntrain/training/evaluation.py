"""Exact metrics over splits, layer by layer over all neighbours; or sampled ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import Graph
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.features import FeatureSource, as_tensor
from gnntrain.loading.loader import Loader, whole_graph_block
from gnntrain.models import GNN, PlainModel
from gnntrain.models.mlp import edgeless
from gnntrain.sampling.base import Int64Array
from gnntrain.sampling.block import Block
from gnntrain.tasks import NodeClassification, Task
from gnntrain.training.forward import OnBatch, needs_of
from gnntrain.training.shared_buffers import SharedBuffers

Rows = Tensor | LazyFeatures
"""The rows of all nodes, wherever they lie."""

SPLITS = ("train", "val", "test")
SplitMetrics = dict[str, dict[str, float]]

# One chunk of layer-wise inference: bounds what is held beside the activations themselves.
_MAX_CHUNK_NUMBERS = 1 << 20  # rows × width: 4 MiB of float32
_MAX_CHUNK_EDGES = 1 << 20

# What a row costs in layer-wise inference beside its edges, counted in edges.
ROW_COST = 16


class Evaluator(Protocol):
    """Gives the metrics of a model on every split."""

    def evaluate(self, model: GNN | PlainModel) -> SplitMetrics:
        """Collective: all ranks call it, and all get the same answer.

        Raises:
            Interrupted: On all ranks, where the run was asked to stop meanwhile.
        """
        ...


@dataclass(frozen=True, slots=True)
class Inferred:
    """What a model says of every node of a graph, on the CPU.

    Attributes:
        logits: float32 `[num_nodes, num_outputs]`.
        embeddings: float32 `[num_nodes, embedding_channels]`, the rows that enter the model's last
            layer (of a single layer the features, as they are stored); None: not kept.
    """

    logits: Tensor
    embeddings: Tensor | LazyFeatures | None = None


class LayerwiseEvaluator:
    """Exact evaluation: every layer for all nodes, over all in-neighbours, before the next.

    A rank computes its share of the destination nodes, chunk by chunk; the ranks of a machine
    write into one shared copy of a layer's activations. Beside two such matrices (three where a
    model transforms rows before it aggregates) it holds no more than a chunk.

    Args:
        task: Seeds, targets and metrics; None: classifying the nodes by the store's labels.
        all_ranks: Share the nodes out over all ranks, or let rank 0 compute alone.
    """

    def __init__(
        self,
        store: Graph,
        features: FeatureSource,
        context: DistributedContext,
        scratch: SharedBuffers,
        *,
        task: Task | None = None,
        all_ranks: bool = True,
    ) -> None:
        self._store = store
        self._task = task or NodeClassification(store)
        self._features = features
        self._context = context
        self._scratch = scratch
        self._norm_on_device: Tensor | None = None
        if all_ranks:
            self._rows = balanced_range(store.indptr, context.rank, context.world_size)
        else:
            self._rows = (0, store.num_nodes if context.is_main else 0)

    def evaluate(self, model: GNN | PlainModel) -> SplitMetrics:
        """See `Evaluator.evaluate`; `model` is a `GNN`."""
        assert isinstance(model, GNN)
        logits = self._inferred(model, embed=False).logits
        metrics: SplitMetrics = {}
        if self._context.is_main:
            for split in SPLITS:
                rows = as_tensor(self._task.seeds(split))
                outputs = logits[rows.to(logits.device)]
                targets = self._task.targets[rows].to(outputs.device)
                metrics[split] = self._task.metrics(outputs, targets)
        del logits
        # Between evaluations the memory is the training's.
        self._release()
        return self._context.broadcast(metrics)

    def logits(self, model: GNN) -> Tensor:
        """The logits of `infer`."""
        return self.infer(model).logits

    def infer(self, model: GNN, *, embed: bool = False) -> Inferred:
        """What the model says of every node, shared by all ranks. Collective.

        Belongs to the caller until the next call.

        Args:
            embed: Keep the rows that enter the last layer, too.
        """
        found = self._inferred(model, embed=embed)
        embeddings = found.embeddings
        kept = embeddings.cpu() if isinstance(embeddings, Tensor) else embeddings
        return Inferred(found.logits.cpu(), kept)

    @torch.no_grad()
    def _inferred(self, model: GNN, *, embed: bool) -> Inferred:
        """As `infer`, wherever the answers lie."""
        was_training = model.training
        model.eval()
        try:
            return self._by_layer(model, embed) if model.uses_graph else self._by_row(model, embed)
        finally:
            model.train(was_training)

    def _by_row(self, model: GNN, embed: bool) -> Inferred:
        out = self._matrix("logits", model.out_channels)
        kept = self._matrix("embeddings", model.embedding_channels) if embed else None
        for start, stop in self.pieces(model):
            rows = self._read(self._features_of_all(), start, stop)
            out[start:stop] = _rows_alone(model, rows, None if kept is None else kept[start:stop])
        self._share(out)
        if kept is not None:
            self._share(kept)
        return Inferred(out, kept)

    def _by_layer(self, model: GNN, embed: bool) -> Inferred:
        start, stop = self._rows
        gathered = None
        if embed and model.jk != "none":
            gathered = self._matrix("embeddings", model.embedding_channels)
        source = self._features_of_all()
        readout = model.readout_start(stop - start) if model.state_channels else None
        for i in range(model.num_layers):
            is_last = i == model.num_layers - 1
            given = self._given(model, i, source)
            if is_last:
                target = self._matrix("logits", model.out_channels)
                kept: Rows | None = gathered
                if kept is None:
                    kept = self._features.select() if isinstance(source, LazyFeatures) else source
            else:
                target = self._matrix(f"h{i % 2}", model.hidden_channels)
            for a, b in self.pieces(model):
                h = self._layer(model, i, source, given, a, b)
                if readout is not None:
                    state = readout[a - start : b - start]
                    state[:] = model.readout_add(i, state, h)
                    if gathered is not None:
                        model.put_embeddings(i, h, state, gathered[a:b])
                    h = state if is_last else h
                target[a:b] = model.readout(h) if is_last else h
            self._share(target)
            source = target
            del given
            self._release("z")
        if embed and gathered is not None:
            self._share(gathered)
        return Inferred(target, kept if embed else None)

    def _layer(
        self,
        model: GNN,
        i: int,
        source: Rows,
        given: Rows,
        a: int,
        b: int,
    ) -> Tensor:
        """Layer `i`'s output for the nodes `a … b − 1`."""
        block, rows = self._view(model, i, given, a, b)
        if not model.has_transform(i):
            return model.layer(i, rows, block)
        assert isinstance(rows, Tensor)
        h_dst = self._input(model, i, source, a, b)
        z_dst = rows[block.dst_offset : block.dst_offset + block.num_dst]
        return model.finish(i, model.combine(i, rows, h_dst, z_dst, block), h_dst)

    def _given(self, model: GNN, i: int, source: Rows) -> Rows:
        """What layer `i` aggregates, for all nodes."""
        if model.has_transform(i):
            width = model.transform(i, self._input(model, i, source, 0, 0)).shape[1]
            z = self._matrix("z", width)
            for a, b in self.pieces(model):
                z[a:b] = model.transform(i, self._input(model, i, source, a, b))
            self._share(z)
            return z
        return self._to_aggregate(model, source)

    def _input(self, model: GNN, i: int, source: Rows, a: int, b: int) -> Tensor:
        """What layer `i` gets for the nodes `a … b − 1`."""
        rows = self._read(source, a, b)
        return model.start(rows) if i == 0 else rows

    # What follows says where things lie; `device_evaluation` says otherwise for a GPU.

    def _features_of_all(self) -> Rows:
        """The features of all nodes, read by nobody yet."""
        return self._features.select()

    def _read(self, source: Rows, a: int, b: int) -> Tensor:
        """The rows of the nodes `a … b − 1`, where the model computes."""
        rows = source[a:b] if isinstance(source, Tensor) else source.read(a, b)
        return rows.to(self._context.device)

    def _to_aggregate(self, model: GNN, source: Rows) -> Rows:
        """What a layer without a transform aggregates, its input being `source`."""
        if isinstance(source, Tensor) or model.reads_rows:
            return source
        return model.start(source.whole())

    def _view(self, model: GNN, i: int, given: Rows, a: int, b: int) -> tuple[Block, Rows]:  # noqa: ARG002
        """The in-edges of the nodes `a … b − 1`, and the rows that their sources number."""
        needs = replace(needs_of(model), norm=False)
        block = whole_graph_block(self._store, needs, a, b)
        return replace(block, norm=self._norm(model)), given

    def _share(self, matrix: Tensor) -> None:  # noqa: ARG002
        """Wait until `matrix` has every rank's rows."""
        self._context.meet()

    def _release(self, name: str | None = None) -> None:
        """Forget the matrix `name`, or all."""
        self._scratch.release(name)

    def _norm(self, model: GNN) -> Tensor | None:
        """The normalisation of all nodes on this rank's device, moved there once."""
        if not model.uses_norm:
            return None
        if self._norm_on_device is None:
            norm = as_tensor(self._store.gcn_norm)
            self._norm_on_device = norm.to(self._context.device)
        return self._norm_on_device

    def pieces(self, model: GNN) -> Iterator[tuple[int, int]]:
        """This rank's nodes, cut into the ranges that it computes one after another."""
        widest = max(self._features.num_features, model.hidden_channels, model.out_channels, 1)
        max_rows = max(1, _MAX_CHUNK_NUMBERS // widest)
        return self._cuts(max_rows, _MAX_CHUNK_EDGES)

    def _cuts(self, max_rows: int, max_edges: int) -> Iterator[tuple[int, int]]:
        # A rank that sees that the run is to stop leaves the rest, and tells it where all meet.
        control = self._context.control
        cuts = chunks(self._store.indptr, *self._rows, max_rows, max_edges)
        return takewhile(lambda _: not control.stop_requested, cuts)

    def _matrix(self, name: str, num_columns: int) -> Tensor:
        return self._scratch.matrix(name, self._store.num_nodes, num_columns)


class SampledEvaluator:
    """Metrics from mini-batches: every node of a split once, each with a sampled neighbourhood.

    With fan-outs of −1 it is exact, if slow.

    Args:
        task: How outputs are judged.
        loaders: By split. They share each batch out over the ranks that take part.
    """

    def __init__(
        self,
        task: Task,
        loaders: Mapping[str, Loader],
        context: DistributedContext,
    ) -> None:
        self._task = task
        self.loaders = loaders
        self._context = context

    def evaluate(self, model: GNN | PlainModel) -> SplitMetrics:
        """See `Evaluator.evaluate`."""
        module = OnBatch(model)
        was_training = model.training
        model.eval()
        try:
            return self._context.broadcast(
                {split: self._split(module, self.loaders[split]) for split in SPLITS}
            )
        finally:
            model.train(was_training)

    @torch.no_grad()
    def _split(self, module: OnBatch, loader: Loader) -> dict[str, float]:
        """The split's metrics on rank 0, none elsewhere."""
        outputs: list[Tensor] = []
        targets: list[Tensor] = []
        # A rank that does not take part has its plan, but draws nothing.
        idle = loader.plan.world_size == 1 and not self._context.is_main
        loader.set_epoch(0)
        for batch in () if idle else loader:
            if self._context.control.stop_requested:
                break
            if batch.num_counted:
                outputs.append(module(batch.to(self._context.device)).float().cpu())
                targets.append(batch.y.cpu())
        self._context.meet()
        parts = self._context.gather_to_main(list(zip(outputs, targets, strict=True)))
        batches = [batch for part in parts for batch in part]
        if not batches:
            return {}
        return self._task.metrics(
            torch.cat([b for b, _ in batches]), torch.cat([b for _, b in batches])
        )


@torch.no_grad()
def infer_by_batch(
    model: GNN | PlainModel, loader: Loader, context: DistributedContext, out: Tensor
) -> None:
    """Write the logits of the loader's seeds to `out`, in their order."""
    module = OnBatch(model).eval()
    loader.set_epoch(0)
    start = 0
    for batch in loader:
        logits = module(batch.to(context.device)).float().cpu()
        out[start : start + len(logits)] = logits
        start += len(logits)


def balanced_range(indptr: Int64Array, rank: int, world_size: int) -> tuple[int, int]:
    """The contiguous nodes that `rank` computes, so that all ranks have equal work.

    A node's work is taken as its in-edges plus a constant for its own row.
    """
    num_nodes = len(indptr) - 1
    total = int(indptr[-1]) + ROW_COST * num_nodes

    def boundary(part: int) -> int:
        wanted = total * part // world_size
        key = lambda node: int(indptr[node]) + ROW_COST * node  # noqa: E731
        return bisect_left(range(num_nodes + 1), wanted, key=key)

    return boundary(rank), boundary(rank + 1)


def chunks(
    indptr: Int64Array, start: int, stop: int, max_rows: int, max_edges: int
) -> Iterator[tuple[int, int]]:
    """Cut the nodes `start … stop − 1` into ranges of bounded rows and edges, one node at least."""
    while start < stop:
        limit = int(indptr[start]) + max_edges
        end = int(np.searchsorted(indptr[start + 1 : stop + 1], limit, side="right")) + start
        end = min(max(end, start + 1), start + max_rows)
        yield start, end
        start = end


def _rows_alone(model: GNN, x: Tensor, kept: Tensor | None) -> Tensor:
    """The logits of nodes without edges; what enters the last layer goes to `kept`."""
    block, state = edgeless(len(x)).to(x.device), model.readout_start(len(x))
    h = model.start(x)
    for i in range(model.num_layers):
        if kept is not None and model.jk == "none" and i == model.num_layers - 1:
            kept[:] = h
        h = model.layer(i, h, block)
        state = model.readout_add(i, state, h)
        if kept is not None and model.jk != "none":
            model.put_embeddings(i, h, state, kept)
    return model.readout(state if model.state_channels else h).cpu()
