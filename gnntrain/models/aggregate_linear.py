"""Aggregate, multiply, activate: one layer in one operator, with gradients.

The forward pass saves the aggregate and the result. The backward pass takes the positive numbers of
the result as the mask of ReLU and dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnntrain.compute import ops
from gnntrain.compute.features import LazyFeatures
from gnntrain.models.aggregate import Aggregation, source_gradient


@dataclass(frozen=True, slots=True)
class AggregateLinear:
    """weight · aggregate + root_weight · own row + bias, for every destination.

    Attributes:
        aggregation: The reduction of the in-neighbours: a sum or mean.
        weight: `[O, F]`; gradients flow to all three.
        root_weight: `[O, F]` or None.
        bias: `[O]`.
    """

    aggregation: Aggregation
    weight: Tensor
    root_weight: Tensor | None
    bias: Tensor

    def __call__(self, source: Tensor | LazyFeatures, dropout: float | None) -> Tensor:
        """Compute the rows of all destinations.

        Args:
            source: `[num_src, F]`; gradients flow to a tensor.
            dropout: Probability of the dropout after a ReLU; None: neither follows.

        Returns:
            `[num_dst, O]` in autocast's type, or else that of the weights.
        """
        rows, features = (None, source) if isinstance(source, LazyFeatures) else (source, None)
        linear = self.weight, self.root_weight, self.bias
        dtype = autocast_type(source.device, self.weight.dtype)
        return _aggregate_linear(rows, *linear, dtype, features, self.aggregation, dropout)


def autocast_type(device: torch.device, otherwise: torch.dtype) -> torch.dtype:
    """Autocast's type on this device; without autocast `otherwise`."""
    kind = device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else otherwise


class _AggregateLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor | None,
        neighbour_weight: Tensor,
        root_weight: Tensor | None,
        bias: Tensor,
        dtype: torch.dtype,
        features: LazyFeatures | None,
        aggregation: Aggregation,
        dropout: float | None,
    ) -> Tensor:
        features = LazyFeatures.of(rows) if rows is not None else features
        assert features is not None
        has_root = root_weight is not None
        parts = (neighbour_weight,) if root_weight is None else (neighbour_weight, root_weight)
        weight = torch.cat(parts, dim=1).to(dtype)
        out, inputs = ops.aggregate_linear(
            *features.arguments(),
            *aggregation.sum(aggregation.weight),
            weight,
            bias.to(dtype),
            has_root,
            dropout,
            any(ctx.needs_input_grad),
        )
        ctx.save_for_backward(weight, inputs, None if dropout is None else out)
        ctx.aggregation, ctx.has_root, ctx.dropout = aggregation, has_root, dropout
        ctx.row_type = None if rows is None else rows.dtype
        ctx.weight_type = neighbour_weight.dtype
        return out  # type: ignore[no-any-return]  # operators have no types

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needs_rows, aggregation = ctx.needs_input_grad[0], ctx.aggregation
        grad_inputs, grad_weight, grad_bias = ops.aggregate_linear_backward(
            grad, *ctx.saved_tensors, ctx.dropout, ctx.weight_type, needs_rows
        )
        grad_rows = None
        if needs_rows:
            grad_rows = source_gradient(
                grad_inputs, aggregation, aggregation.weight, ctx.row_type, ctx.has_root
            )
        grads: list[Tensor | None] = [grad_weight, None]
        if ctx.has_root:  # contiguous, as DDP requires of gradients
            grads = [part.contiguous() for part in grad_weight.chunk(2, dim=1)]
        return grad_rows, *grads, grad_bias, None, None, None, None


_aggregate_linear: Callable[..., Tensor] = _AggregateLinear.apply
