"""Every registration of the operators, one after the other, under the models that call them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gnntrain.compute import ops
from gnntrain.compute.operator import called_flat
from tests.compute.devices import NEEDS_GPU, NEEDS_INTERPRETER

_GPU_KERNELS = [
    pytest.param("interpreter", marks=NEEDS_INTERPRETER),
    pytest.param("cuda:0", marks=NEEDS_GPU),
]
_KINDS = {"reference": "reference", "cpu": "cpu", "interpreter": "cuda"}

each_registration = pytest.mark.parametrize(
    "device", ["reference", "cpu", *_GPU_KERNELS], indirect=True
)
"""The test runs with `device` "cpu" on the reference, on the CPU's kernels and on the GPU's in
Triton's interpreter; and, under the mark `gpu`, with `device` "cuda:0"."""

on_gpu_kernels = pytest.mark.parametrize("device", _GPU_KERNELS, indirect=True)
"""The same for the GPU's kernels alone."""


@pytest.fixture(name="device")
def _device(request: pytest.FixtureRequest) -> Iterator[str]:
    name: str = request.param
    if name not in _KINDS:
        yield name
        return
    with registered(_KINDS[name]):
        yield "cpu"


def opened(func: Any) -> Callable[..., Any] | None:
    """The CPU's method of an operator of ours: a dispatch mode sees the operators within."""
    operator = ops.OPERATORS.get(func.name().removeprefix("gnntrain::"))
    return None if operator is None else called_flat(operator, operator.cpu)


@contextmanager
def registered(kind: str) -> Iterator[None]:
    """Have the CPU compute by the operators' "reference", "cpu" or "cuda" (interpreted)."""
    before = ops.register("CPU", kind)
    try:
        yield
    finally:
        ops.register("CPU", *before)
