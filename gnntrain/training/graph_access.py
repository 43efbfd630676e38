"""Where a graph lies, for exact inference: in whole on each machine, or in parts.

Both give a rank the in-edges of the nodes that it computes; they differ in how ranks give each
other the rows that they have computed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, SupportsInt

import numpy as np
import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures, as_tensor
from gnntrain.data.graph import Edges, EdgeType, Graph, Int64Array, NodeType
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.distributed.context import DistributedContext, rank_range
from gnntrain.distributed.owners import AnyArray, Caller, NodeOwners, ask_rows
from gnntrain.loading.features import stored_rows
from gnntrain.loading.graph import EdgeTensors
from gnntrain.loading.read_counts import most_read
from gnntrain.loading.shared import answers_of, originals_of
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

# Nodes, and edges, that are counted at once.
_COUNTED_AT_ONCE = 1 << 22

_NORM = "evaluation/gcn_norm"


class Offsets(Protocol):
    """The number of in-edges of the nodes before each node, and of all nodes: as an `indptr`."""

    def __len__(self) -> int: ...

    def __getitem__(self, node: int) -> SupportsInt: ...


class RowSource(Protocol):
    """Gives rows of nodes, of which some lie on other machines; a `FeatureSource` is one."""

    def select(self, nodes: Tensor) -> LazyFeatures:
        """The rows of `nodes`, int64 `[n]`."""
        ...


Rows = Tensor | LazyFeatures | RowSource
"""The rows of all nodes, wherever they lie."""


class SummedOffsets:
    """The in-edges of several edge types together, as one `indptr` that is not stored.

    Args:
        edges: The edges of each type, into the same node type.
        num_nodes: Nodes of that type.
    """

    def __init__(self, edges: Sequence[Edges], num_nodes: int) -> None:
        self._offsets = [of_type.indptr for of_type in edges]
        self._num_nodes = num_nodes

    def __len__(self) -> int:
        return self._num_nodes + 1

    def __getitem__(self, node: int) -> int:
        return sum(int(offsets[node]) for offsets in self._offsets)


@dataclass(frozen=True, slots=True)
class ComputedNodes:
    """The nodes of one type that a rank computes, of those of a graph or of a part of it.

    Attributes:
        graph: The graph or part.
        first: The number of its first node of that type.
        nodes: The rank's.
        offsets: Of the in-edges of the graph's or part's nodes.
    """

    graph: Graph
    first: int
    nodes: range
    offsets: Offsets

    @property
    def rows(self) -> slice:
        """The nodes' rows in the arrays of `graph`."""
        return slice(self.nodes.start - self.first, self.nodes.stop - self.first)


