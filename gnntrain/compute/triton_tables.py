"""Common functions of the GPU's kernels: the address of a row, and the edges of a program.

Tables `rows` are `[any, WIDTH]`, in the GPU's memory or in pinned host memory, which the GPU reads
over the bus; `place_of` computes where a source's row begins. Other arguments may be None.
Constants in capitals, and None, are known at compile time and cost nothing; a constant width allows
vector loads. Numbers that change from batch to batch are not specialised on: Triton would compile
again when one is 1 or a multiple of 16.

A program walks over the in-edges of one destination. Where one may have very many, the edges are
cut into chunks of `CHUNK`: chunk p is the edges `p · CHUNK … (p + 1) · CHUNK − 1`. A row of
`2 · CHUNK` edges or more leaves the chunks that lie wholly in it to programs of their own, which
run before (`row_of_chunk`), and adds their results to the sum of the edges at its two ends
(`span_of`). The order of the additions depends on the block alone: equal runs give equal numbers.
`CHUNK` 0: no row is that long.
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
    STRIDE: tl.constexpr,
    PART_ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
) -> tl.tensor:
    """The first position of the rows of some sources, counted in numbers from `rows` on.

    Rows of `parts` are outside `rows`: the int64 offset reaches every address of the GPU.

    Args:
        nodes: The node of a source; None: the source's own number.
        slots: The row in `rows` of a node, negative where it is not there; None: the node's own
            number, or, where there are `parts`, all nodes are in these.
        parts: Addresses of matrices that hold `PART_ROWS` nodes each, one after the other.
        mask: Which sources there are; nothing is read for others.
        STRIDE: Numbers from one row to the next.
        ALIGN: Divides the distance between `rows` and each part, in numbers.
    """
    if nodes is not None:
        source = tl.load(nodes + source, mask=mask, other=0)
    node = source.to(tl.int64)
    if slots is not None:
        slot = tl.load(slots + node, mask=mask, other=0).to(tl.int64)
        place = slot * STRIDE
    else:
        place = node * STRIDE
    if parts is not None:
        is_far = mask
        if slots is not None:
            is_far = (slot < 0) & mask
        address = tl.load(parts + node // PART_ROWS, mask=is_far, other=0)
        away = (address - rows.to(tl.int64)) // (rows.dtype.element_ty.primitive_bitwidth // 8)
        away = tl.multiple_of(away, ALIGN) + (node % PART_ROWS) * STRIDE
        place = tl.where(is_far, away, place)
    return place


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
    """The edges of this program: its row, first edge, end, and the chunks to skip.

    With `OF_CHUNKS` they are its chunk, if that lies wholly in a long row; else a row's other
    edges.
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
