"""The GPU's maxima over in-edges, and the gradient behind them; see `triton_kernels`."""

from __future__ import annotations

import triton
import triton.language as tl

from gnntrain.compute.triton_kernels import sum_of_chunks
from gnntrain.compute.triton_tables import edges_at, place_of, row_of_chunk, span_of


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


@triton.jit  # type: ignore[untyped-decorator]
def top_of_edges(
    rows: tl.tensor,
    nodes: tl.tensor,
    slots: tl.tensor,
    parts: tl.tensor,
    indices: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    PART_ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """`[ROWS, BLOCK]`: the largest numbers of each lane and their counts; −∞ without edges."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tops = tl.full([ROWS, BLOCK], float("-inf"), TOTAL)
    counts = tl.zeros([ROWS, BLOCK], tl.int32)
    for start in range(first, last - (end - begin), ROWS):
        edge = edges_at(start, begin, end, ROWS, CHUNK)
        is_edge = edge < last
        source = tl.load(indices + edge, mask=is_edge, other=0)
        place = place_of(rows, nodes, slots, parts, source, is_edge, STRIDE, PART_ROWS, ALIGN)
        mask = is_edge[:, None] & (columns < WIDTH)[None, :]
        at = place[:, None] + columns[None, :]
        row = tl.load(rows + at, mask=mask, other=float("-inf")).to(TOTAL)
        tops, counts = higher_of(tops, counts, row, mask.to(tl.int32))
    return tops, counts


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def max_chunks(
    rows: tl.tensor,
    nodes: tl.tensor,
    slots: tl.tensor,
    parts: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    num_rows: tl.tensor,
    out: tl.tensor,
    ties: tl.tensor,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    PART_ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The maxima of the chunks of long rows, `TOTAL [num_chunks, WIDTH]`, for `max_rows`."""
    chunk = tl.program_id(0)
    v, first, last = row_of_chunk(indptr, num_rows, chunk, CHUNK)
    if v >= 0:
        tops, counts = top_of_edges(
            rows, nodes, slots, parts, indices, first, last, last, last,
            WIDTH, STRIDE, PART_ROWS, ALIGN, 0, TOTAL, ROWS, BLOCK,
        )  # fmt: skip
        top, count = top_of(tops, counts)
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        at = chunk.to(tl.int64) * WIDTH + columns
        tl.store(out + at, top, mask=columns < WIDTH)
        tl.store(ties + at, count, mask=columns < WIDTH)


@triton.jit  # type: ignore[untyped-decorator]
def max_rows(
    rows: tl.tensor,
    nodes: tl.tensor,
    slots: tl.tensor,
    parts: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    partial: tl.tensor,
    partial_ties: tl.tensor,
    out: tl.tensor,
    ties: tl.tensor,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    PART_ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The largest numbers of every destination's in-neighbours; 0 without any, NaN is the largest.

    Args:
        partial, partial_ties: Results of `max_chunks`.
        ties: int32 as `out`: the number of in-edges with the largest number.
    """
    v = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    first, last, begin, end = span_of(indptr, v, CHUNK)
    tops, counts = top_of_edges(
        rows, nodes, slots, parts, indices, first, last, begin, end,
        WIDTH, STRIDE, PART_ROWS, ALIGN, CHUNK, TOTAL, ROWS, BLOCK,
    )  # fmt: skip
    if CHUNK > 0:
        end_chunk = end // CHUNK
        for start in range(begin // CHUNK, end_chunk, ROWS):
            chunk = start + tl.arange(0, ROWS)
            mask = (chunk < end_chunk)[:, None] & is_column[None, :]
            at = chunk.to(tl.int64)[:, None] * WIDTH + columns[None, :]
            row = tl.load(partial + at, mask=mask, other=float("-inf"))
            count = tl.load(partial_ties + at, mask=mask, other=0)
            tops, counts = higher_of(tops, counts, row, count)
    top, count = top_of(tops, counts)
    top = tl.where(last > first, top, 0)
    at = v.to(tl.int64) * WIDTH + columns
    tl.store(out + at, top.to(out.dtype.element_ty), mask=is_column)
    if ties is not None:
        tl.store(ties + at, count, mask=is_column)


@triton.jit  # type: ignore[untyped-decorator]
def shares_of_edges(
    row: tl.tensor,
    tops: tl.tensor,
    ties: tl.tensor,
    grad: tl.tensor,
    indices: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """`[BLOCK]`: some out-edges' part of the gradient of a source's `row`; see `spread_maximum`."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    totals = tl.zeros([ROWS, BLOCK], TOTAL)
    for start in range(first, last - (end - begin), ROWS):
        edge = edges_at(start, begin, end, ROWS, CHUNK)
        is_edge = edge < last
        v = tl.load(indices + edge, mask=is_edge, other=0).to(tl.int64)
        mask = is_edge[:, None] & (columns < WIDTH)[None, :]
        at = v[:, None] * WIDTH + columns[None, :]
        is_top = mask & (tl.load(tops + at, mask=mask, other=0) == row[None, :])
        given = tl.load(grad + at, mask=is_top, other=0).to(TOTAL)
        totals += given / tl.load(ties + at, mask=is_top, other=1).to(TOTAL)
    return tl.sum(totals, axis=0)


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def spread_chunks(
    rows: tl.tensor,
    tops: tl.tensor,
    ties: tl.tensor,
    grad: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    num_rows: tl.tensor,
    out: tl.tensor,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The gradients by chunks of long rows, `TOTAL [num_chunks, WIDTH]`, for `spread_maximum`."""
    chunk = tl.program_id(0)
    u, first, last = row_of_chunk(indptr, num_rows, chunk, CHUNK)
    if u >= 0:
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        is_column = columns < WIDTH
        row = tl.load(rows + u.to(tl.int64) * WIDTH + columns, mask=is_column, other=0)
        total = shares_of_edges(
            row, tops, ties, grad, indices, first, last, last, last, WIDTH, 0, TOTAL, ROWS, BLOCK
        )
        tl.store(out + chunk.to(tl.int64) * WIDTH + columns, total, mask=is_column)


@triton.jit  # type: ignore[untyped-decorator]
def spread_maximum(
    rows: tl.tensor,
    tops: tl.tensor,
    ties: tl.tensor,
    grad: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    partial: tl.tensor,
    out: tl.tensor,
    WIDTH: tl.constexpr,
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
        partial: Result of `spread_chunks`.
    """
    u = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    first, last, begin, end = span_of(indptr, u, CHUNK)
    own = u.to(tl.int64) * WIDTH + columns
    row = tl.load(rows + own, mask=is_column, other=0)
    total = shares_of_edges(
        row, tops, ties, grad, indices, first, last, begin, end, WIDTH, CHUNK, TOTAL, ROWS, BLOCK
    )
    if CHUNK > 0:
        total += sum_of_chunks(partial, begin // CHUNK, end // CHUNK, WIDTH, TOTAL, ROWS, BLOCK)
    tl.store(out + own, total.to(out.dtype.element_ty), mask=is_column)
