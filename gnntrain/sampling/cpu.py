"""Neighbour sampling on the CPU, compiled by Numba."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from gnntrain.data.graph import EdgeType, FusedCSC, NodeType
from gnntrain.errors import RunError, UserError
from gnntrain.sampling.base import (
    FanOuts,
    FanOutScope,
    Int32Array,
    Int64Array,
    SampleKey,
    Sampler,
    Seeds,
)
from gnntrain.sampling.block import Block, Hop, Sample
from gnntrain.sampling.kernels import (
    CHUNK_EDGES,
    SCAN_LIMIT,
    IndexArray,
    count_edges,
    draw_by_node,
    draw_hop,
    hop_key,
    number_sources,
    register_seeds,
)

MAX_BATCH_NODES = 2**30
MAX_DEGREE = 2**32 - 1
MAX_HOP_EDGES = 2**31 - 1  # the limit of a block's int32 offsets
NOT_WANTED: Int64Array = np.empty(0, np.int64)

_Value = TypeVar("_Value")


class CPUSampler(Sampler):
    """Draws in-neighbours uniformly, each edge type by its own fan-out, in compiled code that
    releases the GIL.

    At each hop all nodes found so far draw again, each by its own key (see `kernels`): the result
    depends on neither threads nor ranks nor the other nodes of the batch. `sample` may be called
    from several threads at once; each call in flight holds a scratch array of one int32 for every
    node of the graph, kept for the next call.

    Args:
        edges, fan_outs, scope, replace, edge_ids: See `Sampler`. The arrays may be
            read-only memory maps; they are not copied.

    Raises:
        UserError: The arrays are no CSC, a fan-out is neither −1 nor at least 1, or edge types
            that share a fan-out have different ones.
    """

    def __init__(
        self,
        edges: FusedCSC,
        fan_outs: FanOuts,
        *,
        scope: FanOutScope = "relation",
        replace: bool = False,
        edge_ids: bool = False,
    ) -> None:
        self._edges = InEdges(edges)
        self._sizes: Int64Array = np.array([*edges.num_nodes.values()], np.int64)
        self._fan_outs = fan_outs_by_hop(edges.edge_types, fan_outs, scope)
        self._scope = scope
        self._replace = replace
        self._edge_ids = edge_ids
        self._idle: deque[_Scratch] = deque()

    def sample(self, seeds: Seeds, key: SampleKey) -> Sample:
        """Draw the neighbourhood of `seeds`.

        Args:
            seeds: A repeated seed keeps its positions, each with its own (equal) in-edges; edges
                from it start at its first position.
            key: Key of the draw. Equal keys give equal in-neighbours for any seeds.

        Raises:
            UserError: A seed is not a node of its type.
            RunError: The batch has more than 2^30 nodes of a type, or a hop 2^31 edges or more.
        """
        own = [np.empty(0, np.int64)] * len(self._sizes)
        for name, of_type in seeds.nodes.items():
            number = self._edges.node_types.index(name)
            own[number] = checked_seeds(of_type.numpy(), int(self._sizes[number]))
        try:
            scratch = self._idle.pop()
        except IndexError:
            scratch = _Scratch(self._sizes, self._edges.indices.dtype)
        scratch.start_batch(own)
        hops = [
            self._draw_hop(scratch, fan_outs, numba_hop_key(key, hop))
            for hop, fan_outs in enumerate(self._fan_outs)
        ]
        nodes = self._by_type(map(torch.from_numpy, scratch.finish_batch()))
        # Not reached after an error, when the scratch may hold numbers of half a batch.
        self._idle.append(scratch)
        return Sample(nodes, num_seeds_of(seeds), tuple(reversed(hops)))

    def _draw_hop(self, scratch: _Scratch, fan_outs: Int64Array, key: np.uint64) -> Hop:
        """The in-edges of all nodes known so far."""
        # Types are few: their sizes are added up in Python, which is quicker than NumPy's calls.
        edges, replace = self._edges, self._replace
        known_before: list[int] = scratch.num_nodes.tolist()
        limits: list[int] = fan_outs.tolist()
        drawn = edges.destinations(scratch.nodes, scratch.room, known_before, scratch)
        shares = self._scope == "node"
        if shares:
            ids = edges.draw_by_node(drawn, drawn.nodes, fan_outs, key, replace, scratch)
        else:
            most = edges.count(drawn, fan_outs, replace)
        num_edges = drawn.num_edges
        cuts = [0, *accumulate(num_edges)]
        check_hop_edges(cuts[-1])  # before there are buffers for them
        if not shares:
            scratch.reserve_edges(most, min(most, max(limits, default=0)))
        scratch.reserve_sources(known_before, num_edges, edges.sources)
        first_drawn = np.array(cuts)
        indices = np.empty(cuts[-1], np.int32)
        numbering = scratch.local, scratch.first_node, scratch.base
        known = scratch.nodes, scratch.room, scratch.num_nodes
        if shares:
            number_sources(
                edges.indices,
                edges.first_edge,
                edges.ends,
                first_drawn,
                ids,
                scratch.sources,
                *numbering,
                *known,
                indices,
            )
        else:
            ids = np.empty(cuts[-1], np.int64) if self._edge_ids else NOT_WANTED
            draw_hop(
                edges.indices,
                edges.first_edge,
                edges.ends,
                key,
                fan_outs,
                replace,
                drawn.rows,
                drawn.starts,
                drawn.degrees,
                drawn.offsets,
                first_drawn,
                scratch.positions,
                scratch.sources,
                scratch.table,
                *numbering,
                *known,
                indices,
                ids,
            )
        num_src = self._by_type(scratch.num_nodes.tolist())
        # Offsets are of the indices' type, as torch's CSR requires. Blocks are views, cut by NumPy,
        # which is quicker than torch's slicing.
        indptr = drawn.offsets.astype(np.int32)
        rows: list[int] = drawn.rows.tolist()
        blocks = {}
        for r, edge_type in enumerate(edges.edge_types):
            own = slice(cuts[r], cuts[r + 1])
            blocks[edge_type] = Block(
                torch.from_numpy(indptr[rows[r] : rows[r + 1]]),
                torch.from_numpy(indices[own]),
                num_src[edge_type[0]],
                edge_ids=torch.from_numpy(ids[own]) if self._edge_ids else None,
                max_in_edges=limits[r] if limits[r] >= 0 else None,
            )
        return Hop(blocks, self._by_type(known_before), num_src)

    def _by_type(self, values: Iterable[_Value]) -> dict[NodeType, _Value]:
        return dict(zip(self._edges.node_types, values, strict=True))


def num_seeds_of(seeds: Seeds) -> dict[NodeType, int]:
    """See `Sample.num_seeds`."""
    return {name: len(nodes) for name, nodes in seeds.nodes.items()}


class HopBuffers:
    """Buffers for the draws of a hop, reused by later hops.

    Args:
        index_dtype: Of the graph's `indices`.

    Attributes:
        positions, sources: Of the drawn edges of one chunk, or of one larger destination.
        table: Of the positions that one destination has drawn.
    """

    def __init__(self, index_dtype: np.dtype[np.integer]) -> None:
        self.positions: Int64Array = np.empty(CHUNK_EDGES, np.int64)
        self.sources: IndexArray = np.empty(CHUNK_EDGES, index_dtype)
        self.table: Int64Array = np.empty(0, np.int64)
        self._destinations: Int64Array = np.empty((2, 0), np.int64)

    def destination_buffers(self, num_dst: int) -> tuple[Int64Array, Int64Array]:
        """Buffers for the first in-edges and the degrees of destinations."""
        if self._destinations.shape[1] < num_dst:
            self._destinations = np.empty((2, _roomy(num_dst)), np.int64)
        return self._destinations[0, :num_dst], self._destinations[1, :num_dst]

    def reserve_edges(self, most: int, fan_out: int) -> None:
        """Make room for destinations that take `most` edges, and draw at most `fan_out`."""
        if most > len(self.positions):
            self.positions = np.empty(_roomy(most), np.int64)
            self.sources = np.empty(len(self.positions), self.sources.dtype)
        if SCAN_LIMIT < fan_out <= most and len(self.table) < 4 * fan_out:
            self.table = np.empty(4 * fan_out, np.int64)


class _Scratch(HopBuffers):
    """Buffers of one call in flight, reused by later calls.

    `local[first_node[type] + node] - base` is the number of a node in the present batch, negative
    if it has none. Every batch starts with a base above all numbers written before, so nothing is
    ever cleared (but once in some ten thousand batches, before the base leaves int32).

    Args:
        sizes: int64 `[T]`, number of nodes of each type.
        index_dtype: Of the graph's `indices`.

    Attributes:
        local, first_node, base, nodes, room, num_nodes: See `kernels.draw_hop`.
    """

    def __init__(self, sizes: Int64Array, index_dtype: np.dtype[np.integer]) -> None:
        super().__init__(index_dtype)
        self._sizes: list[int] = sizes.tolist()
        self._capacity = [0] * len(sizes)
        self.first_node = starts_of(sizes)
        self.local: Int32Array = np.zeros(self.first_node[-1], np.int32)
        self.base = 1
        self.nodes: Int64Array = np.empty(0, np.int64)
        self.room: Int64Array = np.zeros(len(sizes) + 1, np.int64)
        self.num_nodes = np.zeros_like(sizes)

    def start_batch(self, seeds: Sequence[Int64Array]) -> None:
        """Begin a batch with these seeds of each type."""
        if self.base > MAX_BATCH_NODES:
            self.local.fill(0)
            self.base = 1
        self.num_nodes[:] = 0
        num_seeds = list(map(len, seeds))
        self._reserve_nodes([number + 1 for number in num_seeds])
        for number, nodes in enumerate(seeds):
            if len(nodes) > 0:
                local = self.local[self.first_node[number] :]
                register_seeds(nodes, self.nodes[self.room[number] :], local, self.base)
        self.num_nodes[:] = num_seeds

    def finish_batch(self) -> list[Int64Array]:
        """The batch's nodes of each type, in arrays of their own."""
        nodes = [of_type.copy() for of_type in self._known()]
        self.base += max(map(len, nodes), default=0)
        return nodes

    def reserve_sources(
        self, num_known: Sequence[int], num_edges: Sequence[int], sources: Sequence[int]
    ) -> None:
        """Make room for the new nodes of a hop.

        Args:
            num_known: Known nodes of each type.
            num_edges: Drawn edges of each edge type.
            sources: The source type of each edge type.
        """
        num_new = [0] * len(num_known)
        for number, of_type in zip(num_edges, sources, strict=True):
            num_new[of_type] += number
        sizes = zip(num_known, num_new, self._sizes, strict=True)
        self._reserve_nodes([known + min(new, size) + 1 for known, new, size in sizes])

    def _reserve_nodes(self, needed: Sequence[int]) -> None:
        check_batch_nodes(max(needed, default=1) - 1)
        if any(number > own for number, own in zip(needed, self._capacity, strict=True)):
            known = self._known()
            self._capacity = [
                _roomy(number) if number > own else own
                for number, own in zip(needed, self._capacity, strict=True)
            ]
            self.room = np.array([0, *accumulate(self._capacity)])
            self.nodes = np.empty(self.room[-1], np.int64)
            for first, nodes in zip(self.room[:-1], known, strict=True):
                self.nodes[first : first + len(nodes)] = nodes

    def _known(self) -> list[Int64Array]:
        numbers = zip(self.room[:-1].tolist(), self.num_nodes.tolist(), strict=True)
        return [self.nodes[first : first + count] for first, count in numbers]


