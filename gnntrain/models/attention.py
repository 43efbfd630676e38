"""Attention over a block's in-edges: scores, softmax, weighted sum; no edges × features tensor."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gnntrain.compute import device_attention
from gnntrain.compute.eager import eager
from gnntrain.models.aggregate import (
    by_head,
    edge_chunks,
    edge_dst,
    num_sampled,
    out_edges_on_device,
    self_loops,
    weighted_sum,
)
from gnntrain.models.dropout import dropout as drop
from gnntrain.sampling.block import Block


def attend(
    block: Block,
    z: Tensor,
    z_dst: Tensor,
    weights: tuple[Tensor, Tensor],
    dropout: float,
) -> Tensor:
    """Average the in-neighbours and the node itself.

    Args:
        block: The edges.
        z: float `[num_src, H·C]`, what is averaged, head by head.
        z_dst: float `[num_dst, H·C]`, the same of the destinations.
        weights: Of the edges and of each destination's own loop, as of `edge_softmax`.
        dropout: Probability with which a weight is set to 0 (and the others scaled up).

    Returns:
        `[num_dst, H, C]`.
    """
    alpha, loop_alpha = (drop(part, dropout) for part in weights)
    heads = alpha.shape[1]
    neighbours = by_head(weighted_sum(block, z, alpha), heads)
    return neighbours + loop_alpha.unsqueeze(-1) * by_head(z_dst, heads)


@eager
def edge_softmax(block: Block, score: Tensor, loop_score: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over each destination's in-edges and its own extra loop.

    Self loops in the data get 0: each node sees itself exactly once.

    Args:
        block: The edges.
        score: float `[num_edges, H]`; computed in float32 or finer.
        loop_score: float `[num_dst, H]`.

    Returns:
        Weights of the edges `[num_edges, H]` and of the loops `[num_dst, H]`.
    """
    exact = torch.promote_types(torch.promote_types(score.dtype, loop_score.dtype), torch.float32)
    score, loop_score = score.to(exact), loop_score.to(exact)
    if score.is_cuda:
        return edge_softmax_on_device(block, score, loop_score)
    return _edge_softmax(score, loop_score, block)


def edge_softmax_on_device(
    block: Block, score: Tensor, loop_score: Tensor
) -> tuple[Tensor, Tensor]:
    """`edge_softmax` by the GPU's kernels."""
    return device_attention.edge_softmax(score, loop_score, _in_edges(block))


@eager
def sum_softmax(
    block: Block, source: Tensor, target: Tensor, loop_score: Tensor, slope: float
) -> tuple[Tensor, Tensor]:
    """`edge_softmax` of the scores leaky_relu(source[u] + target[v]) (GAT's).

    Args:
        block: The edges.
        source: float `[num_src, H]`, a source's part of the score.
        target: float `[num_dst, H]`, a destination's.
        loop_score: float `[num_dst, H]`, each destination's score of itself.
        slope: Of the leaky ReLU for negative values.
    """
    if source.is_cuda:
        return sum_softmax_on_device(block, source, target, loop_score, slope)
    score = source[block.indices] + target[edge_dst(block)]
    return edge_softmax(block, F.leaky_relu(score, slope), loop_score)


def sum_softmax_on_device(
    block: Block, source: Tensor, target: Tensor, loop_score: Tensor, slope: float
) -> tuple[Tensor, Tensor]:
    """`sum_softmax` by the GPU's kernels."""
    parts = source, target, loop_score
    exact = functools.reduce(torch.promote_types, [part.dtype for part in parts], torch.float32)
    source, target, loop_score = (part.to(exact) for part in parts)
    return device_attention.pair_softmax(source, target, loop_score, slope, _in_edges(block))


def _in_edges(block: Block) -> device_attention.InEdges:
    return device_attention.InEdges(
        block.indptr,
        block.indices,
        block.dst_offset,
        block.max_in_edges,
        lambda: out_edges_on_device(block),
    )


