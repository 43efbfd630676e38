"""Common functions of the GPU's kernels: the address of a row, and the edges of a program.

Tables `rows` are `[any, WIDTH]`, in the GPU's memory or in pinned host memory, which the GPU reads
over the bus; `rows_at` computes where a source's row begins. Other arguments may be None.
Constants in capitals, and None, are known at compile time and cost nothing; a constant width allows
vector loads. Numbers that change from batch to batch are not specialised on: Triton would compile
again when one is 1 or a multiple of 16.

A program walks over the in-edges of one destination. Where one may have very many, the edges are
cut into chunks of `CHUNK`: chunk p is the edges `p · CHUNK … (p + 1) · CHUNK − 1`. A row of
`2 · CHUNK` edges or more leaves the chunks that lie wholly in it to programs of their own: the
kernel runs twice, first with `OF_CHUNKS`, a program a chunk, then a program a row, which adds the
chunks' results (`partial_out`) to the sum of the edges at the row's two ends. The order of the
additions depends on the block alone: equal runs give equal numbers. `CHUNK` 0: no row is that long.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]  # Triton is not typed
def rows_at(
    rows: tl.tensor,
    nodes: tl.tensor,
    slots: tl.tensor,
    parts: tl.tensor,
    source: tl.tensor,
    mask: tl.tensor,
    STRIDE: tl.constexpr,
    PART_ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
) -> tl.tensor:
    """Pointers to the rows of some sources.

    Rows of `parts` are reached by their addresses: on an AMD GPU an offset from a small tensor has
    32 bits.

    Args:
        nodes: The node of a source; None: the source's own number.
        slots: The row in `rows` of a node, negative where it is not there; None: the node's own
            number, or, where there are `parts`, all nodes are in these.
        parts: Addresses of matrices that hold `PART_ROWS` nodes each, one after the other.
        mask: Which sources there are; nothing is read for others.
        STRIDE: Numbers from one row to the next.
        ALIGN: Divides the addresses of all rows, in bytes.
    """
    if nodes is not None:
        source = tl.load(nodes + source, mask=mask, other=0)
    node = source.to(tl.int64)
    row = node
    if slots is not None:
        row = tl.load(slots + node, mask=mask, other=0).to(tl.int64)
    matrix = rows
    if parts is not None:
        is_far = mask
        if slots is not None:
            is_far = mask & (row < 0)
        part = tl.load(parts + node // PART_ROWS, mask=is_far, other=0)
        matrix = tl.where(is_far, part, rows.to(tl.int64)).to(rows.dtype)
        row = tl.where(is_far, node % PART_ROWS, row)
    row_at = matrix + row * STRIDE
    if parts is not None:
        row_at = tl.multiple_of(row_at, ALIGN)
    return row_at


@triton.jit  # type: ignore[untyped-decorator]
def span_of(indptr: tl.tensor, v: tl.tensor, CHUNK: tl.constexpr) -> tuple[tl.tensor, ...]:
    """The in-edges of a destination: the first, the end; and the first and end of its chunks."""
    first, last = tl.load(indptr + v), tl.load(indptr + v + 1)
    begin, end = last, last
    if CHUNK > 0:
        is_long = last - first >= 2 * CHUNK
        begin = tl.where(is_long, (first + CHUNK - 1) // CHUNK * CHUNK, last)
        end = tl.where(is_long, last // CHUNK * CHUNK, last)
    return first, last, begin, end


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
def row_of_chunk(
    indptr: tl.tensor, num_rows: tl.tensor, chunk: tl.tensor, CHUNK: tl.constexpr
) -> tuple[tl.tensor, ...]:
    """The row that leaves a chunk to its own program (or −1), and the chunk's edges."""
    begin = chunk.to(indptr.dtype.element_ty) * CHUNK
    low, high = num_rows * 0, num_rows + 1
    while high - low > 1:  # the last row that starts at or before the chunk
        middle = low + (high - low) // 2
        is_before = tl.load(indptr + middle) <= begin
        low = tl.where(is_before, middle, low)
        high = tl.where(is_before, high, middle)
    is_row = low < num_rows
    first = tl.load(indptr + low)
    last = tl.load(indptr + low + 1, mask=is_row, other=0)
    is_inside = is_row & (last - first >= 2 * CHUNK) & (begin + CHUNK <= last)
    return tl.where(is_inside, low, -1), begin, begin + CHUNK


@triton.jit  # type: ignore[untyped-decorator]
def walk_of(
    indptr: tl.tensor, num_rows: tl.tensor, OF_CHUNKS: tl.constexpr, CHUNK: tl.constexpr
) -> tuple[tl.tensor, ...]:
    """The edges of this program: its row, first edge, end, and the first and end of its chunks.

    With `OF_CHUNKS` they are its chunk, or none where that does not lie wholly in a long row (row 0
    then stands for a row); else a row's edges without its chunks.
    """
    if OF_CHUNKS:
        v, first, last = row_of_chunk(indptr, num_rows, tl.program_id(0), CHUNK)
        last = tl.where(v >= 0, last, first)
        v = tl.maximum(v, 0)
        begin, end = last, last
    else:
        v = tl.program_id(0)
        first, last, begin, end = span_of(indptr, v, CHUNK)
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