@dataclass(frozen=True)
class Destinations:
    """The destinations of one hop, see `kernels.draw_hop`.

    Attributes:
        nodes, room: The destinations of each type.
        rows, starts, degrees, offsets: Of the destinations of each edge type.
    """

    nodes: Int64Array
    room: Int64Array
    rows: Int64Array
    starts: Int64Array
    degrees: Int64Array
    offsets: Int64Array

    @property
    def num_edges(self) -> list[int]:
        """Drawn edges of each edge type."""
        return [int(self.offsets[stop - 1]) for stop in self.rows[1:].tolist()]


class InEdges:
    """The in-edges of all types, as the kernels take them.

    Args:
        edges: The edges; not copied.

    Attributes:
        node_types, edge_types: The types, numbered by their places here.
        indptr, first_offset, indices, first_edge: See `FusedCSC`; read-only.
        ends: int64 `[2, R]`, see `kernels.draw_hop`.
        sources: The source type of each edge type, as in `ends`.

    Raises:
        UserError: What an edge type has is no CSC, see `read_only_csc`.
    """

    def __init__(self, edges: FusedCSC) -> None:
        for number in range(len(edges.edge_types)):
            read_only_csc(*edges.part(number))
        self.node_types: tuple[NodeType, ...] = tuple(edges.num_nodes)
        self.edge_types = edges.edge_types
        self.indptr: Int64Array = read_only(edges.indptr, np.int64)
        self.indices: IndexArray = read_only(edges.indices)
        self.first_offset = edges.first_offset
        self.first_edge = edges.first_edge
        self.ends: Int64Array = np.array(
            [[self.node_types.index(edge[end]) for edge in edges.edge_types] for end in (0, 2)],
            np.int64,
        )
        self.sources: list[int] = self.ends[0].tolist()
        self._destinations: list[int] = self.ends[1].tolist()
        self._into: Int64Array = np.argsort(self.ends[1], kind="stable")
        types = np.arange(len(self.node_types) + 1)
        self._first_into: Int64Array = np.searchsorted(self.ends[1][self._into], types)

    def destinations(
        self, nodes: Int64Array, room: Int64Array, num_dst: Sequence[int], buffers: HopBuffers
    ) -> Destinations:
        """The destinations of a hop, nothing of them known yet.

        Args:
            nodes, room: See `Destinations`.
            num_dst: Number of destinations of each node type.
            buffers: Has the arrays that only this hop needs.
        """
        cuts = [0, *accumulate(num_dst[of_type] + 1 for of_type in self._destinations)]
        starts, degrees = buffers.destination_buffers(cuts[-1])
        offsets = np.zeros(cuts[-1], np.int64)
        return Destinations(nodes, room, np.array(cuts), starts, degrees, offsets)

    def count(self, hop: Destinations, fan_outs: Int64Array, replace: bool) -> int:
        """Fill the hop's arrays; the most edges of a type that one destination takes.

        Args:
            hop: The destinations.
            fan_outs: int64 `[R]`.
            replace: Draw with replacement.
        """
        return count_edges(
            self.indptr,
            self.first_offset,
            self.ends,
            hop.nodes,
            hop.room,
            fan_outs,
            replace,
            hop.rows,
            hop.starts,
            hop.degrees,
            hop.offsets,
        )

    def draw_by_node(
        self,
        hop: Destinations,
        ids: Int64Array,
        fan_outs: Int64Array,
        key: np.uint64,
        replace: bool,
        buffers: HopBuffers,
    ) -> Int64Array:
        """Draw in-edges where all edge types into a node share a fan-out; fill the hop's arrays.

        Args:
            hop: The destinations.
            ids: Their ids for the keys, at the places of `hop.nodes`.
            fan_outs: int64 `[R]`.
            key: Of the hop.
            replace: Draw with replacement.
            buffers: See `destinations`.

        Returns:
            int64: the positions of the drawn edges among those of their type, type by type; there
            may be room for more.
        """
        self.count(hop, np.full_like(fan_outs, -1), False)
        degrees = np.zeros(len(self.node_types), np.int64)
        np.add.at(degrees, self.ends[1], hop.num_edges)
        of_types = np.full_like(degrees, -1)
        of_types[self.ends[1]] = fan_outs
        num_dst = np.zeros_like(degrees)
        num_dst[self.ends[1]] = np.diff(hop.rows) - 1
        draws = np.where(of_types < 0, degrees, num_dst * of_types)
        if not replace:
            draws = np.minimum(draws, degrees)
        most = int(min(of_types.max(), draws.max()))
        buffers.reserve_edges(most, most)
        drawn: Int64Array = np.empty(draws.sum(), np.int64)
        positions = np.empty_like(drawn)
        hop.offsets[:] = 0
        draw_by_node(
            self._first_into,
            self._into,
            key,
            of_types,
            replace,
            ids,
            hop.room,
            hop.rows,
            hop.starts,
            hop.degrees,
            buffers.table,
            hop.offsets,
            drawn,
            positions,
        )
        return positions


