"""Neighbour sampling of typed graphs on the CPU, compiled by Numba."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, starmap
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from gnntrain.data.fused import FusedCSC
from gnntrain.data.graph import EdgeType, NodeType
from gnntrain.errors import UserError
from gnntrain.sampling.base import Int32Array, Int64Array, SampleKey
from gnntrain.sampling.block import Block
from gnntrain.sampling.cpu import (
    MAX_BATCH_NODES,
    NOT_WANTED,
    HopBuffers,
    check_batch_nodes,
    check_hop_edges,
    checked_fan_outs,
    checked_seeds,
    numba_hop_key,
    read_only,
    read_only_csc,
)
from gnntrain.sampling.hetero import (
    FanOuts,
    FanOutScope,
    HeteroBlock,
    HeteroSampler,
    HeteroSubgraph,
)
from gnntrain.sampling.kernels import (
    IndexArray,
    count_hetero_edges,
    draw_by_node,
    draw_hetero_hop,
    number_by_node,
    register_seeds,
)

_Value = TypeVar("_Value")


_Drawn = tuple[Int64Array, Int32Array, Int64Array]
"""`first_drawn`, `out` and `edge_ids` of the kernels."""


@dataclass(frozen=True)
class _Hop:
    """What the draws of a hop need; see `kernels.draw_hetero_hop`."""

    fan_outs: Int64Array
    key: np.uint64
    rows: Int64Array
    starts: Int64Array
    degrees: Int64Array
    offsets: Int64Array


class HeteroCPUSampler(HeteroSampler):
    """Draws in-neighbours uniformly, each edge type by its own fan-out, all in one compiled pass.

    Draws are keyed as those of `CPUSampler`, and by the edge type too (see `kernels`): the result
    depends on neither threads nor ranks nor the other nodes of the batch, and of a graph with one
    type it is `CPUSampler`'s. `sample` may be called from several threads at once; each call in
    flight holds a scratch array of one int32 for every node of the graph.

    Args:
        edges, target, fan_outs, scope, replace, edge_ids: See `HeteroSampler`. The arrays may be
            read-only memory maps; they are not copied.

    Raises:
        UserError: The arrays are no CSC, a fan-out is neither −1 nor at least 1, or edge types
            that share a fan-out have different ones.
    """

    def __init__(
        self,
        edges: FusedCSC,
        target: NodeType,
        fan_outs: FanOuts,
        *,
        scope: FanOutScope = "relation",
        replace: bool = False,
        edge_ids: bool = False,
    ) -> None:
        self._edges = edges
        self._offsets, self._sources = _read_only(edges)
        self._node_types = tuple(edges.num_nodes)
        self._target = self._node_types.index(target)
        self._ends: Int64Array = np.array(
            [[self._node_types.index(edge[end]) for edge in edges.edge_types] for end in (0, 2)],
            np.int64,
        )
        checked = [checked_fan_outs(fan_outs[edge_type]) for edge_type in edges.edge_types]
        self._fan_outs = [np.array(hop, np.int64) for hop in zip(*checked, strict=True)]
        self._scope = scope
        if scope == "node":
            _check_shared(edges.edge_types, checked)
        self._into: Int64Array = np.argsort(self._ends[1], kind="stable")
        self._first_into = np.searchsorted(
            self._ends[1][self._into], np.arange(len(self._node_types) + 1)
        )
        self._replace = replace
        self._edge_ids = edge_ids
        self._idle: deque[_Scratch] = deque()

    def sample(self, seeds: Tensor, key: SampleKey) -> HeteroSubgraph:
        """Draw the neighbourhood of `seeds`.

        Args:
            seeds: Integers `[num_seeds]`, nodes of the target type. A repeated seed keeps its
                positions, each with its own (equal) in-edges.
            key: Key of the draw. Equal keys give equal in-neighbours for any seeds.

        Raises:
            UserError: A seed is not a node of the target type.
            RunError: The batch has more than 2^30 nodes of a type, or a hop 2^31 edges or more.
        """
        sizes = np.array([*self._edges.num_nodes.values()], np.int64)
        given = checked_seeds(seeds.numpy(), int(sizes[self._target]))
        try:
            scratch = self._idle.pop()
        except IndexError:
            scratch = _Scratch(sizes, self._sources.dtype)
        subgraph = self._draw(scratch, given, key)
        # Not reached after an error, when the scratch may hold numbers of half a batch.
        self._idle.append(scratch)
        return subgraph

    def _draw(self, scratch: _Scratch, seeds: Int64Array, key: SampleKey) -> HeteroSubgraph:
        scratch.start_batch(seeds, self._target)
        known = [np.zeros_like(scratch.num_nodes), scratch.num_nodes.copy()]
        blocks: list[HeteroBlock] = []
        num_new_edges: list[list[int]] = []
        for hop, fan_outs in enumerate(self._fan_outs):
            block = self._draw_hop(scratch, fan_outs, numba_hop_key(key, hop))
            oldest = known[-2][self._ends[1]].tolist()
            num_new_edges.append(
                [
                    edges.num_edges - int(edges.indptr[first])
                    for first, edges in zip(oldest, block.edges.values(), strict=True)
                ]
            )
            blocks.append(block)
            known.append(scratch.num_nodes.copy())
        return HeteroSubgraph(
            nodes=self._by_type(torch.from_numpy(nodes) for nodes in scratch.finish_batch()),
            target=self._node_types[self._target],
            num_seeds=len(seeds),
            blocks=tuple(reversed(blocks)),
            num_sampled_nodes=self._by_type(np.diff(known, axis=0).T.tolist()),
            num_sampled_edges={
                edge_type: [hop[r] for hop in num_new_edges]
                for r, edge_type in enumerate(self._edges.edge_types)
            },
        )

    def _draw_hop(self, scratch: _Scratch, fan_outs: Int64Array, key: np.uint64) -> HeteroBlock:
        num_dst = self._by_type(scratch.num_nodes.tolist())
        rows = _starts(scratch.num_nodes[self._ends[1]] + 1)
        starts, degrees = scratch.destination_buffers(int(rows[-1]))
        hop = _Hop(fan_outs, key, rows, starts, degrees, np.zeros(rows[-1], np.int64))
        draw = self._draw_by_node if self._scope == "node" else self._draw_by_relation
        first_drawn, indices, edge_ids = draw(scratch, hop)
        num_src = self._by_type(scratch.num_nodes.tolist())
        blocks = self._blocks(hop, first_drawn, indices, edge_ids, num_src)
        return HeteroBlock(blocks, num_dst, num_src)

    def _draw_by_relation(self, scratch: _Scratch, hop: _Hop) -> _Drawn:
        """Each edge type has a fan-out of its own."""
        num_edges, most = self._count(scratch, hop, hop.fan_outs, self._replace)
        scratch.reserve_sources(num_edges, self._ends[0])
        scratch.reserve_edges(most, min(most, int(hop.fan_outs.max())))
        first_drawn = _starts(num_edges)
        indices = np.empty(first_drawn[-1], np.int32)
        edge_ids = np.empty(first_drawn[-1], np.int64) if self._edge_ids else NOT_WANTED
        draw_hetero_hop(
            self._sources,
            self._edges.first_edge,
            self._ends,
            hop.key,
            hop.fan_outs,
            self._replace,
            hop.rows,
            hop.starts,
            hop.degrees,
            hop.offsets,
            first_drawn,
            scratch.positions,
            scratch.sources,
            scratch.table,
            scratch.local,
            scratch.first_node,
            scratch.base,
            scratch.nodes,
            scratch.room,
            scratch.num_nodes,
            indices,
            edge_ids,
        )
        return first_drawn, indices, edge_ids

    def _draw_by_node(self, scratch: _Scratch, hop: _Hop) -> _Drawn:
        """All edge types into a node share a fan-out."""
        num_edges, _ = self._count(scratch, hop, np.full_like(hop.fan_outs, -1), False)
        fan_outs = np.full(len(self._node_types), -1, np.int64)
        fan_outs[self._ends[1]] = hop.fan_outs
        of_types = np.zeros_like(fan_outs)
        np.add.at(of_types, self._ends[1], num_edges)
        draws = np.where(fan_outs < 0, of_types, scratch.num_nodes * fan_outs)
        if not self._replace:
            draws = np.minimum(draws, of_types)
        drawn = np.empty(draws.sum(), np.int64)
        most_drawn = int(fan_outs.max())
        scratch.reserve_edges(most_drawn, most_drawn)
        hop.offsets[:] = 0
        draw_by_node(
            self._first_into,
            self._into,
            hop.key,
            fan_outs,
            self._replace,
            scratch.nodes,
            scratch.room,
            hop.rows,
            hop.degrees,
            scratch.table,
            hop.offsets,
            drawn,
        )
        num_edges = hop.offsets[hop.rows[1:] - 1]
        scratch.reserve_sources(num_edges, self._ends[0])
        first_drawn = _starts(num_edges)
        indices = np.empty(first_drawn[-1], np.int32)
        edge_ids = np.empty(first_drawn[-1], np.int64)
        number_by_node(
            self._sources,
            self._edges.first_edge,
            self._ends,
            self._first_into,
            self._into,
            hop.rows,
            hop.starts,
            hop.degrees,
            hop.offsets,
            drawn,
            first_drawn,
            scratch.sources,
            scratch.local,
            scratch.first_node,
            scratch.base,
            scratch.nodes,
            scratch.room,
            scratch.num_nodes,
            indices,
            edge_ids,
        )
        return first_drawn, indices, edge_ids

    def _count(
        self, scratch: _Scratch, hop: _Hop, fan_outs: Int64Array, replace: bool
    ) -> tuple[Int64Array, int]:
        """Fill the hop's arrays; the edges of each edge type, and the most of one destination."""
        num_edges = np.zeros(len(fan_outs), np.int64)
        most = count_hetero_edges(
            self._offsets,
            self._edges.first_offset,
            self._ends,
            scratch.nodes,
            scratch.room,
            fan_outs,
            replace,
            hop.rows,
            hop.starts,
            hop.degrees,
            hop.offsets,
            num_edges,
        )
        return num_edges, most

    def _blocks(
        self,
        hop: _Hop,
        first_drawn: Int64Array,
        indices: Int32Array,
        edge_ids: Int64Array,
        num_src: Mapping[NodeType, int],
    ) -> dict[EdgeType, Block]:
        """The block of each edge type: views of the hop's arrays."""
        # Of the indices' type, as torch's CSR tensors require.
        indptr, sources = torch.from_numpy(hop.offsets.astype(np.int32)), torch.from_numpy(indices)
        ids = torch.from_numpy(edge_ids)
        parts = zip(
            self._edges.edge_types,
            starmap(slice, pairwise(hop.rows.tolist())),
            starmap(slice, pairwise(first_drawn.tolist())),
            hop.fan_outs.tolist(),
            strict=True,
        )
        return {
            edge_type: Block(
                indptr[of_type],
                sources[edges],
                num_src[edge_type[0]],
                edge_ids=ids[edges] if self._edge_ids else None,
                max_in_edges=fan_out if fan_out >= 0 else None,
            )
            for edge_type, of_type, edges, fan_out in parts
        }

    def _by_type(self, values: Iterable[_Value]) -> dict[NodeType, _Value]:
        return dict(zip(self._node_types, values, strict=True))