class GraphAccess(ABC):
    """A graph as one rank reads it and computes some of its nodes.

    Args:
        graph: The graph.
        context: This rank.
        held: What this machine has of it: the graph, or parts of it, each with the number of its
            first node of each type.
        place, count: The nodes of each of these are divided among `count` ranks, of which this is
            the number `place`; it computes none if there are fewer.

    Attributes:
        graph, context: See above.
        schema: The types of the whole graph.
        nodes: By type, the nodes that the machine's matrices hold.
        features: The rows of all nodes of each type that has features, where the machine has them.
        is_partitioned: Whether other machines are asked for the rows of their nodes.
    """

    is_partitioned: ClassVar[bool]
    nodes: Mapping[NodeType, range]
    features: Mapping[NodeType, LazyFeatures]

    def __init__(
        self,
        graph: Graph,
        context: DistributedContext,
        held: Sequence[tuple[Graph, Mapping[NodeType, int]]],
        place: int,
        count: int,
    ) -> None:
        self.graph, self.context, self.schema = graph, context, graph.schema
        self._by_type: dict[NodeType, list[ComputedNodes]] = {t: [] for t in self.schema.num_nodes}
        for part, firsts in held:
            for t, first in firsts.items():
                edges = [part.edges[edge] for edge in self.schema.into(t)]
                offsets = SummedOffsets(edges, len(part.nodes[t]))
                a, b = balanced_range(offsets, place, count) if place < count else (0, 0)
                nodes = range(first + a, first + b)
                self._by_type[t].append(ComputedNodes(part, first, nodes, offsets))

    def begin(self, needs: BlockNeeds) -> None:  # noqa: B027  # most prepare nothing
        """Prepare for an inference of a model with these needs."""

    def end(self) -> None:  # noqa: B027
        """Forget the rows of an inference, which may have failed."""

    def chunks(
        self, node_type: NodeType, max_rows: int, max_edges: int
    ) -> Iterator[tuple[int, int]]:
        """This rank's nodes of a type, cut into ranges of bounded rows and edges."""
        for part in self._by_type[node_type]:
            rows = part.rows
            for a, b in chunks(part.offsets, rows.start, rows.stop, max_rows, max_edges):
                yield part.first + a, part.first + b

    def in_edges(self, edge_type: EdgeType, a: int, b: int, needs: BlockNeeds) -> Block:
        """The in-edges of one type of the nodes `a … b − 1`, on the device, over all nodes of the
        source type; with weights if they are needed, without norms."""
        part = next(part for part in self._by_type[edge_type[2]] if a in part.nodes)
        edges, first = part.graph.edges[edge_type], part.first
        weight = as_tensor(edges.weight) if needs.weight and edges.weight is not None else None
        num_src = self.schema.num_nodes[edge_type[0]]
        tensors = EdgeTensors(
            as_tensor(edges.indptr), as_tensor(edges.indices), num_src, weight=weight
        )
        block = tensors.in_edges(a - first, b - first)
        # The destinations are among the sources, or of another type.
        offset = a if edge_type[0] == edge_type[2] else 0
        return replace(block, dst_offset=offset).to(self.context.device)

    def computed(self, task: Task, outputs: Tensor) -> list[ComputedRows]:
        """This rank's outputs and targets, of the outputs of the machine's nodes."""
        found, start = [], self.nodes[self.schema.target].start
        for part in self._by_type[self.schema.target]:
            rows = outputs[part.nodes.start - start : part.nodes.stop - start]
            found.append(ComputedRows(part.nodes, rows, self._targets(task, part)))
        return found

    @abstractmethod
    def _targets(self, task: Task, part: ComputedNodes) -> Tensor: ...

    @abstractmethod
    def norm(self, nodes: Tensor | None) -> Tensor:
        """The normalisation of `nodes`, or of all, float32 on the device, see `Block.norm`."""

    @abstractmethod
    def learnt(self, node_type: NodeType, rows: LazyFeatures) -> LazyFeatures:
        """A model's rows of a type, in the graph's order of the nodes."""

    @abstractmethod
    def publish(
        self, node_type: NodeType, name: str, matrix: Tensor, buffers: SharedBuffers
    ) -> Rows:
        """Wait until all ranks have computed their rows of a matrix; the rows of all nodes.

        Raises:
            Interrupted: On all ranks, if any of them knows of a stop request.
        """

    def cached(self, node_type: NodeType, rows: Rows, buffers: SharedBuffers) -> Rows:
        """The same rows, quicker to read for many edges. Collective among the machine's ranks."""
        del node_type, buffers
        return rows

    def drop(self, name: str, buffers: SharedBuffers) -> None:  # noqa: B027
        """Forget rows that were published as `name`, once all ranks have met again."""


