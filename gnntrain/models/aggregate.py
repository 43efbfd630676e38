"""Sums, means and maxima over the in-edges of a block, with gradients.

No tensor of edges × features is stored: the operators read the rows of the in-neighbours in place,
and the backward pass reduces over the transposed block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gnntrain.compute import ops
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.ops import Sum
from gnntrain.compute.reference import exact_type
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


@dataclass(frozen=True, slots=True)
class Aggregation:
    """The reduction of a destination's in-neighbours to one row.

    out[v] = scale[v] · Σ_e weight[e] · source_scale[u] · row(u) + loop[v] · row(v), with u the
    source of the in-edge e. A factor of None is 1; a `loop` of None is 0.

    Attributes:
        block: The in-edges.
        reduce: "sum", "mean" (the sum over the number of in-edges) or "max" (of the rows alone: it
            takes no weight, scale or loop); 0 where a destination has no in-edge.
        weight: float `[num_edges]`.
        source_scale: float `[num_src]`.
        scale: float `[num_dst]`.
        loop: float `[num_dst]`.
        skip_loops: Leave out the edges that lead from a node to itself.
    """

    block: Block
    reduce: Reduce = "sum"
    weight: Tensor | None = None
    source_scale: Tensor | None = None
    scale: Tensor | None = None
    loop: Tensor | None = None
    skip_loops: bool = False

    def sum(self, *dtypes: torch.dtype) -> Sum:
        """The operators' arguments, for rows of these types."""
        factors = self.weight, self.source_scale, self._scale(dtypes), self.loop, self.skip_loops
        return Sum(*self.block.edges, *factors)

    def transposed(self, *dtypes: torch.dtype) -> Sum:
        """The same for the gradient of the sources: a sum over the out-edges of each."""
        factors = self.weight, self._scale(dtypes), self.source_scale, self.loop, self.skip_loops
        return Sum(*self.block.transposed(), *factors)

    def _scale(self, dtypes: Sequence[torch.dtype]) -> Tensor | None:
        if self.reduce != "mean":
            return self.scale
        shares = self.block.edges.shares(exact_type(*dtypes))
        return shares if self.scale is None else shares * self.scale


def aggregate(source: Tensor | LazyFeatures, aggregation: Aggregation) -> Tensor:
    """Reduce the rows of the in-neighbours of every destination.

    Args:
        source: float `[num_src, F]`; gradients flow to a tensor.
        aggregation: The reduction.

    Returns:
        `[num_dst, F]` in the type of a tensor, float32 of lazy features. In-neighbours that share a
        maximum share its gradient.
    """
    block, is_max = aggregation.block, aggregation.reduce == "max"
    if isinstance(source, Tensor):
        if is_max:
            return _maximum(source, block)
        return _sum(source, aggregation)
    rows, dtype = source.arguments(), torch.float32
    out: Tensor
    if is_max:
        out, _ = ops.aggregate_max(*rows, *block.edges, dtype, False)
    else:
        total = aggregation.sum(source.rows.dtype)
        out = ops.aggregate(*rows, *total, "none", dtype)
    return out


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, aggregation: Aggregation) -> Tensor:
        ctx.aggregation = aggregation
        features, total = LazyFeatures.of(rows), aggregation.sum(rows.dtype)
        out: Tensor = ops.aggregate(*features.arguments(), *total, "none", rows.dtype)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return source_gradient(grad, ctx.aggregation, grad.dtype), None


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
    grad: Tensor, aggregation: Aggregation, dtype: torch.dtype, has_root: bool = False
) -> Tensor:
    """The gradient of the source rows behind a sum or mean.

    Args:
        grad: float `[num_dst, F]`, of the aggregates; with `has_root` `[num_dst, 2F]`: the second
            half is the gradient of the destinations' own rows.
        aggregation: The one of the forward pass.
        dtype: Type of the result.
        has_root: Whether `grad` has two halves.

    Returns:
        `[num_src, F]`.
    """
    features, root = LazyFeatures.of(grad), "added" if has_root else "none"
    total = aggregation.transposed(grad.dtype, dtype)
    out: Tensor = ops.aggregate(*features.arguments(), *total, root, dtype)
    return out


_sum: Callable[..., Tensor] = _Sum.apply
_maximum: Callable[..., Tensor] = _Maximum.apply
