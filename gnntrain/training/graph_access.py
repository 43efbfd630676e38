"""Where a graph lies, for exact inference: in whole on each machine, or in parts.

Both give a rank the in-edges of the nodes that it computes; they differ in how ranks give each
other the rows that they have computed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import EdgeType, Graph, Int64Array, NodeType
from gnntrain.data.partitioned_graph import Part, PartitionedGraph
from gnntrain.distributed.owners import answers_of
from gnntrain.loading.features import FeatureSource
from gnntrain.loading.graph import EdgeTensors
from gnntrain.loading.read_counts import most_read_nodes
from gnntrain.loading.shared import ShardedFeatures, SharedGraph, originals_of
from gnntrain.sampling.block import Block, BlockNeeds
from gnntrain.tasks import Task
from gnntrain.tasks.base import ComputedRows
from gnntrain.training.buffers import SharedBuffers

if TYPE_CHECKING:
    from gnntrain.distributed.exchange import Exchange
    from gnntrain.loading.graph import GraphTensors

# What a row costs in layer-wise inference beside its edges, counted in edges.
ROW_COST = 16

# Bounds the rows that a chunk gathers: 64 MiB of float32.
_MAX_GATHERED_NUMBERS = 1 << 24

# Edges that are counted at once.
_COUNTED_AT_ONCE = 1 << 22

Rows = Tensor | LazyFeatures | FeatureSource
"""The rows of all nodes of a type; those of a `FeatureSource` lie on other machines, too."""

EdgesBefore = Callable[[int], int]
"""The number of in-edges of the nodes before a node: an `indptr`, or the sum of several."""


class GraphAccess(ABC):
    """A graph as one rank reads it and computes some of its nodes.

    The nodes of each of the machine's `parts` are divided among `count` ranks, of which this is the
    number `place`; it computes none if there are fewer. `features` are the rows of all nodes of
    each type that has some.
    """

    is_partitioned: ClassVar[bool]
    """Whether other machines are asked for the rows of their nodes."""
    nodes: Mapping[NodeType, range]
    """By type, the nodes that the machine's matrices hold."""

    def __init__(
        self,
        graph: Graph,
        buffers: SharedBuffers,
        features: Mapping[NodeType, LazyFeatures | FeatureSource],
        parts: Sequence[Part],
        place: int,
        count: int,
    ) -> None:
        self.graph, self.buffers, self.features = graph, buffers, features
        self.context, self.schema = buffers.context, graph.schema
        self._parts, self._originals = parts, originals_of(graph)
        self._edges_on_device: GraphTensors | None = None
        # By type the rows that this rank computes of each part.
        self._computed: dict[NodeType, list[range]] = {t: [] for t in self.schema.num_nodes}
        for part in parts:
            for t, nodes in part.ranges.items():
                before = edges_before(part.graph, t)
                cuts = balanced_range(before, len(nodes), place, count) if place < count else (0, 0)
                self._computed[t].append(range(*cuts))

    def chunks(
        self, node_type: NodeType, max_rows: int, max_edges: int
    ) -> Iterator[tuple[int, int]]:
        """This rank's nodes of a type, cut into ranges of bounded rows and edges."""
        for part, rows in zip(self._parts, self._computed[node_type], strict=True):
            before, first = edges_before(part.graph, node_type), part.ranges[node_type].start
            for a, b in chunks(before, rows.start, rows.stop, max_rows, max_edges):
                yield first + a, first + b

    def in_edges(self, edge_type: EdgeType, a: int, b: int, needs: BlockNeeds) -> Block:
        """The in-edges of one type of the nodes `a … b − 1`, on the device, over all nodes of the
        source type; with weights if they are needed, without norms."""
        part = next(part for part in self._parts if a in part.ranges[edge_type[2]])
        stored, first = part.graph.edges[edge_type], part.ranges[edge_type[2]].start
        weight = stored.weight if needs.weight else None
        if self._edges_on_device is not None:
            edges = self._edges_on_device.edges[edge_type]
        else:
            edges = EdgeTensors(
                torch.from_numpy(stored.indptr),
                torch.from_numpy(stored.indices),
                self.schema.num_nodes[edge_type[0]],
                weight=None if weight is None else torch.from_numpy(weight),
            )
        ends = int(stored.indptr[a - first]), int(stored.indptr[b - first])
        block = edges.in_edges(a - first, b - first, ends)
        return replace(
            block,
            # The destinations are among the sources, or of another type.
            dst_offset=a if edge_type[0] == edge_type[2] else 0,
            weight=None if weight is None else block.weight,
        ).to(self.context.device, non_blocking=True)

    def computed(self, task: Task, outputs: Tensor) -> Iterator[ComputedRows]:
        """This rank's outputs and targets, of the outputs of the machine's nodes."""
        target, start = self.schema.target, self.nodes[self.schema.target].start
        for part, rows in zip(self._parts, self._computed[target], strict=True):
            first, some = part.ranges[target].start, slice(rows.start, rows.stop)
            nodes = range(first + rows.start, first + rows.stop)
            targets = torch.from_numpy(part.graph.labels) if self.is_partitioned else task.targets
            of_rank = outputs[nodes.start - start : nodes.stop - start]
            yield ComputedRows(nodes, of_rank, targets[some])

    def learnt(self, node_type: NodeType, rows: LazyFeatures) -> LazyFeatures:
        """A model's rows of a type, in the graph's order of the nodes."""
        original = self._originals.get(node_type)
        return rows if original is None else rows.select(original)

    @abstractmethod
    def norm(self, nodes: Tensor | None) -> Tensor:
        """The normalisation of `nodes`, or of all, float32 on the device, see `Block.norm`."""

    @abstractmethod
    def publish(self, node_type: NodeType, name: str, matrix: Tensor) -> Rows:
        """Wait until all ranks have computed their rows of a matrix; the rows of all nodes. All
        ranks raise `Interrupted` if any of them knows of a stop request."""

    def cached(self, node_type: NodeType, rows: Rows) -> Rows:
        """The same rows, quicker to read for many edges. Collective among the machine's ranks."""
        del node_type
        return rows

    def drop(self, name: str) -> None:  # noqa: B027
        """Forget rows that were published as `name`, once all ranks have met again: another matrix
        must be published before the next one of this name."""

    def end(self) -> None:  # noqa: B027
        """Forget the rows of an inference, which may have failed."""


