"""In-neighbour lists (CSC) from an edge list, a block of columns (destination nodes) at a time.

The edge list is read once to count, which cuts the columns into blocks of about equally many edges,
and once a block to collect and sort that block's edges. Beside the edge list and a few numbers a
node, no more than a few blocks are ever held, and reverse edges are never listed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from gnntrain.data.graph import (
    BoolArray,
    EdgeData,
    Float32Array,
    Float64Array,
    Int64Array,
    IntArray,
    index_dtype,
)
from gnntrain.jit import jit
from gnntrain.limits import available_cores

CHUNK_EDGES = 1 << 20
MIN_BLOCK_EDGES = 1 << 20
NUM_BLOCKS = 32
MAX_THREADS = 4
_ID_TYPES = (np.int32, np.int64)


@dataclass(frozen=True, slots=True)
class ColumnBlock:
    """The finished in-neighbour lists of a range of columns."""

    counts: Int64Array  # [num_columns], in-neighbours of each column
    indices: IntArray  # [num_edges], in-neighbours, ascending within a column
    weight: Float32Array | None  # [num_edges]
    norm: Float32Array  # [num_columns], see `Edges.gcn_norm`
    loop: Float32Array  # [num_columns], weight of the (last) self loop, 1 where there is none
    num_merged: int  # edges, self loops aside, that were merged into others


def column_ranges(counts: Int64Array, max_edges: int, max_columns: int) -> list[tuple[int, int]]:
    """Cut the columns into ranges of at most `max_columns`, and of about `max_edges` edges: at most
    that many beside its last column's."""
    ends = np.cumsum(counts, dtype=np.int64)
    marks = np.arange(max_edges, int(ends[-1]), max_edges, dtype=np.int64)
    regular = np.arange(0, len(counts), max_columns, dtype=np.int64)
    cuts = np.unique(np.concatenate((regular, np.searchsorted(ends, marks) + 1, [len(counts)])))
    return list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))


