"""Every registration of the operators, one after the other, under the models that call them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gnntrain.compute.operator import OPERATORS, called_flat
from gnntrain.compute.selection import KernelChoice, Kernels, select, selected
from tests.compute.devices import NEEDS_GPU, NEEDS_INTERPRETER

_GPU_KERNELS = [
    pytest.param("interpreter", marks=NEEDS_INTERPRETER),
    pytest.param("cuda:0", marks=NEEDS_GPU),
]
_KINDS: dict[str, Kernels] = {"reference": "torch", "cpu": "numba", "interpreter": "triton"}

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


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Records how many numbers the largest dense tensor held that is no view of a given one.

    It sees the operators within the CPU's method of an operator of ours.
    """

    def __init__(self, given: Tensor | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._given = None if given is None else given.data_ptr()
        self.numel: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operator = OPERATORS.get(func.name().removeprefix("gnntrain::"))
        if operator is not None:
            with self:
                return called_flat(operator, operator.cpu)(*args)
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, list | tuple) else (result,):
            if isinstance(value, Tensor) and value.layout == torch.strided:
                memory = value.untyped_storage()
                if memory.data_ptr() != self._given:
                    self.numel = max(self.numel, memory.nbytes() // value.itemsize)
        return result


@contextmanager
def registered(kernels: Kernels) -> Iterator[None]:
    """Have the CPU compute by these kernels: Triton's are interpreted."""
    before = selected("cpu")
    select(KernelChoice(kernels), "cpu")
    try:
        yield
    finally:
        select(before, "cpu")
