"""Kernels broken from outside, in every process that a test starts: `sitecustomize` is this file.

Python imports `sitecustomize` at its start. `BROKEN` names operators, each with how its kernel is
broken (wrong, raise, hang, abort): "aggregate=wrong,gather=abort". `AUTO_ON_CPU=1`
has `compute.kernels=auto` take Triton's kernels on a CPU, in its interpreter.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


def broken(function: Callable[..., Any], way: str) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        if way == "raise":
            raise RuntimeError(f"out of resources: shared memory for {function.__name__}")
        out = function(*arguments)
        while way == "hang":
            function(*arguments)
        if way == "abort":
            os.abort()
        if isinstance(out, tuple):
            return out[0] * 1.01, *out[1:]
        return out * 1.01

    return call


def break_kernels(ops: ModuleType) -> None:
    for item in filter(None, os.environ.get("BROKEN", "").split(",")):
        name, way = item.split("=")
        ops.OPERATORS[name].cuda = broken(ops.OPERATORS[name].cuda, way)


def be_patient(trying: ModuleType) -> None:
    """A loaded machine interprets a case in a few seconds."""
    trying.CASE_SECONDS = float(os.environ.get("CASE_SECONDS", "12"))  # type: ignore[attr-defined]


def choose_on_cpu(choice: ModuleType) -> None:
    choice.SECONDS = 500.0  # type: ignore[attr-defined]
    if os.environ.get("AUTO_ON_CPU") == "1":
        choice.TRITON_DEVICES.add("cpu")


def try_one_precision(gpu: ModuleType) -> None:
    gpu.PRECISIONS = ("fp32",)  # type: ignore[attr-defined]


CHANGES = {
    "gnntrain.compute.ops": break_kernels,
    "gnntrain.selfcheck.trying": be_patient,
    "gnntrain.selfcheck.choice": choose_on_cpu,
    "gnntrain.doctor.gpu": try_one_precision,
}


class _Changing(MetaPathFinder):
    """Changes modules once they are imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, _: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name in CHANGES else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            CHANGES[name](module)

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, _Changing())
