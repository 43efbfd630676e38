"""Aggregate, multiply, activate on a GPU: as few kernels and temporary tensors as can be.

The twin of `fused`. One kernel reads the in-neighbours' rows, where they lie, into the aggregate
and puts the destinations' own rows beside it, in the type that is computed in; one product with
(weight ‖ root weight) and the bias follows. What the backward pass needs of the forward one is that
matrix and the result: a ReLU and a dropout are undone by looking at the result (positive: kept).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gnntrain.compute.device import DeviceReduction, DeviceTable, reduce_table, table_of
from gnntrain.models.aggregate import Aggregation, out_edges_on_device


def aggregated_linear(
    source: Tensor | DeviceTable,
    aggregation: Aggregation,
    weight: Tensor,
    root_weight: Tensor | None,
    bias: Tensor,
    dropout: float | None,
) -> Tensor:
    """weight · aggregate + root_weight · own row + bias, for every destination.

    Args:
        source: `[num_src, F]`; gradients flow to a tensor.
        aggregation: How the in-neighbours become one row; no maximum.
        weight: `[O, F]`; gradients flow to all three.
        root_weight: `[O, F]` or None.
        bias: `[O]`.
        dropout: A ReLU and a dropout with this probability follow; None: neither.

    Returns:
        `[num_dst, O]` in the type that autocast computes in, or the weights'.
    """
    rows, table = (source, None) if isinstance(source, Tensor) else (None, source)
    dtype = autocast_type(source.device, weight.dtype)
    return _aggregated_linear(rows, weight, root_weight, bias, dtype, table, aggregation, dropout)


def autocast_type(device: torch.device, otherwise: torch.dtype) -> torch.dtype:
    """The type that autocast computes in on a device, if it is enabled there."""
    kind = device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else otherwise


class _AggregatedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor | None,
        neighbour_weight: Tensor,
        root_weight: Tensor | None,
        bias: Tensor,
        dtype: torch.dtype,
        table: DeviceTable | None,
        aggregation: Aggregation,
        dropout: float | None,
    ) -> Tensor:
        table = table_of(rows) if rows is not None else table
        assert table is not None
        has_root = root_weight is not None
        parts = (neighbour_weight,) if root_weight is None else (neighbour_weight, root_weight)
        weight = torch.cat(parts, dim=1).to(dtype)
        inputs = reduce_table(table, _reduction(aggregation, has_root), dtype)
        out = torch.addmm(bias.to(dtype), inputs, weight.t())
        if dropout is not None:
            out = F.dropout(out.relu_(), dropout)
        ctx.save_for_backward(weight, inputs, None if dropout is None else out)
        ctx.aggregation, ctx.has_root = aggregation, has_root
        ctx.row_type = None if rows is None else rows.dtype
        ctx.weight_type = neighbour_weight.dtype
        ctx.factor = 1 / (1 - (dropout or 0.0))
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, inputs, out = ctx.saved_tensors
        if out is not None:
            grad = torch.ops.aten.threshold_backward(grad, out, 0)
        # Without a beta, what stands first gives the product its shape alone.
        scaled = {"beta": 0, "alpha": ctx.factor}
        grad_rows = None
        if ctx.needs_input_grad[0]:
            grad_inputs = torch.addmm(inputs, grad, weight, **scaled)
            out_edges = out_edges_on_device(ctx.aggregation.block)
            backward = _reduction(ctx.aggregation, ctx.has_root).transposed(out_edges)
            grad_rows = reduce_table(table_of(grad_inputs), backward, ctx.row_type)
        grad_weight = torch.addmm(weight, grad.t(), inputs, **scaled)
        grads: list[Tensor | None] = [
            part.to(ctx.weight_type).contiguous()  # of memory of their own, as DDP wants them
            for part in grad_weight.chunk(2 if ctx.has_root else 1, dim=1)
        ]
        grads += [None] * (2 - len(grads))
        grad_bias = grad.sum(0, dtype=ctx.weight_type).mul_(ctx.factor)
        return grad_rows, *grads, grad_bias, None, None, None, None


def _reduction(aggregation: Aggregation, has_root: bool) -> DeviceReduction:
    return replace(aggregation.on_device(), root="beside" if has_root else "none")


_aggregated_linear: Callable[..., Tensor] = _AggregatedLinear.apply
