"""A disk that is full for a while, and one that is slow."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_SLOW = """
import os, time

def slow(handle, fsync=os.fsync):
    name = os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))
    if name.startswith((".last.pt", ".best.pt")):
        time.sleep(%s)
    fsync(handle)

os.fsync = slow
"""


def slow_disk(folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Processes that are started from now on need so long to write a checkpoint."""
    place = folder / "slow"
    place.mkdir()
    (place / "sitecustomize.py").write_text(_SLOW % seconds)
    monkeypatch.setenv("PYTHONPATH", str(place))


@contextmanager
def full_disk(num_bytes: int = 0) -> Iterator[None]:
    """No file of this process grows beyond `num_bytes` meanwhile: what a write has beyond it is
    refused with an `OSError`, and the part before it is written, as on a disk that fills up."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
