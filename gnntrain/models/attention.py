"""Attention over a block's in-edges: scores, softmax, weighted sum; no edges × features tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from gnntrain.compute import ops
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.ops import Sum
from gnntrain.compute.reference import by_head
from gnntrain.models.aggregate import Aggregation, aggregate, source_gradient
from gnntrain.models.dropout import dropout as drop
from gnntrain.sampling.block import Block


def attend(
    block: Block,
    z: Tensor,
    z_dst: Tensor,
    weights: tuple[Tensor, Tensor],
    dropout: float,
) -> Tensor:
    """The sum of the rows of each destination's in-neighbours and its own, by attention weights.

    Args:
        block: The edges.
        z: float `[num_src, H·C]`, the rows to sum, head by head.
        z_dst: float `[num_dst, H·C]`, the destinations' rows of `z`.
        weights: The weights of the edges and of the loops, from `edge_softmax`.
        dropout: Probability with which a weight is set to 0 (and the others scaled up).

    Returns:
        `[num_dst, H, C]`.
    """
    alpha, loop_alpha = (drop(part, dropout) for part in weights)
    heads = alpha.shape[1]
    neighbours = by_head(aggregate(z, Aggregation(block, weight=alpha)), heads)
    return neighbours + loop_alpha.unsqueeze(-1) * by_head(z_dst, heads)


def edge_softmax(
    block: Block, score: Tensor, loop_score: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Softmax over each destination's in-edges and its own extra loop.

    With extra loops those in the data get 0: each node sees itself exactly once.

    Args:
        block: The edges.
        score: float `[num_edges, H]`; computed in float32 or finer.
        loop_score: float `[num_dst, H]`; None: no extra loops.

    Returns:
        Weights of the edges `[num_edges, H]` and of the loops `[num_dst, H]`. Without extra loops
        the second is log Σ exp(score), −∞ for a destination without in-edges.
    """
    exact = _exact(score, loop_score)
    return _edge_softmax(exact[0], None, exact[1], 1.0, block)


def sum_softmax(
    block: Block, source: Tensor, target: Tensor, loop_score: Tensor | None, slope: float
) -> tuple[Tensor, Tensor]:
    """`edge_softmax` of the scores leaky_relu(source[u] + target[v]) (GAT's).

    Args:
        block: The edges.
        source: float `[num_src, H]`, a source's part of the score.
        target: float `[num_dst, H]`, a destination's part.
        loop_score: float `[num_dst, H]`, each destination's score of itself; None: no extra loops.
        slope: Of the leaky ReLU for negative values.
    """
    return _edge_softmax(*_exact(source, target, loop_score), slope, block)


def relation_shares(log_sums: Sequence[Tensor]) -> Tensor:
    """What turns a softmax for each relation into one over all: factors of the relations' weights.

    Args:
        log_sums: By relation, `[num_dst, H]`, from `edge_softmax` without extra loops.

    Returns:
        `[R, num_dst, H]`; the shares of a destination sum to 1.
    """
    sums = torch.stack([*log_sums])
    # Finite: −∞ for all relations would give not a number, and as its gradient.
    return sums.clamp(min=torch.finfo(sums.dtype).min).softmax(0)


def dot_score(block: Block, rows: Tensor, query: Tensor, heads: int) -> Tensor:
    """rows[src] · query[dst] for every edge and head.

    Args:
        block: The edges.
        rows: float `[num_src, H·C]`; some columns of a wider matrix are read in place.
        query: float `[num_dst, H·C]`.
        heads: H.

    Returns:
        `[num_edges, H]` in float32 or finer.
    """
    return _dot_score(rows, query, heads, block)


def pair_score(block: Block, left: Tensor, right: Tensor, att: Tensor, slope: float) -> Tensor:
    """att · leaky_relu(left[src] + right[dst]) for every edge and head (GATv2's score).

    The backward pass computes the sums again.

    Args:
        block: The edges.
        left: float `[num_src, H·C]`.
        right: float `[num_dst, H·C]`.
        att: float `[H, C]`.
        slope: Of the leaky ReLU for negative values.

    Returns:
        `[num_edges, H]` in the type of `att`.
    """
    return _pair_score(left, right, att, slope, block)


