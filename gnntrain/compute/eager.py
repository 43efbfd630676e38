"""What `torch.compile` must not look into."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def eager(function: Callable[P, R]) -> Callable[P, R]:
    """Have a compiled model call `function` as it is, between what is compiled around it.

    For what reads memory by other means than torch's operators: Numba's and Triton's kernels.
    """
    kept: Callable[P, R] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return kept
