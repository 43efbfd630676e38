"""GATv2's scores on the GPU, forward and backward; see `triton_kernels`.

The score of an edge from u to v, by head, is Σ att · leaky_relu(left[u] + right[v]) over the head's
part of the columns. The vector of an edge is never stored.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gnntrain.compute.triton_kernels import sum_of_chunks
from gnntrain.compute.triton_tables import edges_at, row_of_chunk, span_of, walk_of


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def pair_scores(
    rows: tl.tensor,
    right: tl.tensor,
    att: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    num_rows: tl.tensor,
    out: tl.tensor,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    SLOPE: tl.constexpr,
    OF_CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The scores of all edges; a program takes a row, or a chunk, and a head.

    Args:
        rows: The left side, `[num_src, WIDTH]`.
        right: `[num_dst, WIDTH]`.
        att: `[WIDTH]`.
        out: `[num_edges, HEADS]`; edges of no destination stay as they are.
    """
    head = tl.program_id(1)
    part = WIDTH // HEADS
    v, first, last, begin, end = walk_of(indptr, num_rows, OF_CHUNKS, CHUNK)
    for start in range(first, last - (end - begin), ROWS):
        edge = edges_at(start, begin, end, ROWS, CHUNK)
        is_edge = edge < last
        source = tl.load(indices + edge, mask=is_edge, other=0)
        products = tl.zeros([ROWS, BLOCK], TOTAL)
        for column in range(0, part, BLOCK):
            columns = column + tl.arange(0, BLOCK)
            is_column = columns < part
            columns += head * part
            factor = tl.load(att + columns, mask=is_column, other=0).to(TOTAL)
            given = tl.load(right + v.to(tl.int64) * WIDTH + columns, mask=is_column, other=0)
            at = source.to(tl.int64)[:, None] * WIDTH + columns[None, :]
            pair = tl.load(rows + at, mask=is_edge[:, None] & is_column[None, :], other=0)
            pair = pair.to(TOTAL) + given.to(TOTAL)[None, :]
            products += factor[None, :] * tl.where(pair > 0, pair, pair * SLOPE)
        total = tl.sum(products, axis=1)
        at = edge.to(tl.int64) * HEADS + head
        tl.store(out + at, total.to(out.dtype.element_ty), mask=is_edge)


@triton.jit  # type: ignore[untyped-decorator]
def pairs_of_edges(
    rows: tl.tensor,
    mine: tl.tensor,
    grad: tl.tensor,
    indices: tl.tensor,
    edges: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    SLOPE: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """`[BLOCK]` twice: Σ grad[e] · leaky_relu′(row + mine) and Σ grad[e] · leaky_relu(row + mine).

    Over the edges `first … last − 1`, without the chunks `begin … end − 1` in between.
    """
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    head = columns // (WIDTH // HEADS)
    slopes = tl.zeros([ROWS, BLOCK], TOTAL)
    values = tl.zeros([ROWS, BLOCK], TOTAL)
    for start in range(first, last - (end - begin), ROWS):
        edge = edges_at(start, begin, end, ROWS, CHUNK)
        is_edge = edge < last
        other = tl.load(indices + edge, mask=is_edge, other=0)
        if edges is not None:
            edge = tl.load(edges + edge, mask=is_edge, other=0)
        mask = is_edge[:, None] & is_column[None, :]
        at = other.to(tl.int64)[:, None] * WIDTH + columns[None, :]
        pair = tl.load(rows + at, mask=mask, other=0).to(TOTAL) + mine[None, :]
        at = edge.to(tl.int64)[:, None] * HEADS + head[None, :]
        given = tl.load(grad + at, mask=mask, other=0).to(TOTAL)
        given = tl.where(pair > 0, given, given * SLOPE)
        slopes += given
        values += given * pair
    return tl.sum(slopes, axis=0), tl.sum(values, axis=0)


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def pair_chunks(
    rows: tl.tensor,
    mine: tl.tensor,
    grad: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    edges: tl.tensor,
    num_rows: tl.tensor,
    values: tl.tensor,
    out: tl.tensor,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    SLOPE: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The sums over the chunks of long rows for `pair_gradient`, `TOTAL [num_chunks, WIDTH]`."""
    chunk = tl.program_id(0)
    r, first, last = row_of_chunk(indptr, num_rows, chunk, CHUNK)
    if r >= 0:
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        is_column = columns < WIDTH
        own = tl.load(mine + r.to(tl.int64) * WIDTH + columns, mask=is_column, other=0).to(TOTAL)
        slope_sum, value_sum = pairs_of_edges(
            rows, own, grad, indices, edges, first, last, last, last,
            WIDTH, HEADS, SLOPE, 0, TOTAL, ROWS, BLOCK,
        )  # fmt: skip
        at = chunk.to(tl.int64) * WIDTH + columns
        tl.store(out + at, slope_sum, mask=is_column)
        if values is not None:
            tl.store(values + at, value_sum, mask=is_column)


@triton.jit  # type: ignore[untyped-decorator]
def pair_gradient(
    rows: tl.tensor,
    mine: tl.tensor,
    att: tl.tensor,
    grad: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    edges: tl.tensor,
    partial: tl.tensor,
    partial_values: tl.tensor,
    values: tl.tensor,
    out: tl.tensor,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    SLOPE: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The gradient of one side behind `pair_scores`.

    Args:
        rows: The other side, `[any, WIDTH]`.
        mine: This side, `[num_rows, WIDTH]`.
        grad: The scores' gradient, `[num_edges, HEADS]`.
        indptr, indices: By row of this side, the rows of the other.
        edges: The number of each edge in `grad`; None: as they lie.
        partial, partial_values: Results of `pair_chunks`.
        values: As `out`: each row's term of the gradient of `att`.
        out: The gradient of `mine`.
    """
    r = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    first, last, begin, end = span_of(indptr, r, CHUNK)
    at = r.to(tl.int64) * WIDTH + columns
    own = tl.load(mine + at, mask=is_column, other=0).to(TOTAL)
    slope_sum, value_sum = pairs_of_edges(
        rows, own, grad, indices, edges, first, last, begin, end,
        WIDTH, HEADS, SLOPE, CHUNK, TOTAL, ROWS, BLOCK,
    )  # fmt: skip
    if CHUNK > 0:
        begin, end = begin // CHUNK, end // CHUNK
        slope_sum += sum_of_chunks(partial, begin, end, WIDTH, TOTAL, ROWS, BLOCK)
        if values is not None:
            value_sum += sum_of_chunks(partial_values, begin, end, WIDTH, TOTAL, ROWS, BLOCK)
    slope_sum *= tl.load(att + columns, mask=is_column, other=0).to(TOTAL)
    tl.store(out + at, slope_sum.to(out.dtype.element_ty), mask=is_column)
    if values is not None:
        tl.store(values + at, value_sum, mask=is_column)