def _exact(*parts: Tensor | None) -> list[Tensor | None]:
    """The tensors in their common type, at least float32."""
    dtypes = [part.dtype for part in parts if part is not None]
    dtype = reduce(torch.promote_types, dtypes, torch.float32)
    return [part if part is None else part.to(dtype).contiguous() for part in parts]


class _EdgeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        score: Tensor,
        target: Tensor | None,
        loop_score: Tensor | None,
        slope: float,
        block: Block,
    ) -> tuple[Tensor, Tensor]:
        edges = block.dst_offset, block.indptr, block.indices, block.max_in_edges
        alpha, second = ops.edge_softmax(score, target, loop_score, slope, *edges)
        loop_alpha = None if loop_score is None else second
        ctx.save_for_backward(alpha, loop_alpha, score if target is not None else None, target)
        ctx.slope, ctx.block = slope, block
        return alpha, second

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, second_grad: Tensor) -> tuple[Tensor | None, ...]:
        block: Block = ctx.block
        alpha, loop_alpha, source, target = ctx.saved_tensors
        loops = loop_alpha, second_grad
        if loop_alpha is None:
            # ∂ log Σ exp / ∂ score is the weight: that of a loop of weight 1 and this gradient.
            loops = torch.ones_like(second_grad), -second_grad
        score_grad, loop_score_grad = ops.edge_softmax_backward(
            grad,
            loops[1],
            alpha,
            loops[0],
            source,
            target,
            ctx.slope,
            block.indptr,
            block.indices,
            block.max_in_edges,
        )
        loop_score_grad = None if loop_alpha is None else loop_score_grad
        if target is None:
            return score_grad, None, loop_score_grad, None, None
        return *_sums_by_end(score_grad, block), loop_score_grad, None, None


def _sums_by_end(by_edge: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    """Sums over the out-edges of each source, and over the in-edges of each destination."""
    back, rows = block.transposed(), LazyFeatures(by_edge).arguments()
    by_source = Sum(back.indptr, back.edge_ids)
    by_target = Sum(block.indptr, None, max_in_edges=block.max_in_edges)
    return (
        ops.aggregate(*rows, *by_source, "none", by_edge.dtype),
        ops.aggregate(*rows, *by_target, "none", by_edge.dtype),
    )


class _DotScore(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, query: Tensor, heads: int, block: Block) -> Tensor:
        ctx.save_for_backward(rows, query)
        ctx.block = block
        # The operator reads only the weights' shape and type.
        exact = torch.promote_types(rows.dtype, torch.float32)
        shape = rows.new_empty((), dtype=exact).expand(block.num_edges, heads)
        score: Tensor = ops.edge_products(rows, query, *Aggregation(block).sum(shape))
        return score

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, query = ctx.saved_tensors
        weighted, grad_rows, grad_query = Aggregation(ctx.block), None, None
        if ctx.needs_input_grad[0]:
            grad_rows = source_gradient(query, weighted, grad, rows.dtype)
        if ctx.needs_input_grad[1]:
            arguments = *LazyFeatures.of(rows).arguments(), *weighted.sum(grad)
            grad_query = ops.aggregate(*arguments, "none", query.dtype)
        return grad_rows, grad_query, None, None


class _PairScore(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, left: Tensor, right: Tensor, att: Tensor, slope: float, block: Block
    ) -> Tensor:
        left, right, att = left.contiguous(), right.contiguous(), att.contiguous()
        edges = block.indptr, block.indices, block.max_in_edges
        score: Tensor = ops.pair_scores(left, right, att, slope, *edges)
        ctx.save_for_backward(left, right, att)
        ctx.slope, ctx.block = slope, block
        return score

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        block: Block = ctx.block
        back = block.transposed()
        edges = block.indptr, block.indices, block.max_in_edges
        out_edges = back.indptr, back.indices, back.edge_ids
        grads = ops.pair_scores_backward(grad, *ctx.saved_tensors, ctx.slope, *edges, *out_edges)
        return *grads, None, None


_edge_softmax: Callable[..., tuple[Tensor, Tensor]] = _EdgeSoftmax.apply
_dot_score: Callable[..., Tensor] = _DotScore.apply
_pair_score: Callable[..., Tensor] = _PairScore.apply
