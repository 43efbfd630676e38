"""Attention over a block's in-edges: scores, softmax, weighted sum; no edges × features tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gnntrain.compute.aggregate import Aggregate
from gnntrain.compute.attention import (
    AttentionBackward,
    EdgeSoftmax,
    PairScores,
    PairScoresBackward,
)
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.operator import Sum
from gnntrain.compute.reference import by_head, exact_type
from gnntrain.models.dropout import dropout as drop
from gnntrain.sampling.block import Block


def attend(
    block: Block,
    rows: Tensor,
    *,
    slope: float,
    dropout: float,
    score: Tensor | None = None,
    target: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The sum of the rows of each destination's in-neighbours, by a softmax of the edges' scores,
    which is computed in float32 or finer.

    Args:
        block: The edges.
        slope: Of the leaky ReLU for negative values. (A default that is a float torch.compile
            would take for a variable, and fail.)
        dropout: Probability with which a weight is set to 0 (and the others scaled up).
        rows: float `[num_src, H·C]`, head by head; with a `target` `[num_src, H·C + H]`.
        score: float `[num_edges, H]`, the edges' scores; or else `target`.
        target: float `[num_dst, H]`: a score is leaky_relu(part(u) + target[v], slope) (GAT's), and
            the part of a source stands behind its row.

    Returns:
        `[num_dst, H·C]`, and `[num_dst, H]`: log Σ exp(score), −∞ for a destination without
        in-edges.
    """
    scores = score, target
    dtype = exact_type(*[part.dtype for part in scores if part is not None])
    converted = [None if part is None else part.to(dtype).contiguous() for part in scores]
    return _attend(rows, *converted, slope, dropout, block)


def by_relation(attended: Sequence[tuple[Tensor, Tensor]], heads: int) -> Tensor:
    """The rows of each relation by head, `[R, num_dst, H, C]`, by one softmax over all relations,
    from the results of `attend` for each."""
    rows = torch.stack([by_head(part, heads) for part, _ in attended])
    if len(attended) == 1:
        return rows
    sums = torch.stack([log_sum for _, log_sum in attended])
    # Finite: −∞ for all relations would give not a number, and as its gradient.
    return rows * sums.clamp(min=torch.finfo(sums.dtype).min).softmax(0).unsqueeze(-1)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        score: Tensor | None,
        target: Tensor | None,
        slope: float,
        dropout: float,
        block: Block,
    ) -> tuple[Tensor, Tensor]:
        features, scores = rows, score
        if target is not None:
            features, parts = rows.tensor_split([rows.shape[1] - target.shape[1]], dim=1)
            scores = parts.to(target.dtype).contiguous()
        assert scores is not None  # by edge or by node
        alpha, log_sum = EdgeSoftmax(scores, target, slope, block.edges).run()
        weight, lazy = drop(alpha, dropout), LazyFeatures.of(features)
        out = Aggregate(lazy, block.edges, Sum(weight), rows.dtype).run()
        ctx.save_for_backward(rows, out, alpha, weight, target)
        ctx.slope, ctx.block = slope, block
        return out, log_sum

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, log_grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, out, alpha, weight, target = ctx.saved_tensors
        given = grad, rows, out, alpha, weight, log_grad, target, ctx.slope
        back = ctx.block.transposed()
        rows_grad, scores_grad = AttentionBackward(*given, ctx.block.edges, back).run()
        scores = (scores_grad, None) if target is None else (None, scores_grad)
        return rows_grad, *scores, None, None, None


class _PairScore(torch.autograd.Function):
    """For every edge and head, `[num_edges, H]` in float32 or finer, the product of left[src] and
    right[dst] (HGT's), float `[num_src, H·C]` (perhaps columns of a wider matrix) and `[num_dst,
    H·C]`; or with `att`, float `[H, C]`, att · leaky_relu(left[src] + right[dst], slope) (GATv2's).
    The backward pass computes the sums again."""

    @staticmethod
    def forward(
        ctx: Any,
        block: Block,
        left: Tensor,
        right: Tensor,
        heads: int,
        slope: float,
        att: Tensor | None,
    ) -> Tensor:
        if att is not None:
            left, right, att = left.contiguous(), right.contiguous(), att.contiguous()
        score: Tensor = PairScores(left, right, att, heads, slope, block.edges).run()
        ctx.save_for_backward(left, right, att)
        ctx.slope, ctx.block = slope, block
        return score

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        left, right, att = ctx.saved_tensors
        edges, back = ctx.block.edges, ctx.block.transposed()
        if att is not None:
            parts = left, right, att, ctx.slope
            *grads, att_grad = PairScoresBackward(grad, *parts, edges, back).run()
            return None, *grads, None, None, att_grad
        grads = []
        for rows, by, like in ((right, back, left), (left, edges, right)):
            features = LazyFeatures.of(rows)
            grads.append(Aggregate(features, by, Sum(grad), like.dtype).run())
        return None, *grads, None, None, None


_attend: Callable[..., tuple[Tensor, Tensor]] = _Attend.apply
pair_score: Callable[..., Tensor] = _PairScore.apply
