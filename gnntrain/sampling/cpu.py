"""Neighbour sampling on the CPU, compiled by Numba."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnntrain.errors import RunError, UserError
from gnntrain.sampling.base import (
    Int32Array,
    Int64Array,
    SampledSubgraph,
    SampleKey,
    Sampler,
)
from gnntrain.sampling.block import Block
from gnntrain.sampling.kernels import (
    CHUNK_EDGES,
    SCAN_LIMIT,
    IndexArray,
    count_edges,
    draw_hop,
    hop_key,
    register_seeds,
)

MAX_BATCH_NODES = 2**30
MAX_DEGREE = 2**32 - 1
MAX_HOP_EDGES = 2**31 - 1  # the limit of a block's int32 offsets
NOT_WANTED: Int64Array = np.empty(0, np.int64)


class CPUSampler(Sampler):
    """Draws in-neighbours uniformly, in compiled code that releases the GIL.

    At each hop all nodes found so far draw again, each by its own key (see `kernels`): the result
    depends on neither threads nor ranks nor the other nodes of the batch. `sample` may be called
    from several threads at once; each call in flight holds a scratch array of one int32 for every
    node of the graph, kept for the next call.

    Args:
        indptr: int64 `[num_nodes + 1]`, where each node's in-edges start in `indices`.
        indices: int32 or int64 `[num_edges]`, the source node of each edge; every value must be
            a node. Both may be read-only memory maps; neither is copied.
        fan_outs: In-neighbours a node, the hop next to the seeds first; −1 takes all.
        replace: Draw with replacement: every node that has in-edges takes exactly the fan-out.
        edge_ids: Also return each edge's position in `indices`.

    Raises:
        UserError: The arrays are no CSC, or a fan-out is neither −1 nor at least 1.
    """

    def __init__(
        self,
        indptr: Tensor,
        indices: Tensor,
        fan_outs: Sequence[int],
        *,
        replace: bool = False,
        edge_ids: bool = False,
    ) -> None:
        self._indptr, self._indices = read_only_csc(indptr.numpy(), indices.numpy())
        self._fan_outs = checked_fan_outs(fan_outs)
        self._replace = replace
        self._edge_ids = edge_ids
        self._idle: deque[_Scratch] = deque()

    @property
    def num_nodes(self) -> int:
        return len(self._indptr) - 1

    def sample(self, seeds: Tensor, key: SampleKey) -> SampledSubgraph:
        """Draw the neighbourhood of `seeds`.

        Args:
            seeds: Integers `[num_seeds]`, global node ids. A repeated seed keeps its positions,
                each with its own (equal) in-edges; edges from it start at its first position.
            key: Key of the draw. Equal keys give equal in-neighbours for any seeds.

        Raises:
            UserError: A seed is not a node of the graph.
            RunError: The batch has more than 2^30 nodes, or a hop 2^31 edges or more.
        """
        given = checked_seeds(seeds.numpy(), self.num_nodes)
        try:
            scratch = self._idle.pop()
        except IndexError:
            scratch = _Scratch(self.num_nodes, self._indices.dtype)
        subgraph = self._draw(scratch, given, key)
        # Not reached after an error, when the scratch may hold numbers of half a batch.
        self._idle.append(scratch)
        return subgraph

    def _draw(self, scratch: _Scratch, seeds: Int64Array, key: SampleKey) -> SampledSubgraph:
        scratch.start_batch(seeds)
        blocks: list[Block] = []
        num_new_edges: list[int] = []
        oldest = 0
        for hop, fan_out in enumerate(self._fan_outs):
            block = self._draw_hop(scratch, fan_out, numba_hop_key(key, hop))
            blocks.append(block)
            num_new_edges.append(block.num_edges - int(block.indptr[oldest]))
            oldest = block.num_dst
        nodes = torch.from_numpy(scratch.finish_batch())
        return SampledSubgraph(nodes, len(seeds), tuple(reversed(blocks)), num_new_edges)

    def _draw_hop(self, scratch: _Scratch, fan_out: int, key: np.uint64) -> Block:
        """The in-edges of the known nodes."""
        num_dst = scratch.num_nodes
        indptr = np.zeros(num_dst + 1, np.int64)
        starts, degrees = scratch.destination_buffers(num_dst)
        destinations = scratch.nodes[:num_dst]
        most = count_edges(
            self._indptr, destinations, fan_out, self._replace, starts, degrees, indptr
        )
        num_edges = int(indptr[-1])
        scratch.reserve(num_edges, most, fan_out)
        indices = np.empty(num_edges, np.int32)
        edge_ids = np.empty(num_edges, np.int64) if self._edge_ids else NOT_WANTED
        scratch.num_nodes = draw_hop(
            self._indices,
            scratch.nodes[:num_dst],
            key,
            fan_out < 0,
            self._replace,
            starts,
            degrees,
            indptr,
            scratch.positions,
            scratch.sources,
            scratch.table,
            scratch.local,
            scratch.base,
            scratch.nodes,
            scratch.num_nodes,
            indices,
            edge_ids,
        )
        return Block(
            # Of the indices' type, as torch's CSR tensors require.
            torch.from_numpy(indptr.astype(np.int32)),
            torch.from_numpy(indices),
            scratch.num_nodes,
            edge_ids=torch.from_numpy(edge_ids) if self._edge_ids else None,
            max_in_edges=fan_out if fan_out >= 0 else None,
        )


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

    `local[node] - base` is the number of a node in the present batch, negative if it has none.
    Every batch starts with a base above all numbers written before, so nothing is ever cleared
    (but once in some ten thousand batches, before the base leaves int32).
    """

    def __init__(self, num_nodes: int, index_dtype: np.dtype[np.integer]) -> None:
        super().__init__(index_dtype)
        self.local: Int32Array = np.zeros(num_nodes, np.int32)
        self.base = 1
        self.num_nodes = 0
        self.nodes: Int64Array = np.empty(0, np.int64)

    def start_batch(self, seeds: Int64Array) -> None:
        if self.base > MAX_BATCH_NODES:
            self.local.fill(0)
            self.base = 1
        self.num_nodes = 0
        self._reserve_nodes(len(seeds))
        register_seeds(seeds, self.nodes, self.local, self.base)
        self.num_nodes = len(seeds)

    def finish_batch(self) -> Int64Array:
        """The batch's nodes, in an array of their own."""
        self.base += self.num_nodes
        return self.nodes[: self.num_nodes].copy()

    def reserve(self, num_edges: int, most: int, fan_out: int) -> None:
        """Make room for a hop of `num_edges`, at most `most` of them at one destination."""
        check_hop_edges(num_edges)
        self._reserve_nodes(min(num_edges, len(self.local)))
        self.reserve_edges(most, fan_out)

    def _reserve_nodes(self, num_new: int) -> None:
        needed = self.num_nodes + num_new + 1
        check_batch_nodes(needed - 1)
        if needed > len(self.nodes):
            nodes = np.empty(_roomy(needed), np.int64)
            nodes[: self.num_nodes] = self.nodes[: self.num_nodes]
            self.nodes = nodes


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
