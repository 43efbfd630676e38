"""The GPU's inner loops over feature rows, in Triton: gather and sum; see `triton_tables`.

A program takes one row of the result and `BLOCK` of its columns, and walks over the row's edges
`ROWS` at a time, so that their loads overlap. Each lane of the tile `[ROWS, BLOCK]` keeps a result
of its own, and these are combined once, after the last edge. They are of type `TOTAL`: float32, or
float64 for float64 rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gnntrain.compute.triton_tables import edges_at, rows_at, sum_of_chunks, walk_of


@triton.jit(do_not_specialize=["first", "num_rows"])  # type: ignore[untyped-decorator]
def gather_rows(
    rows: tl.tensor,
    nodes: tl.tensor,
    slots: tl.tensor,
    parts: tl.tensor,
    first: tl.tensor,
    num_rows: tl.tensor,
    out: tl.tensor,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    PART_ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Copy the rows of the sources `first … first + num_rows − 1` to `out`, in its type."""
    number = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_row, source = number < num_rows, number + first
    row_at = rows_at(rows, nodes, slots, parts, source, is_row, STRIDE, PART_ROWS, ALIGN)
    mask = is_row[:, None] & (columns < WIDTH)[None, :]
    row = tl.load(row_at[:, None] + columns[None, :], mask=mask)
    # By way of float32: Triton converts no 16-bit type to another.
    at = number[:, None] * WIDTH + columns[None, :]
    tl.store(out + at, row.to(TOTAL).to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["first_loop", "num_loops", "own", "num_rows"])  # type: ignore[untyped-decorator]
