"""Exact metrics over splits, layer by layer over all neighbours; or sampled ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import Graph
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.features import as_tensor, stored_rows
from gnntrain.loading.loader import Loader, whole_graph_block
from gnntrain.models import GNN, PlainModel
from gnntrain.models.mlp import edgeless
from gnntrain.sampling.base import Int64Array
from gnntrain.sampling.block import Block
from gnntrain.tasks import NodeClassification, Task
from gnntrain.training.buffers import Buffers
from gnntrain.training.forward import OnBatch

if TYPE_CHECKING:
    from gnntrain.loading.graph import GraphTensors

_INT32_MAX = 2**31 - 1

Rows = Tensor | LazyFeatures
"""The rows of all nodes, wherever they lie."""

SPLITS = ("train", "val", "test")
SplitMetrics = dict[str, dict[str, float]]

# What a row costs in layer-wise inference beside its edges, counted in edges.
ROW_COST = 16


class Evaluator(Protocol):
    """Gives the metrics of a model on every split."""

    def evaluate(self, model: GNN | PlainModel) -> SplitMetrics:
        """The metrics by split, equal on all ranks. Collective.

        Raises:
            Interrupted: On all ranks, if a stop was requested meanwhile.
        """
        ...


@dataclass(frozen=True, slots=True)
class Inferred:
    """A model's outputs for every node of a graph, on the CPU.

    Attributes:
        logits: float32 `[num_nodes, num_outputs]`.
        embeddings: float32 `[num_nodes, embedding_channels]`, the rows that enter the model's last
            layer (of a single layer the features, as they are stored); None: not kept.
    """

    logits: Tensor
    embeddings: Tensor | LazyFeatures | None = None


class LayerwiseEvaluator:
    """Exact evaluation: every layer for all nodes, over all in-neighbours, before the next.

    A rank computes its range of destination nodes, chunk by chunk, into one matrix of a layer's
    activations for all ranks of its machine; then machines exchange their rows. Memory of a
    machine: two such matrices (three if a model transforms rows before
    it aggregates) and one chunk. If the layer's input is not on the model's device, a chunk's
    in-neighbours are gathered, each once, and renumbered.

    Args:
        store: The graph.
        context: This rank.
        buffers: Allocates the matrices.
        task: Seeds, targets and metrics; None: classifying the nodes by the store's labels.
        all_ranks: Divide the nodes among all ranks, or let rank 0 compute alone.
        features: The rows of all nodes; None: the store's pages.
        graph: The edges on the device; None: the store's.
    """

    def __init__(
        self,
        store: Graph,
        context: DistributedContext,
        buffers: Buffers,
        *,
        task: Task | None = None,
        all_ranks: bool = True,
        features: LazyFeatures | None = None,
        graph: GraphTensors | None = None,
    ) -> None:
        self._store = store
        self._task = task or NodeClassification(store)
        self._stored = LazyFeatures(stored_rows(store))
        self._features = self._stored if features is None else features
        self._graph = graph
        self._context = context
        self.buffers = buffers
        self._norm_on_device: Tensor | None = None
        size, rank = context.world_size if all_ranks else 1, context.rank
        self._ranges = [balanced_range(store.indptr, part, size) for part in range(size)]
        self._rows = self._ranges[rank] if rank < size else (0, 0)

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
        # Between evaluations training uses the memory.
        self.buffers.release()
        return self._context.broadcast(metrics)

    def infer(self, model: GNN, *, embed: bool = False) -> Inferred:
        """The model's outputs for every node, on all ranks. Collective.

        The result is valid until the next call. If rank 0 computes alone, it is empty on the other
        machines.

        Args:
            embed: Keep the rows that enter the last layer, too.
        """
        found = self._inferred(model, embed=embed)
        embeddings = found.embeddings
        kept = embeddings.cpu() if isinstance(embeddings, Tensor) else embeddings
        return Inferred(found.logits.cpu(), kept)

    def chunks(self, model: GNN) -> Iterator[tuple[int, int]]:
        """This rank's nodes, cut into chunks.

        Ends early after a stop request; `_sync` then raises `Interrupted` on all ranks.
        """
        widest = max(self._stored.num_features, model.hidden_channels, model.out_channels, 1)
        limits = self.buffers.chunk_limits(widest)
        control = self._context.control
        cuts = chunks(self._store.indptr, *self._rows, *limits)
        return takewhile(lambda _: not control.stop_requested, cuts)

    def transform(self, model: GNN, i: int, source: Rows, a: int, b: int) -> Tensor:
        """The messages of the nodes `a … b − 1` in layer `i`, whose input is `source`."""
        return model.conv(i).transform(self._input(model, i, source, a, b))

    def layer(self, model: GNN, i: int, source: Rows, given: Rows, a: int, b: int) -> Tensor:
        """Layer `i`'s output for the nodes `a … b − 1`.

        Args:
            model: In evaluation mode.
            i: The layer.
            source: Its input, for all nodes.
            given: The rows to aggregate, for all nodes: `transform`'s, or `source`.
            a, b: See above.
        """
        block, rows = self._view(model, i, given, a, b)
        if not model.conv(i).has_transform:
            return model.layer(i, rows, block)
        assert isinstance(rows, Tensor)
        h_dst = self._input(model, i, source, a, b)
        z_dst = rows[block.dst_offset : block.dst_offset + block.num_dst]
        return model.propagate(i, block, rows, h_dst, z_dst)

    @torch.no_grad()
    def _inferred(self, model: GNN, *, embed: bool) -> Inferred:
        """As `infer`, on the matrices' device."""
        was_training = model.training
        model.eval()
        self.buffers.begin(self._needed(model, embed))
        try:
            return self._by_layer(model, embed) if model.uses_graph else self._by_row(model, embed)
        finally:
            model.train(was_training)

    def _needed(self, model: GNN, embed: bool) -> int:
        """Bytes of the matrices that exist at the same time."""
        widths = [model.hidden_channels] * (2 if model.num_layers > 1 else 0)
        widths += [max(model.hidden_channels, model.out_channels), model.out_channels]
        widths += [model.embedding_channels] * embed
        return 4 * self._store.num_nodes * (sum(widths) + model.jk_channels)

    def _by_row(self, model: GNN, embed: bool) -> Inferred:
        """For a model without edges: all layers of a chunk at once."""
        out = self._matrix("logits", model.out_channels)
        kept = self._matrix("embeddings", model.embedding_channels) if embed else None
        for a, b in self.chunks(model):
            rows = self._read(self._features, a, b)
            out[a:b] = _rows_alone(model, rows, None if kept is None else kept[a:b])
        self._sync(out)
        if kept is not None:
            self._sync(kept)
        return Inferred(out, kept)

    def _by_layer(self, model: GNN, embed: bool) -> Inferred:
        source: Rows = self._features
        start, stop = self._rows
        states = torch.empty(stop - start, model.jk_channels, device=self._context.device)
        embeddings: Rows | None = None
        if embed and model.jk != "none":
            embeddings = self._matrix("embeddings", model.embedding_channels)
        for i in range(model.num_layers):
            is_last = i == model.num_layers - 1
            given = self._given(model, i, source)
            if embed and embeddings is None and is_last:
                embeddings = self._stored if isinstance(source, LazyFeatures) else source
            width = model.out_channels if is_last else model.hidden_channels
            target = self._matrix("logits" if is_last else f"h{i % 2}", width)
            for a, b in self.chunks(model):
                h = self.layer(model, i, source, given, a, b)
                before = states[a - start : b - start]
                state = model.jk_update(i, before if i > 0 else None, h)
                if model.jk_channels:
                    before.copy_(state)
                    if isinstance(embeddings, Tensor):
                        _put_embeddings(model, i, h, state, embeddings[a:b])
                target[a:b] = model.readout(state) if is_last else h
            self._sync(target)
            source = target
            del given
            self.buffers.release("z")
        if isinstance(embeddings, Tensor) and model.jk != "none":
            self._sync(embeddings)
        return Inferred(target, embeddings)

    def _given(self, model: GNN, i: int, source: Rows) -> Rows:
        """The rows that layer `i` aggregates, for all nodes."""
        if not model.conv(i).has_transform:
            return source
        z = self._matrix("z", self.transform(model, i, source, 0, 0).shape[1])
        for a, b in self.chunks(model):
            z[a:b] = self.transform(model, i, source, a, b)
        self._sync(z)
        return z

    def _input(self, model: GNN, i: int, source: Rows, a: int, b: int) -> Tensor:
        """The input of layer `i` for the nodes `a … b − 1`."""
        rows = self._read(source, a, b)
        return model.start(rows) if i == 0 else rows

    def _read(self, source: Rows, a: int, b: int) -> Tensor:
        """The rows of the nodes `a … b − 1`, on the model's device."""
        rows = source[a:b] if isinstance(source, Tensor) else source.read(a, b)
        return rows.to(self._context.device)

    def _view(self, model: GNN, i: int, given: Rows, a: int, b: int) -> tuple[Block, Rows]:
        """The in-edges of the nodes `a … b − 1`, and the rows that their sources number."""
        block = replace(self._in_edges(model, a, b), norm=self._norm(model))
        if self._is_here(given) and (isinstance(given, Tensor) or model.needs.rows):
            return block, given
        nodes, block = self._renumbered(block)
        features = LazyFeatures(given) if isinstance(given, Tensor) else given
        rows = features.select(nodes).whole().to(self._context.device)
        return block, model.start(rows) if i == 0 and not model.conv(i).has_transform else rows

    def _is_here(self, rows: Rows) -> bool:
        # Not the devices as such: "cuda" and "cuda:0" are the same one, but not equal.
        return rows.device.type == self._context.device.type

    def _in_edges(self, model: GNN, a: int, b: int) -> Block:
        """The in-edges of the nodes `a … b − 1`, on the device."""
        needs, graph, device = model.needs, self._graph, self._context.device
        first, last = int(self._store.indptr[a]), int(self._store.indptr[b])
        if graph is None or last - first > _INT32_MAX:
            return whole_graph_block(self._store, replace(needs, norm=False), a, b).to(device)
        weight = graph.weight if needs.weight else None
        return Block(
            indptr=(graph.indptr[a : b + 1] - first).to(graph.indices.dtype),
            indices=graph.indices[first:last].to(device, non_blocking=True),
            num_src=self._store.num_nodes,
            dst_offset=a,
            weight=None if weight is None else weight[first:last],
        )

    def _renumbered(self, block: Block) -> tuple[Tensor, Block]:
        """The nodes of a block's edges, its destinations first, and the block with these as its
        only sources."""
        a, num_dst = block.dst_offset, block.num_dst
        indices = block.indices
        is_other = (indices < a) | (indices >= a + num_dst)
        others, numbers = torch.unique(indices[is_other], return_inverse=True)
        renumbered = indices - a
        renumbered[is_other] = (numbers + num_dst).to(indices.dtype)
        nodes = torch.cat([torch.arange(a, a + num_dst, device=others.device), others.long()])
        return nodes, replace(
            block,
            indices=renumbered,
            num_src=len(nodes),
            dst_offset=0,
            norm=None if block.norm is None else block.norm[nodes],
            derived={},
        )

    def _norm(self, model: GNN) -> Tensor | None:
        """The normalisation of all nodes on this rank's device, moved there once."""
        if not model.needs.norm:
            return None
        if self._norm_on_device is None:
            norm = as_tensor(self._store.gcn_norm)
            self._norm_on_device = norm.to(self._context.device)
        return self._norm_on_device

    def _sync(self, matrix: Tensor) -> None:
        """Wait until `matrix` has every rank's rows."""
        self._context.meet()
        self.buffers.sync(matrix, self._ranges)

    def _matrix(self, name: str, num_columns: int) -> Tensor:
        # Of other machines than rank 0's, if rank 0 computes alone, nothing reads it.
        is_read = len(self._ranges) > 1 or self._context.machine == 0
        return self.buffers.matrix(name, self._store.num_nodes * is_read, num_columns)


class SampledEvaluator:
    """Metrics from mini-batches: every node of a split once, each with a sampled neighbourhood.

    With fan-outs of −1 it is exact, if slow.

    Args:
        task: Targets and metrics.
        loaders: By split. They divide each batch among the ranks that take part.
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
        """The split's metrics on rank 0; empty on other ranks."""
        outputs: list[Tensor] = []
        targets: list[Tensor] = []
        # A rank that does not take part has a plan, but samples nothing.
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
    """The logits of nodes without edges; the input of the last layer is written to `kept`."""
    block, h, state = edgeless(len(x)).to(x.device), model.start(x), None
    for i in range(model.num_layers):
        if kept is not None and model.jk == "none" and i == model.num_layers - 1:
            kept[:] = h
        h = model.layer(i, h, block)
        state = model.jk_update(i, state, h)
        if kept is not None and model.jk != "none":
            _put_embeddings(model, i, h, state, kept)
    assert state is not None
    return model.readout(state)


def _put_embeddings(model: GNN, i: int, h: Tensor, state: Tensor, out: Tensor) -> None:
    """With jumping knowledge: write the input of `lin` that the output `h` of layer `i` gives."""
    if model.jk == "cat":
        out[:, i * h.shape[1] : (i + 1) * h.shape[1]] = h
    else:
        out.copy_(state)  # whole after the last layer