class _Scratch(HopBuffers):
    """Buffers of one call in flight, reused by later calls; see `cpu._Scratch`.

    Args:
        sizes: int64 `[T]`, number of nodes of each type.
        index_dtype: Of the graph's `indices`.

    Attributes:
        local, first_node, base, nodes, room, num_nodes: See `kernels.draw_hetero_hop`.
    """

    def __init__(self, sizes: Int64Array, index_dtype: np.dtype[np.integer]) -> None:
        super().__init__(index_dtype)
        self.first_node = _starts(sizes)
        self.local: Int32Array = np.zeros(self.first_node[-1], np.int32)
        self.base = 1
        self.nodes: Int64Array = np.empty(0, np.int64)
        self.room: Int64Array = np.zeros(len(sizes) + 1, np.int64)
        self.num_nodes = np.zeros_like(sizes)

    def start_batch(self, seeds: Int64Array, target: int) -> None:
        if self.base > MAX_BATCH_NODES:
            self.local.fill(0)
            self.base = 1
        self.num_nodes[:] = 0
        num_new = np.zeros_like(self.num_nodes)
        num_new[target] = len(seeds)
        self._reserve_nodes(num_new)
        local = self.local[self.first_node[target] :]
        register_seeds(seeds, self.nodes[self.room[target] :], local, self.base)
        self.num_nodes[target] = len(seeds)

    def finish_batch(self) -> list[Int64Array]:
        """The batch's nodes of each type, in arrays of their own."""
        self.base += int(self.num_nodes.max(initial=0))
        return [nodes.copy() for nodes in self._known()]

    def reserve_sources(self, num_edges: Int64Array, ends: Int64Array) -> None:
        """Make room for the new nodes of a hop.

        Args:
            num_edges: Drawn edges of each edge type.
            ends: The source type of each edge type.
        """
        check_hop_edges(int(num_edges.sum()))
        num_new = np.zeros_like(self.num_nodes)
        np.add.at(num_new, ends, num_edges)
        self._reserve_nodes(np.minimum(num_new, np.diff(self.first_node)))

    def _reserve_nodes(self, num_new: Int64Array) -> None:
        needed = self.num_nodes + num_new + 1
        check_batch_nodes(int(needed.max(initial=1)) - 1)
        room = np.diff(self.room)
        if (needed > room).any():
            known = self._known()
            self.room = _starts(np.where(needed > room, needed + needed // 4, room))
            self.nodes = np.empty(self.room[-1], np.int64)
            for first, nodes in zip(self.room[:-1], known, strict=True):
                self.nodes[first : first + len(nodes)] = nodes

    def _known(self) -> list[Int64Array]:
        return [
            self.nodes[first : first + count]
            for first, count in zip(self.room[:-1], self.num_nodes, strict=True)
        ]


def _check_shared(edge_types: Sequence[EdgeType], fan_outs: Sequence[tuple[int, ...]]) -> None:
    """Raises UserError if edge types into one node type have different fan-outs."""
    shared: dict[NodeType, tuple[int, ...]] = {}
    for edge_type, own in zip(edge_types, fan_outs, strict=True):
        if shared.setdefault(edge_type[2], own) != own:
            raise UserError(
                f"{'/'.join(edge_type)} has fan-outs {list(own)}, and another edge type into "
                f"{edge_type[2]} has {list(shared[edge_type[2]])}",
                "With scope 'node' all edge types into a node type share their fan-outs.",
            )


def _starts(lengths: Int64Array) -> Int64Array:
    """Where segments of these lengths begin that lie one after the other, and the end."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _read_only(edges: FusedCSC) -> tuple[Int64Array, IndexArray]:
    """Plain read-only views of the offsets and the sources.

    Raises:
        UserError: What an edge type has is no CSC, see `read_only_csc`.
    """
    for number in range(len(edges.edge_types)):
        read_only_csc(*edges.part(number))
    return read_only(edges.indptr, np.int64), read_only(edges.indices)
