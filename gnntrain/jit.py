"""The one place that says how our Numba kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

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
    else:
        _forgive_full_disk(getattr(compiled, "_cache", None))
    return compiled


def _forgive_full_disk(cache: Any) -> None:
    """What was compiled works without having been kept, but Numba would let the disk end it."""
    if hasattr(cache, "save_overload"):
        save = cache.save_overload

        def save_if_there_is_room(*arguments: Any) -> None:
            with suppress(OSError):
                save(*arguments)

        cache.save_overload = save_if_there_is_room
