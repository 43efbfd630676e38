"""Outputs of a plain PyG module: those of its forward pass over the whole graph.

They come from one such pass where its memory allows it, which a pass over a small graph tells. Else
from batches of nodes, each with all in-neighbours up to as many hops as the module reads, and one
more: so every node that is read has all its in-edges, and thus its degree. A module may offer its
layers (`inference_layers`), which are then computed one after the other in this way.
"""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from gnntrain import devices
from gnntrain.data.graph import EdgeType, Graph, NodeType
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import UserError
from gnntrain.loading.batch import Batch
from gnntrain.loading.build import LoaderBuilder
from gnntrain.loading.features import CopiedFeatures
from gnntrain.loading.loader import SeedPlan
from gnntrain.models import AnyModel, PlainModel
from gnntrain.tasks import Task
from gnntrain.tasks.base import ComputedRows
from gnntrain.training.buffers import SharedBuffers
from gnntrain.training.evaluation import (
    Evaluator,
    Inferred,
    SampledEvaluator,
    SplitMetrics,
    exact_metrics,
)
from gnntrain.training.forward import OnBatch, evaluating

_log = logging.getLogger("gnntrain")

ByType = dict[NodeType, Tensor]
Forward = Callable[[ByType, dict[EdgeType, Tensor]], Tensor]
"""From the rows of all types and the edges to the target type's outputs."""
Layer = Callable[[Tensor, Tensor], Tensor]
"""From the rows of all nodes and `edge_index` to the rows of the next layer."""

_FARTHEST = 256  # hops that are told from all nodes
_SMALL_GRAPH = 4_000  # nodes and edges, to measure memory on
_COMPARED_NODES = 32  # few: the neighbourhoods of many would be the whole graph
_GPU_SHARE = 0.8  # of what is free

_ALL_AT_ONCE = "the model reads all nodes at once, more than a rank's memory can hold"
_MORE = "the model reads more of the graph than the in-neighbours of its hops"


