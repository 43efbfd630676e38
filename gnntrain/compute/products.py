"""Matrix products in bfloat16 on processors that have no instructions for them.

There (most before 2023) torch multiplies bfloat16 at a fifth of float32's rate. Rows and
activations stay bfloat16 in memory; their products are computed in float32.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gnntrain.limits import BF16_FLAGS, cpu_flags

_OVERRIDES: list[Any] = []


@cache
def multiplies_bf16() -> bool:
    """Whether the processor multiplies bfloat16 itself; assumed where it lists no flags."""
    flags = cpu_flags()
    return not flags or not flags.isdisjoint(BF16_FLAGS)


def product_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which a CPU multiplies matrices of a type."""
    return torch.float32 if dtype == torch.bfloat16 and not multiplies_bf16() else dtype


def product_note(precision: str) -> str:
    """The remark of a CPU that does not multiply in `trainer.precision`, or nothing."""
    return "products in float32" if precision == "bf16" and not multiplies_bf16() else ""


def prepare_autocast() -> None:
    """Have autocast on the CPU compute in float32 where bfloat16 is slow, in this process.

    A linear layer's rows stay bfloat16; other products give float32.
    """
    if multiplies_bf16() or _OVERRIDES:
        return
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells of operators that are overridden
        library.impl("linear", _linear, "AutocastCPU")
        for name in ("matmul", "mm", "bmm", "addmm", "baddbmm"):
            library.impl(name, _in_float32(getattr(torch, name)), "AutocastCPU")
    _OVERRIDES.append(library)


def _in_float32(function: Any) -> Any:
    def call(*values: Any, **options: Any) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            widened = (v.float() if isinstance(v, Tensor) else v for v in values)
            out: Tensor = function(*widened, **options)
            return out

    return call


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x.bfloat16(), weight)
        ctx.types = x.dtype, weight.dtype
        return F.linear(x.float(), weight.float(), bias).bfloat16()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad, needs = grad.float(), ctx.needs_input_grad
        flat = grad.flatten(0, -2)
        return (
            (grad @ weight.float()).to(ctx.types[0]) if needs[0] else None,
            (flat.t() @ x.float().flatten(0, -2)).to(ctx.types[1]) if needs[1] else None,
            flat.sum(0).to(ctx.types[1]) if needs[2] else None,
        )


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        out: Tensor = _Linear.apply(x, weight, None if bias is None else bias.float())  # type: ignore[no-untyped-call]
        return out