class WholeGraph(GraphAccess):
    """A graph that each machine has, in whole.

    The nodes of each type are divided among all ranks, or rank 0 computes alone; after each matrix
    machines exchange their rows. `edges` are those of the only type, on the device.
    """

    is_partitioned = False

    def __init__(
        self,
        graph: Graph,
        buffers: SharedBuffers,
        features: Mapping[NodeType, LazyFeatures | FeatureSource],
        *,
        all_ranks: bool = True,
        edges: GraphTensors | None = None,
    ) -> None:
        context = buffers.context
        count = context.world_size if all_ranks else 1
        whole = {t: range(len(nodes)) for t, nodes in graph.nodes.items()}
        super().__init__(graph, buffers, features, [Part(whole, graph, {})], context.rank, count)
        # If rank 0 computes alone, nothing reads the rows on another machine.
        is_read = all_ranks or context.machine == 0
        self.nodes = whole if is_read else dict.fromkeys(whole, range(0))
        self._count, self._edges_on_device = count, edges
        self._norm: Tensor | None = None

    def norm(self, nodes: Tensor | None) -> Tensor:
        if self._norm is None:
            norm = self.graph.only_edges.gcn_norm
            assert norm is not None, "every graph of one type has it"
            self._norm = torch.from_numpy(norm).to(self.context.device)
        return self._norm if nodes is None else self._norm[nodes]

    def publish(self, node_type: NodeType, name: str, matrix: Tensor) -> Tensor:
        del name
        self.context.meet()
        before, size = edges_before(self.graph, node_type), self.schema.num_nodes[node_type]
        ranges = [balanced_range(before, size, rank, self._count) for rank in range(self._count)]
        self.buffers.sync(matrix, ranges)
        return matrix


class OwnedRows(ShardedFeatures):
    """A layer's rows: those of this machine's nodes are one matrix."""


