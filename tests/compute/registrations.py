"""Every registration of the operators, one after the other, under the models that call them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

from gnntrain.compute import cpu, cuda, ops, reference
from tests.compute.devices import NEEDS_GPU, NEEDS_INTERPRETER

each_registration = pytest.mark.parametrize(
    "device",
    [
        "reference",
        "cpu",
        pytest.param("interpreter", marks=NEEDS_INTERPRETER),
        pytest.param("cuda:0", marks=NEEDS_GPU),
    ],
    indirect=True,
)
"""The test runs with `device` "cpu" on the reference, on the CPU's kernels and on the GPU's in
Triton's interpreter; and, under the mark `gpu`, with `device` "cuda:0"."""

on_gpu_kernels = pytest.mark.parametrize(
    "device",
    [
        pytest.param("interpreter", marks=NEEDS_INTERPRETER),
        pytest.param("cuda:0", marks=NEEDS_GPU),
    ],
    indirect=True,
)
"""The same for the GPU's kernels alone."""

_MODULES = {"reference": reference, "cpu": cpu, "interpreter": cuda}


@pytest.fixture(name="device")
def _device(request: pytest.FixtureRequest) -> Iterator[str]:
    name: str = request.param
    if name not in _MODULES:
        yield name
        return
    with registered(_MODULES[name], "CPU"):
        yield "cpu"


def opened(func: Any, module: ModuleType) -> Callable[..., Any] | None:
    """What computes an operator of ours, so that a dispatch mode sees the operators within.

    Args:
        func: Any operator.
        module: Of the registration; where it has none the reference computes.
    """
    name = func.name().removeprefix("gnntrain::")
    if name == func.name():
        return None
    return ops.called_flat(name, getattr(module, name, None) or getattr(reference, name))


@contextmanager
def registered(module: ModuleType, key: str) -> Iterator[None]:
    """Have the dispatcher take a module's functions for a key, rather than what is registered."""
    before = ops.register(ops.functions_of(module), key)
    try:
        yield
    finally:
        ops.register(before, key)