class WholeGraph(GraphAccess):
    """A graph that each machine has, in whole.

    The nodes of each type are divided among all ranks; after each matrix machines exchange their
    rows.

    Args:
        graph: The graph.
        context: This rank.
        all_ranks: Divide the nodes among all ranks, or let rank 0 compute alone.
        edges: Those of the only type on the device; None: the graph's.
    """

    is_partitioned = False

    def __init__(
        self,
        graph: Graph,
        context: DistributedContext,
        *,
        all_ranks: bool = True,
        edges: GraphTensors | None = None,
    ) -> None:
        count, whole = context.world_size if all_ranks else 1, dict.fromkeys(graph.nodes, 0)
        super().__init__(graph, context, [(graph, whole)], context.rank, count)
        # If rank 0 computes alone, nothing reads the rows on another machine.
        is_read = all_ranks or context.machine == 0
        self.nodes = {t: range(len(nodes) if is_read else 0) for t, nodes in graph.nodes.items()}
        self.features = {t: LazyFeatures(rows) for t, rows in stored_rows(graph).items()}
        self._ranges = {
            t: [balanced_range(part.offsets, rank, count) for rank in range(count)]
            for t, [part] in self._by_type.items()
        }
        self._edges_on_device = edges
        self._norm: Tensor | None = None

    def in_edges(self, edge_type: EdgeType, a: int, b: int, needs: BlockNeeds) -> Block:
        """See `GraphAccess.in_edges`."""
        edges, indptr = self._edges_on_device, self.graph.edges[edge_type].indptr
        if edges is None:
            return super().in_edges(edge_type, a, b, needs)
        block = edges.edges[edge_type].in_edges(a, b, (int(indptr[a]), int(indptr[b])))
        block = block.to(self.context.device, non_blocking=True)
        return block if needs.weight else replace(block, weight=None)

    def _targets(self, task: Task, part: ComputedNodes) -> Tensor:
        return task.targets[part.rows]

    def norm(self, nodes: Tensor | None) -> Tensor:
        """See `GraphAccess.norm`; moved to the device once."""
        if self._norm is None:
            self._norm = as_tensor(self.graph.gcn_norm).to(self.context.device)
        return self._norm if nodes is None else self._norm[nodes]

    def learnt(self, node_type: NodeType, rows: LazyFeatures) -> LazyFeatures:
        """See `GraphAccess.learnt`."""
        del node_type
        return rows

    def publish(
        self, node_type: NodeType, name: str, matrix: Tensor, buffers: SharedBuffers
    ) -> Tensor:
        """See `GraphAccess.publish`."""
        del name
        self.context.meet()
        buffers.sync(matrix, self._ranges[node_type])
        return matrix


@dataclass(frozen=True, slots=True)
class OwnedRows:
    """A layer's rows: this machine's in a matrix, those of other nodes with their owners.

    Attributes:
        own: The rows of the machine's nodes, float32.
        nodes: These nodes.
        name: Of the call that asks for rows.
        owners: Who holds which nodes.
        exchange: Asks them.
        cached_nodes: Nodes of other machines whose rows need not be asked for, ascending: int64
            `[n]`, one copy a machine. None: there are none.
        cached_rows: `[n, width]`, theirs.
    """

    own: Tensor
    nodes: range
    name: str
    owners: NodeOwners
    exchange: Caller
    cached_nodes: Int64Array | None = None
    cached_rows: Tensor | None = None

    def select(self, nodes: Tensor) -> LazyFeatures:
        """See `RowSource.select`."""
        wanted = nodes.cpu().numpy()
        out = torch.empty(len(wanted), self.own.shape[1])
        is_far = (wanted < self.nodes.start) | (wanted >= self.nodes.stop)
        local = np.flatnonzero(~is_far)
        out[local] = self.own[wanted[local] - self.nodes.start]
        if self.cached_nodes is not None and len(self.cached_nodes):
            assert self.cached_rows is not None
            # By bisection: a hash table would be made anew for each layer, and take memory.
            rows = np.searchsorted(self.cached_nodes, wanted).clip(max=len(self.cached_nodes) - 1)
            hits = np.flatnonzero(self.cached_nodes[rows] == wanted)
            out[hits] = self.cached_rows[rows[hits]]
            is_far[hits] = False
        far = np.flatnonzero(is_far)
        if len(far):
            out[far] = self.ask(wanted[far])
        return LazyFeatures(out)

    def ask(self, nodes: Int64Array) -> Tensor:
        """The rows of `nodes` as their owners answer."""
        return as_tensor(ask_rows(self.exchange, self.owners, self.name, nodes))


