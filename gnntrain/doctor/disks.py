"""Where stores, runs and compiled kernels go: whether there is room, and leave to write."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from gnntrain.compute import kernels
from gnntrain.config import Config
from gnntrain.reporting.run_lookup import RUNS
from gnntrain.reporting.text import format_bytes, shown_path
from gnntrain.reporting.text_report import Check
from gnntrain.run_store import stores_folder

_LITTLE = 5 * 2**30


def folders(config: Config) -> list[Check]:
    """The folders of stores and runs."""
    run_dir = config.run.dir
    runs = Path(run_dir).parent if run_dir is not None else RUNS
    return [
        _folder("stores", stores_folder(config.dataset), "dataset.store_dir"),
        _folder("runs", runs, "run.dir"),
    ]


def _folder(name: str, wanted: Path, key: str) -> Check:
    """A folder that is there, or will be made where its nearest parent is."""
    folder = wanted.absolute()
    while not folder.exists():
        folder = folder.parent
    hint = f"Choose another disk with {key}=DIR."
    shown = shown_path(wanted)
    if not may_write(folder):
        return Check("problem", name, f"{shown} cannot be written", hint)
    free = shutil.disk_usage(folder).free
    text = f"{format_bytes(free)} free: {shown}"
    return Check("note", name, text, hint) if free < _LITTLE else Check("ok", name, text)


def may_write(folder: Path) -> bool:
    """Whether a file can be made in the folder; tried, since file systems have many rules."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"gnntrain")
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        return False
    return True


def numba_cache() -> Check:
    """Where compiled kernels are kept: without such a place every process compiles anew."""
    path = getattr(getattr(kernels.reduce_rows, "stats", None), "cache_path", None)
    if path and may_write(_nearest(Path(path))):
        return Check("ok", "kernels", f"compiled ones are kept: {shown_path(path)}")
    hint = "Set NUMBA_CACHE_DIR to a folder you may write to."
    text = "compiled ones cannot be kept: every process compiles them again"
    return Check("note", "kernels", text, hint)


def _nearest(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder
