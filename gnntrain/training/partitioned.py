"""Exact evaluation of a graph in parts: each machine computes the nodes that it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures, as_tensor
from gnntrain.data.graph import Edges, IntArray
from gnntrain.data.parts import Part, Parts
from gnntrain.distributed.context import DistributedContext, rank_range
from gnntrain.distributed.owners import AnyArray, Caller, NodeOwners, ask_rows
from gnntrain.loading.graph import in_edges
from gnntrain.loading.hotness import most_read
from gnntrain.loading.sharded import answers_of
from gnntrain.models import GNN, AnyModel
from gnntrain.sampling.base import Int64Array
from gnntrain.sampling.block import Block
from gnntrain.tasks import Task
from gnntrain.training.buffers import Buffers, SharedBuffers
from gnntrain.training.evaluation import SPLITS, SplitMetrics
from gnntrain.training.layerwise import (
    LayerwiseInference,
    Offsets,
    Rows,
    RowSource,
    balanced_range,
    chunks,
    most_gathered,
)
from gnntrain.training.split_metrics import Piece, split_metrics

if TYPE_CHECKING:
    from gnntrain.distributed.exchange import Exchange

# Bounds the outputs of a slice of a split: 16 MiB of float32.
_MAX_SLICE_NUMBERS = 1 << 22

# Nodes, and edges, that are counted at once.
_COUNTED_AT_ONCE = 1 << 22

_NORM = "evaluation/gcn_norm"


@dataclass(frozen=True, slots=True)
class HotRows:
    """Rows of other machines' nodes, one copy a machine; found by bisection.

    Unlike a `RowCache`, it takes no memory beside nodes and rows, and is made anew for each layer.

    Attributes:
        nodes: int64 `[n]`, ascending.
        rows: `[n, width]`, theirs.
    """

    nodes: Int64Array
    rows: Tensor

    def find(self, nodes: Int64Array) -> Int64Array:
        """The place of each node, −1 where it is not among them; int64 `[n]`."""
        if len(self.nodes) == 0:
            return np.full(len(nodes), -1)
        places = np.searchsorted(self.nodes, nodes).clip(max=len(self.nodes) - 1)
        return np.where(self.nodes[places] == nodes, places, -1)


@dataclass(frozen=True, slots=True)
class OwnedRows:
    """A layer's rows: this machine's in a matrix, those of other nodes with their owners.

    Attributes:
        own: The rows of the machine's nodes, float32.
        nodes: These nodes.
        name: Of the call that asks for rows.
        owners: Who holds which nodes.
        exchange: Asks them.
        hot: Rows that need not be asked for; None: there are none.
    """

    own: Tensor
    nodes: range
    name: str
    owners: NodeOwners
    exchange: Caller
    hot: HotRows | None = None

    def select(self, nodes: Tensor) -> LazyFeatures:
        """See `RowSource.select`."""
        wanted = nodes.cpu().numpy()
        out = torch.empty(len(wanted), self.own.shape[1])
        is_far = (wanted < self.nodes.start) | (wanted >= self.nodes.stop)
        own = np.flatnonzero(~is_far)
        out[own] = self.own[wanted[own] - self.nodes.start]
        if self.hot is not None:
            places = self.hot.find(wanted)
            hits = np.flatnonzero(places >= 0)
            out[hits] = self.hot.rows[places[hits]]
            is_far[hits] = False
        far = np.flatnonzero(is_far)
        if len(far):
            out[far] = as_tensor(self.asked(wanted[far]))
        return LazyFeatures(out)

    def asked(self, nodes: Int64Array) -> AnyArray:
        """The rows of `nodes` as their owners answer."""
        return ask_rows(self.exchange, self.owners, self.name, nodes)


@dataclass(frozen=True, slots=True)
class RankNodes:
    """The nodes of a part that one of its machine's ranks computes.

    Attributes:
        part: The part.
        first: The part's first node.
        nodes: New numbers, within the part's.
    """

    part: Part
    first: int
    nodes: range

    def in_edges(self, edges: Edges) -> IntArray:
        """The sources of these nodes' in-edges, of those of the part's nodes."""
        ends = (self.nodes.start - self.first, self.nodes.stop - self.first)
        return edges.indices[slice(*(int(edges.indptr[node]) for node in ends))]

    @classmethod
    def of(cls, part: Part, place: int, count: int) -> RankNodes:
        """The nodes of the rank number `place` of the machine's `count`."""
        return cls.balanced(part, part.nodes.start, part.indptr, place, count)

    @classmethod
    def balanced(
        cls, part: Part, first: int, offsets: Offsets, place: int, count: int
    ) -> RankNodes:
        """Those of a rank, by the in-edges of the part's nodes from `first` on."""
        start, stop = balanced_range(offsets, place, count)
        return cls(part, first, range(first + start, first + stop))


def hot_rows(
    given: OwnedRows,
    nodes: Int64Array,
    name: str,
    buffers: Buffers,
    context: DistributedContext,
) -> HotRows:
    """Ask for the rows of the hot nodes; each of the machine's ranks does so for a part.

    Collective among them.

    Args:
        given: The rows.
        nodes: From `hot_nodes`.
        name: Of the matrix of `buffers` that receives them.
        buffers: Allocates it.
        context: This rank.
    """
    width, ranks = given.own.shape[1], context.machine_ranks
    rows = buffers.matrix(name, len(nodes), width)
    own, step = rank_range(len(nodes), context.rank - ranks[0], len(ranks)), most_gathered(width)
    for start in range(own.start, own.stop, step):
        part = slice(start, min(start + step, own.stop))
        rows[part] = as_tensor(given.asked(nodes[part]))
    context.machine_barrier()
    return HotRows(nodes, rows)


def hot_nodes(
    sources: Sequence[IntArray], num_nodes: int, own: range, context: DistributedContext
) -> Int64Array:
    """The nodes of other machines that most in-edges of this machine's nodes come from, as many as
    it has itself; int64, ascending. Collective among its ranks.

    Args:
        sources: Sources of the in-edges of the nodes that this rank computes.
        num_nodes: Nodes of all machines.
        own: This machine's.
        context: This rank.
    """
    hot, num_edges = np.empty((2, 0), np.int64)
    for start in range(0, num_nodes, _COUNTED_AT_ONCE):
        stop = min(start + _COUNTED_AT_ONCE, num_nodes)
        counts = _out_edges(sources, start, stop)
        summed = context.machine_sum(as_tensor(counts).to(context.device))
        counts = summed.cpu().numpy()
        counts[max(0, own.start - start) : max(0, own.stop - start)] = 0
        read = np.flatnonzero(counts)
        hot, num_edges = np.append(hot, read + start), np.append(num_edges, counts[read])
        if stop == num_nodes or len(hot) > 2 * len(own):
            kept = most_read(num_edges, len(own))
            hot, num_edges = hot[kept], num_edges[kept]
    return hot


def _out_edges(sources: Sequence[IntArray], start: int, stop: int) -> Int64Array:
    """The edges from each of the nodes `start … stop − 1`."""
    counts = np.zeros(stop - start, np.int64)
    for given in sources:
        for edge in range(0, len(given), _COUNTED_AT_ONCE):
            part = given[edge : edge + _COUNTED_AT_ONCE]
            found = part[(part >= start) & (part < stop)] - start
            counts += np.bincount(found, minlength=len(counts))
    return counts


class PartitionedEvaluator(LayerwiseInference):
    """Exact evaluation of a graph in parts.

    Of each layer a machine holds the rows of its own nodes, and of as many nodes of other machines:
    those that most of its in-edges come from. It asks for the rest chunk by chunk. Nothing is as
    long as the graph, but for metrics without a `Tally` the outputs of a split on rank 0.

    Args:
        parts: The graph; the machine's parts are open.
        owners: Who holds which nodes: a machine those of its parts.
        exchange: Asks other machines, and answers them.
        context: This rank. The ranks of its machine divide the nodes of the machine's parts.
        buffers: Allocates the matrices, for the machine's nodes.
        task: Seeds and metrics. Targets are the parts' labels.
        features: The rows of all nodes.

    Attributes:
        owners: See above.
    """

    def __init__(
        self,
        parts: Parts,
        owners: NodeOwners,
        exchange: Exchange,
        context: DistributedContext,
        buffers: SharedBuffers,
        *,
        task: Task,
        features: RowSource,
    ) -> None:
        self._parts = parts
        self.owners = owners
        self._exchange = exchange
        self._task = task
        self._served: set[str] = set()
        ranks = context.machine_ranks
        place, count = context.rank - ranks[0], len(ranks)
        self._computed = [RankNodes.of(part, place, count) for part in parts.opened]
        width = parts.meta.num_features
        super().__init__(context, buffers, features, width, parts.nodes)

    def evaluate(self, model: AnyModel) -> SplitMetrics:
        """See `Evaluator.evaluate`; `model` is a `GNN`."""
        assert isinstance(model, GNN)
        outputs = self.outputs(model)
        metrics = {
            split: split_metrics(
                self._task,
                pieces(self._task, split, outputs, self._nodes, self._computed),
                self._context,
            )
            for split in SPLITS
        }
        del outputs
        # Between evaluations training uses the memory.
        self.buffers.release()
        return self._context.broadcast(metrics)

    def outputs(self, model: GNN) -> Tensor:
        """The model's outputs for the machine's nodes. Collective.

        Returns:
            float32 `[len(parts.nodes), num_outputs]`, valid until the next call.

        Raises:
            Interrupted: On all ranks, if a stop was requested meanwhile.
        """
        try:
            if model.needs.norm:
                self._serve(_NORM, [part.gcn_norm for part in self._parts.opened])
            return self._inferred(model)[0]
        finally:
            self._withdraw(*self._served)

    def _all_chunks(self, widest: int) -> Iterator[tuple[int, int]]:
        max_rows, max_edges = self.buffers.chunk_limits(widest)
        max_edges = min(max_edges, most_gathered(widest))
        for own in self._computed:
            part, first = own.part, own.part.nodes.start
            rows = own.nodes.start - first, own.nodes.stop - first
            for a, b in chunks(part.indptr, *rows, max_rows, max_edges):
                yield first + a, first + b

    def _in_edges(self, model: GNN, a: int, b: int) -> Block:
        part = next(part for part in self._parts.opened if b <= part.nodes.stop)
        weight = part.edge_weight if model.needs.weight else None
        first = part.nodes.start
        block = in_edges(part.indptr, part.indices, weight, a - first, b - first)
        block = replace(block, num_src=self._parts.num_nodes, dst_offset=a)
        return block.to(self._context.device)

    def _norm_of(self, nodes: Tensor) -> Tensor:
        norm = ask_rows(self._exchange, self.owners, _NORM, nodes.cpu().numpy())
        return as_tensor(norm).to(self._context.device)

    def _read(self, source: Rows, a: int, b: int) -> Tensor:
        return super()._read(source.own if isinstance(source, OwnedRows) else source, a, b)

    def _given(self, model: GNN, i: int, source: Rows) -> Rows:
        given = super()._given(model, i, source)
        return replace(given, hot=self._hot_rows(given)) if isinstance(given, OwnedRows) else given

    def _hot_rows(self, given: OwnedRows) -> HotRows:
        self.buffers.release("hot")
        return hot_rows(given, self.hot_nodes, "hot", self.buffers, self._context)

    @cached_property
    def hot_nodes(self) -> Int64Array:
        """See `hot_nodes`."""
        edges = [own.in_edges(own.part.graph.only_edges) for own in self._computed]
        return hot_nodes(edges, self._parts.num_nodes, self._nodes, self._context)

    def _finished(self, name: str, matrix: Tensor) -> OwnedRows:
        self._context.meet()
        # All have read what the layer before left.
        self._withdraw(*self._served - {_NORM})
        called = f"evaluation/{name}"
        self._serve(called, [matrix.numpy()])
        return OwnedRows(matrix, self._nodes, called, self.owners, self._exchange)

    def _serve(self, name: str, rows: Sequence[AnyArray]) -> None:
        """Answer other machines that ask for rows of this one's nodes, given one array a part, or
        one of all."""
        if self._parts.opened:
            self._exchange.serve(name, answers_of(rows))
            self._served.add(name)

    def _withdraw(self, *names: str) -> None:
        for name in names:
            self._exchange.withdraw(name)
            self._served.remove(name)


def pieces(
    task: Task, split: str, outputs: Tensor, nodes: range, computed: Sequence[RankNodes]
) -> Iterator[Piece]:
    """This rank's outputs and targets of a split, slice by slice.

    Args:
        task: Seeds.
        split: The split.
        outputs: The outputs of the machine's nodes.
        nodes: These nodes.
        computed: Those that this rank computes.
    """
    seeds = task.examples(split)
    size = max(1, _MAX_SLICE_NUMBERS // outputs.shape[1])
    for start in range(0, len(seeds), size):
        given = np.asarray(seeds[start : start + size])
        yield _piece(task, given, outputs, nodes, computed)


def _piece(
    task: Task, seeds: Int64Array, rows: Tensor, nodes: range, computed: Sequence[RankNodes]
) -> Piece:
    """This rank's outputs and targets of a slice."""
    places, outputs, targets = [np.empty(0, np.int64)], [rows[:0]], [task.targets[:0]]
    for own in computed:
        found = np.flatnonzero((seeds >= own.nodes.start) & (seeds < own.nodes.stop))
        places.append(found)
        outputs.append(rows[seeds[found] - nodes.start])
        targets.append(as_tensor(own.part.labels[seeds[found] - own.first]))
    return Piece(as_tensor(np.concatenate(places)), torch.cat(outputs), torch.cat(targets))