class OwnedParts(GraphAccess):
    """A graph in parts, of which each machine holds some.

    Of each layer a machine holds the rows of its own nodes, and of as many nodes of other machines:
    of each type those that most of its in-edges come from. It asks for the rest chunk by chunk.
    Nothing is as long as the graph.

    Args:
        graph: The graph; the machine's parts are open.
        context: This rank. The ranks of its machine divide the nodes of the machine's parts.
        owners: Who holds which nodes of each type: a machine those of its parts.
        exchange: Asks other machines, and answers them.

    Attributes:
        owners: See above.
    """

    is_partitioned = True

    def __init__(
        self,
        graph: PartitionedGraph,
        context: DistributedContext,
        owners: Mapping[NodeType, NodeOwners],
        exchange: Exchange,
    ) -> None:
        opened, ranks = graph.opened, context.machine_ranks
        held = [(part.graph, {t: of.start for t, of in part.ranges.items()}) for part in opened]
        super().__init__(graph, context, held, context.rank - ranks[0], len(ranks))
        self.nodes, self.features = graph.ranges, {}
        self.owners, self._exchange = owners, exchange
        self._originals = originals_of(graph)
        self._held = [part for part, _ in held]
        self._served: set[str] = set()
        self._dropped: set[str] = set()
        self._caches: dict[str, Tensor] = {}
        self._cached_nodes: dict[NodeType, Int64Array] = {}

    def begin(self, needs: BlockNeeds) -> None:
        """See `GraphAccess.begin`."""
        if needs.norm:
            self._serve(_NORM, [part.gcn_norm for part in self._held])

    def end(self) -> None:
        """See `GraphAccess.end`."""
        self._withdraw(self._served)
        self._dropped.clear()
        self._caches.clear()

    def _targets(self, task: Task, part: ComputedNodes) -> Tensor:
        del task
        return as_tensor(part.graph.labels)[part.rows]

    def norm(self, nodes: Tensor | None) -> Tensor:
        """See `GraphAccess.norm`."""
        assert nodes is not None, "no machine holds the norms of all nodes"
        owners = self.owners[self.schema.target]
        norm = ask_rows(self._exchange, owners, _NORM, nodes.cpu().numpy())
        return as_tensor(norm).to(self.context.device)

    def learnt(self, node_type: NodeType, rows: LazyFeatures) -> LazyFeatures:
        """See `GraphAccess.learnt`."""
        original = self._originals.get(node_type)
        return rows if original is None else rows.select(original)

    def publish(
        self, node_type: NodeType, name: str, matrix: Tensor, buffers: SharedBuffers
    ) -> OwnedRows:
        """See `GraphAccess.publish`."""
        del buffers
        self.context.meet()
        self._withdraw(self._dropped)  # all have read the rows that were dropped before
        self._dropped.clear()
        call = _call(name)
        self._serve(call, [matrix.numpy()])
        owners = self.owners[node_type]
        return OwnedRows(matrix, self.nodes[node_type], call, owners, self._exchange)

    def cached(self, node_type: NodeType, rows: Rows, buffers: SharedBuffers) -> Rows:
        """See `GraphAccess.cached`: each of the machine's ranks asks for a part of those rows."""
        if not isinstance(rows, OwnedRows):
            return rows
        if rows.name not in self._caches:
            nodes, width, context = self.cached_nodes(node_type), rows.own.shape[1], self.context
            matrix = buffers.matrix(f"cached {rows.name}", len(nodes), width)
            ranks = context.machine_ranks
            part = rank_range(len(nodes), context.rank - ranks[0], len(ranks))
            step = most_gathered(width)
            for start in range(part.start, part.stop, step):
                some = slice(start, min(start + step, part.stop))
                matrix[some] = rows.ask(nodes[some])
            context.machine_barrier()
            self._caches[rows.name] = matrix
        cached = self._caches[rows.name]
        return replace(rows, cached_nodes=self.cached_nodes(node_type), cached_rows=cached)

    def cached_nodes(self, node_type: NodeType) -> Int64Array:
        """The nodes of other machines that most in-edges of this machine's nodes come from, as many
        as it has itself; int64, ascending. Collective among its ranks."""
        if node_type not in self._cached_nodes:
            sources = [
                edges.indices[
                    int(edges.indptr[part.rows.start]) : int(edges.indptr[part.rows.stop])
                ]
                for edge in self.schema.edge_types
                if edge[0] == node_type
                for part in self._by_type[edge[2]]
                for edges in [part.graph.edges[edge]]
            ]
            own, num_nodes = self.nodes[node_type], self.schema.num_nodes[node_type]
            nodes, num_edges = np.empty((2, 0), np.int64)
            for start in range(0, num_nodes, _COUNTED_AT_ONCE):
                stop = min(start + _COUNTED_AT_ONCE, num_nodes)
                # The edges from each node of a range, counted in some edges at a time.
                of_rank = np.zeros(stop - start, np.int64)
                for array in sources:
                    for first in range(0, len(array), _COUNTED_AT_ONCE):
                        some = array[first : first + _COUNTED_AT_ONCE]
                        some = some[(some >= start) & (some < stop)] - start
                        of_rank += np.bincount(some, minlength=len(of_rank))
                local = as_tensor(of_rank).to(self.context.device)
                counts = self.context.machine_sum(local).cpu().numpy()
                counts[max(0, own.start - start) : max(0, own.stop - start)] = 0
                read = np.flatnonzero(counts)
                nodes, num_edges = (
                    np.append(nodes, read + start),
                    np.append(num_edges, counts[read]),
                )
                if stop == num_nodes or len(nodes) > 2 * len(own):
                    kept = most_read(num_edges, len(own))
                    nodes, num_edges = nodes[kept], num_edges[kept]
            self._cached_nodes[node_type] = nodes
        return self._cached_nodes[node_type]

    def drop(self, name: str, buffers: SharedBuffers) -> None:
        """See `GraphAccess.drop`."""
        call = _call(name)
        if self._caches.pop(call, None) is not None:
            buffers.release(f"cached {call}")
        if call in self._served:
            self._dropped.add(call)

    def _serve(self, call: str, rows: Sequence[AnyArray]) -> None:
        """Answer other machines that ask for rows of this one's nodes, given one array a part, or
        one of all."""
        if self._held:
            self._exchange.serve(call, answers_of(rows))
            self._served.add(call)

    def _withdraw(self, calls: set[str]) -> None:
        for call in calls:
            self._exchange.withdraw(call)
        self._served -= calls


