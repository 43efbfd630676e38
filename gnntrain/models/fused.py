"""Aggregate, multiply, activate: one layer in one pass over the rows, on the CPU.

A layer computed operation by operation writes and reads tensors as long as the block several times
over: the aggregate, two products, their sum, the activation, the dropout's mask, the dropped-out
rows; and again backward. Here each thread takes some rows through all of it while they are in its
cache. What the backward pass needs of the forward one is the aggregate and the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnntrain.compute import kernels
from gnntrain.compute.device import DeviceTable
from gnntrain.compute.eager import eager
from gnntrain.compute.rows import (
    Table,
    chunks,
    for_tasks,
    kind_of,
    num_tasks,
    table_of,
    words_of,
)
from gnntrain.loading.features import NamedRows, StoredRows
from gnntrain.models.aggregate import Aggregation, transposed_rows
from gnntrain.models.dropout import Drop
from gnntrain.models.fused_on_device import aggregated_linear


@dataclass(frozen=True, slots=True)
class AggregatedLinear:
    """weight · aggregate + root_weight · own row + bias, for every destination.

    Attributes:
        aggregation: How the in-neighbours become one row.
        weight: `[O, F]`; gradients flow to all three.
        root_weight: `[O, F]` or None.
        bias: `[O]`.
    """

    aggregation: Aggregation
    weight: Tensor
    root_weight: Tensor | None
    bias: Tensor

    @eager
    def __call__(self, source: Tensor | NamedRows, dropout: float | None) -> Tensor:
        """Compute it where the rows are.

        Args:
            source: `[num_src, F]`; gradients flow to a tensor.
            dropout: A ReLU and a dropout with this probability follow; None: neither.

        Returns:
            `[num_dst, O]` in the type that autocast computes in, or the weights'.
        """
        if isinstance(source, DeviceTable) or (isinstance(source, Tensor) and source.is_cuda):
            return self.on_device(source, dropout)
        return self.on_cpu(source, None if dropout is None else Drop.draw(dropout))

    def on_device(self, source: Tensor | DeviceTable, dropout: float | None) -> Tensor:
        """Compute it by the GPU's kernels."""
        linear = self.weight, self.root_weight, self.bias
        return aggregated_linear(source, self.aggregation, *linear, dropout)

    def on_cpu(self, source: Tensor | StoredRows, drop: Drop | None) -> Tensor:
        """Compute it on the CPU; with a `drop`, a ReLU and that dropout follow."""
        dtype = self.weight.dtype
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
        rows, table = (source, None) if isinstance(source, Tensor) else (None, source.table)
        linear = self.weight, self.root_weight, self.bias
        return _aggregated_linear(rows, *linear, dtype, table, self.aggregation, drop)


class _AggregatedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor | None,
        neighbour_weight: Tensor,
        root_weight: Tensor | None,
        bias: Tensor,
        dtype: torch.dtype,
        table: Table | None,
        aggregation: Aggregation,
        drop: Drop | None,
    ) -> Tensor:
        table = table_of(rows) if table is None and rows is not None else table
        assert table is not None
        has_root = root_weight is not None
        parts = (neighbour_weight,) if root_weight is None else (neighbour_weight, root_weight)
        weight, bias = torch.cat(parts, dim=1).to(dtype), bias.to(dtype)
        reduction = aggregation.on_cpu()
        num_dst, width, across = reduction.num_dst, table.width, weight.t()
        is_kept = any(ctx.needs_input_grad)
        inputs = weight.new_empty(num_dst if is_kept else 0, weight.shape[1])
        out = weight.new_empty(num_dst, weight.shape[0])

        def task(_: int, start: int, stop: int) -> None:
            for a, b in chunks(start, stop):
                part = inputs[a:b] if is_kept else inputs.new_empty(b - a, weight.shape[1])
                reduction.put(table, a, b, part, width=width)
                if has_root:
                    table.put(reduction.own, a, b, part, column=width)
                torch.addmm(bias, part, across, out=out[a:b])
                if drop is not None:
                    drop.apply(out, a, b, relu=True)

        for_tasks(num_dst, aggregation.block.num_edges, task)
        ctx.save_for_backward(weight, inputs, None if drop is None else out)
        ctx.aggregation, ctx.has_root = aggregation, has_root
        ctx.dtype = neighbour_weight.dtype
        ctx.factor = 1.0 if drop is None else drop.factor
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, inputs, out = ctx.saved_tensors
        grad = grad.contiguous()
        exact = torch.promote_types(weight.dtype, torch.float32)
        count = num_tasks(len(inputs), 0)
        # Each task has sums of its own, so that their order does not depend on the threads.
        weight_sums = [torch.zeros(weight.shape, dtype=exact) for _ in range(count)]
        bias_sums = [torch.zeros(len(weight), dtype=exact) for _ in range(count)]
        grad_inputs = torch.empty_like(inputs) if ctx.needs_input_grad[0] else None

        def task(number: int, start: int, stop: int) -> None:
            # A product in 16 bits cannot be summed up in place: there one for the whole task.
            in_place = exact == weight.dtype
            for a, b in chunks(start, stop) if in_place else [(start, stop)]:
                part = grad[a:b]
                if out is not None:
                    part = torch.empty_like(part)
                    args = words_of(grad), words_of(out), kind_of(out), ctx.factor, a, b
                    kernels.mask_rows(*args, words_of(part))
                if in_place:
                    weight_sums[number].addmm_(part.t(), inputs[a:b])
                else:
                    weight_sums[number] = part.t() @ inputs[a:b]
                bias_sums[number] += part.sum(0, dtype=exact)
                if grad_inputs is not None:
                    torch.mm(part, weight, out=grad_inputs[a:b])

        for_tasks(len(inputs), 0, task)
        grad_rows = None
        if grad_inputs is not None:
            grad_rows = transposed_rows(ctx.aggregation, grad_inputs, ctx.has_root)
        grad_weight = _total(weight_sums, weight, ctx.dtype)
        grad_bias = _total(bias_sums, weight[:, 0], ctx.dtype)
        grads: list[Tensor | None] = [grad_weight, None]
        if ctx.has_root:  # of memory of their own, as DDP wants them
            grads = [part.contiguous() for part in grad_weight.chunk(2, dim=1)]
        return grad_rows, *grads, grad_bias, None, None, None, None


def _total(parts: list[Tensor], like: Tensor, dtype: torch.dtype) -> Tensor:
    total = parts[0] if parts else torch.zeros_like(like)
    for part in parts[1:]:
        total += part
    return total.to(dtype)


_aggregated_linear: Callable[..., Tensor] = _AggregatedLinear.apply
