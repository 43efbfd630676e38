"""The GPU's softmax over in-edges, and GATv2's scores, forward and backward; see `triton_kernels`.

Tables by edge are `[num_edges, HEADS]`. A program takes one destination and `BLOCK` heads.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gnntrain.compute.triton_kernels import sum_of_chunks
from gnntrain.compute.triton_tables import edges_at, row_of_chunk, span_of


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
def softmax_chunks(
    rows: tl.tensor,
    target: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    own: tl.tensor,
    num_rows: tl.tensor,
    totals: tl.tensor,
    out: tl.tensor,
    WIDTH: tl.constexpr,
    SLOPE: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The tops (`out`) and sums (`totals`) of the chunks of long rows, `[num_chunks, WIDTH]`."""
    chunk = tl.program_id(0)
    v, first, last = row_of_chunk(indptr, num_rows, chunk, CHUNK)
    if v >= 0:
        heads = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        tops = tl.full([ROWS, BLOCK], float("-inf"), TOTAL)
        sums = tl.zeros([ROWS, BLOCK], TOTAL)
        for start in range(first, last, ROWS):
            edge = start + tl.arange(0, ROWS)
            score = scores_of(
                rows, target, indices, edge, last, v, own + v, heads, WIDTH, SLOPE, TOTAL
            )
            tops, sums = added_up(tops, sums, score, 1.0)
        top, total = joined(tops, sums)
        at = chunk.to(tl.int64) * WIDTH + heads
        tl.store(out + at, top, mask=heads < WIDTH)
        tl.store(totals + at, total, mask=heads < WIDTH)