def starts_of(lengths: npt.NDArray[np.integer]) -> Int64Array:
    """Where segments of these lengths begin that lie one after the other, and the end."""
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def fan_outs_by_hop(
    edge_types: Sequence[EdgeType], fan_outs: FanOuts, scope: FanOutScope
) -> list[Int64Array]:
    """For each hop the fan-outs of the edge types, int64 `[R]`.

    Raises:
        UserError: A fan-out is neither −1 nor at least 1; or edge types that share one have
            different ones.
    """
    checked = {edge_type: checked_fan_outs(fan_outs[edge_type]) for edge_type in edge_types}
    shared: dict[NodeType, tuple[int, ...]] = {}
    for edge_type, own in checked.items():
        of_type = shared.setdefault(edge_type[2], own)
        if scope == "node" and own != of_type:
            raise UserError(
                f"{'/'.join(edge_type)} has fan-outs {list(own)}, and another edge type into "
                f"{edge_type[2]} has {list(of_type)}",
                "With scope 'node' all edge types into a node type share their fan-outs.",
            )
    return [np.array(hop, np.int64) for hop in zip(*checked.values(), strict=True)]


def check_batch_nodes(num_nodes: int) -> None:
    """Raises RunError if a batch may have more nodes than a scratch can number."""
    if num_nodes >= MAX_BATCH_NODES:
        raise RunError(
            f"a mini-batch may grow to {num_nodes:,} nodes, beyond the limit of 2^30",
            "Lower the batch size or the fan-outs.",
        )


