"""The GPU's inner loops in Triton: gather, sum, maximum, scores of edges, softmax.

A kernel takes the fields of its operator by their names; `features` are `Rows`, `edges` and `total`
keep their tensors alone. Any of these may be None. Constants and None are known at compile time and
cost nothing; a constant width allows vector loads. Numbers that change from batch to batch are not
specialised on: Triton would compile again when one is 1 or a multiple of 16.

A program takes one row of the result and `BLOCK` of its columns (of scores: of one head's), and
walks over the row's edges `ROWS` at a time, so that their loads overlap. Each lane of the tile
`[ROWS, BLOCK]` keeps a result of its own, and these are combined once, after the last edge. They
are of the type `TOTAL`: float32, or float64 for float64 rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Rows(NamedTuple):
    """Rows in the GPU's memory, or in pinned host memory, which the GPU reads over the bus.

    Attributes:
        rows: `[any, width]`; or one of several matrices, of their type.
        nodes: The row of each source, None: source u is row u; of several matrices the rows'
            addresses.
    """

    rows: Any
    nodes: Any


class Constants(NamedTuple):
    """What a kernel is compiled for.

    Attributes:
        WIDTH, HEADS: Columns of all heads, and the heads.
        ROWS, BLOCK: Of a program's tile.
        TOTAL: The type of sums.
        STRIDE: Numbers from one of the `Rows` to the next.
        ALIGN: 0, or of rows in several matrices a divisor of the addresses.
        LOAD: 0, or so many columns of each row may be read: more than WIDTH, for whole vectors.
    """

    WIDTH: int
    HEADS: int
    ROWS: int
    BLOCK: int
    TOTAL: Any
    STRIDE: int = 0
    ALIGN: int = 0
    LOAD: int = 0


@triton.jit
def columns_of(K: tl.constexpr):
    """The program's head, `[BLOCK]` columns of it, and which of them there are."""
    head = tl.program_id(2)
    columns = tl.program_id(1) * K.BLOCK + tl.arange(0, K.BLOCK)
    is_column = columns < K.WIDTH // K.HEADS
    if K.HEADS > 1:
        columns += head * (K.WIDTH // K.HEADS)
    return head, columns, is_column


@triton.jit
def load_rows(features, source, is_row, columns, is_column, K: tl.constexpr):
    """`[sources, BLOCK]`: some columns of the rows of some sources; 0 where there is none."""
    if features.nodes is not None:
        source = tl.load(features.nodes + source, mask=is_row, other=0)
    if K.ALIGN > 0:  # on an AMD GPU an offset from a small tensor has 32 bits
        align: tl.constexpr = K.ALIGN
        begin = tl.multiple_of(source.to(features.rows.dtype), align)
    else:
        begin = features.rows + source.to(tl.int64) * K.STRIDE
    if K.LOAD > 0:
        is_column = columns < K.LOAD
    mask = is_row[:, None] & is_column[None, :]
    return tl.load(begin[:, None] + columns[None, :], mask=mask, other=0).to(K.TOTAL)


@triton.jit(do_not_specialize=["start", "num_rows"])
def gather_rows(features, start, num_rows, result, K: tl.constexpr):
    """Copy the rows of the sources `start … start + num_rows − 1`, in the type of the result."""
    _, columns, is_column = columns_of(K)
    row = tl.program_id(0).to(tl.int64) * K.ROWS + tl.arange(0, K.ROWS)
    is_row = row < num_rows
    # By way of float32: Triton converts no 16-bit type to another.
    values = load_rows(features, row + start, is_row, columns, is_column, K)
    at = row[:, None] * K.WIDTH + columns[None, :]
    mask = is_row[:, None] & is_column[None, :]
    tl.store(result + at, values.to(result.dtype.element_ty), mask=mask)


@triton.jit
def chunk_of(indptr, num_rows, CHUNK: tl.constexpr):
    """The row and the edges of a program for a chunk.

    No edge of row 0 where the chunk does not lie wholly in a row of `2 · CHUNK` edges or more.
    """
    start = tl.program_id(0).to(indptr.dtype.element_ty) * CHUNK
    v, high = num_rows * 0, num_rows + 1
    while high - v > 1:  # the last row that starts at or before the chunk
        middle = v + (high - v) // 2
        is_before = tl.load(indptr + middle) <= start
        v, high = tl.where(is_before, middle, v), tl.where(is_before, high, middle)
    first = tl.load(indptr + v)
    last = tl.load(indptr + v + 1, mask=v < num_rows, other=0)
    is_inside = (v < num_rows) & (last - first >= 2 * CHUNK) & (start + CHUNK <= last)
    return tl.where(is_inside, v, 0), start, tl.where(is_inside, start + CHUNK, start)


@triton.jit(do_not_specialize=["dst_offset", "num_rows"])
def reduce_rows(
    features,
    edges,
    total,
    root: tl.constexpr,
    dst_offset,
    num_rows,
    partial,
    result,
    CHUNK: tl.constexpr,
    OF_CHUNKS: tl.constexpr,
    K: tl.constexpr,
):
    """`Sum`, and the own rows of `Aggregate`.

    Where a row may have very many edges, the kernel runs twice, first `OF_CHUNKS`: chunk p is the
    edges `p · CHUNK … (p + 1) · CHUNK − 1`, and those that lie wholly in a row of `2 · CHUNK` edges
    or more have programs of their own. A row's program adds their results, `partial`
    `[num_chunks, WIDTH]`, to the sum of the edges at its two ends. So the order of the additions
    depends on the block alone: equal runs give equal numbers. `CHUNK` 0: no row is that long.
    """
    columns = tl.program_id(1) * K.BLOCK + tl.arange(0, K.BLOCK)
    is_column = columns < K.WIDTH
    head = columns // (K.WIDTH // K.HEADS) if K.HEADS > 1 else tl.arange(0, 1)
    if OF_CHUNKS:
        v, first, last = chunk_of(edges.indptr, num_rows, CHUNK)
    else:
        v = tl.program_id(0)
        first, last = tl.load(edges.indptr + v), tl.load(edges.indptr + v + 1)
    totals = tl.full([K.ROWS, K.BLOCK], 0, K.TOTAL)
    begin, end = last, last
    if partial is not None:
        is_long = last - first >= 2 * CHUNK
        begin = tl.where(is_long, (first + CHUNK - 1) // CHUNK * CHUNK, last)
        end = tl.where(is_long, last // CHUNK * CHUNK, last)
        for start in range(begin // CHUNK, end // CHUNK, K.ROWS):
            chunk = start + tl.arange(0, K.ROWS)
            mask = (chunk < end // CHUNK)[:, None] & is_column[None, :]
            at = chunk.to(tl.int64)[:, None] * K.WIDTH + columns[None, :]
            totals += tl.load(partial + at, mask=mask, other=0)
    for start in range(first, last - (end - begin), K.ROWS):
        edge = start + tl.arange(0, K.ROWS)
        if partial is not None:
            edge += tl.where(edge >= begin, end - begin, 0)
        is_edge = edge < last
        source = tl.load(edges.indices + edge, mask=is_edge, other=0)
        weight = tl.full([K.ROWS, 1], 1, K.TOTAL)
        if total.source_scale is not None:
            scale = tl.load(total.source_scale + source, mask=is_edge, other=0)
            weight *= scale.to(K.TOTAL)[:, None]
        if total.edge_weight is not None:
            if edges.edge_ids is not None:
                edge = tl.load(edges.edge_ids + edge, mask=is_edge, other=0)
            at = edge.to(tl.int64)[:, None] * K.HEADS + head[None, :]
            mask = is_edge[:, None] & (head < K.HEADS)[None, :]
            weight = weight * tl.load(total.edge_weight + at, mask=mask, other=0).to(K.TOTAL)
        totals += weight * load_rows(features, source, is_edge, columns, is_column, K)
    sums = tl.sum(totals, axis=0)
    if total.scale is not None:
        sums *= tl.load(total.scale + v).to(K.TOTAL)
    at = tl.program_id(0).to(tl.int64) * (K.WIDTH * (1 + root)) + columns
    if root:
        one = tl.arange(0, 1)
        own = dst_offset + v + one
        row = tl.sum(load_rows(features, own, one == 0, columns, is_column, K), axis=0)
        tl.store(result + at + K.WIDTH, row.to(result.dtype.element_ty), mask=is_column)
    tl.store(result + at, sums.to(result.dtype.element_ty), mask=is_column)


@triton.jit
def max_rows(features, edges, result, ties, K: tl.constexpr):
    """See `AggregateMax`."""
    _, columns, is_column = columns_of(K)
    v = tl.program_id(0)
    first, last = tl.load(edges.indptr + v), tl.load(edges.indptr + v + 1)
    tops = tl.full([K.ROWS, K.BLOCK], float("-inf"), K.TOTAL)
    for start in range(first, last, K.ROWS):
        edge = start + tl.arange(0, K.ROWS)
        source = tl.load(edges.indices + edge, mask=edge < last, other=0)
        row = load_rows(features, source, edge < last, columns, is_column, K)
        is_higher = (edge < last)[:, None] & ((row > tops) | (row != row))
        tops = tl.where(is_higher, row, tops)
    top = tl.max(tops, axis=0)
    top = tl.where(tl.max((tops != tops).to(tl.int32), axis=0) > 0, float("nan"), top)
    top = tl.where(last > first, top, 0)
    at = v.to(tl.int64) * K.WIDTH + columns
    tl.store(result + at, top.to(result.dtype.element_ty), mask=is_column)
    if ties is not None:
        counts = tl.full([K.ROWS, K.BLOCK], 0, tl.int32)
        for start in range(first, last, K.ROWS):
            edge = start + tl.arange(0, K.ROWS)
            source = tl.load(edges.indices + edge, mask=edge < last, other=0)
            row = load_rows(features, source, edge < last, columns, is_column, K)
            counts += ((edge < last)[:, None] & (row == top[None, :])).to(tl.int32)
        tl.store(ties + at, tl.sum(counts, axis=0), mask=is_column)


@triton.jit
def spread_maximum(rows, out, ties, grad, edges, result, K: tl.constexpr):
    """See `AggregateMaxBackward`."""
    _, columns, is_column = columns_of(K)
    u = tl.program_id(0)
    first, last = tl.load(edges.indptr + u), tl.load(edges.indptr + u + 1)
    own = u.to(tl.int64) * K.WIDTH + columns
    row = tl.load(rows + own, mask=is_column, other=0)
    totals = tl.full([K.ROWS, K.BLOCK], 0, K.TOTAL)
    for start in range(first, last, K.ROWS):
        edge = start + tl.arange(0, K.ROWS)
        v = tl.load(edges.indices + edge, mask=edge < last, other=0).to(tl.int64)
        at = v[:, None] * K.WIDTH + columns[None, :]
        mask = (edge < last)[:, None] & is_column[None, :]
        is_top = mask & (tl.load(out + at, mask=mask, other=0) == row[None, :])
        share = tl.load(grad + at, mask=is_top, other=0).to(K.TOTAL)
        totals += share / tl.load(ties + at, mask=is_top, other=1).to(K.TOTAL)
    total = tl.sum(totals, axis=0)
    tl.store(result + own, total.to(result.dtype.element_ty), mask=is_column)


@triton.jit
def pair_scores(features, right, att, slope: tl.constexpr, edges, result, K: tl.constexpr):
    """See `PairScores`; `features` are its `left`. A block is all of a head's columns."""
    head, columns, is_column = columns_of(K)
    v = tl.program_id(0)
    first, last = tl.load(edges.indptr + v), tl.load(edges.indptr + v + 1)
    own = tl.load(right + v.to(tl.int64) * K.WIDTH + columns, mask=is_column, other=0).to(K.TOTAL)
    if att is not None:
        factor = tl.load(att + columns, mask=is_column, other=0).to(K.TOTAL)
    for start in range(first, last, K.ROWS):
        edge = start + tl.arange(0, K.ROWS)
        source = tl.load(edges.indices + edge, mask=edge < last, other=0)
        row = load_rows(features, source, edge < last, columns, is_column, K)
        if att is None:
            products = own[None, :] * row
        else:
            pair = row + own[None, :]
            products = factor[None, :] * tl.where(pair > 0, pair, pair * slope)
        # Of a row columns behind the head's may be read, too, and be not a number.
        products = tl.where(is_column[None, :], products, 0)
        score = tl.sum(products, axis=1).to(result.dtype.element_ty)
        tl.store(result + edge.to(tl.int64) * K.HEADS + head, score, mask=edge < last)


@triton.jit
def pair_gradient(
    others, rows, att, grad, edges, slope: tl.constexpr, result, values, K: tl.constexpr
):
    """The gradient of one side behind `PairScores` with `att`.

    result[r] = att · Σ_e grad[e] · leaky_relu′(others[o] + rows[r]), where e runs over the edges of
    r and connects it with o; values[r] = Σ_e grad[e] · leaky_relu(others[o] + rows[r]): its term of
    the gradient of `att`, if there are `values`.
    """
    head, columns, is_column = columns_of(K)
    r = tl.program_id(0)
    first, last = tl.load(edges.indptr + r), tl.load(edges.indptr + r + 1)
    own_at = r.to(tl.int64) * K.WIDTH + columns
    own = tl.load(rows + own_at, mask=is_column, other=0).to(K.TOTAL)
    slopes = tl.full([K.ROWS, K.BLOCK], 0, K.TOTAL)
    products = tl.full([K.ROWS, K.BLOCK], 0, K.TOTAL)
    for start in range(first, last, K.ROWS):
        edge = start + tl.arange(0, K.ROWS)
        is_edge = edge < last
        other = tl.load(edges.indices + edge, mask=is_edge, other=0)
        if edges.edge_ids is not None:
            edge = tl.load(edges.edge_ids + edge, mask=is_edge, other=0)
        at = other.to(tl.int64)[:, None] * K.WIDTH + columns[None, :]
        mask = is_edge[:, None] & is_column[None, :]
        pair = tl.load(others + at, mask=mask, other=0).to(K.TOTAL) + own[None, :]
        at = edge.to(tl.int64) * K.HEADS + head
        change = tl.load(grad + at, mask=is_edge, other=0).to(K.TOTAL)[:, None]
        change = tl.where(pair > 0, change, change * slope)
        slopes += change
        products += change * pair
    slopes_sum = tl.sum(slopes, axis=0) * tl.load(att + columns, mask=is_column, other=0)
    tl.store(result + own_at, slopes_sum.to(result.dtype.element_ty), mask=is_column)
    if values is not None:
        tl.store(values + own_at, tl.sum(products, axis=0), mask=is_column)


@triton.jit
def scores_of(score, target, edges, edge, last, heads, slope: tl.constexpr, K: tl.constexpr):
    """The scores of some edges before `last`; −∞ for others.

    They are `score[edge]`, or with a `target`, the row's, leaky_relu(score[source] + target).
    """
    mask = (edge < last)[:, None] & (heads < K.WIDTH)[None, :]
    if target is None:
        at = edge.to(tl.int64)[:, None] * K.WIDTH + heads[None, :]
        value = tl.load(score + at, mask=mask, other=0).to(K.TOTAL)
    else:
        source = tl.load(edges.indices + edge, mask=edge < last, other=0)
        at = source.to(tl.int64)[:, None] * K.WIDTH + heads[None, :]
        value = tl.load(score + at, mask=mask, other=0).to(K.TOTAL) + target[None, :]
        value = tl.where(value > 0, value, value * slope)
    return tl.where(mask, value, float("-inf"))


@triton.jit
def softmax_rows(score, target, slope: tl.constexpr, edges, alpha, result, K: tl.constexpr):
    """See `EdgeSoftmax`, of which these are the results; a program's columns are heads."""
    _, heads, is_head = columns_of(K)
    v = tl.program_id(0)
    first, last = tl.load(edges.indptr + v), tl.load(edges.indptr + v + 1)
    own_at = v.to(tl.int64) * K.WIDTH + heads
    own = target
    if target is not None:
        own = tl.load(target + own_at, mask=is_head, other=0).to(K.TOTAL)
    top, total = tl.full([K.BLOCK], float("-inf"), K.TOTAL), tl.full([K.BLOCK], 0, K.TOTAL)
    for start in range(first, last, K.ROWS):
        edge = start + tl.arange(0, K.ROWS)
        value = scores_of(score, own, edges, edge, last, heads, slope, K)
        higher = tl.maximum(top, tl.max(value, axis=0))
        base = tl.where(higher == float("-inf"), 0, higher)  # −∞ − −∞ would be NaN
        total = total * tl.exp(top - base) + tl.sum(tl.exp(value - base[None, :]), axis=0)
        top = higher
    # Without in-edges the top is −∞.
    tl.store(result + own_at, top + tl.log(tl.where(total > 0, total, 1)), mask=is_head)
    for start in range(first, last, K.ROWS):
        edge = start + tl.arange(0, K.ROWS)
        value = scores_of(score, own, edges, edge, last, heads, slope, K)
        at = edge.to(tl.int64)[:, None] * K.WIDTH + heads[None, :]
        mask = (edge < last)[:, None] & is_head[None, :]
        tl.store(alpha + at, tl.exp(value - top[None, :]) / total[None, :], mask=mask)