def _call(name: str) -> str:
    return f"evaluation/{name}"


def most_gathered(widest: int) -> int:
    """The most rows of this width that a chunk may gather, and so the most edges that it has."""
    return max(1, _MAX_GATHERED_NUMBERS // widest)


def balanced_range(offsets: Offsets, rank: int, world_size: int) -> tuple[int, int]:
    """The contiguous nodes that `rank` computes, so that all ranks have equal work.

    A node's work is taken as its in-edges plus a constant for its own row.
    """
    num_nodes = len(offsets) - 1
    total = int(offsets[num_nodes]) + ROW_COST * num_nodes

    def boundary(part: int) -> int:
        wanted = total * part // world_size
        key = lambda node: int(offsets[node]) + ROW_COST * node  # noqa: E731
        return bisect_left(range(num_nodes + 1), wanted, key=key)

    return boundary(rank), boundary(rank + 1)


def chunks(
    offsets: Offsets, start: int, stop: int, max_rows: int, max_edges: int
) -> Iterator[tuple[int, int]]:
    """Cut the nodes `start … stop − 1` into ranges of bounded rows and edges, one node at least."""
    while start < stop:
        limit = int(offsets[start]) + max_edges
        key = lambda node: int(offsets[node])  # noqa: E731
        end = bisect_right(range(stop + 1), limit, lo=start + 1, key=key) - 1
        end = min(max(end, start + 1), start + max_rows)
        yield start, end
        start = end
