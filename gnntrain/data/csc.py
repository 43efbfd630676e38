"""In-neighbour lists (CSC) by counting sort, a block of columns at a time.

A column is a destination node. The edge list is read once to count, and once a block to collect
that block's edges; a block is small enough to stay near the caches and to be written out before
the next ones exist. Beside the caller's edge list no array of the size of the graph is held.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnntrain.data.graph import Float32Array, Int64Array, IntArray
from gnntrain.jit import jit

Float64Array = npt.NDArray[np.float64]

CHUNK_EDGES = 1 << 22
MIN_BLOCK_EDGES = 1 << 22
NUM_BLOCKS = 32
MAX_THREADS = 4


def num_threads() -> int:
    """CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def index_dtype(num_nodes: int) -> np.dtype[Any]:
    """The smaller of int32 and int64 that holds every node id."""
    return np.dtype(np.int32 if num_nodes - 1 <= np.iinfo(np.int32).max else np.int64)


@dataclass(frozen=True, slots=True)
class EdgeList:
    """Edges as given, and which edges of the graph they stand for.

    Attributes:
        src: int32 or int64 `[num_given_edges]`.
        dst: int32 or int64 `[num_given_edges]`.
        weight: `[num_given_edges]`, or None.
        mirror: Each given edge stands for both directions.
        mirror_loops: A self loop counts once a direction too, hence twice.
        merge: Edges between the same two nodes become one, with the sum of their weights.
        fill_loops: Nodes without a self loop get one of weight 1.
    """

    src: IntArray
    dst: IntArray
    weight: npt.NDArray[Any] | None = None
    mirror: bool = False
    mirror_loops: bool = False
    merge: bool = False
    fill_loops: bool = False

    def chunks(self) -> Iterator[tuple[IntArray, IntArray, Float32Array]]:
        """Contiguous pieces of the list, without a copy where it is contiguous already."""
        no_weight = np.empty(0, dtype=np.float32)
        for start in range(0, len(self.src), CHUNK_EDGES):
            part = slice(start, start + CHUNK_EDGES)
            weight = no_weight
            if self.weight is not None:
                weight = np.ascontiguousarray(self.weight[part], dtype=np.float32)
            yield _as_ids(self.src[part]), _as_ids(self.dst[part]), weight


@dataclass(frozen=True, slots=True)
class ColumnBlock:
    """The finished in-neighbour lists of a range of columns.

    Attributes:
        counts: int64 `[num_columns]`, in-neighbours of each column.
        indices: `[num_edges]`, in-neighbours, ascending within a column.
        weight: float32 `[num_edges]`, or None.
        inflow: float64 `[num_columns]`, total weight of the in-edges that are not self loops.
    """

    counts: Int64Array
    indices: IntArray
    weight: Float32Array | None
    inflow: Float64Array


def count_columns(edges: EdgeList, num_nodes: int) -> Int64Array:
    """In-edges of each node before any are merged or filled in, int64 `[num_nodes]`."""
    counts = np.zeros(num_nodes, dtype=np.int64)
    for src, dst, _ in edges.chunks():
        _count(src, dst, edges.mirror, edges.mirror_loops, counts)
    return counts


def column_ranges(counts: Int64Array, max_edges: int) -> list[tuple[int, int]]:
    """Cut the columns into ranges of about `max_edges` edges (a larger column is not cut)."""
    ends = np.cumsum(counts, dtype=np.int64)
    marks = np.arange(max_edges, int(ends[-1]), max_edges, dtype=np.int64)
    cuts = np.unique(np.concatenate(([0], np.searchsorted(ends, marks) + 1, [len(counts)])))
    return list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))


