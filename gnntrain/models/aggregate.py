"""Sums and maxima over the in-edges of a block, with gradients.

No tensor of edges × features is stored: the operators read the rows of the in-neighbours in place,
and the backward pass reduces over the transposed block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from gnntrain.compute import ops
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.ops import Sum
from gnntrain.sampling.block import Block

Reduce = Literal["sum", "mean", "max"]


def sampling_scale(block: Block) -> Tensor | None:
    """The factor that makes a sum over sampled in-edges an unbiased estimate of the full sum.

    Each in-edge of a destination is sampled with probability `num_sampled / degree`; the factor is
    the inverse (Horvitz and Thompson, 1952).

    Returns:
        float32 `[num_dst]`, or None if all in-edges were taken.
    """
    if block.degree is None:
        return None
    return block.degree / block.indptr.diff().clamp(min=1)


def aggregate(source: Tensor | LazyFeatures, block: Block, total: Sum | None) -> Tensor:
    """Reduce the rows of the in-neighbours of every destination.

    Args:
        source: float `[num_src, F]`; gradients flow to a tensor.
        block: The in-edges.
        total: A sum over them; None: the maximum, 0 where a destination has no in-edge.

    Returns:
        `[num_dst, F]` in the type of a tensor, float32 of lazy features. In-neighbours that share a
        maximum share its gradient.
    """
    if isinstance(source, Tensor):
        return _maximum(source, block) if total is None else _sum(source, block, total)
    rows, dtype = source.arguments(), torch.float32
    out: Tensor
    if total is None:
        out, _ = ops.aggregate_max(*rows, *block.edges, dtype, False)
    else:
        out = ops.aggregate(*rows, *total, "none", dtype)
    return out


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, block: Block, total: Sum) -> Tensor:
        ctx.block, ctx.total = block, total
        features = LazyFeatures.of(rows).arguments()
        return ops.aggregate(*features, *total, "none", rows.dtype)  # type: ignore[no-any-return]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return source_gradient(grad, ctx.block, ctx.total, grad.dtype), None, None


class _Maximum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, block: Block) -> Tensor:
        rows = rows.contiguous()
        features, counts = LazyFeatures(rows).arguments(), ctx.needs_input_grad[0]
        out, ties = ops.aggregate_max(*features, *block.edges, rows.dtype, counts)
        ctx.save_for_backward(rows, out, ties)
        ctx.block = block
        return out  # type: ignore[no-any-return]  # operators have no types

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        given = grad.contiguous(), *ctx.saved_tensors, *ctx.block.transposed()
        return ops.aggregate_max_backward(*given), None


def source_gradient(
    grad: Tensor, block: Block, total: Sum, dtype: torch.dtype, has_root: bool = False
) -> Tensor:
    """The gradient of the source rows behind a sum over a block, `[num_src, F]` in `dtype`.

    Args:
        grad: float `[num_dst, F]`, of the sums; with `has_root` `[num_dst, 2F]`: the second half is
            the gradient of the destinations' own rows.
        block, total: Those of the forward pass.
        dtype: Type of the result.
        has_root: Whether `grad` has two halves.
    """
    features, back = LazyFeatures.of(grad).arguments(), total.transposed(block.transposed())
    root = "added" if has_root else "none"
    return ops.aggregate(*features, *back, root, dtype)  # type: ignore[no-any-return]


_sum: Callable[..., Tensor] = _Sum.apply
_maximum: Callable[..., Tensor] = _Maximum.apply
