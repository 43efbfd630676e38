"""The one place that says how our Numba kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numba

P = ParamSpec("P")
R = TypeVar("R")


def jit(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` lazily: no GIL, cached on disk where possible, divisions as in NumPy."""
    compiled: Callable[P, R]
    try:
        compiled = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # nowhere to write a cache to: every process compiles for itself
        compiled = numba.njit(nogil=True, error_model="numpy")(function)
    return compiled
