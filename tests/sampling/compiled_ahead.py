"""Compile the sampler's kernels, for GPUs that are not here, for the launches on standard input.

    python -m tests.sampling.compiled_ahead < launches.json

Prints what each takes, as JSON: a list of `absent_gpus.Compiled`. A process of its own: here Triton
compiles, elsewhere in the tests it interprets. A launch is the kernel's name and its arguments:
numbers, and the types of tensors.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gnntrain.sampling import triton_kernels
from tests.absent_gpus import AbsentGPUs, Compiled

Launch = tuple[str, dict[str, str | int]]


class Recorded:
    """Stands where a kernel is launched; notes the launch, and lets it happen."""

    def __init__(self, name: str, kernel: Any, launches: list[Launch]) -> None:
        self._name, self._kernel, self._launches = name, kernel, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            names = self._kernel.arg_names
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            self._launches.append((self._name, {key: _noted(given[key]) for key in given}))
            self._kernel[grid](*args, **kwargs)

        return launch


def _noted(value: Tensor | int) -> str | int:
    return str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else value


def compiled_alike(launch: Launch) -> Launch:
    """Without the sizes that change from batch to batch."""
    name, noted = launch
    return name, {key: noted[key] for key in noted if key.isupper() or isinstance(noted[key], str)}


def compile_all(launches: list[Launch]) -> set[Compiled]:
    gpus, found = AbsentGPUs(), set[Compiled]()
    for name, noted in launches:
        arguments = {
            key: torch.empty(1, dtype=getattr(torch, value)) if isinstance(value, str) else value
            for key, value in noted.items()
        }
        found.update(gpus.compile_all(getattr(triton_kernels, name), arguments))
    return found


if __name__ == "__main__":
    print(json.dumps(sorted(compile_all(json.load(sys.stdin)))))
