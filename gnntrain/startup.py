"""A faster start and end of commands; not used when gnntrain is imported as a library.

Imports make a million objects, which each garbage collection would traverse. torch's largest
library can be loaded while Python imports other modules.
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
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NoReturn

_LIBRARY = Path("lib", "libtorch_cpu.so")

_is_paused = False


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Disable garbage collection until `resume_collection`, or the end of the block."""
    global _is_paused
    if not gc.isenabled():
        yield
        return
    gc.disable()
    _is_paused = True
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


def load_torch_library() -> None:
    """Load torch's largest library in a thread: `import torch` then finds it, or waits for it.

    The import of any other compiled module waits too: call it before imports of Python code only.
    """
    spec = PathFinder.find_spec("torch")
    if "torch" in sys.modules or sys.platform != "linux" or spec is None or spec.origin is None:
        return
    path = Path(spec.origin).with_name(_LIBRARY.parts[0]) / _LIBRARY.name
    threading.Thread(target=_load, args=(path,), name="gnntrain-torch", daemon=True).start()


def _load(path: Path) -> None:
    # `CDLL` would hold the GIL meanwhile. If this fails, torch's import reports the error.
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes, dlopen.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
    dlopen(os.fsencode(path), os.RTLD_NOW)


def leave(exit_code: int) -> NoReturn:
    """End this process as Python does, but leave its memory to the operating system.

    Joins threads, calls `atexit` functions and flushes streams. Python would then free every object
    of every module, which takes a quarter of the time of their import.
    """
    if sys.getprofile() is not None or sys.gettrace() is not None:  # they write at the very end
        sys.exit(exit_code)
    threading._shutdown()  # type: ignore[attr-defined]  # as `multiprocessing` ends its processes
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # closed: Python says so
        sys.exit(exit_code)
    os._exit(exit_code)
