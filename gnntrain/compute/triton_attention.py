"""The GPU's softmax over in-edges; see `triton_kernels`.

Tables by edge are `[num_edges, WIDTH]`, with a column a head; an edge's weight is
exp(score − top) / total, with the top and the total of its destination and head.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gnntrain.compute.triton_kernels import edges_at, walk_of


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


@triton.jit  # type: ignore[untyped-decorator]
def joined(tops: tl.tensor, totals: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The lanes' sums combined: the top and the sum of exp(score − top) by head."""
    top = tl.max(tops, axis=0)
    base = tl.where(top == float("-inf"), 0, top)
    return top, tl.sum(totals * tl.exp(tops - base[None, :]), axis=0)


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
    """The tops and totals of each destination's in-edges and, but for chunks, a loop of its own.

    Args:
        rows, target, SLOPE: The scores, see `scores_of`; the edge from `own` + v is left out.
        loop_score: `[num_dst, WIDTH]`, or None: no loops.
        partial_out, partial_totals: The chunks' results.
        out, totals: `[num_dst, WIDTH]`, the largest score and the sum of exp(score − top).
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
    top, total = joined(tops, sums)
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
