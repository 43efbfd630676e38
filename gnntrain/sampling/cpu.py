"""Neighbour sampling on the CPU, compiled by Numba."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from gnntrain.data.graph import EdgeType, FusedCSC, Int64Array, NodeType
from gnntrain.errors import RunError, UserError
from gnntrain.sampling.base import FanOuts, FanOutScope, SampleKey, Sampler, Seeds
from gnntrain.sampling.block import Block, Hop, Sample
from gnntrain.sampling.kernels import (
    HopEdges,
    HopOptions,
    InEdges,
    Numbers,
    count_edges,
    draw_by_node,
    draw_hop,
    hop_key,
    register_seeds,
)

MAX_BATCH_NODES = 2**30
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
        self._edges = in_edges_of(edges)
        self._num_nodes = edges.num_nodes
        self._edge_types = edges.edge_types
        self._fan_outs = fan_outs_by_hop(edges.edge_types, fan_outs)
        self._options = scope == "node", replace
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
        nodes = checked_seeds(seeds, self._num_nodes)
        try:
            scratch = self._idle.pop()
        except IndexError:
            scratch = _Scratch([*self._num_nodes.values()])
        scratch.start_batch([*nodes.values()])
        hops = []
        for hop, fan_outs in enumerate(self._fan_outs):
            options = HopOptions(numba_hop_key(key, hop), fan_outs, *self._options)
            hops.append(self._draw_hop(scratch, options))
        found = self._by_type(torch.from_numpy(of_type.copy()) for of_type in scratch.known())
        # Not reached after an error, when the scratch may hold numbers of half a batch.
        self._idle.append(scratch)
        return Sample(found, num_seeds_of(seeds), tuple(reversed(hops)))

    def _draw_hop(self, scratch: _Scratch, options: HopOptions) -> Hop:
        """The in-edges of all nodes known so far."""
        # Types are few: their sizes are added up in Python, which is quicker than NumPy's calls.
        edges = self._edges
        nodes, room, num_nodes = scratch.numbers[3:]
        num_dst = num_nodes.tolist()
        rows = rows_of(edges, num_dst)
        hop = HopEdges(nodes, room, rows, *scratch.entries(rows[-1]))
        count_edges(edges, options, hop, nodes)
        edge_ids = draw_by_node(edges, options, hop) if options.shares else NOT_WANTED
        num_new, cuts = [0] * len(num_dst), [0]
        num_edges = hop.offsets[hop.rows[1:] - 1].tolist()
        for source, number in zip(edges.ends[0].tolist(), num_edges, strict=True):
            num_new[source] += number
            cuts.append(cuts[-1] + number)
        check_hop_edges(cuts[-1])  # before there are buffers for them
        scratch.reserve([*map(min, num_new, self._num_nodes.values())])
        indices = np.empty(cuts[-1], np.int32)
        if self._edge_ids and not options.shares:
            edge_ids = np.empty(cuts[-1], np.int64)
        draw_hop(edges, options, hop, scratch.numbers, indices, edge_ids)
        num_src = self._by_type(num_nodes.tolist())
        # Offsets are of the indices' type, as torch's CSR requires. Blocks are views, cut by NumPy,
        # which is quicker than torch's slicing.
        indptr = hop.offsets.astype(np.int32)
        bounds: list[int] = rows.tolist()
        fan_outs: list[int] = options.fan_outs.tolist()
        blocks = {}
        for r, edge_type in enumerate(self._edge_types):
            own = slice(cuts[r], cuts[r + 1])
            blocks[edge_type] = Block(
                torch.from_numpy(indptr[bounds[r] : bounds[r + 1]]),
                torch.from_numpy(indices[own]),
                num_src[edge_type[0]],
                edge_ids=torch.from_numpy(edge_ids[own]) if self._edge_ids else None,
                max_in_edges=fan_outs[r] if fan_outs[r] >= 0 else None,
            )
        return Hop(blocks, self._by_type(num_dst), num_src)

    def _by_type(self, values: Iterable[_Value]) -> dict[NodeType, _Value]:
        return dict(zip(self._num_nodes, values, strict=True))


class _Scratch:
    """The numbers of one call in flight, in arrays that later calls use again.

    Every batch starts with a base above all numbers written before, so nothing is ever cleared (but
    once in some ten thousand batches, before the base leaves int32).
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        first_node, num_nodes = starts_of(sizes), np.zeros(len(sizes), np.int64)
        local, room = np.zeros(first_node[-1], np.int32), np.zeros_like(first_node)
        self.numbers = Numbers(local, first_node, 1, np.empty(0, np.int64), room, num_nodes)
        self._entries: Int64Array = np.empty((3, 0), np.int64)

    def start_batch(self, seeds: Sequence[Int64Array]) -> None:
        """Begin a batch with these seeds of each type."""
        local, first_node, base, _, _, num_nodes = self.numbers
        base += int(num_nodes.max(initial=0))
        if base > MAX_BATCH_NODES:
            local.fill(0)
            base = 1
        num_nodes[:] = 0
        self.numbers = self.numbers._replace(base=base)
        self.reserve([*map(len, seeds)])
        nodes, room = self.numbers.nodes, self.numbers.room
        for number, own in enumerate(seeds):
            register_seeds(own, nodes[room[number] :], local[first_node[number] :], base)
            num_nodes[number] = len(own)

    def reserve(self, num_new: Sequence[int]) -> None:
        """Make room for so many new nodes of each type."""
        known = self.known()
        needed = [len(nodes) + number + 1 for nodes, number in zip(known, num_new, strict=True)]
        check_batch_nodes(max(needed, default=1) - 1)
        capacity = [end - begin for begin, end in pairwise(self.numbers.room.tolist())]
        if any(more > own for more, own in zip(needed, capacity, strict=True)):
            # A quarter more than needed, so that they grow a few times only.
            sizes = zip(needed, capacity, strict=True)
            room = starts_of([n + n // 4 if n > own else own for n, own in sizes])
            larger = np.empty(room[-1], np.int64)
            for first, nodes in zip(room[:-1].tolist(), known, strict=True):
                larger[first : first + len(nodes)] = nodes
            self.numbers = self.numbers._replace(nodes=larger, room=room)

    def entries(self, length: int) -> Int64Array:
        """`[3, length]`, for a hop's starts, degrees and offsets. Pages that are new in each hop
        would take a tenth of its time."""
        if self._entries.shape[1] < length:
            self._entries = np.empty((3, length + length // 4), np.int64)
        return self._entries[:, :length]

    def known(self) -> list[Int64Array]:
        """The batch's nodes of each type, as views."""
        nodes, room, num_nodes = self.numbers[3:]
        places = zip(room[:-1].tolist(), num_nodes.tolist(), strict=True)
        return [nodes[first : first + count] for first, count in places]


def in_edges_of(edges: FusedCSC) -> InEdges:
    """The edges as the kernels take them, not copied."""
    types = list(edges.num_nodes)
    ends = [[types.index(name[end]) for name in edges.edge_types] for end in (0, 2)]
    arrays = edges.first_offset, read_only(edges.indices), edges.first_edge
    return InEdges(read_only(edges.indptr), *arrays, np.array(ends, np.int64))


def rows_of(edges: InEdges, num_dst: Sequence[int]) -> Int64Array:
    """`kernels.HopEdges.rows` for so many destinations of each node type."""
    return starts_of([num_dst[of_type] + 1 for of_type in edges.ends[1].tolist()])


def num_seeds_of(seeds: Seeds) -> dict[NodeType, int]:
    """See `Sample.num_seeds`."""
    return {name: len(nodes) for name, nodes in seeds.nodes.items()}


def starts_of(lengths: Sequence[int] | npt.NDArray[np.integer]) -> Int64Array:
    """Where segments of these lengths begin that lie one after the other, and the end."""
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def fan_outs_by_hop(edge_types: Sequence[EdgeType], fan_outs: FanOuts) -> list[Int64Array]:
    """For each hop the fan-outs of the edge types, int64 `[R]`."""
    by_type = (fan_outs[edge_type] for edge_type in edge_types)
    return [np.array(hop, np.int64) for hop in zip(*by_type, strict=True)]


def check_batch_nodes(num_nodes: int) -> None:
    """Raises RunError if a batch may have more nodes than a scratch can number."""
    if num_nodes > MAX_BATCH_NODES:
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


def numba_hop_key(key: SampleKey, hop: int) -> np.uint64:
    """See `kernels.hop_key`; the parts of `key` are taken modulo 2^64."""
    hop = 0 if key.by_node else hop
    parts = (np.uint64(int(part) % 2**64) for part in (key.seed, key.epoch, key.step, hop))
    return np.uint64(hop_key(*parts))


def read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A plain read-only view, of a memory map too, so that one compiled version serves all."""
    view = np.ascontiguousarray(values).view(np.ndarray)
    view.flags.writeable = False
    return view


def checked_seeds(seeds: Seeds, num_nodes: Mapping[NodeType, int]) -> dict[NodeType, Int64Array]:
    """The seeds of each type as contiguous int64, in host memory.

    Raises:
        UserError: Some are not nodes of the graph.
    """
    checked = dict.fromkeys(num_nodes, NOT_WANTED)
    for name, given in seeds.nodes.items():
        checked[name] = nodes = np.ascontiguousarray(given.cpu().numpy(), np.int64)
        if len(nodes) > 0 and (nodes.min() < 0 or nodes.max() >= num_nodes[name]):
            wrong = nodes[(nodes < 0) | (nodes >= num_nodes[name])]
            shown = ", ".join(map(str, wrong[:5])) + (", …" if len(wrong) > 5 else "")
            raise UserError(
                f"{len(wrong)} of {len(nodes)} seeds are not nodes of the graph: {shown}",
                f"Node ids run from 0 to {num_nodes[name] - 1}.",
            )
    return checked