def check_hop_edges(num_edges: int) -> None:
    """Raises RunError if a hop has more edges than int32 offsets can address."""
    if num_edges > MAX_HOP_EDGES:
        raise RunError(
            f"a hop of a mini-batch has {num_edges:,} edges, beyond the limit of 2^31 - 1",
            "Lower the batch size or the fan-outs.",
        )


def _roomy(length: int) -> int:
    """A quarter more than needed, so that a buffer grows a few times only."""
    return length + length // 4


def numba_hop_key(key: SampleKey, hop: int) -> np.uint64:
    """See `kernels.hop_key`; the parts of `key` are taken modulo 2^64."""
    hop = 0 if key.by_node else hop
    parts = (np.uint64(int(part) % 2**64) for part in (key.seed, key.epoch, key.step, hop))
    return np.uint64(hop_key(*parts))


def read_only_csc(
    indptr: npt.NDArray[np.integer], indices: npt.NDArray[np.integer]
) -> tuple[Int64Array, IndexArray]:
    """Plain read-only views of a CSC (of one type, so that one compiled version serves all).

    Raises:
        UserError: Wrong dtype or shape, or `indptr` does not span `indices`.
    """
    if indptr.ndim != 1 or indices.ndim != 1 or indices.dtype not in (np.int32, np.int64):
        raise UserError(
            f"the graph's indptr is {indptr.dtype} of shape {indptr.shape}, "
            f"its indices are {indices.dtype} of shape {indices.shape}",
            "Give indptr as int64 [num_nodes + 1] and indices as int32 or int64 [num_edges].",
        )
    offsets, sources = read_only(indptr, np.int64), read_only(indices)
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(sources):
        ends = f"from {offsets[0]} to {offsets[-1]}" if len(offsets) else "over nothing"
        raise UserError(
            f"the graph's indptr runs {ends}, but there are {len(sources)} edges",
            "It must start at 0 and end at the number of edges.",
        )
    if len(sources) > MAX_DEGREE and int(np.diff(offsets).max()) > MAX_DEGREE:
        raise UserError("a node has 2^32 in-edges or more", "Split the node or drop edges.")
    return offsets, sources


