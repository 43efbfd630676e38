"""Neighbour sampling of typed graphs on the CPU, compiled by Numba."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, starmap
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from gnntrain.data.fused import FusedCSC
from gnntrain.data.graph import EdgeType, NodeType
from gnntrain.sampling.base import Int32Array, Int64Array, SampleKey
from gnntrain.sampling.block import Block
from gnntrain.sampling.cpu import (
    MAX_BATCH_NODES,
    NOT_WANTED,
    HopBuffers,
    check_batch_nodes,
    check_hop_edges,
    checked_seeds,
    numba_hop_key,
)
from gnntrain.sampling.hetero import (
    FanOuts,
    FanOutScope,
    HeteroBlock,
    HeteroSampler,
    HeteroSubgraph,
)
from gnntrain.sampling.kernels import (
    draw_hetero_hop,
    number_sources,
    register_seeds,
)
from gnntrain.sampling.typed_edges import Hop, TypedEdges, fan_outs_by_hop, starts_of

_Value = TypeVar("_Value")


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
        self._edges = TypedEdges(edges)
        self._sizes: Int64Array = np.array([*edges.num_nodes.values()], np.int64)
        self._target = self._edges.node_types.index(target)
        self._fan_outs = fan_outs_by_hop(edges.edge_types, fan_outs, scope)
        self._scope = scope
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
        given = checked_seeds(seeds.numpy(), int(self._sizes[self._target]))
        try:
            scratch = self._idle.pop()
        except IndexError:
            scratch = _Scratch(self._sizes, self._edges.indices.dtype)
        subgraph = self._draw(scratch, given, key)
        # Not reached after an error, when the scratch may hold numbers of half a batch.
        self._idle.append(scratch)
        return subgraph

    def _draw(self, scratch: _Scratch, seeds: Int64Array, key: SampleKey) -> HeteroSubgraph:
        scratch.start_batch(seeds, self._target)
        hops = [
            self._draw_hop(scratch, fan_outs, numba_hop_key(key, hop))
            for hop, fan_outs in enumerate(self._fan_outs)
        ]
        nodes = self._by_type(map(torch.from_numpy, scratch.finish_batch()))
        target = self._edges.node_types[self._target]
        return HeteroSubgraph.of(nodes, target, len(seeds), hops)

    def _draw_hop(self, scratch: _Scratch, fan_outs: Int64Array, key: np.uint64) -> HeteroBlock:
        num_dst = self._by_type(scratch.num_nodes.tolist())
        hop = self._edges.hop(scratch.nodes, scratch.room, scratch.num_nodes, scratch)
        draw = self._draw_by_node if self._scope == "node" else self._draw_by_relation
        indices, edge_ids = draw(scratch, hop, fan_outs, key)
        num_src = self._by_type(scratch.num_nodes.tolist())
        blocks = blocks_of(
            self._edges.edge_types,
            hop,
            indices,
            edge_ids if self._edge_ids else None,
            num_src,
            fan_outs,
        )
        return HeteroBlock(blocks, num_dst, num_src)

    def _draw_by_relation(
        self, scratch: _Scratch, hop: Hop, fan_outs: Int64Array, key: np.uint64
    ) -> tuple[Int32Array, Int64Array]:
        """Each edge type has a fan-out of its own."""
        most = self._edges.count(hop, fan_outs, self._replace)
        scratch.reserve_sources(hop.num_edges, self._edges.ends[0])
        scratch.reserve_edges(most, min(most, int(fan_outs.max())))
        first_drawn = starts_of(hop.num_edges)
        indices = np.empty(first_drawn[-1], np.int32)
        edge_ids = np.empty(first_drawn[-1], np.int64) if self._edge_ids else NOT_WANTED
        draw_hetero_hop(
            self._edges.indices,
            self._edges.first_edge,
            self._edges.ends,
            key,
            fan_outs,
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
        return indices, edge_ids

    def _draw_by_node(
        self, scratch: _Scratch, hop: Hop, fan_outs: Int64Array, key: np.uint64
    ) -> tuple[Int32Array, Int64Array]:
        """All edge types into a node share a fan-out."""
        edges = self._edges
        positions = edges.draw_by_node(hop, hop.nodes, fan_outs, key, self._replace, scratch)
        scratch.reserve_sources(hop.num_edges, edges.ends[0])
        first_drawn = starts_of(hop.num_edges)
        indices = np.empty(first_drawn[-1], np.int32)
        number_sources(
            edges.indices,
            edges.first_edge,
            edges.ends,
            first_drawn,
            positions,
            scratch.sources,
            scratch.local,
            scratch.first_node,
            scratch.base,
            scratch.nodes,
            scratch.room,
            scratch.num_nodes,
            indices,
        )
        return indices, positions

    def _by_type(self, values: Iterable[_Value]) -> dict[NodeType, _Value]:
        return dict(zip(self._edges.node_types, values, strict=True))


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
        self.first_node = starts_of(sizes)
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
            self.room = starts_of(np.where(needed > room, needed + needed // 4, room))
            self.nodes = np.empty(self.room[-1], np.int64)
            for first, nodes in zip(self.room[:-1], known, strict=True):
                self.nodes[first : first + len(nodes)] = nodes

    def _known(self) -> list[Int64Array]:
        return [
            self.nodes[first : first + count]
            for first, count in zip(self.room[:-1], self.num_nodes, strict=True)
        ]


def blocks_of(
    edge_types: Sequence[EdgeType],
    hop: Hop,
    indices: Int32Array,
    edge_ids: Int64Array | None,
    num_src: Mapping[NodeType, int],
    fan_outs: Int64Array,
) -> dict[EdgeType, Block]:
    """The block of each edge type: views of a hop's arrays.

    Args:
        edge_types: The edge types.
        hop: The destinations, and how many edges they have drawn.
        indices: Numbers of the sources, edge type by edge type.
        edge_ids: Positions of the edges, likewise, or None.
        num_src: Number of nodes of each type that are known after the hop.
        fan_outs: int64 `[R]`.
    """
    # Of the indices' type, as torch's CSR tensors require.
    indptr, sources = torch.from_numpy(hop.offsets.astype(np.int32)), torch.from_numpy(indices)
    ids = None if edge_ids is None else torch.from_numpy(edge_ids)
    parts = zip(
        edge_types,
        starmap(slice, pairwise(hop.rows.tolist())),
        starmap(slice, pairwise(starts_of(hop.num_edges).tolist())),
        fan_outs.tolist(),
        strict=True,
    )
    return {
        edge_type: Block(
            indptr[of_type],
            sources[edges],
            num_src[edge_type[0]],
            edge_ids=None if ids is None else ids[edges],
            max_in_edges=fan_out if fan_out >= 0 else None,
        )
        for edge_type, of_type, edges, fan_out in parts
    }