@triton.jit  # type: ignore[untyped-decorator]
def put_weights(
    rows: tl.tensor,
    target: tl.tensor,
    indices: tl.tensor,
    v: tl.tensor,
    skipped: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    top: tl.tensor,
    total: tl.tensor,
    alpha: tl.tensor,
    WIDTH: tl.constexpr,
    SLOPE: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write the weights of some edges to `alpha`; 0 for those from `skipped`."""
    heads = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    for start in range(first, last - (end - begin), ROWS):
        edge = edges_at(start, begin, end, ROWS, CHUNK)
        score = scores_of(rows, target, indices, edge, last, v, skipped, heads, WIDTH, SLOPE, TOTAL)
        at = edge.to(tl.int64)[:, None] * WIDTH + heads[None, :]
        mask = (edge < last)[:, None] & (heads < WIDTH)[None, :]
        tl.store(alpha + at, tl.exp(score - top[None, :]) / total[None, :], mask=mask)


@triton.jit(do_not_specialize=["own"])  # type: ignore[untyped-decorator]
def edge_softmax(
    rows: tl.tensor,
    target: tl.tensor,
    loop_score: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    own: tl.tensor,
    partial_tops: tl.tensor,
    partial: tl.tensor,
    tops: tl.tensor,
    totals: tl.tensor,
    alpha: tl.tensor,
    out: tl.tensor,
    WIDTH: tl.constexpr,
    SLOPE: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Softmax over each destination's in-edges and a loop of its own, by head.

    Args:
        rows, target, SLOPE: The scores, see `scores_of`; edges from a node to itself are left out.
        loop_score: `[num_dst, WIDTH]`.
        partial_tops, partial: Results of `softmax_chunks`.
        tops, totals: `[num_dst, WIDTH]`, the largest score and the sum of exp(score − top), for
            `softmax_of_chunks`.
        alpha, out: The weights of the edges, but for those of chunks, and of the loops.
    """
    v = tl.program_id(0)
    heads = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_head = heads < WIDTH
    first, last, begin, end = span_of(indptr, v, CHUNK)
    lane_tops = tl.full([ROWS, BLOCK], float("-inf"), TOTAL)
    sums = tl.zeros([ROWS, BLOCK], TOTAL)
    for start in range(first, last - (end - begin), ROWS):
        edge = edges_at(start, begin, end, ROWS, CHUNK)
        score = scores_of(rows, target, indices, edge, last, v, own + v, heads, WIDTH, SLOPE, TOTAL)
        lane_tops, sums = added_up(lane_tops, sums, score, 1.0)
    if CHUNK > 0:
        end_chunk = end // CHUNK
        for start in range(begin // CHUNK, end_chunk, ROWS):
            chunk = start + tl.arange(0, ROWS)
            mask = (chunk < end_chunk)[:, None] & is_head[None, :]
            at = chunk.to(tl.int64)[:, None] * WIDTH + heads[None, :]
            score = tl.load(partial_tops + at, mask=mask, other=float("-inf"))
            weight = tl.load(partial + at, mask=mask, other=0)
            lane_tops, sums = added_up(lane_tops, sums, score, weight)
    own_at = v.to(tl.int64) * WIDTH + heads
    loop = tl.load(loop_score + own_at, mask=is_head, other=0).to(TOTAL)
    edge_top, total = joined(lane_tops, sums)
    top = tl.maximum(loop, edge_top)
    total = total * tl.exp(edge_top - top) + tl.exp(loop - top)
    if CHUNK > 0:
        tl.store(tops + own_at, top, mask=is_head)
        tl.store(totals + own_at, total, mask=is_head)
    tl.store(out + own_at, tl.exp(loop - top) / total, mask=is_head)
    put_weights(
        rows, target, indices, v, own + v, first, last, begin, end, top, total, alpha,
        WIDTH, SLOPE, CHUNK, TOTAL, ROWS, BLOCK,
    )  # fmt: skip


@triton.jit(do_not_specialize=["own", "num_rows"])  # type: ignore[untyped-decorator]
def softmax_of_chunks(
    rows: tl.tensor,
    target: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    own: tl.tensor,
    num_rows: tl.tensor,
    tops: tl.tensor,
    totals: tl.tensor,
    out: tl.tensor,
    WIDTH: tl.constexpr,
    SLOPE: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """`out`: the weights of the edges of chunks, from the results of `edge_softmax`."""
    v, first, last = row_of_chunk(indptr, num_rows, tl.program_id(0), CHUNK)
    if v >= 0:
        heads = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        own_at = v.to(tl.int64) * WIDTH + heads
        top = tl.load(tops + own_at, mask=heads < WIDTH, other=0)
        total = tl.load(totals + own_at, mask=heads < WIDTH, other=1)
        put_weights(
            rows, target, indices, v, own + v, first, last, last, last, top, total, out,
            WIDTH, SLOPE, 0, TOTAL, ROWS, BLOCK,
        )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def mean_of_edges(
    rows: tl.tensor,
    grad: tl.tensor,
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
    """`[BLOCK]`: Σ weight · gradient over some edges."""
    heads = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    means = tl.zeros([ROWS, BLOCK], TOTAL)
    for start in range(first, last - (end - begin), ROWS):
        edge = edges_at(start, begin, end, ROWS, CHUNK)
        mask = (edge < last)[:, None] & (heads < WIDTH)[None, :]
        at = edge.to(tl.int64)[:, None] * WIDTH + heads[None, :]
        alpha = tl.load(rows + at, mask=mask, other=0).to(TOTAL)
        means += alpha * tl.load(grad + at, mask=mask, other=0).to(TOTAL)
    return tl.sum(means, axis=0)


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def mean_chunks(
    rows: tl.tensor,
    grad: tl.tensor,
    indptr: tl.tensor,
    num_rows: tl.tensor,
    out: tl.tensor,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Σ weight · gradient over each chunk of a long row, `TOTAL [num_chunks, WIDTH]`."""
    chunk = tl.program_id(0)
    v, first, last = row_of_chunk(indptr, num_rows, chunk, CHUNK)
    if v >= 0:
        heads = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        mean = mean_of_edges(rows, grad, first, last, last, last, WIDTH, 0, TOTAL, ROWS, BLOCK)
        tl.store(out + chunk.to(tl.int64) * WIDTH + heads, mean, mask=heads < WIDTH)


@triton.jit  # type: ignore[untyped-decorator]
def put_gradient(
    rows: tl.tensor,
    grad: tl.tensor,
    source: tl.tensor,
    target: tl.tensor,
    indices: tl.tensor,
    v: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    mean: tl.tensor,
    score_grad: tl.tensor,
    WIDTH: tl.constexpr,
    SLOPE: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write the gradients of the scores of some edges to `score_grad`."""
    heads = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_head = heads < WIDTH
    for start in range(first, last - (end - begin), ROWS):
        edge = edges_at(start, begin, end, ROWS, CHUNK)
        mask = (edge < last)[:, None] & is_head[None, :]
        at = edge.to(tl.int64)[:, None] * WIDTH + heads[None, :]
        alpha = tl.load(rows + at, mask=mask, other=0).to(TOTAL)
        share = alpha * (tl.load(grad + at, mask=mask, other=0).to(TOTAL) - mean[None, :])
        if target is not None:
            given = tl.load(target + v.to(tl.int64) * WIDTH + heads, mask=is_head, other=0)
            u = tl.load(indices + edge, mask=edge < last, other=0).to(tl.int64)
            score = tl.load(source + u[:, None] * WIDTH + heads[None, :], mask=mask, other=0)
            score = score.to(TOTAL) + given.to(TOTAL)[None, :]
            share = tl.where(score > 0, share, share * SLOPE)
        tl.store(score_grad + at, share, mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def edge_softmax_gradient(
    rows: tl.tensor,
    grad: tl.tensor,
    source: tl.tensor,
    target: tl.tensor,
    loop_alpha: tl.tensor,
    loop_grad: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    partial: tl.tensor,
    means: tl.tensor,
    score_grad: tl.tensor,
    out: tl.tensor,
    WIDTH: tl.constexpr,
    SLOPE: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The gradient behind `edge_softmax`.

    Args:
        rows, loop_alpha: The weights it gave.
        grad, loop_grad: Their gradients.
        source, target, SLOPE: Whose leaky ReLU the scores were, see `scores_of`, or None:
            `score_grad` is then the gradient of what went into it.
        partial: Result of `mean_chunks`.
        means: `[num_dst, WIDTH]`, Σ weight · gradient, for `gradient_of_chunks`.
        score_grad, out: The gradients of the scores of the edges, but for those of chunks, and of
            the loops.
    """
    v = tl.program_id(0)
    heads = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_head = heads < WIDTH
    first, last, begin, end = span_of(indptr, v, CHUNK)
    mean = mean_of_edges(rows, grad, first, last, begin, end, WIDTH, CHUNK, TOTAL, ROWS, BLOCK)
    own_at = v.to(tl.int64) * WIDTH + heads
    loop = tl.load(loop_alpha + own_at, mask=is_head, other=0).to(TOTAL)
    given = tl.load(loop_grad + own_at, mask=is_head, other=0).to(TOTAL)
    mean += loop * given
    if CHUNK > 0:
        mean += sum_of_chunks(partial, begin // CHUNK, end // CHUNK, WIDTH, TOTAL, ROWS, BLOCK)
        tl.store(means + own_at, mean, mask=is_head)
    tl.store(out + own_at, loop * (given - mean), mask=is_head)
    put_gradient(
        rows, grad, source, target, indices, v, first, last, begin, end, mean, score_grad,
        WIDTH, SLOPE, CHUNK, TOTAL, ROWS, BLOCK,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def gradient_of_chunks(
    rows: tl.tensor,
    grad: tl.tensor,
    source: tl.tensor,
    target: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    num_rows: tl.tensor,
    means: tl.tensor,
    out: tl.tensor,
    WIDTH: tl.constexpr,
    SLOPE: tl.constexpr,
    CHUNK: tl.constexpr,
    TOTAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """`out`: the gradients of the scores of the edges of chunks, see `edge_softmax_gradient`."""
    v, first, last = row_of_chunk(indptr, num_rows, tl.program_id(0), CHUNK)
    if v >= 0:
        heads = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        mean = tl.load(means + v.to(tl.int64) * WIDTH + heads, mask=heads < WIDTH, other=0)
        put_gradient(
            rows, grad, source, target, indices, v, first, last, last, last, mean, out,
            WIDTH, SLOPE, 0, TOTAL, ROWS, BLOCK,
        )  # fmt: skip
