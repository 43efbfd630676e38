"""A faster start and end of commands; not used when gnntrain is imported as a library.

Imports make a million objects, which each garbage collection would traverse.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

# Before torch is loaded; see `set_variables`.
VARIABLES = {
    # A mini-batch's activations are newly allocated in every step; pages of 2 MiB instead of 4 KiB
    # need 512 times fewer page faults. torch reads this once, at its first allocation.
    "THP_MEM_ALLOC_ENABLE": "1",
    # Idle OpenMP threads would spin on cores that the Numba kernels and the loader's threads need.
    # OpenMP reads this once, when torch loads it.
    "OMP_WAIT_POLICY": "PASSIVE",
}

_is_paused = False


def set_variables() -> None:
    """Set the environment variables with which torch computes faster, unless they are set."""
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Disable garbage collection until `resume_collection`, or the end of the block."""
    global _is_paused
    _is_paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        resume_collection()


def resume_collection() -> None:
    """Enable garbage collection again, if it was paused, without all existing objects."""
    global _is_paused
    if _is_paused:
        _is_paused = False
        gc.freeze()
        gc.enable()


def open_closed_streams() -> None:
    """Open the null device for each standard stream that the shell has closed, as in `>&-`.

    Otherwise the next pipe or file gets its number, and ranks take that for their output.
    """
    for stream in range(3):
        try:
            os.fstat(stream)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def leave(exit_code: int) -> NoReturn:
    """End this process as Python does, but leave its memory to the operating system.

    Joins threads, calls `atexit` functions and flushes streams. Python would then free every object
    of every module, which takes a quarter of the time of their import.
    """
    if _is_watched():  # a profiler writes at the very end
        sys.exit(exit_code)
    threading._shutdown()  # type: ignore[attr-defined]  # as `multiprocessing` ends its processes
    atexit._run_exitfuncs()
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None where the shell has closed it
            stream.flush()
    except (OSError, ValueError):  # closed: Python says so
        sys.exit(exit_code)
    ctypes.CDLL(None).fflush(None)  # what libraries in C have printed
    os._exit(exit_code)


def _is_watched() -> bool:
    """Whether a profiler, a debugger or a measurement of coverage watches this process."""
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on; it has six tools
    tools = [] if monitoring is None else [monitoring.get_tool(number) for number in range(6)]
    return any(tool is not None for tool in (sys.getprofile(), sys.gettrace(), *tools))
