"""Kernels broken from outside, in every process that a test starts: this file is `sitecustomize`,
which Python imports at its start.

`BROKEN` names operators, each with how its kernel is broken, as in "aggregate=wrong,gather=abort":
wrong, raise, memory, hang, abort, or orphan: abort, while a process that it started goes on.
`compute.kernels=auto` then takes Triton's kernels on a CPU, too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any


def python_path(folder: Path) -> str:
    """`PYTHONPATH` for processes that are to obey `BROKEN`; writes into the folder."""
    shutil.copyfile(__file__, folder / "sitecustomize.py")
    return os.pathsep.join([str(folder), str(Path(__file__).parents[2])])


def broken(function: Callable[..., Any], way: str) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        if way == "raise":
            raise RuntimeError(f"out of resources: shared memory for {function.__name__}")
        if way == "memory":
            import torch

            raise torch.OutOfMemoryError("2 GiB")
        out = function(*arguments)
        while way == "hang":
            function(*arguments)
        if way == "orphan":
            subprocess.Popen(["sleep", "150"])
        if way in ("abort", "orphan"):
            os.abort()
        if isinstance(out, tuple):
            return out[0] * 1.01, *out[1:]
        return out * 1.01

    return call


if __name__ == "sitecustomize" and os.environ.get("BROKEN"):
    from gnntrain.compute.operator import OPERATORS
    from gnntrain.doctor import gpu
    from gnntrain.selfcheck import cases, choice

    for item in os.environ["BROKEN"].split(","):
        name, way = item.split("=")
        OPERATORS[name].cuda = broken(OPERATORS[name].cuda, way)  # type: ignore[method-assign]
    for module in (choice, gpu):
        vars(module)["takes_triton"] = lambda asked, _: asked != "torch"
    # A loaded machine interprets an example in a few seconds.
    cases.EXAMPLE_SECONDS = int(os.environ.get("EXAMPLE_SECONDS", "12"))
    gpu.PRECISIONS = ("fp32",)  # type: ignore[assignment]
