"""Compile the sampler's kernels, without a GPU, for the launches given as JSON on standard input.

    python -m tests.sampling.compiled_ahead < launches.json

A process of its own: here Triton compiles, elsewhere in the tests it interprets. A launch is the
kernel's name, the types of its arguments and the values of its constants.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gnntrain.sampling import triton_kernels

ARCHITECTURES = [80, 90]
_TYPES = {torch.int32: "*i32", torch.int64: "*i64"}

Launch = tuple[str, dict[str, str], dict[str, int]]


class Recorded:
    """Stands where a kernel is launched; notes the launch, and lets it happen."""

    def __init__(self, name: str, kernel: Any, launches: list[Launch]) -> None:
        self._name, self._kernel, self._launches = name, kernel, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            given = inspect.signature(self._kernel.fn).bind(*args, **kwargs).arguments
            constants = {name: int(value) for name, value in given.items() if name.isupper()}
            types = {name: _type_of(name, value) for name, value in given.items()}
            self._launches.append((self._name, types, constants))
            self._kernel[grid](*args, **kwargs)

        return launch


def _type_of(name: str, value: Tensor | int) -> str:
    if name.isupper():
        return "constexpr"
    return _TYPES[value.dtype] if isinstance(value, Tensor) else "i32"


def compile_for_gpus(name: str, types: dict[str, str], constants: dict[str, int]) -> None:
    kernel = getattr(triton_kernels, name)
    for parameter in kernel.params:
        # Or each batch whose sizes happen to be multiples of 16, or 1, would be compiled anew.
        assert types[parameter.name] != "i32" or parameter.do_not_specialize, parameter.name
    for architecture in ARCHITECTURES:
        source = ASTSource(kernel, signature=types, constexprs=constants)
        assert triton.compile(source, target=GPUTarget("cuda", architecture, 32)).asm["cubin"]


if __name__ == "__main__":
    for launched in json.load(sys.stdin):
        compile_for_gpus(*launched)