class OwnedParts(GraphAccess):
    """A graph in parts, of which each machine holds some.

    Of each layer a machine holds the rows of its own nodes, and of as many nodes of other machines:
    of each type those that most of its in-edges come from. It asks for the rest chunk by chunk.
    Nothing is as long as the graph. The ranks of a machine divide the nodes of its parts.
    """

    is_partitioned = True

    def __init__(
        self,
        graph: PartitionedGraph,
        buffers: SharedBuffers,
        features: Mapping[NodeType, LazyFeatures | FeatureSource],
        shared: SharedGraph,
        exchange: Exchange,
    ) -> None:
        context, ranks = buffers.context, buffers.context.machine_ranks
        place = context.rank - ranks[0]
        super().__init__(graph, buffers, features, graph.opened, place, len(ranks))
        self.nodes = graph.ranges
        self._shared, self._exchange = shared, exchange
        self._served: set[str] = set()
        self._dropped: set[str] = set()
        self._cached_nodes: dict[NodeType, Int64Array] = {}

    def norm(self, nodes: Tensor | None) -> Tensor:
        assert nodes is not None, "no machine holds the norms of all nodes"
        (edge_type,) = self.schema.edge_types
        norm = self._shared.read("norm", edge_type, nodes.cpu())
        assert norm is not None
        return norm.to(self.context.device)

    def publish(self, node_type: NodeType, name: str, matrix: Tensor) -> OwnedRows:
        self.context.meet()
        self._exchange.withdraw(self._dropped)  # all have read the rows that were dropped before
        self._dropped.clear()
        call = f"evaluation/{name}"
        if self._parts:
            self._exchange.serve(call, answers_of([matrix.numpy()]))
            self._served.add(call)
        owners = self._shared.owners[node_type]
        first = self.nodes[node_type].start
        return OwnedRows([matrix], first, matrix, owners, self._exchange, self.context, call)

    def cached(self, node_type: NodeType, rows: Rows) -> Rows:
        nodes = self.cached_nodes(node_type)
        if isinstance(rows, OwnedRows) and rows.cached_rows is None and len(nodes):
            width = rows.local_rows[0].shape[1]
            matrix = self.buffers.matrix(f"cached {rows.name}", len(nodes), width)

            def slots_of(wanted: Int64Array) -> Int64Array:
                """By bisection: a hash table would be made anew for each layer, and take memory."""
                slots = np.searchsorted(nodes[:-1], wanted)
                return np.where(nodes[slots] == wanted, slots, -1)

            rows.cache(nodes, matrix, slots_of)
        return rows

    def cached_nodes(self, node_type: NodeType) -> Int64Array:
        """The nodes of other machines that most in-edges of this machine's nodes come from, as many
        as it has itself; int64, ascending. Collective among its ranks."""
        if node_type not in self._cached_nodes:
            local, num_nodes = self.nodes[node_type], self.schema.num_nodes[node_type]
            sources = []
            for edge in (edge for edge in self.schema.edge_types if edge[0] == node_type):
                for part, rows in zip(self._parts, self._computed[edge[2]], strict=True):
                    edges = part.graph.edges[edge]
                    first, last = int(edges.indptr[rows.start]), int(edges.indptr[rows.stop])
                    sources.append(edges.indices[first:last])

            def edges_from(start: int, stop: int) -> Int64Array:
                """The edges that come from each node of a range."""
                counts = np.zeros(stop - start, np.int64)
                for array in sources:
                    for first in range(0, len(array), _COUNTED_AT_ONCE):
                        some = array[first : first + _COUNTED_AT_ONCE]
                        some = some[(some >= start) & (some < stop)] - start
                        counts += np.bincount(some, minlength=len(counts))
                counts[max(0, local.start - start) : max(0, local.stop - start)] = 0
                return counts

            self._cached_nodes[node_type] = most_read_nodes(
                edges_from, len(local), num_nodes, self.context
            )
        return self._cached_nodes[node_type]

    def drop(self, name: str) -> None:
        call = f"evaluation/{name}"
        self.buffers.release(f"cached {call}")
        self._dropped.add(call)

    def end(self) -> None:
        self._exchange.withdraw(self._served)
        self._served.clear()
        self._dropped.clear()


def most_gathered(widest: int) -> int:
    """The most rows of this width that a chunk may gather, and so the most edges that it has."""
    return max(1, _MAX_GATHERED_NUMBERS // widest)


def edges_before(graph: Graph, node_type: NodeType) -> EdgesBefore:
    """Of the in-edges of all types into a node type; nothing as long as the graph is made."""
    offsets = [graph.edges[edge].indptr for edge in graph.schema.into(node_type)]
    return lambda node: sum(int(indptr[node]) for indptr in offsets)


def balanced_range(
    before: EdgesBefore, num_nodes: int, rank: int, world_size: int
) -> tuple[int, int]:
    """The contiguous nodes that `rank` computes, so that all ranks have equal work.

    A node's work is taken as its in-edges plus a constant for its own row.
    """

    def work_before(node: int) -> int:
        return int(before(node)) + ROW_COST * node

    total, nodes = work_before(num_nodes), range(num_nodes + 1)
    start, stop = (
        bisect_left(nodes, total * part // world_size, key=work_before) for part in (rank, rank + 1)
    )
    return start, stop


def chunks(
    before: EdgesBefore, start: int, stop: int, max_rows: int, max_edges: int
) -> Iterator[tuple[int, int]]:
    """Cut the nodes `start … stop − 1` into ranges of bounded rows and edges, one node at least."""
    while start < stop:
        limit = int(before(start)) + max_edges
        end = bisect_right(range(stop + 1), limit, lo=start + 1, key=before) - 1
        end = min(max(end, start + 1), start + max_rows)
        yield start, end
        start = end
