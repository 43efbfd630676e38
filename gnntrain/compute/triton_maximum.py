"""The GPU's maxima over in-edges, and the gradient behind them; see `triton_kernels`."""

from __future__ import annotations

import triton
import triton.language as tl

from gnntrain.compute.triton_tables import edges_at, rows_at, sum_of_chunks, walk_of


@triton.jit  # type: ignore[untyped-decorator]
def higher_of(
    tops: tl.tensor, counts: tl.tensor, row: tl.tensor, count: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """The larger numbers and their counts; NaN is the largest."""
    is_higher = (row > tops) | (row != row)
    counts = tl.where(is_higher, 0, counts) + tl.where(row >= tops, count, 0)
    return tl.where(is_higher, row, tops), counts


@triton.jit  # type: ignore[untyped-decorator]
def top_of(tops: tl.tensor, counts: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The largest number of each column and its count."""
    is_nan = tl.max((tops != tops).to(tl.int32), axis=0) > 0
    top = tl.max(tops, axis=0)
    count = tl.sum(tl.where(tops == top[None, :], counts, 0), axis=0)
    return tl.where(is_nan, float("nan"), top), count


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def max_rows(
    rows: tl.tensor,
    nodes: tl.tensor,
    slots: tl.tensor,
    parts: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    num_rows: tl.tensor,
    partial_out: tl.tensor,
    partial_ties: tl.tensor,
    out: tl.tensor,
    ties: tl.tensor,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    PART_ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    OF_CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The largest numbers of every destination's in-neighbours; 0 without any, NaN is the largest.

    Args:
        partial_out, partial_ties: The chunks' results.
        ties: As `out`: the number of in-edges with the largest number.
    """
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    _v, first, last, begin, end = walk_of(indptr, num_rows, OF_CHUNKS, CHUNK)
    tops = tl.full([ROWS, BLOCK], float("-inf"), TOTAL)
    counts = tl.zeros([ROWS, BLOCK], tl.int32)
    for start in range(first, last - (end - begin), ROWS):
        edge = edges_at(start, begin, end, ROWS, CHUNK)
        is_edge = edge < last
        source = tl.load(indices + edge, mask=is_edge, other=0)
        row_at = rows_at(rows, nodes, slots, parts, source, is_edge, STRIDE, PART_ROWS, ALIGN)
        mask = is_edge[:, None] & is_column[None, :]
        row = tl.load(row_at[:, None] + columns[None, :], mask=mask, other=float("-inf"))
        tops, counts = higher_of(tops, counts, row.to(TOTAL), mask.to(tl.int32))
    if CHUNK > 0 and not OF_CHUNKS:
        for start in range(begin // CHUNK, end // CHUNK, ROWS):
            chunk = start + tl.arange(0, ROWS)
            mask = (chunk < end // CHUNK)[:, None] & is_column[None, :]
            at = chunk.to(tl.int64)[:, None] * WIDTH + columns[None, :]
            row = tl.load(partial_out + at, mask=mask, other=float("-inf"))
            count = mask.to(tl.int32)
            if ties is not None:
                count = tl.load(partial_ties + at, mask=mask, other=0).to(tl.int32)
            tops, counts = higher_of(tops, counts, row, count)
    top, count = top_of(tops, counts)
    top = tl.where(last > first, top, 0)
    at = tl.program_id(0).to(tl.int64) * WIDTH + columns
    tl.store(out + at, top.to(out.dtype.element_ty), mask=is_column)
    if ties is not None:
        tl.store(ties + at, count, mask=is_column)


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def spread_maximum(
    rows: tl.tensor,
    tops: tl.tensor,
    ties: tl.tensor,
    grad: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    num_rows: tl.tensor,
    partial_out: tl.tensor,
    out: tl.tensor,
    WIDTH: tl.constexpr,
    OF_CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The gradient behind `max_rows`: in-edges that share a maximum share it evenly.

    Args:
        rows: The sources' `[num_src, WIDTH]`.
        tops, ties, grad: The destinations' maxima, their counts, and their gradient.
        indptr, indices: The out-edges of every source.
    """
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    u, first, last, begin, end = walk_of(indptr, num_rows, OF_CHUNKS, CHUNK)
    row = tl.load(rows + u.to(tl.int64) * WIDTH + columns, mask=is_column, other=0)
    totals = tl.zeros([ROWS, BLOCK], TOTAL)
    for start in range(first, last - (end - begin), ROWS):
        edge = edges_at(start, begin, end, ROWS, CHUNK)
        v = tl.load(indices + edge, mask=edge < last, other=0).to(tl.int64)
        mask = (edge < last)[:, None] & is_column[None, :]
        at = v[:, None] * WIDTH + columns[None, :]
        is_top = mask & (tl.load(tops + at, mask=mask, other=0) == row[None, :])
        given = tl.load(grad + at, mask=is_top, other=0).to(TOTAL)
        totals += given / tl.load(ties + at, mask=is_top, other=1).to(TOTAL)
    total = tl.sum(totals, axis=0)
    if CHUNK > 0 and not OF_CHUNKS:
        total += sum_of_chunks(partial_out, begin, end, WIDTH, CHUNK, TOTAL, ROWS, BLOCK)
    at = tl.program_id(0).to(tl.int64) * WIDTH + columns
    tl.store(out + at, total.to(out.dtype.element_ty), mask=is_column)
