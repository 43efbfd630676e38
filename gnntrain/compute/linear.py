"""A layer in one operator: aggregate, product, ReLU and dropout; and dropout alone."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gnntrain.compute import cpu, kernels
from gnntrain.compute.aggregate import Aggregate, reduction
from gnntrain.compute.buffers import BUFFERS
from gnntrain.compute.cpu import array_of, by_rows, number_type, padded
from gnntrain.compute.examples import Inputs
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.operator import Edges, Operator, Sum
from gnntrain.compute.products import product_type

_STEPS = 1 << 16  # of dropout's probability
_SUMS = 64  # of a column


class AggregateLinear(Operator):
    """(weight ‖ root weight) · (aggregate ‖ own row) + bias, with a dropout probability followed by
    ReLU and dropout; and, if `keep`, the inputs of the product.

    Attributes:
        root: Whether the own row is multiplied, too, see `Aggregate`.
        known: These inputs, of an earlier call with the same rows and edges.
    """

    is_random = True

    features: LazyFeatures
    edges: Edges
    total: Sum
    weight: Tensor
    bias: Tensor
    root: bool
    dropout: float | None
    keep: bool
    known: Tensor | None = None

    def fake(self) -> tuple[Tensor, Tensor]:
        num_dst, weight = self.edges.num_dst, self.weight
        inputs = weight.new_empty(num_dst if self.keep else 0, weight.shape[1])
        return weight.new_empty(num_dst, weight.shape[0]), inputs

    def reference(self) -> tuple[Tensor, Tensor]:
        """One aggregate in the type of the weight, and one product."""
        inputs = self.known
        if inputs is None:
            given = self.features, self.edges, self.total, self.weight.dtype, self.root
            inputs = Aggregate(*given).run()
        product = self.bias, inputs, self.weight.t()
        if self.dropout is None:
            out = torch.addmm(*product)
        elif inputs.is_cuda:  # ReLU is a part of the product
            out = F.dropout(torch._addmm_activation(*product), self.dropout)
        else:
            out = F.dropout(torch.addmm(*product).relu_(), self.dropout)
        return out, inputs if self.keep else inputs.new_empty(0, inputs.shape[1])

    def cpu(self) -> tuple[Tensor, Tensor]:
        """A layer in one pass: a thread computes all of it for a chunk of rows in its cache.

        Computed by separate operators, block-sized tensors would be written and read several times.
        """
        put = reduction(self.features, self.edges, self.total, self.root)
        num_dst = self.edges.num_dst
        weight, keep, known, dtype = self.weight, self.keep, self.known, self.weight.dtype
        product = product_type(dtype)
        bias, across = self.bias.to(product), weight.t().to(product)
        drop = None if self.dropout is None else mask_of(self.dropout, new_key(self.dropout), dtype)
        inputs = BUFFERS.empty((num_dst if keep else 0, weight.shape[1]), dtype)
        out = BUFFERS.empty((num_dst, weight.shape[0]), dtype)

        def task(start: int, stop: int) -> None:
            if known is not None:
                part = known[start:stop]
            else:
                size = stop - start, weight.shape[1]
                part = inputs[start:stop] if keep else inputs.new_empty(size)
                put(start, stop, part)
            rows = padded(part.to(product))
            if rows is part:
                torch.addmm(bias, part, across, out=out[start:stop])
            else:
                out[start:stop] = torch.addmm(bias, rows, across)[: stop - start]
            if drop is not None:
                kernels.activate_rows(array_of(out), True, drop, start, stop)

        by_rows(num_dst, len(self.edges.indices), task, product)
        return out, inputs

    @staticmethod
    def examples(given: Inputs) -> dict[str, Operator]:
        rows = given.features(5), given.edges, given.mean()
        weight = given.rows(3, 10)
        # Far from 0 on either side: no rounding decides what ReLU keeps.
        bias = torch.tensor([16, -16, 16], dtype=given.dtype)
        root = *rows, weight, bias, True, 0.0, True
        return {
            "linear": AggregateLinear(*rows, weight[:, :5], bias, False, None, False),
            "root, ReLU": AggregateLinear(*root),
            "known": AggregateLinear(*root[:-1], False, given.rows(given.edges.num_dst, 10)),
        }


class AggregateLinearBackward(Operator):
    """Gradients of the inputs (nothing if not asked for), of weight and bias (in `dtype`).

    The mask of ReLU and dropout are the positive numbers of the result `out`.
    """

    grad: Tensor
    weight: Tensor
    inputs: Tensor
    out: Tensor | None
    dropout: float | None
    dtype: torch.dtype
    needs_inputs: bool

    def fake(self) -> tuple[Tensor, Tensor, Tensor]:
        weight, inputs = self.weight, self.inputs
        grad_inputs = torch.empty_like(inputs) if self.needs_inputs else inputs.new_empty(0)
        grad_weight = torch.empty_like(weight, dtype=self.dtype)
        return grad_inputs, grad_weight, weight.new_empty(len(weight), dtype=self.dtype)

    def reference(self) -> tuple[Tensor, Tensor, Tensor]:
        grad, weight, inputs = self.grad, self.weight, self.inputs
        if self.out is not None:
            grad = torch.ops.aten.threshold_backward(grad, self.out, 0)
        factor = 1 / (1 - (self.dropout or 0.0))
        # With beta 0 the first argument gives only the shape.
        scaled: Any = {"beta": 0, "alpha": factor}
        grad_inputs = inputs.new_empty(0)
        if self.needs_inputs:
            grad_inputs = torch.addmm(inputs, grad, weight, **scaled)
        grad_weight = torch.addmm(weight, grad.t(), inputs, **scaled).to(self.dtype)
        # A few sums of many rows each: torch's kernel for GPUs needs many columns to be fast.
        rest = len(grad) % _SUMS
        sums = grad[rest:].reshape(-1, _SUMS * grad.shape[1]).sum(0, dtype=self.dtype)
        bias_sums = torch.cat([grad[:rest].to(self.dtype), sums.view(_SUMS, -1)])
        return grad_inputs, grad_weight, bias_sums.sum(0).mul_(factor)

    def cpu(self) -> tuple[Tensor, Tensor, Tensor]:
        grad, weight, inputs, out = self.grad.contiguous(), self.weight, self.inputs, self.out
        exact = torch.promote_types(weight.dtype, torch.float32)
        product = product_type(weight.dtype)
        across = weight.to(product)
        _, factor, _ = mask_of(self.dropout or 0.0, 0, grad.dtype)
        count = max(1, cpu.num_tasks(len(inputs), 0))
        # A sum for each task: the order of additions does not depend on the threads.
        weight_sums = [torch.zeros(weight.shape, dtype=exact) for _ in range(count)]
        bias_sums = [torch.zeros(len(weight), dtype=exact) for _ in range(count)]
        grad_inputs = BUFFERS.empty(inputs.shape if self.needs_inputs else (0,), inputs.dtype)

        def task(number: int, start: int, stop: int) -> None:
            part = grad[start:stop]
            if out is None:
                bias_sums[number] += part.sum(0, dtype=exact)
            else:
                part = torch.empty_like(part)
                given = array_of(grad), array_of(out), factor, start, stop, array_of(part)
                kernels.mask_rows(*given, bias_sums[number].numpy())
            part, rows = padded(part.to(product)), padded(inputs[start:stop].to(product))
            if exact == product:
                weight_sums[number].addmm_(part.t(), rows)
            else:  # a 16-bit product cannot be accumulated in place
                weight_sums[number] += part.t() @ rows
            if self.needs_inputs and len(part) == stop - start and product == weight.dtype:
                torch.mm(part, across, out=grad_inputs[start:stop])
            elif self.needs_inputs:
                grad_inputs[start:stop] = (part @ across)[: stop - start]

        cpu.for_tasks(len(inputs), task, product)

        weight_grad, bias_grad = (reduce(Tensor.add_, sums) for sums in (weight_sums, bias_sums))
        return grad_inputs, weight_grad.to(self.dtype), bias_grad.to(self.dtype)

    @staticmethod
    def examples(given: Inputs) -> dict[str, Operator]:
        weight, inputs = given.rows(3, 10), given.rows(given.edges.num_dst, 10)
        grad, out = given.rows(len(inputs), 3), given.integers(len(inputs), 3)
        more = None, given.dtype, True
        return {
            "linear": AggregateLinearBackward(grad, weight, inputs, None, *more),
            "ReLU": AggregateLinearBackward(grad, weight, inputs, out, *more),
        }


class Dropout(Operator):
    """Set numbers to 0 with probability p, scale the others up; and the key (int64 `[]`) that says
    which: the given one, as of the gradient, or a new one. By Numba alone: see `models.dropout`."""

    is_random = True

    x: Tensor
    p: float
    key: Tensor | None

    def fake(self) -> tuple[Tensor, Tensor]:
        out = torch.empty_like(self.x, memory_format=torch.contiguous_format)
        return out, self.x.new_empty((), dtype=torch.int64)

    def cpu(self) -> tuple[Tensor, Tensor]:
        key = new_key(self.p) if self.key is None else int(self.key)
        out, mask = BUFFERS.empty(self.x.shape, self.x.dtype), mask_of(self.p, key, self.x.dtype)
        rows = array_of(out.copy_(self.x).view(len(out), -1))
        by_rows(len(out), 0, lambda a, b: kernels.activate_rows(rows, False, mask, a, b))
        return out, torch.tensor(key)


def new_key(p: float) -> int:
    """The key of a dropout mask, from torch's generator; the mask is a pure function of it.

    torch's dropout on a CPU is bound by its generator, which draws one number after the other.
    """
    return int(torch.randint(2**63 - 1, ())) if p > 0 else 0


def mask_of(p: float, key: int, dtype: torch.dtype) -> tuple[int, Any, np.uint64]:
    """A mask in the kernels' form, with the probability in steps of 2^-16.

    Of 2^16 equally likely draws those below its threshold are dropped; the factor of the others
    preserves the mean.
    """
    threshold = min(round(p * _STEPS), _STEPS - 1)
    return threshold, number_type(dtype)(_STEPS / (_STEPS - threshold)), np.uint64(key)
