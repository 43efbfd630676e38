"""Dropout: with Numba's kernels many times faster than torch's on a CPU; else torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gnntrain.compute import linear, selection


class Dropout(nn.Dropout):
    """`torch.nn.Dropout` with the operator `dropout`."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply dropout in training mode."""
        return dropout(x, self.p) if self.training else x


def dropout(x: Tensor, probability: float) -> Tensor:
    """Set numbers to 0 with `probability` (on a CPU in steps of 2^-16) and scale the others up.

    Args:
        x: float `[rows, …]`; gradients flow.
        probability: From 0 to below 1.
    """
    if probability == 0 or x.numel() == 0:
        return x
    if x.device.type == "cpu" and selection.selected("cpu").kernels == "numba":
        return _dropout(x, probability)
    return torch.native_dropout(x, probability, True)[0]


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        out, key = linear.Dropout(x, p, None).run()
        ctx.save_for_backward(key)
        ctx.p = p
        return out  # type: ignore[no-any-return]  # operators have no types

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (key,) = ctx.saved_tensors
        return linear.Dropout(grad, ctx.p, key).run()[0], None


_dropout: Callable[..., Tensor] = _Dropout.apply
