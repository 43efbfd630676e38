"""The GPU's inner loops in Triton: gather, sum, maximum, scores of edges, softmax.

Tables `rows` are `[any, WIDTH]`, in the GPU's memory or in pinned host memory, which the GPU reads
over the bus; `rows_at` computes where a source's row begins. Other arguments may be None; their
names are those of the operators' fields. Constants in capitals, flags and None are known at compile
time and cost nothing; a constant width allows vector loads. Numbers that change from batch to batch
are not specialised on: Triton would compile again when one is 1 or a multiple of 16.

A program takes one row of the result and `BLOCK` of its columns, and walks over the row's edges
`ROWS` at a time, so that their loads overlap. Each lane of the tile `[ROWS, BLOCK]` keeps a result
of its own, and these are combined once, after the last edge. They are of type `TOTAL`: float32, or
float64 for float64 rows.

Where a row may have very many edges, these are cut into chunks of `CHUNK`: chunk p is the edges
`p · CHUNK … (p + 1) · CHUNK − 1`. A row of `2 · CHUNK` edges or more leaves the chunks that lie
wholly in it to programs of their own: the kernel runs twice, first with `OF_CHUNKS`, a program a
chunk, then a program a row, which adds the chunks' results (`partial_out`) to the sum of the edges
at the row's two ends. The order of the additions depends on the block alone: equal runs give equal
numbers. `CHUNK` 0: no row is that long.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]  # Triton is not typed
def rows_at(
    rows: tl.tensor,
    nodes: tl.tensor,
    source: tl.tensor,
    mask: tl.tensor,
    STRIDE: tl.constexpr,
    ALIGN: tl.constexpr,
) -> tl.tensor:
    """Pointers to the rows of some sources.

    Args:
        nodes: The row in `rows` of a source; None: the source's own number.
        mask: Which sources there are; nothing is read for others.
        STRIDE: Numbers from one row to the next.
        ALIGN: 0, or of rows in several matrices, of which `nodes` are the addresses, a divisor of
            these in bytes. (On an AMD GPU an offset from a small tensor has 32 bits.)
    """
    if nodes is not None:
        source = tl.load(nodes + source, mask=mask, other=0)
    if ALIGN > 0:
        return tl.multiple_of(source.to(rows.dtype), ALIGN)
    return rows + source.to(tl.int64) * STRIDE


@triton.jit  # type: ignore[untyped-decorator]
def edges_at(
    start: tl.tensor, begin: tl.tensor, end: tl.tensor, ROWS: tl.constexpr, CHUNK: tl.constexpr
) -> tl.tensor:
    """The next `ROWS` edges of a walk that has come to `start`, past the chunks `begin … end`.

    The walk runs up to the row's last edge less `end - begin`.
    """
    edge = start + tl.arange(0, ROWS)
    if CHUNK > 0:
        edge += tl.where(edge >= begin, end - begin, 0)
    return edge


@triton.jit  # type: ignore[untyped-decorator]
def walk_of(
    indptr: tl.tensor, num_rows: tl.tensor, OF_CHUNKS: tl.constexpr, CHUNK: tl.constexpr
) -> tuple[tl.tensor, ...]:
    """The edges of this program: its row, first edge, end, and the first and end of its chunks.

    With `OF_CHUNKS` they are its chunk, or none where that does not lie wholly in a long row (row 0
    then stands for a row); else a row's edges without its chunks.
    """
    if OF_CHUNKS:
        start = tl.program_id(0).to(indptr.dtype.element_ty) * CHUNK
        v, high = num_rows * 0, num_rows + 1
        while high - v > 1:  # the last row that starts at or before the chunk
            middle = v + (high - v) // 2
            is_before = tl.load(indptr + middle) <= start
            v = tl.where(is_before, middle, v)
            high = tl.where(is_before, high, middle)
        first = tl.load(indptr + v)
        last = tl.load(indptr + v + 1, mask=v < num_rows, other=0)
        is_inside = (v < num_rows) & (last - first >= 2 * CHUNK) & (start + CHUNK <= last)
        first, last = start, tl.where(is_inside, start + CHUNK, start)
        v = tl.where(is_inside, v, 0)
        begin, end = last, last
    else:
        v = tl.program_id(0)
        first, last = tl.load(indptr + v), tl.load(indptr + v + 1)
        begin, end = last, last
        if CHUNK > 0:
            is_long = last - first >= 2 * CHUNK
            begin = tl.where(is_long, (first + CHUNK - 1) // CHUNK * CHUNK, last)
            end = tl.where(is_long, last // CHUNK * CHUNK, last)
    return v, first, last, begin, end


@triton.jit  # type: ignore[untyped-decorator]
def sum_of_chunks(
    partial: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """`[BLOCK]`: the sum of `partial`, `[num_chunks, WIDTH]`, over the chunks `begin … end`."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    totals = tl.zeros([ROWS, BLOCK], TOTAL)
    for start in range(begin // CHUNK, end // CHUNK, ROWS):
        chunk = start + tl.arange(0, ROWS)
        mask = (chunk < end // CHUNK)[:, None] & (columns < WIDTH)[None, :]
        at = chunk.to(tl.int64)[:, None] * WIDTH + columns[None, :]
        totals += tl.load(partial + at, mask=mask, other=0)
    return tl.sum(totals, axis=0)


@triton.jit(do_not_specialize=["start", "num_rows"])  # type: ignore[untyped-decorator]
def gather_rows(
    rows: tl.tensor,
    nodes: tl.tensor,
    start: tl.tensor,
    num_rows: tl.tensor,
    out: tl.tensor,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    ALIGN: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Copy the rows of the sources `start … start + num_rows − 1` to `out`, in its type."""
    number = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_row, source = number < num_rows, number + start
    row_at = rows_at(rows, nodes, source, is_row, STRIDE, ALIGN)
    mask = is_row[:, None] & (columns < WIDTH)[None, :]
    row = tl.load(row_at[:, None] + columns[None, :], mask=mask)
    # By way of float32: Triton converts no 16-bit type to another.
    at = number[:, None] * WIDTH + columns[None, :]
    tl.store(out + at, row.to(TOTAL).to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_loops", "dst_offset", "num_rows"])  # type: ignore[untyped-decorator]
def reduce_rows(
    rows: tl.tensor,
    nodes: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    edge_ids: tl.tensor,
    edge_weight: tl.tensor,
    source_scale: tl.tensor,
    scale: tl.tensor,
    loop: tl.tensor,
    num_loops: tl.tensor,
    dst_offset: tl.tensor,
    num_rows: tl.tensor,
    partial_out: tl.tensor,
    out: tl.tensor,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    ALIGN: tl.constexpr,
    HEADS: tl.constexpr,
    LOOP_HEADS: tl.constexpr,
    skip_own: tl.constexpr,
    PUTS_OWN: tl.constexpr,
    ADDS_OWN: tl.constexpr,
    OF_CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Weighted sums of the rows of every destination's in-neighbours.

    See `Sum`; of a chunk only Σ_e.

    Args:
        num_loops: So many destinations, the first that are sources, have a loop.
        PUTS_OWN: `out` is `[num_dst, 2 · WIDTH]`: beside the sum goes row(dst_offset + v).
        ADDS_OWN: Add the numbers `WIDTH … 2 · WIDTH − 1` of row(dst_offset + v) where v has a loop.
    """
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    v, first, last, begin, end = walk_of(indptr, num_rows, OF_CHUNKS, CHUNK)
    own = dst_offset + v
    totals = tl.zeros([ROWS, BLOCK], TOTAL)
    for start in range(first, last - (end - begin), ROWS):
        edge = edges_at(start, begin, end, ROWS, CHUNK)
        is_edge = edge < last
        source = edge
        if indices is not None:
            source = tl.load(indices + edge, mask=is_edge, other=0)
        if skip_own:
            is_edge = is_edge & (source != own)
        weight = tl.full([ROWS], 1, TOTAL)
        if source_scale is not None:
            weight *= tl.load(source_scale + source, mask=is_edge, other=0).to(TOTAL)
        row_at = rows_at(rows, nodes, source, is_edge, STRIDE, ALIGN)
        mask = is_edge[:, None] & is_column[None, :]
        row = tl.load(row_at[:, None] + columns[None, :], mask=mask, other=0)
        row = weight[:, None] * row.to(TOTAL)
        if edge_weight is not None:
            if edge_ids is not None:
                edge = tl.load(edge_ids + edge, mask=is_edge, other=0)
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
        if scale is not None:
            total *= tl.load(scale + v).to(TOTAL)
        is_row = v >= 0
        if (loop is not None) or ADDS_OWN:  # decided when the kernel is compiled
            number = tl.minimum(v, own)
            if (number >= 0) & (number < num_loops):
                own_at = rows_at(rows, nodes, own, is_row, STRIDE, ALIGN)
                if loop is not None:
                    row = tl.load(own_at + columns, mask=is_column, other=0).to(TOTAL)
                    at_loop = number * LOOP_HEADS + columns // (WIDTH // LOOP_HEADS)
                    total += tl.load(loop + at_loop, mask=is_column, other=0).to(TOTAL) * row
                if ADDS_OWN:
                    row = tl.load(own_at + WIDTH + columns, mask=is_column, other=0)
                    total += row.to(TOTAL)
        if PUTS_OWN:
            own_at = rows_at(rows, nodes, own, is_row, STRIDE, ALIGN)
            row = tl.load(own_at + columns, mask=is_column, other=0).to(TOTAL)
            tl.store(out + at + WIDTH, row.to(out.dtype.element_ty), mask=is_column)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=is_column)


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
    STRIDE: tl.constexpr,
    HEADS: tl.constexpr,
    SLOPE: tl.constexpr,
    OF_CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Attention's scores, and the gradient of its weights.

    A program takes a row, or a chunk, and a head. The vector of an edge is never stored.

    Args:
        rows: The sources' `[num_src, WIDTH]`, one every `STRIDE` numbers.
        right: The destinations' `[num_dst, WIDTH]`.
        att: `[WIDTH]`: the result is Σ att · leaky_relu(rows[u] + right[v], SLOPE) over the head's
            part of the columns; None: Σ rows[u] · right[v].
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
            given = tl.load(right + v.to(tl.int64) * WIDTH + columns, mask=is_column, other=0)
            at = source.to(tl.int64)[:, None] * STRIDE + columns[None, :]
            row = tl.load(rows + at, mask=is_edge[:, None] & is_column[None, :], other=0).to(TOTAL)
            given = given.to(TOTAL)[None, :]
            if att is None:
                products += given * row
            else:
                factor = tl.load(att + columns, mask=is_column, other=0).to(TOTAL)[None, :]
                pair = row + given
                products += factor * tl.where(pair > 0, pair, pair * SLOPE)
        total = tl.sum(products, axis=1)
        at = edge.to(tl.int64) * HEADS + head
        tl.store(out + at, total.to(out.dtype.element_ty), mask=is_edge)


@triton.jit  # type: ignore[untyped-decorator]
def higher_of(
    tops: tl.tensor, counts: tl.tensor, row: tl.tensor, count: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """The larger numbers and their counts; NaN is the largest."""
    is_higher = (row > tops) | (row != row)
    counts = tl.where(is_higher, 0, counts) + tl.where(row >= tops, count, 0)
    return tl.where(is_higher, row, tops), counts


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def max_rows(
    rows: tl.tensor,
    nodes: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    num_rows: tl.tensor,
    partial_out: tl.tensor,
    partial_ties: tl.tensor,
    out: tl.tensor,
    ties: tl.tensor,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    ALIGN: tl.constexpr,
    OF_CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """See `AggregateMax`; `partial_…` are the chunks' results, here and in the other kernels."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    _v, first, last, begin, end = walk_of(indptr, num_rows, OF_CHUNKS, CHUNK)
    tops = tl.full([ROWS, BLOCK], float("-inf"), TOTAL)
    counts = tl.zeros([ROWS, BLOCK], tl.int32)
    for start in range(first, last - (end - begin), ROWS):
        edge = edges_at(start, begin, end, ROWS, CHUNK)
        is_edge = edge < last
        source = tl.load(indices + edge, mask=is_edge, other=0)
        row_at = rows_at(rows, nodes, source, is_edge, STRIDE, ALIGN)
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
    top = tl.max(tops, axis=0)
    count = tl.sum(tl.where(tops == top[None, :], counts, 0), axis=0)
    top = tl.where(tl.max((tops != tops).to(tl.int32), axis=0) > 0, float("nan"), top)
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
    """See `AggregateMaxBackward`; `tops` are the destinations' maxima."""
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


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def pair_gradient(
    rows: tl.tensor,
    mine: tl.tensor,
    att: tl.tensor,
    grad: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    edge_ids: tl.tensor,
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
        grad: The scores' gradient, `[num_edges, HEADS]`, by `edge_ids` where these are given.
        indptr, indices: By row of this side, the rows of the other.
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
        if edge_ids is not None:
            edge = tl.load(edge_ids + edge, mask=is_edge, other=0)
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


@triton.jit  # type: ignore[untyped-decorator]
def scores_of(
    rows: tl.tensor,
    target: tl.tensor,
    indices: tl.tensor,
    edge: tl.tensor,
    last: tl.tensor,
    v: tl.tensor,
    skipped: tl.tensor,
    heads: tl.tensor,
    WIDTH: tl.constexpr,
    SLOPE: tl.constexpr,
    TOTAL: tl.constexpr,
) -> tl.tensor:
    """The scores of some edges of v before `last`; −∞ for others and for those from `skipped`.

    They are `rows[edge]`, or with a `target` leaky_relu(rows[source] + target[v]).
    """
    source = tl.load(indices + edge, mask=edge < last, other=0)
    mask = ((edge < last) & (source != skipped))[:, None] & (heads < WIDTH)[None, :]
    if target is None:
        at = edge.to(tl.int64)[:, None] * WIDTH + heads[None, :]
        score = tl.load(rows + at, mask=mask, other=0).to(TOTAL)
    else:
        at = source.to(tl.int64)[:, None] * WIDTH + heads[None, :]
        given = tl.load(target + v.to(tl.int64) * WIDTH + heads, mask=heads < WIDTH, other=0)
        score = tl.load(rows + at, mask=mask, other=0).to(TOTAL) + given.to(TOTAL)[None, :]
        score = tl.where(score > 0, score, score * SLOPE)
    return tl.where(mask, score, float("-inf"))


@triton.jit  # type: ignore[untyped-decorator]
def added_up(
    tops: tl.tensor, totals: tl.tensor, score: tl.tensor, weight: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Running sums of exp(score − top) of each lane, after adding `weight` · exp(score)."""
    higher = tl.maximum(tops, score)
    base = tl.where(higher == float("-inf"), 0, higher)  # −∞ − −∞ would be NaN
    return higher, totals * tl.exp(tops - base) + weight * tl.exp(score - base)


@triton.jit(do_not_specialize=["own", "num_rows"])  # type: ignore[untyped-decorator]
def softmax_sums(
    rows: tl.tensor,
    target: tl.tensor,
    loop_score: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    own: tl.tensor,
    num_rows: tl.tensor,
    partial_out: tl.tensor,
    partial_totals: tl.tensor,
    out: tl.tensor,
    totals: tl.tensor,
    WIDTH: tl.constexpr,
    SLOPE: tl.constexpr,
    OF_CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The largest score and Σ exp(score − top) of each destination's in-edges and, but for chunks,
    a loop of its own.

    Args:
        rows, target, SLOPE: The scores, see `scores_of`; the edge from `own` + v is left out.
        out, totals: `[num_dst, WIDTH]`, the results.
    """
    heads = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_head = heads < WIDTH
    v, first, last, begin, end = walk_of(indptr, num_rows, OF_CHUNKS, CHUNK)
    tops = tl.full([ROWS, BLOCK], float("-inf"), TOTAL)
    sums = tl.zeros([ROWS, BLOCK], TOTAL)
    for start in range(first, last - (end - begin), ROWS):
        edge = edges_at(start, begin, end, ROWS, CHUNK)
        score = scores_of(rows, target, indices, edge, last, v, own + v, heads, WIDTH, SLOPE, TOTAL)
        tops, sums = added_up(tops, sums, score, 1.0)
    if CHUNK > 0 and not OF_CHUNKS:
        for start in range(begin // CHUNK, end // CHUNK, ROWS):
            chunk = start + tl.arange(0, ROWS)
            mask = (chunk < end // CHUNK)[:, None] & is_head[None, :]
            at = chunk.to(tl.int64)[:, None] * WIDTH + heads[None, :]
            score = tl.load(partial_out + at, mask=mask, other=float("-inf"))
            weight = tl.load(partial_totals + at, mask=mask, other=0)
            tops, sums = added_up(tops, sums, score, weight)
    top = tl.max(tops, axis=0)
    base = tl.where(top == float("-inf"), 0, top)
    total = tl.sum(sums * tl.exp(tops - base[None, :]), axis=0)
    at = tl.program_id(0).to(tl.int64) * WIDTH + heads
    if (loop_score is not None) and (not OF_CHUNKS):
        loop = tl.load(loop_score + at, mask=is_head, other=0).to(TOTAL)
        top, total = added_up(top, total, loop, 1.0)
    tl.store(out + at, top, mask=is_head)
    tl.store(totals + at, total, mask=is_head)


@triton.jit(do_not_specialize=["own", "num_rows"])  # type: ignore[untyped-decorator]
def softmax_weights(
    rows: tl.tensor,
    target: tl.tensor,
    loop_score: tl.tensor,
    tops: tl.tensor,
    totals: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    own: tl.tensor,
    num_rows: tl.tensor,
    alpha: tl.tensor,
    out: tl.tensor,
    WIDTH: tl.constexpr,
    SLOPE: tl.constexpr,
    OF_CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The weights, from the results of `softmax_sums`.

    Args:
        alpha: The edges' weights; 0 for the edge that is left out.
        out: The loops', `[num_dst, WIDTH]`; without loops the logarithm of Σ exp(score).
    """
    heads = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_head = heads < WIDTH
    v, first, last, begin, end = walk_of(indptr, num_rows, OF_CHUNKS, CHUNK)
    own_at = v.to(tl.int64) * WIDTH + heads
    top = tl.load(tops + own_at, mask=is_head, other=0)
    total = tl.load(totals + own_at, mask=is_head, other=1)
    if not OF_CHUNKS:
        if loop_score is None:
            log_total = tl.log(tl.where(total > 0, total, 1))  # without in-edges the top is −∞
            tl.store(out + own_at, top + log_total, mask=is_head)
        else:
            loop = tl.load(loop_score + own_at, mask=is_head, other=0).to(TOTAL)
            tl.store(out + own_at, tl.exp(loop - top) / total, mask=is_head)
    for start in range(first, last - (end - begin), ROWS):
        edge = edges_at(start, begin, end, ROWS, CHUNK)
        score = scores_of(rows, target, indices, edge, last, v, own + v, heads, WIDTH, SLOPE, TOTAL)
        at = edge.to(tl.int64)[:, None] * WIDTH + heads[None, :]
        mask = (edge < last)[:, None] & is_head[None, :]
        tl.store(alpha + at, tl.exp(score - top[None, :]) / total[None, :], mask=mask)
