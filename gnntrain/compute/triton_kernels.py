"""The GPU's inner loops over feature rows, in Triton: gather, reduce, spread a maximum's gradient.

A program takes one row of the result and `BLOCK` of its columns, and walks over the row's edges
`ROWS` at a time: the rows of so many sources are on their way together. Each lane of the tile
`[ROWS, BLOCK]` keeps a result of its own, and these are joined once, after the last edge. They are
kept in `TOTAL`: float32, or float64 where that is asked for.

Tables `rows` are `[any, WIDTH]`, one row after the other, in the GPU's memory or pinned in the
host's, where the GPU reads them over the bus; `place_of` says where a source's row lies. Any other
argument that is None is not wanted. What is known when a kernel is compiled (in capitals, and what
is None) costs nothing when it runs; a width that is known lets numbers be read several at a time.
Numbers that change from batch to batch are not specialised on: Triton would compile anew when one
is 1 or a multiple of 16.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]  # Triton is not typed
def place_of(
    rows: tl.tensor,
    nodes: tl.tensor,
    slots: tl.tensor,
    parts: tl.tensor,
    source: tl.tensor,
    mask: tl.tensor,
    WIDTH: tl.constexpr,
    PART_ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
) -> tl.tensor:
    """Where the rows of some sources begin, counted in numbers from `rows` on.

    Rows of `parts` lie outside `rows`: an int64 reaches all that the GPU can address.

    Args:
        nodes: The node of a source; None: the source's own number.
        slots: The row in `rows` of a node, negative where it is not there; None: the node's own
            number, or, where there are `parts`, all nodes are in these.
        parts: Addresses of matrices that hold `PART_ROWS` nodes each, one after the other.
        mask: Which sources there are; nothing is read for others.
        ALIGN: So many numbers fit a whole number of times between `rows` and each part.
    """
    if nodes is not None:
        source = tl.load(nodes + source, mask=mask, other=0)
    node = source.to(tl.int64)
    if slots is not None:
        slot = tl.load(slots + node, mask=mask, other=0).to(tl.int64)
        place = slot * WIDTH
    else:
        place = node * WIDTH
    if parts is not None:
        is_far = mask
        if slots is not None:
            is_far = (slot < 0) & mask
        address = tl.load(parts + node // PART_ROWS, mask=is_far, other=0)
        away = (address - rows.to(tl.int64)) // (rows.dtype.element_ty.primitive_bitwidth // 8)
        away = tl.multiple_of(away, ALIGN) + (node % PART_ROWS) * WIDTH
        place = tl.where(is_far, away, place)
    return place


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
    PART_ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Copy the rows of the sources `first … first + num_rows − 1` to `out`, in its type."""
    number = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_row = number < num_rows
    place = place_of(rows, nodes, slots, parts, number + first, is_row, WIDTH, PART_ROWS, ALIGN)
    mask = is_row[:, None] & (columns < WIDTH)[None, :]
    row = tl.load(rows + place[:, None] + columns[None, :], mask=mask)
    # By way of float32: no pair of 16-bit types has a conversion of its own.
    at = number[:, None] * WIDTH + columns[None, :]
    tl.store(out + at, row.to(TOTAL).to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["first_loop", "num_loops", "own"])  # type: ignore[untyped-decorator]
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
    out: tl.tensor,
    WIDTH: tl.constexpr,
    PART_ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    HEADS: tl.constexpr,
    IS_MEAN: tl.constexpr,
    SKIP_OWN: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Weighted sums of the rows of every destination's in-neighbours.

    out[v] = row_scale[v] · Σ_e edge_weight[e] · source_scale[u] · row(u) + loop[v] · row(own + v)
    where e runs over the in-edges of v and u is the source of e.

    Args:
        edge_weight: `[num_edges, HEADS]`: head h weighs the h-th of `HEADS` equal parts of a row.
        edges: The number of each edge in `edge_weight`; None: as they lie.
        source_indptr: Divide the row of source u by `source_indptr[u + 1] - source_indptr[u]`.
        loop, first_loop, num_loops: `loop[i]` belongs to destination `first_loop + i`; other
            destinations have none.
        own: Source number of destination 0; negative where it is none.
        IS_MEAN: Divide the sum by the number of in-edges.
        SKIP_OWN: Leave out edges from a node to itself.
    """
    v = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    first, last = tl.load(indptr + v), tl.load(indptr + v + 1)
    totals = tl.zeros([ROWS, BLOCK], TOTAL)
    for start in range(first, last, ROWS):
        edge = start + tl.arange(0, ROWS)
        is_edge = edge < last
        source = tl.load(indices + edge, mask=is_edge, other=0)
        if SKIP_OWN:
            is_edge = is_edge & (source != own + v)
        weight = tl.full([ROWS], 1, TOTAL)
        if source_scale is not None:
            weight *= tl.load(source_scale + source, mask=is_edge, other=0).to(TOTAL)
        if source_indptr is not None:
            begin = tl.load(source_indptr + source, mask=is_edge, other=0)
            end = tl.load(source_indptr + source + 1, mask=is_edge, other=1)
            weight /= (end - begin).to(TOTAL)
        place = place_of(rows, nodes, slots, parts, source, is_edge, WIDTH, PART_ROWS, ALIGN)
        mask = is_edge[:, None] & is_column[None, :]
        row = tl.load(rows + place[:, None] + columns[None, :], mask=mask, other=0)
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
    if IS_MEAN:
        total /= tl.maximum(last - first, 1).to(TOTAL)
    if row_scale is not None:
        total *= tl.load(row_scale + v).to(TOTAL)
    if loop is not None:  # noqa: SIM102  # this one is decided when the kernel is compiled
        if (v >= first_loop) & (v < first_loop + num_loops):
            is_own = v >= first_loop
            place = place_of(rows, nodes, slots, parts, own + v, is_own, WIDTH, PART_ROWS, ALIGN)
            row = tl.load(rows + place + columns, mask=is_column, other=0)
            total += tl.load(loop + (v - first_loop)).to(TOTAL) * row.to(TOTAL)
    at = v.to(tl.int64) * WIDTH + columns
    tl.store(out + at, total.to(out.dtype.element_ty), mask=is_column)


@triton.jit(do_not_specialize=["own"])  # type: ignore[untyped-decorator]
def edge_products(
    rows: tl.tensor,
    grad: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    source_scale: tl.tensor,
    row_scale: tl.tensor,
    own: tl.tensor,
    out: tl.tensor,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    IS_MEAN: tl.constexpr,
    SKIP_OWN: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The gradient of `edge_weight` behind `reduce_rows`.

    Args:
        rows: The sources' `[num_src, WIDTH]`.
        grad: The destinations' `[num_dst, WIDTH]`.
        out: `[num_edges, HEADS]`.
    """
    v, head = tl.program_id(0), tl.program_id(1)
    part = WIDTH // HEADS
    first, last = tl.load(indptr + v), tl.load(indptr + v + 1)
    for start in range(first, last, ROWS):
        edge = start + tl.arange(0, ROWS)
        is_edge = edge < last
        source = tl.load(indices + edge, mask=is_edge, other=0)
        products = tl.zeros([ROWS, BLOCK], TOTAL)
        for column in range(0, part, BLOCK):
            columns = column + tl.arange(0, BLOCK)
            is_column = columns < part
            columns += head * part
            given = tl.load(grad + v.to(tl.int64) * WIDTH + columns, mask=is_column, other=0)
            at = source.to(tl.int64)[:, None] * WIDTH + columns[None, :]
            row = tl.load(rows + at, mask=is_edge[:, None] & is_column[None, :], other=0)
            products += given.to(TOTAL)[None, :] * row.to(TOTAL)
        total = tl.sum(products, axis=1)
        if IS_MEAN:
            total /= (last - first).to(TOTAL)
        if row_scale is not None:
            total *= tl.load(row_scale + v).to(TOTAL)
        if source_scale is not None:
            total *= tl.load(source_scale + source, mask=is_edge, other=0).to(TOTAL)
        if SKIP_OWN:
            total = tl.where(source == own + v, 0, total)
        at = edge.to(tl.int64) * HEADS + head
        tl.store(out + at, total.to(out.dtype.element_ty), mask=is_edge)