class ModuleEvaluator(Evaluator):
    """Evaluates a plain PyG module, and computes its outputs for all nodes.

    `buffers` are for this rank's layers alone; their limit is that of the whole forward pass.
    `num_layers` are the hops to go where the module tells no number of its own.
    """

    memory_hint = (
        "Lower evaluation.memory_limit or evaluation.batch_size, or set evaluation=sampled."
    )

    def __init__(
        self,
        task: Task,
        loaders: LoaderBuilder,
        graph: Graph,
        context: DistributedContext,
        buffers: SharedBuffers,
        plans: Mapping[str, SeedPlan],
        num_layers: int,
    ) -> None:
        self._task, self._loaders, self._graph = task, loaders, graph
        self._context, self._buffers = context, buffers
        self._plans, self._num_layers = plans, num_layers
        # Hops that each layer reads; none: the whole graph at once.
        self._hops: Sequence[int] | None = None

    def evaluate(self, model: AnyModel) -> SplitMetrics:
        assert isinstance(model, PlainModel)
        if (by_batch := self.by_batch(model)) is not None:
            return by_batch.evaluate(model)
        computed: list[ComputedRows] = []
        if self._context.is_main:
            outputs = self.infer(model).outputs
            computed = [ComputedRows(range(len(outputs)), outputs, self._task.targets)]
        self._context.meet()
        return exact_metrics(self._task, computed, self._context)

    def by_batch(self, model: PlainModel) -> SampledEvaluator | None:
        """The evaluator of the splits' nodes alone; None: rank 0 computes all nodes. Collective."""
        if self._hops is None:
            with evaluating(model):
                chosen = self._chosen(model) if self._context.is_main else None
            self._hops, self.estimated = self._context.broadcast(chosen) or ((), "")
            if self.estimated and self._context.is_main:
                _log.warning("The model's outputs are estimated: %s.", self.estimated)
        if len(self._hops) != 1:
            return None
        fan_outs = (-1,) * self._hops[0]
        loaders = {
            split: self._loaders.loader(plan, fan_outs) for split, plan in self._plans.items()
        }
        return SampledEvaluator(self._task, loaders, self._context)

    def infer(self, model: AnyModel, *, embed: bool = False) -> Inferred:
        """The outputs for every node, by this rank alone.

        Raises:
            UserError: `embed`: a module has no last layer to tell.
        """
        if embed:
            raise UserError(
                "A plain PyG model has no embeddings: gnntrain runs it as a whole.",
                "Ask for logits, or derive the model from gnntrain.models.GNN.",
            )
        assert isinstance(model, PlainModel)
        with evaluating(model):
            if self._hops is None:
                self.by_batch(model)
            module = OnBatch(model)
            if not self._hops:
                (batch,) = self._loaders.whole_graph_loader(self._every_node())
                return Inferred(self._task, self._graph, module(batch).float().cpu())
            layers = [_on_batch(layer) for layer in self._layers(model)] or [module]
            rows: Tensor | None = None
            for i, (layer, hops) in enumerate(zip(layers, self._hops, strict=True)):
                before, start = rows, 0
                for part in self._in_batches(layer, hops, self._every_node(), before):
                    rows = self._buffers.matrix(f"layer {i}", self._num_nodes, part.shape[1])
                    rows[start : start + len(part)] = part
                    start += len(part)
                self._buffers.release(f"layer {i - 1}")
            assert rows is not None
            return Inferred(self._task, self._graph, rows)

    @property
    def _num_nodes(self) -> int:
        return self._graph.schema.num_nodes[self._graph.target]

    def _every_node(self, step: int = 1, direction: int = 1) -> SeedPlan:
        nodes = np.arange(0, self._num_nodes, step)[::direction].copy()
        return SeedPlan(nodes, self._plans["val"].batch_size, shuffle=False, redraw=False)

    def _in_batches(
        self,
        compute: Callable[[Batch], Tensor],
        hops: int,
        plan: SeedPlan,
        rows: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """The outputs of a plan's seeds, batch by batch, from these rows of all nodes or the
        graph's features."""
        sources = None
        if rows is not None:
            sources = {self._graph.target: CopiedFeatures(rows, self._context.device)}
        for batch in self._loaders.loader(plan, (-1,) * hops, sources):
            yield compute(batch).float().cpu()

    def _layers(self, model: PlainModel) -> Sequence[Layer]:
        """The layers that a module offers, if they can be computed one by one here."""
        offered = getattr(model.module, "inference_layers", None)
        in_parts = isinstance(self._graph, PartitionedGraph)
        if in_parts or model.is_hetero or not inspect.ismethod(offered):
            return ()
        return list(offered())

    def _chosen(self, model: PlainModel) -> tuple[Sequence[int], str]:
        """The hops that each layer reads, none for the whole graph at once; and why the outputs are
        estimated, or ""."""
        forward, widths = _of_one_type(model), dict(self._graph.schema.num_features)
        if model.is_hetero:
            forward = model
            widths |= {name: table.weight.shape[1] for name, table in model.tables.items()}
        in_parts = isinstance(self._graph, PartitionedGraph)
        if not in_parts and self._fits_in_memory(model, forward, widths):
            return (), ""
        if layers := self._layers(model):
            return self._hops_of_layers(layers, model), ""
        hops = self._hops_read(forward, widths)
        if hops is None:
            return (self._num_layers + 1,), _ALL_AT_ONCE
        step = max(1, self._num_nodes // _COMPARED_NODES)
        # The other way round: a model may read rows by their place, as the first one.
        plans, module = (self._every_node(step), self._every_node(step, -1)), OnBatch(model)
        near, far = (
            torch.cat(list(self._in_batches(module, hops + more, plan)))
            for more, plan in enumerate(plans, 1)
        )
        is_settled = torch.allclose(near, far.flip(0), rtol=1e-3, atol=1e-4, equal_nan=True)
        return (hops + 1,), "" if is_settled else _MORE

    def _fits_in_memory(
        self, model: PlainModel, forward: Forward, widths: Mapping[NodeType, int]
    ) -> bool:
        """Whether the forward pass over the whole graph does, by what it takes, in proportion, over
        a small graph."""
        device, sizes = self._context.device, self._graph.schema.num_nodes
        free: float = self._buffers.memory_limit
        if devices.is_gpu(device):
            free = _GPU_SHARE * devices.free_memory(device)
        counts = self._graph.edge_counts
        # The rows and a copy, that the module may write to; edges, with what makes them.
        needed = sum(8 * sizes[name] * width for name, width in widths.items())
        needed += 40 * sum(counts.values())
        if needed > free:
            return False
        share = max(1, (sum(sizes.values()) + sum(counts.values())) // _SMALL_GRAPH)
        few = {name: -(-size // share) for name, size in sizes.items()}
        x = {name: torch.ones(few[name], width, device=device) for name, width in widths.items()}
        edges = {}
        for name, number in counts.items():
            edge = torch.arange(-(-number // share), device=device)
            num_src, num_dst = max(1, few[name[0]]), max(1, few[name[2]])
            edges[name] = torch.stack([edge * 7919 % num_src, edge % num_dst])
        known = [*model.parameters(), *model.buffers(), *x.values(), *edges.values()]
        try:
            with _LiveBytes(known) as live:
                forward(x, edges)
        except Exception:  # of a user's code, which may know its own graph alone: the whole one
            _log.debug("the model cannot be computed on a small graph", exc_info=True)
            return True
        return needed + int(live.peak * share) <= free

    def _hops_read(self, forward: Forward, widths: Mapping[NodeType, int]) -> int | None:
        """From how many hops against the edges a node's outputs read rows; None: also from
        elsewhere.

        NaN in the middle of a path spreads as far as the module reads, whichever its weights are.
        Nodes of each type are on the path, with an edge of each type between any two that follow.
        """
        nodes = torch.arange(2 * _FARTHEST + 1, device=self._context.device)

        def outputs_of_path(value: float) -> Tensor:
            x = {}
            for name, width in widths.items():
                x[name] = torch.ones(len(nodes), width, device=nodes.device)
                x[name][_FARTHEST] = value
            edge_types = self._graph.schema.edge_types
            return forward(x, {name: torch.stack([nodes[:-1], nodes[1:]]) for name in edge_types})

        try:
            if bool(outputs_of_path(1.0).isnan().any()):
                return None
            spread = outputs_of_path(torch.nan).isnan().any(1).nonzero().flatten().tolist()
        except Exception:  # of a user's code, which may know its own graph alone
            _log.debug("the model cannot be computed on a path", exc_info=True)
            return None
        first, last = (spread[0], spread[-1]) if spread else (_FARTHEST, _FARTHEST)
        return None if first < _FARTHEST or last == 2 * _FARTHEST else last - _FARTHEST

    def _hops_of_layers(self, layers: Sequence[Layer], model: PlainModel) -> list[int]:
        """The hops of the neighbourhoods of each layer; refuses layers that read all nodes or are
        not the model."""
        device, target = self._context.device, self._graph.target
        # Random, so that what a layer leaves out is seen: its normalisation, its aggregation.
        random = torch.Generator().manual_seed(0)
        shape = (2 * _FARTHEST, self._graph.schema.num_features[target])
        rows = torch.randn(shape, generator=random).to(device)
        edge_index = torch.randint(len(rows), (2, 4 * len(rows)), generator=random).to(device)
        expected = model(rows.clone(), edge_index)
        hops = []
        for layer in layers:
            read = self._hops_read(_of_one_type(layer), {target: rows.shape[1]})
            rows = layer(rows, edge_index)
            hops.append(-1 if read is None else read + 1)
        if -1 in hops or not torch.allclose(rows, expected, rtol=1e-3, atol=1e-4, equal_nan=True):
            what = "have a layer that reads all nodes" if -1 in hops else "give other outputs"
            raise UserError(
                f"The inference_layers of model {model.name} {what}, not those of its forward.",
                "Each must read in-neighbours alone, and all in turn give the model's outputs.",
            )
        return hops


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Counts the bytes of tensors that are made and still alive, but for those already known."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen = WeakIdKeyDictionary()
        self.peak = self._now = 0
        for tensor in known:
            self._seen[tensor.untyped_storage()] = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else None
            if storage is not None and storage not in self._seen:
                size = storage.nbytes()
                self._seen[storage] = weakref.finalize(storage, self._count, -size)
                self._count(size)
        return out

    def _count(self, size: int) -> None:
        self._now += size
        self.peak = max(self.peak, self._now)


def _of_one_type(layer: Layer) -> Forward:
    return lambda x, edges: layer(*x.values(), *edges.values())


def _on_batch(layer: Layer) -> Callable[[Batch], Tensor]:
    return lambda batch: layer(batch.x, batch.edge_index)[: batch.batch_size]