def column_blocks(
    edges: EdgeData, num_dst: int, num_src: int, *, merge: bool = False, fill_loops: bool = False
) -> Iterator[ColumnBlock]:
    """The graph's columns, block after block.

    Args:
        edges: The edge list; all ids are below `num_dst` and `num_src`.
        merge: Edges between the same two nodes become one, with the sum of their weights.
        fill_loops: Nodes without a self loop get one of weight 1.
    """
    counts = np.zeros(num_dst, dtype=np.int64)  # before edges are merged, and loops added
    for src, dst, _ in _chunks(edges):
        np.add.at(counts, dst, 1)
        if edges.symmetric:
            np.add.at(counts, src, 1)
    max_edges = max(MIN_BLOCK_EDGES, int(counts.sum()) // NUM_BLOCKS)
    ranges = column_ranges(counts, max_edges, 1 << (62 - _row_bits(num_src)))
    workers = min(available_cores(), MAX_THREADS, len(ranges))
    build = partial(_build_block, edges, num_src, merge, fill_loops)
    pending: deque[Future[ColumnBlock]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for first, last in ranges:
            if len(pending) > workers:
                yield pending.popleft().result()
            pending.append(pool.submit(build, counts[first:last], first))
        while pending:
            yield pending.popleft().result()


def _chunks(edges: EdgeData) -> Iterator[tuple[IntArray, IntArray, Float32Array]]:
    """Contiguous chunks of the list."""
    weight = np.empty(0, dtype=np.float32)
    for start in range(0, len(edges.src), CHUNK_EDGES):
        part = slice(start, start + CHUNK_EDGES)
        if edges.weight is not None:
            weight = np.ascontiguousarray(edges.weight[part], dtype=np.float32)
        src, dst = (
            np.ascontiguousarray(ids[part], ids.dtype if ids.dtype in _ID_TYPES else np.int64)
            for ids in edges
        )
        yield src, dst, weight


def _row_bits(num_nodes: int) -> int:
    return (num_nodes - 1).bit_length()


def _build_block(
    edges: EdgeData, num_src: int, merge: bool, fill_loops: bool, counts: Int64Array, first: int
) -> ColumnBlock:
    num_columns, row_bits = len(counts), _row_bits(num_src)
    capacity = int(counts.sum()) + (num_columns if fill_loops else 0)
    keys = np.empty(capacity, dtype=np.int64)
    weight = np.empty(0 if edges.weight is None else capacity, dtype=np.float32)
    has_loop = np.zeros(num_columns, dtype=np.bool_)
    end = 0
    for chunk in _chunks(edges):
        end = _collect(*chunk, first, row_bits, edges.symmetric, end, keys, weight, has_loop)
    if fill_loops:
        bare = np.flatnonzero(~has_loop)
        keys[end : end + len(bare)] = (bare << row_bits) | (first + bare)
        weight[end : end + len(bare)] = 1.0
        end += len(bare)
    keys, weight = keys[:end], weight[:end]
    if edges.weight is None:
        keys.sort()
    else:
        order = np.argsort(keys, kind="stable")  # so that duplicate edges keep their order
        keys, weight = keys[order], weight[order]
    indices = np.empty(end, dtype=index_dtype(num_src))
    kept = np.zeros(num_columns, dtype=np.int64)
    inflow = np.zeros(num_columns, dtype=np.float64)
    loop = np.ones(num_columns, dtype=np.float32)
    total, num_merged = _unpack(keys, weight, first, row_bits, merge, indices, kept, inflow, loop)
    flow = loop + inflow
    norm = np.zeros(num_columns, dtype=np.float32)
    np.divide(1.0, np.sqrt(np.maximum(flow, 0.0)), out=norm, where=flow > 0, casting="same_kind")
    kept_weight = None if edges.weight is None else weight[:total]
    return ColumnBlock(kept, indices[:total], kept_weight, norm, loop, num_merged)


# Kernels. `weight` is empty where the graph has no weights. An edge's key is its column, counted
# from the block's first, above `row_bits` bits that hold its row: keys sort as the block does.
# (Numba's own sorts take five seconds to compile, and NumPy's use vector instructions.)


@jit
def _collect(
    src: IntArray,
    dst: IntArray,
    given: Float32Array,
    first: int,
    row_bits: int,
    mirror: bool,
    end: int,
    keys: Int64Array,
    weight: Float32Array,
    has_loop: BoolArray,
) -> int:
    """Append the block's edges to the first `end` keys; returns the new end."""
    num_columns = len(has_loop)
    weighted = len(given) > 0
    for edge in range(len(src)):
        one, other = np.int64(src[edge]), np.int64(dst[edge])
        if 0 <= other - first < num_columns:
            keys[end] = ((other - first) << row_bits) | one
            if weighted:
                weight[end] = given[edge]
            end += 1
            if one == other:
                has_loop[one - first] = True
        if mirror and 0 <= one - first < num_columns:
            keys[end] = ((one - first) << row_bits) | other
            if weighted:
                weight[end] = given[edge]
            end += 1
    return end


@jit
def _unpack(
    keys: Int64Array,
    weight: Float32Array,
    first: int,
    row_bits: int,
    merge: bool,
    indices: IntArray,
    kept: Int64Array,
    inflow: Float64Array,
    loop: Float32Array,
) -> tuple[int, int]:
    """Rows out of sorted keys, duplicates merged if asked (weights in place); `inflow` is the total
    weight of the in-edges that are not self loops. Returns the number of edges kept, and of those
    merged into others that are not self loops."""
    weighted = len(weight) > 0
    row_mask = (np.int64(1) << row_bits) - 1
    num = num_merged = at = 0
    while at < len(keys):
        key = keys[at]
        column, row = key >> row_bits, key & row_mask
        total = np.float64(weight[at]) if weighted else 1.0
        at += 1
        while merge and at < len(keys) and keys[at] == key:
            if weighted:
                total += weight[at]
            num_merged += row != first + column
            at += 1
        indices[num] = row
        if weighted:
            weight[num] = total
        kept[column] += 1
        if row != first + column:
            inflow[column] += total
        elif weighted:
            loop[column] = total
        num += 1
    return num, num_merged