def read_only(values: npt.NDArray[Any], dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """A plain read-only view, of a memory map too; a copy where the dtype or the layout differs."""
    view = np.ascontiguousarray(np.asarray(values), dtype).view()
    view.flags.writeable = False
    return view


def checked_fan_outs(fan_outs: Sequence[int]) -> tuple[int, ...]:
    wrong = [fan_out for fan_out in fan_outs if fan_out < 1 and fan_out != -1]
    if wrong:
        raise UserError(
            f"fan-outs {list(fan_outs)} contain {wrong[0]}",
            "Each must be at least 1, or -1 for all in-neighbours.",
        )
    return tuple(int(fan_out) for fan_out in fan_outs)


def checked_seeds(seeds: npt.NDArray[np.integer], num_nodes: int) -> Int64Array:
    """The seeds as contiguous int64.

    Raises:
        UserError: Not one-dimensional integers, or some are not nodes of the graph.
    """
    if seeds.ndim != 1 or not np.issubdtype(seeds.dtype, np.integer):
        raise UserError(
            f"seeds are {seeds.dtype} of shape {seeds.shape}",
            "Give node ids as a one-dimensional array of integers.",
        )
    nodes = np.ascontiguousarray(seeds, np.int64)
    if len(nodes) > 0 and (nodes.min() < 0 or nodes.max() >= num_nodes):
        wrong = nodes[(nodes < 0) | (nodes >= num_nodes)]
        shown = ", ".join(map(str, wrong[:5])) + (", …" if len(wrong) > 5 else "")
        raise UserError(
            f"{len(wrong)} of {len(seeds)} seeds are not nodes of the graph: {shown}",
            f"Node ids run from 0 to {num_nodes - 1}.",
        )
    return nodes
