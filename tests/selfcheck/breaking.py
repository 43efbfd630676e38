"""Kernels broken from outside, in every process that a test starts: `sitecustomize` is this file.

Python imports `sitecustomize` at its start. `BROKEN` names operators, each with how its kernel is
broken: "aggregate=wrong,gather=abort". `AUTO_ON_CPU=1` has `compute.kernels=auto` take Triton's
kernels on a CPU, in its interpreter.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

CASE_SECONDS = 12.0  # a loaded machine interprets a case in a few


def wrong(function: Callable[..., Any]) -> Callable[..., Any]:
    """Results that are a hundredth too large."""

    def call(*arguments: Any) -> Any:
        out = function(*arguments)
        first, *others = out if isinstance(out, tuple) else (out,)
        return (first * 1.01, *others) if isinstance(out, tuple) else first * 1.01

    return call


def raising(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*_: Any) -> Any:
        raise RuntimeError(f"out of resources: shared memory for {function.__name__}")

    return call


def hanging(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        while True:
            function(*arguments)

    return call


def aborting(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        function(*arguments)
        os.abort()

    return call


WAYS = {"wrong": wrong, "raise": raising, "hang": hanging, "abort": aborting}


def break_kernels(ops: ModuleType) -> None:
    for item in filter(None, os.environ.get("BROKEN", "").split(",")):
        name, way = item.split("=")
        ops.OPERATORS[name].cuda = WAYS[way](ops.OPERATORS[name].cuda)


def be_patient(trying: ModuleType) -> None:
    trying.CASE_SECONDS = CASE_SECONDS  # type: ignore[attr-defined]


def wait_longer(check: ModuleType) -> None:
    check.SECONDS = 500.0  # type: ignore[attr-defined]


def try_one_precision(gpu: ModuleType) -> None:
    gpu.PRECISIONS = ("fp32",)  # type: ignore[attr-defined]


def take_triton(choice: ModuleType) -> None:
    if os.environ.get("AUTO_ON_CPU") == "1":
        choice.TRITON_DEVICES.add("cpu")


CHANGES = {
    "gnntrain.compute.ops": break_kernels,
    "gnntrain.selfcheck.trying": be_patient,
    "gnntrain.selfcheck.check": wait_longer,
    "gnntrain.selfcheck.choice": take_triton,
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
