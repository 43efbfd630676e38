"""The host's memory for this process, which a container or batch system may have limited."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def memory_limit() -> int | None:
    """Bytes of memory that this process's container or job may use; None: no limit."""
    limits = [limit for folder in _folders() if (limit := _bytes(folder / "memory.max"))]
    return min(limits, default=None)


def available_memory() -> int:
    """Bytes of memory that a new process may take, in a container or job, too."""
    left = [room for folder in _folders() if (room := _left(folder)) is not None]
    return min(int(psutil.virtual_memory().available), *left, 2**63)


def _folders() -> Iterator[Path]:
    """This process's control group and those around it; a container sees its own as the root."""
    try:
        lines = _OWN_CGROUP.read_text().splitlines()
    except OSError:  # not Linux
        return
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    yield from (_CGROUPS / part for part in (Path(own), *Path(own).parents))


def _left(folder: Path) -> int | None:
    limit, used = _bytes(folder / "memory.max"), _bytes(folder / "memory.current")
    if limit is None or used is None:
        return None
    return max(0, limit - used + _reclaimable(folder))


def _reclaimable(folder: Path) -> int:
    """Pages of files that were not read lately: the system takes them where memory is short."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    except (OSError, StopIteration):
        return 0


def _bytes(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None
