"""How Numba kernels are compiled, cached, and compiled in a second process."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import numba
from numba.misc.appdirs import user_cache_dir

P = ParamSpec("P")
R = TypeVar("R")

_LONGEST_COMPILATION = 60.0
_UNREADABLE = (OSError, EOFError, pickle.UnpicklingError)  # as files are after a power cut

# The processes that compile kernels, by module.
_compiling: dict[str, BaseProcess] = {}
_waiting = threading.Lock()
os.register_at_fork(after_in_child=_compiling.clear)  # a process waits for its own children alone


def jit(function: Callable[P, R], *, any_order: bool = False) -> Callable[P, R]:
    """Compile `function` lazily: no GIL, cached on disk where possible, divisions as in NumPy.
    Where a sum may be added in `any_order`, the sum over a row of products is vectorised."""
    compiled: Callable[P, R]
    options: dict[str, Any] = {"fastmath": {"reassoc"}} if any_order else {}
    try:
        # Without a home Numba would make a folder called `~`.
        keeps = bool(numba.config.CACHE_DIR) or not user_cache_dir().startswith("~")
        compiled = numba.njit(nogil=True, cache=keeps, error_model="numpy", **options)(function)
    except RuntimeError:  # no folder for the cache: every process compiles its own
        compiled = numba.njit(nogil=True, error_model="numpy", **options)(function)
    else:
        _mend(getattr(compiled, "_cache", None), function.__module__)
    return compiled


def compile_beside(module: ModuleType, compute: Callable[[], None]) -> None:
    """Compile a module's kernels in another process, where `compute` calls them on a small example,
    unless the cache on disk has some. This process waits where it calls a kernel meanwhile, and
    compiles one that the other has not."""
    is_daemon = multiprocessing.current_process().daemon
    if sys.platform != "linux" or is_daemon or module.__name__ in _compiling:
        return
    caches = [getattr(value, "_cache", None) for value in vars(module).values()]
    files: list[Any] = [f for cache in caches if (f := getattr(cache, "_cache_file", None))]
    for file in files:
        with suppress(*_UNREADABLE):
            if file._load_index():
                return

    def compile_kernels() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.nice(1)  # lower priority: on one core the run itself comes first
        with suppress(Exception):  # the run raises the same error, and reports it
            compute()

    if files:
        context = multiprocessing.get_context("fork")
        process = context.Process(target=compile_kernels, name="gnntrain-compiler", daemon=True)
        _compiling[module.__name__] = process
        process.start()


def _mend(cache: Any, module: str) -> None:
    """Make the cache wait for the process that compiles, and ignore a full disk and broken files.

    A compiled kernel works without being saved, but Numba would raise the disk's error.
    """
    if not hasattr(cache, "save_overload"):
        return
    load, save = cache.load_overload, cache.save_overload

    def load_when_compiled(*arguments: Any) -> Any:
        with _waiting:
            process = _compiling.pop(module, None)
            if process is not None:
                process.join(_LONGEST_COMPILATION)
                if process.is_alive():
                    process.kill()
                    process.join()
        try:
            return load(*arguments)
        except _UNREADABLE:
            with suppress(OSError):
                cache.flush()
            return None

    def save_if_there_is_room(*arguments: Any) -> None:
        with suppress(*_UNREADABLE):
            save(*arguments)

    cache.load_overload, cache.save_overload = load_when_compiled, save_if_there_is_room