def reduce_rows(
    rows: tl.tensor,
    nodes: tl.tensor,
    slots: tl.tensor,
    parts: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    edges: tl.tensor,
    edge_weight: tl.tensor,
    source_scale: tl.tensor,
    source_indptr: tl.tensor,
    row_scale: tl.tensor,
    loop: tl.tensor,
    first_loop: tl.tensor,
    num_loops: tl.tensor,
    own: tl.tensor,
    num_rows: tl.tensor,
    partial_out: tl.tensor,
    out: tl.tensor,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    PART_ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    HEADS: tl.constexpr,
    LOOP_HEADS: tl.constexpr,
    IS_MEAN: tl.constexpr,
    SKIP_OWN: tl.constexpr,
    PUTS_OWN: tl.constexpr,
    ADDS_OWN: tl.constexpr,
    OF_CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Weighted sums of the rows of every destination's in-neighbours.

    out[v] = row_scale[v] · Σ_e edge_weight[e] · source_scale[u] · row(u) + loop[v] · row(own + v)
    where e runs over the in-edges of v and u is the source of e; of a chunk only Σ_e.

    Args:
        indices: The source of each edge; None: edge e comes from source e.
        edge_weight: `[num_edges, HEADS]`: head h weighs the h-th of `HEADS` equal parts of a row.
        edges: The number of each edge in `edge_weight`; None: as they lie.
        source_indptr: Divide the row of source u by `source_indptr[u + 1] - source_indptr[u]`.
        loop, first_loop, num_loops: `loop[i]`, of `LOOP_HEADS` numbers, belongs to destination
            `first_loop + i`; other destinations have none.
        own: Source number of destination 0; negative where it is none.
        IS_MEAN: Divide the sum by the number of in-edges.
        SKIP_OWN: Leave out edges from a node to itself.
        PUTS_OWN: `out` is `[num_dst, 2 · WIDTH]`: beside the sum goes row(own + v).
        ADDS_OWN: Add the numbers `WIDTH … 2 · WIDTH − 1` of row(own + v) where v has a loop.
    """
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    v, first, last, begin, end = walk_of(indptr, num_rows, OF_CHUNKS, CHUNK)
    totals = tl.zeros([ROWS, BLOCK], TOTAL)
    for start in range(first, last - (end - begin), ROWS):
        edge = edges_at(start, begin, end, ROWS, CHUNK)
        is_edge = edge < last
        source = edge
        if indices is not None:
            source = tl.load(indices + edge, mask=is_edge, other=0)
        if SKIP_OWN:
            is_edge = is_edge & (source != own + v)
        weight = tl.full([ROWS], 1, TOTAL)
        if source_scale is not None:
            weight *= tl.load(source_scale + source, mask=is_edge, other=0).to(TOTAL)
        if source_indptr is not None:
            from_edge = tl.load(source_indptr + source, mask=is_edge, other=0)
            to_edge = tl.load(source_indptr + source + 1, mask=is_edge, other=1)
            weight /= (to_edge - from_edge).to(TOTAL)
        row_at = rows_at(rows, nodes, slots, parts, source, is_edge, STRIDE, PART_ROWS, ALIGN)
        mask = is_edge[:, None] & is_column[None, :]
        row = tl.load(row_at[:, None] + columns[None, :], mask=mask, other=0)
        row = weight[:, None] * row.to(TOTAL)
        if edge_weight is not None:
            if edges is not None:
                edge = tl.load(edges + edge, mask=is_edge, other=0)
            if HEADS == 1:
                factor = tl.load(edge_weight + edge, mask=is_edge, other=0)[:, None]
            else:
                head = columns // (WIDTH // HEADS)
                at = edge.to(tl.int64)[:, None] * HEADS + head[None, :]
                factor = tl.load(edge_weight + at, mask=mask, other=0)
            row *= factor.to(TOTAL)
        totals += row
    total = tl.sum(totals, axis=0)
    at = tl.program_id(0).to(tl.int64) * (WIDTH * (1 + PUTS_OWN * (not OF_CHUNKS))) + columns
    if not OF_CHUNKS:
        if CHUNK > 0:
            total += sum_of_chunks(partial_out, begin, end, WIDTH, CHUNK, TOTAL, ROWS, BLOCK)
        if IS_MEAN:
            total /= tl.maximum(last - first, 1).to(TOTAL)
        if row_scale is not None:
            total *= tl.load(row_scale + v).to(TOTAL)
        is_row = v >= 0
        if (loop is not None) or ADDS_OWN:  # noqa: SIM102  # decided when the kernel is compiled
            if (v >= first_loop) & (v < first_loop + num_loops):
                own_at = rows_at(
                    rows, nodes, slots, parts, own + v, is_row, STRIDE, PART_ROWS, ALIGN
                )
                if loop is not None:
                    row = tl.load(own_at + columns, mask=is_column, other=0).to(TOTAL)
                    at_loop = (v - first_loop) * LOOP_HEADS + columns // (WIDTH // LOOP_HEADS)
                    total += tl.load(loop + at_loop, mask=is_column, other=0).to(TOTAL) * row
                if ADDS_OWN:
                    row = tl.load(own_at + WIDTH + columns, mask=is_column, other=0)
                    total += row.to(TOTAL)
        if PUTS_OWN:
            own_at = rows_at(rows, nodes, slots, parts, own + v, is_row, STRIDE, PART_ROWS, ALIGN)
            row = tl.load(own_at + columns, mask=is_column, other=0).to(TOTAL)
            tl.store(out + at + WIDTH, row.to(out.dtype.element_ty), mask=is_column)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=is_column)


@triton.jit(do_not_specialize=["own", "num_rows"])  # type: ignore[untyped-decorator]
def edge_products(
    rows: tl.tensor,
    grad: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    source_scale: tl.tensor,
    row_scale: tl.tensor,
    own: tl.tensor,
    num_rows: tl.tensor,
    out: tl.tensor,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    HEADS: tl.constexpr,
    IS_MEAN: tl.constexpr,
    SKIP_OWN: tl.constexpr,
    OF_CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The gradient of `edge_weight` behind `reduce_rows`.

    Args:
        rows: The sources' `[num_src, WIDTH]`, one every `STRIDE` numbers.
        grad: The destinations' `[num_dst, WIDTH]`.
        out: `[num_edges, HEADS]`; edges of no destination stay as they are.
    """
    head = tl.program_id(1)
    part = WIDTH // HEADS
    v, first, last, begin, end = walk_of(indptr, num_rows, OF_CHUNKS, CHUNK)
    count = tl.load(indptr + v + 1) - tl.load(indptr + v)
    for start in range(first, last - (end - begin), ROWS):
        edge = edges_at(start, begin, end, ROWS, CHUNK)
        is_edge = edge < last
        source = tl.load(indices + edge, mask=is_edge, other=0)
        products = tl.zeros([ROWS, BLOCK], TOTAL)
        for column in range(0, part, BLOCK):
            columns = column + tl.arange(0, BLOCK)
            is_column = columns < part
            columns += head * part
            given = tl.load(grad + v.to(tl.int64) * WIDTH + columns, mask=is_column, other=0)
            at = source.to(tl.int64)[:, None] * STRIDE + columns[None, :]
            row = tl.load(rows + at, mask=is_edge[:, None] & is_column[None, :], other=0)
            products += given.to(TOTAL)[None, :] * row.to(TOTAL)
        total = tl.sum(products, axis=1)
        if IS_MEAN:
            total /= count.to(TOTAL)
        if row_scale is not None:
            total *= tl.load(row_scale + v).to(TOTAL)
        if source_scale is not None:
            total *= tl.load(source_scale + source, mask=is_edge, other=0).to(TOTAL)
        if SKIP_OWN:
            total = tl.where(source == own + v, 0, total)
        at = edge.to(tl.int64) * HEADS + head
        tl.store(out + at, total.to(out.dtype.element_ty), mask=is_edge)