@eager
def pair_score(block: Block, left: Tensor, right: Tensor, att: Tensor, slope: float) -> Tensor:
    """att · leaky_relu(left[src] + right[dst]) for every edge and head (GATv2's score).

    Computed by chunks of edges, forward and, anew, backward.

    Args:
        block: The edges.
        left: float `[num_src, H·C]`.
        right: float `[num_dst, H·C]`.
        att: float `[H, C]`.
        slope: Of the leaky ReLU for negative values.

    Returns:
        `[num_edges, H]` in the type of `att`.
    """
    if left.is_cuda:
        return pair_score_on_device(block, left, right, att, slope)
    return _pair_score(left, right, att, block, slope)


def pair_score_on_device(
    block: Block, left: Tensor, right: Tensor, att: Tensor, slope: float
) -> Tensor:
    """`pair_score` by the GPU's kernels."""
    return device_attention.pair_scores(left, right, att, slope, _in_edges(block))


def _segments(values: Tensor, block: Block, reduce: str) -> Tensor:
    """Sum or maximum over each destination's edges: `[num_edges, H]` → `[num_dst, H]`."""
    return torch.segment_reduce(values, reduce, offsets=block.indptr, axis=0, unsafe=True)


def _to_edges(rows: Tensor, block: Block) -> Tensor:
    return rows.repeat_interleave(num_sampled(block), dim=0, output_size=block.num_edges)


class _EdgeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, score: Tensor, loop_score: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        alpha = score.masked_fill(self_loops(block).unsqueeze(1), -torch.inf)
        top = torch.maximum(_segments(alpha, block, "max"), loop_score)
        alpha.sub_(_to_edges(top, block)).exp_()
        loop_alpha = (loop_score - top).exp_()
        total = _segments(alpha, block, "sum") + loop_alpha
        alpha.div_(_to_edges(total, block))
        loop_alpha.div_(total)
        ctx.block = block
        ctx.save_for_backward(alpha, loop_alpha)
        return alpha, loop_alpha

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, loop_grad: Tensor) -> tuple[Tensor, Tensor, None]:
        alpha, loop_alpha = ctx.saved_tensors
        weighted, loop_weighted = alpha * grad, loop_alpha * loop_grad
        mean = _segments(weighted, ctx.block, "sum") + loop_weighted
        weighted.sub_(alpha * _to_edges(mean, ctx.block))
        return weighted, loop_weighted - loop_alpha * mean, None


_edge_softmax: Callable[..., tuple[Tensor, Tensor]] = _EdgeSoftmax.apply


class _PairScore(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, left: Tensor, right: Tensor, att: Tensor, block: Block, slope: float
    ) -> Tensor:
        dst = edge_dst(block)
        score = att.new_empty(block.num_edges, att.shape[0])
        for part in edge_chunks(block.num_edges, left.shape[1]):
            pair = _pairs(left, right, block.indices[part], dst[part], att)
            score[part] = (F.leaky_relu(pair, slope) * att).sum(-1)
        ctx.block, ctx.slope = block, slope
        ctx.save_for_backward(left, right, att, dst)
        return score

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        left, right, att, dst = ctx.saved_tensors
        # Sums over many edges: kept in the precision of the parameters.
        grad_left = torch.zeros_like(left, dtype=att.dtype)
        grad_right = torch.zeros_like(right, dtype=att.dtype)
        grad_att = torch.zeros_like(att)
        for part in edge_chunks(ctx.block.num_edges, left.shape[1]):
            src_part, dst_part = ctx.block.indices[part], dst[part]
            pair = _pairs(left, right, src_part, dst_part, att)
            slope = torch.full_like(pair, ctx.slope).masked_fill_(pair > 0, 1)
            weight = grad[part].unsqueeze(-1)
            grad_att += (pair.mul_(slope) * weight).sum(0)
            pair_grad = slope.mul_(weight * att).flatten(1)
            grad_left.index_add_(0, src_part, pair_grad)
            grad_right.index_add_(0, dst_part, pair_grad)
        return grad_left.to(left.dtype), grad_right.to(right.dtype), grad_att, None, None


_pair_score: Callable[..., Tensor] = _PairScore.apply


def _pairs(left: Tensor, right: Tensor, src: Tensor, dst: Tensor, att: Tensor) -> Tensor:
    """left[src] + right[dst] as `[edges, H, C]` in the type of `att`."""
    pair = left[src].to(att.dtype)
    pair += right[dst]
    return pair.view(-1, *att.shape)