@triton.jit  # type: ignore[untyped-decorator]
def max_rows(
    rows: tl.tensor,
    nodes: tl.tensor,
    slots: tl.tensor,
    parts: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    out: tl.tensor,
    ties: tl.tensor,
    WIDTH: tl.constexpr,
    PART_ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The largest numbers of every destination's in-neighbours; 0 without, not a number wins.

    Args:
        ties: int32 as `out`: how many in-edges have brought the largest number.
    """
    v = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    first, last = tl.load(indptr + v), tl.load(indptr + v + 1)
    tops = tl.full([ROWS, BLOCK], float("-inf"), TOTAL)
    counts = tl.zeros([ROWS, BLOCK], tl.int32)
    for start in range(first, last, ROWS):
        edge = start + tl.arange(0, ROWS)
        is_edge = edge < last
        source = tl.load(indices + edge, mask=is_edge, other=0)
        place = place_of(rows, nodes, slots, parts, source, is_edge, WIDTH, PART_ROWS, ALIGN)
        mask = is_edge[:, None] & is_column[None, :]
        at = place[:, None] + columns[None, :]
        row = tl.load(rows + at, mask=mask, other=float("-inf")).to(TOTAL)
        is_higher = (row > tops) | (row != row)
        counts = tl.where(is_higher, 0, counts) + ((row >= tops) & mask).to(tl.int32)
        tops = tl.where(is_higher, row, tops)
    is_nan = tl.max((tops != tops).to(tl.int32), axis=0) > 0
    top = tl.max(tops, axis=0)
    count = tl.sum(tl.where(tops == top[None, :], counts, 0), axis=0)
    top = tl.where(is_nan, float("nan"), tl.where(last > first, top, 0))
    at = v.to(tl.int64) * WIDTH + columns
    tl.store(out + at, top.to(out.dtype.element_ty), mask=is_column)
    if ties is not None:
        tl.store(ties + at, count, mask=is_column)


@triton.jit  # type: ignore[untyped-decorator]
def spread_maximum(
    rows: tl.tensor,
    tops: tl.tensor,
    ties: tl.tensor,
    grad: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    out: tl.tensor,
    WIDTH: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The gradient behind `max_rows`: in-edges that share a maximum share it evenly.

    Args:
        rows: The sources' `[num_src, WIDTH]`.
        tops, ties, grad: The destinations' maxima, what `max_rows` wrote beside them, and their
            gradient.
        indptr, indices: The out-edges of every source.
    """
    u = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    first, last = tl.load(indptr + u), tl.load(indptr + u + 1)
    own = u.to(tl.int64) * WIDTH + columns
    row = tl.load(rows + own, mask=is_column, other=0)
    totals = tl.zeros([ROWS, BLOCK], TOTAL)
    for start in range(first, last, ROWS):
        edge = start + tl.arange(0, ROWS)
        is_edge = edge < last
        v = tl.load(indices + edge, mask=is_edge, other=0).to(tl.int64)
        mask = is_edge[:, None] & is_column[None, :]
        at = v[:, None] * WIDTH + columns[None, :]
        is_top = mask & (tl.load(tops + at, mask=mask, other=0) == row[None, :])
        given = tl.load(grad + at, mask=is_top, other=0).to(TOTAL)
        totals += given / tl.load(ties + at, mask=is_top, other=1).to(TOTAL)
    total = tl.sum(totals, axis=0)
    tl.store(out + own, total.to(out.dtype.element_ty), mask=is_column)


@triton.jit  # type: ignore[untyped-decorator]
def scores_of(
    rows: tl.tensor,
    indices: tl.tensor,
    edge: tl.tensor,
    last: tl.tensor,
    skipped: tl.tensor,
    heads: tl.tensor,
    WIDTH: tl.constexpr,
    TOTAL: tl.constexpr,
) -> tl.tensor:
    """The scores of some edges before `last`; −∞ for the others, and for those from `skipped`."""
    source = tl.load(indices + edge, mask=edge < last, other=0)
    mask = ((edge < last) & (source != skipped))[:, None] & (heads < WIDTH)[None, :]
    at = edge.to(tl.int64)[:, None] * WIDTH + heads[None, :]
    return tl.load(rows + at, mask=mask, other=float("-inf")).to(TOTAL)


@triton.jit(do_not_specialize=["own"])  # type: ignore[untyped-decorator]
def edge_softmax(
    rows: tl.tensor,
    loop_score: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    own: tl.tensor,
    alpha: tl.tensor,
    out: tl.tensor,
    WIDTH: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Softmax over each destination's in-edges and a loop of its own, by head.

    Args:
        rows: `[num_edges, WIDTH]`, a score a head; those of edges from a node to itself are left
            out (and get 0).
        loop_score: `[num_dst, WIDTH]`.
        alpha, out: The weights of the edges and of the loops.
    """
    v = tl.program_id(0)
    heads = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_head = heads < WIDTH
    own_at = v.to(tl.int64) * WIDTH + heads
    loop = tl.load(loop_score + own_at, mask=is_head, other=0).to(TOTAL)
    first, last = tl.load(indptr + v), tl.load(indptr + v + 1)
    tops = tl.full([ROWS, BLOCK], float("-inf"), TOTAL)
    for start in range(first, last, ROWS):
        edge = start + tl.arange(0, ROWS)
        score = scores_of(rows, indices, edge, last, own + v, heads, WIDTH, TOTAL)
        tops = tl.maximum(tops, score)
    top = tl.maximum(loop, tl.max(tops, axis=0))
    totals = tl.zeros([ROWS, BLOCK], TOTAL)
    for start in range(first, last, ROWS):
        edge = start + tl.arange(0, ROWS)
        score = scores_of(rows, indices, edge, last, own + v, heads, WIDTH, TOTAL)
        totals += tl.exp(score - top[None, :])
    total = tl.sum(totals, axis=0) + tl.exp(loop - top)
    for start in range(first, last, ROWS):
        edge = start + tl.arange(0, ROWS)
        score = scores_of(rows, indices, edge, last, own + v, heads, WIDTH, TOTAL)
        at = edge.to(tl.int64)[:, None] * WIDTH + heads[None, :]
        mask = (edge < last)[:, None] & is_head[None, :]
        tl.store(alpha + at, tl.exp(score - top[None, :]) / total[None, :], mask=mask)
    tl.store(out + own_at, tl.exp(loop - top) / total, mask=is_head)


@triton.jit  # type: ignore[untyped-decorator]
def edge_softmax_gradient(
    rows: tl.tensor,
    grad: tl.tensor,
    loop_alpha: tl.tensor,
    loop_grad: tl.tensor,
    indptr: tl.tensor,
    score_grad: tl.tensor,
    out: tl.tensor,
    WIDTH: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The gradient behind `edge_softmax`.

    Args:
        rows, loop_alpha: The weights it gave.
        grad, loop_grad: Their gradients.
        score_grad, out: The gradients of the scores of the edges and of the loops.
    """
    v = tl.program_id(0)
    heads = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_head = heads < WIDTH
    first, last = tl.load(indptr + v), tl.load(indptr + v + 1)
    means = tl.zeros([ROWS, BLOCK], TOTAL)
    for start in range(first, last, ROWS):
        edge = start + tl.arange(0, ROWS)
        mask = (edge < last)[:, None] & is_head[None, :]
        at = edge.to(tl.int64)[:, None] * WIDTH + heads[None, :]
        alpha = tl.load(rows + at, mask=mask, other=0).to(TOTAL)
        means += alpha * tl.load(grad + at, mask=mask, other=0).to(TOTAL)
    own_at = v.to(tl.int64) * WIDTH + heads
    loop = tl.load(loop_alpha + own_at, mask=is_head, other=0).to(TOTAL)
    given = tl.load(loop_grad + own_at, mask=is_head, other=0).to(TOTAL)
    mean = tl.sum(means, axis=0) + loop * given
    for start in range(first, last, ROWS):
        edge = start + tl.arange(0, ROWS)
        mask = (edge < last)[:, None] & is_head[None, :]
        at = edge.to(tl.int64)[:, None] * WIDTH + heads[None, :]
        alpha = tl.load(rows + at, mask=mask, other=0).to(TOTAL)
        share = tl.load(grad + at, mask=mask, other=0).to(TOTAL) - mean[None, :]
        tl.store(score_grad + at, alpha * share, mask=mask)
    tl.store(out + own_at, loop * (given - mean), mask=is_head)
