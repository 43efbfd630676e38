"""GATv2's scores on the GPU, forward and backward; see `triton_kernels`.

The score of an edge from u to v, by head, is Σ att · leaky_relu(left[u] + right[v]) over the head's
part of the columns. The vector of an edge is never stored.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gnntrain.compute.triton_tables import edges_at, sum_of_chunks, walk_of


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


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def pair_gradient(
    rows: tl.tensor,
    mine: tl.tensor,
    att: tl.tensor,
    grad: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    edges: tl.tensor,
    num_rows: tl.tensor,
    partial_out: tl.tensor,
    partial_values: tl.tensor,
    out: tl.tensor,
    values: tl.tensor,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    SLOPE: tl.constexpr,
    OF_CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The gradient of one side behind `pair_scores`.

    out[r] = att · Σ_e grad[e] · leaky_relu′(row(other) + mine[r]), of a chunk only Σ_e, where e
    runs over the edges of r and connects it with the row `other`;
    values[r] = Σ_e grad[e] · leaky_relu(row(other) + mine[r]).

    Args:
        rows: The other side, `[any, WIDTH]`.
        mine: This side, `[num_rows, WIDTH]`.
        grad: The scores' gradient, `[num_edges, HEADS]`.
        indptr, indices: By row of this side, the rows of the other.
        edges: The number of each edge in `grad`; None: as they lie.
        partial_out, partial_values: The chunks' results.
        out: The gradient of `mine`.
        values: Each row's term of the gradient of `att`; None: not needed.
    """
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    head = columns // (WIDTH // HEADS)
    r, first, last, begin, end = walk_of(indptr, num_rows, OF_CHUNKS, CHUNK)
    own = tl.load(mine + r.to(tl.int64) * WIDTH + columns, mask=is_column, other=0).to(TOTAL)
    slopes = tl.zeros([ROWS, BLOCK], TOTAL)
    products = tl.zeros([ROWS, BLOCK], TOTAL)
    for start in range(first, last - (end - begin), ROWS):
        edge = edges_at(start, begin, end, ROWS, CHUNK)
        is_edge = edge < last
        other = tl.load(indices + edge, mask=is_edge, other=0)
        if edges is not None:
            edge = tl.load(edges + edge, mask=is_edge, other=0)
        mask = is_edge[:, None] & is_column[None, :]
        at = other.to(tl.int64)[:, None] * WIDTH + columns[None, :]
        pair = tl.load(rows + at, mask=mask, other=0).to(TOTAL) + own[None, :]
        at = edge.to(tl.int64)[:, None] * HEADS + head[None, :]
        given = tl.load(grad + at, mask=mask, other=0).to(TOTAL)
        given = tl.where(pair > 0, given, given * SLOPE)
        slopes += given
        products += given * pair
    slope, value = tl.sum(slopes, axis=0), tl.sum(products, axis=0)
    if not OF_CHUNKS:
        if CHUNK > 0:
            slope += sum_of_chunks(partial_out, begin, end, WIDTH, CHUNK, TOTAL, ROWS, BLOCK)
            if values is not None:
                value += sum_of_chunks(partial_values, begin, end, WIDTH, CHUNK, TOTAL, ROWS, BLOCK)
        slope *= tl.load(att + columns, mask=is_column, other=0).to(TOTAL)
    at = tl.program_id(0).to(tl.int64) * WIDTH + columns
    tl.store(out + at, slope.to(out.dtype.element_ty), mask=is_column)
    if values is not None:
        tl.store(values + at, value, mask=is_column)