def column_blocks(
    edges: EdgeList, num_nodes: int, *, min_block_edges: int = MIN_BLOCK_EDGES
) -> Iterator[ColumnBlock]:
    """The graph's columns, block after block.

    Args:
        edges: The edge list; ids must lie in `0 … num_nodes - 1`.
        num_nodes: Number of columns.
        min_block_edges: Edges a block at least; the blocks' number stays bounded beyond.
    """
    counts = count_columns(edges, num_nodes)
    ranges = column_ranges(counts, max(min_block_edges, int(counts.sum()) // NUM_BLOCKS))
    workers = min(num_threads(), MAX_THREADS, len(ranges))
    pending: deque[Future[ColumnBlock]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for first, last in ranges:
            if len(pending) > workers:
                yield pending.popleft().result()
            pending.append(pool.submit(_build_block, edges, num_nodes, counts[first:last], first))
        while pending:
            yield pending.popleft().result()


def _as_ids(ids: IntArray) -> IntArray:
    if ids.dtype not in (np.int32, np.int64):
        return ids.astype(np.int64)
    return np.ascontiguousarray(ids)


def _build_block(edges: EdgeList, num_nodes: int, counts: Int64Array, first: int) -> ColumnBlock:
    slots = counts + 1 if edges.fill_loops else counts
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(slots, out=starts[1:])
    cursor = starts[:-1].copy()
    weighted = edges.weight is not None
    indices = np.empty(starts[-1], dtype=index_dtype(num_nodes))
    weight = np.empty(starts[-1] if weighted else 0, dtype=np.float32)
    for src, dst, given in edges.chunks():
        _collect(src, dst, given, first, edges.mirror, edges.mirror_loops, cursor, indices, weight)
    if edges.fill_loops:
        _fill_loops(starts, first, cursor, indices, weight)
    _sort_columns(starts, cursor, indices, weight)
    kept = np.empty(len(counts), dtype=np.int64)
    inflow = np.zeros(len(counts), dtype=np.float64)
    total = _compact(starts, cursor, first, edges.merge, indices, weight, kept, inflow)
    return ColumnBlock(kept, indices[:total], weight[:total] if weighted else None, inflow)


# Kernels. `weight` is empty where the graph has no weights. `cursor[c]` is the end of what column
# c of the block holds so far, `starts[c]` the beginning of its room.


@jit
def _count(
    src: IntArray, dst: IntArray, mirror: bool, mirror_loops: bool, counts: Int64Array
) -> None:
    for edge in range(len(src)):
        counts[dst[edge]] += 1
        if mirror and (mirror_loops or src[edge] != dst[edge]):
            counts[src[edge]] += 1


@jit
def _collect(
    src: IntArray,
    dst: IntArray,
    given: Float32Array,
    first: int,
    mirror: bool,
    mirror_loops: bool,
    cursor: Int64Array,
    indices: IntArray,
    weight: Float32Array,
) -> None:
    num_columns = len(cursor)
    weighted = len(given) > 0
    for edge in range(len(src)):
        row = src[edge]
        column = dst[edge] - first
        if 0 <= column < num_columns:
            at = cursor[column]
            indices[at] = row
            if weighted:
                weight[at] = given[edge]
            cursor[column] = at + 1
        if mirror and (mirror_loops or row != dst[edge]):
            column = row - first
            if 0 <= column < num_columns:
                at = cursor[column]
                indices[at] = dst[edge]
                if weighted:
                    weight[at] = given[edge]
                cursor[column] = at + 1


@jit
def _fill_loops(
    starts: Int64Array, first: int, cursor: Int64Array, indices: IntArray, weight: Float32Array
) -> None:
    for column in range(len(cursor)):
        found = False
        for at in range(starts[column], cursor[column]):
            found = found or indices[at] == first + column
        if not found:
            indices[cursor[column]] = first + column
            if len(weight) > 0:
                weight[cursor[column]] = 1.0
            cursor[column] += 1


@jit
def _sort_columns(
    starts: Int64Array, cursor: Int64Array, indices: IntArray, weight: Float32Array
) -> None:
    for column in range(len(cursor)):
        begin, end = starts[column], cursor[column]
        if len(weight) > 0:
            # Stable, so that duplicate edges keep their order and sums do not depend on threads.
            order = np.argsort(indices[begin:end], kind="mergesort")
            indices[begin:end] = indices[begin:end][order]
            weight[begin:end] = weight[begin:end][order]
        else:
            indices[begin:end].sort()


@jit
def _compact(
    starts: Int64Array,
    cursor: Int64Array,
    first: int,
    merge: bool,
    indices: IntArray,
    weight: Float32Array,
    kept: Int64Array,
    inflow: Float64Array,
) -> int:
    """Close the gaps between columns, merging duplicates if asked; returns the edges kept."""
    weighted = len(weight) > 0
    out = 0
    for column in range(len(cursor)):
        begin = out
        at = starts[column]
        while at < cursor[column]:
            row = indices[at]
            total = np.float64(weight[at]) if weighted else 1.0
            at += 1
            while merge and at < cursor[column] and indices[at] == row:
                if weighted:
                    total += weight[at]
                at += 1
            indices[out] = row
            if weighted:
                weight[out] = total
            if row != first + column:
                inflow[column] += total
            out += 1
        kept[column] = out - begin
    return out
