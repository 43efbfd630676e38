"""A kernel beside its reference: results and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.selfcheck.case import WrongResultError

Function = Callable[..., Any]


def compare(kernel: Function, reference: Function, arguments: Any, device: torch.device) -> float:
    """The kernel's largest error against float64, see `Case.run`.

    Args:
        kernel, reference: Take the same arguments, and give a tensor or a tuple of some.
        arguments: On the CPU.
        device: Where both are to compute.

    Raises:
        WrongResultError: The error is above twice the reference's plus twice the type's resolution;
            or two equal calls differ in a bit.
    """
    exact = _tensors(reference(*_mapped(arguments, _in_float64)))
    given = _mapped(arguments, lambda value: _moved(value, device))
    others, found, again = (_tensors(call(*given)) for call in (reference, kernel, kernel))
    if not len(found) == len(others) == len(exact):
        raise WrongResultError(f"{len(found)} results instead of {len(others)}")
    for one, two in zip(found, again, strict=True):
        if not torch.equal(one.nan_to_num(), two.nan_to_num()):
            raise WrongResultError("two equal calls gave different numbers")
    errors = map(_checked_error, found, others, exact)
    return max(errors, default=0.0)


def _checked_error(found: Tensor, other: Tensor, exact: Tensor) -> float:
    found, other = found.cpu(), other.cpu()
    if (found.shape, found.dtype) != (other.shape, other.dtype):
        raise WrongResultError(
            f"{_form(found)} instead of {_form(other)}",
        )
    if not found.numel():
        return 0.0
    size = max(1.0, float(exact.double().nan_to_num(neginf=0).abs().max()))
    unit = torch.finfo(found.dtype).eps if found.dtype.is_floating_point else 0.0
    # −∞, the logarithm of an empty sum, is no further from itself than 0.
    error, others = (
        float((part.double() - exact).masked_fill_(part == exact, 0).abs().max()) / size
        for part in (found, other)
    )
    if not error <= 2 * others + 2 * unit:  # NaN is no small error
        raise WrongResultError(f"error {error:.2g}, of the reference {others:.2g}")
    return error


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def _in_float64(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.double()
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return value


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """The same arguments, after the function for each tensor, type and number in them."""
    if isinstance(value, LazyFeatures):
        return value.map(function)
    if isinstance(value, tuple):
        items = [_mapped(item, function) for item in value]
        return value._make(items) if hasattr(value, "_make") else tuple(items)
    return function(value)


def _tensors(results: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (results,) if isinstance(results, Tensor) else results
