"""What this process may use of the machine: memory and cores, which a container or a batch system
may have limited by control groups (version 1 or 2). The one place that looks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_CGROUPS, _OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class Container:
    """The limits of the control groups around this process; None: no limit."""

    memory: int | None  # bytes that they allow
    room: int | None  # bytes that are left, with pages of files that nobody reads lately
    cores: float | None  # cores' worth of time
    kills: int  # processes that were killed because memory ran out, in the innermost group


def container() -> Container:
    """The narrowest of the limits."""
    memory, room, kills, cores = list[int](), list[int](), list[int](), list[float]()
    for folder in _folders("memory"):
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes")
        if limit is not None:
            memory.append(limit)
            idle = _number(folder / "memory.stat", "total_inactive_file", "inactive_file")
            room.append(max(0, limit - (used or 0) + (idle or 0)))
        for name in ("memory.events", "memory.oom_control"):
            if (killed := _number(folder / name, "oom_kill")) is not None:
                kills.append(killed)
    for folder in _folders("cpu"):
        # Version 2 has quota and period in a line of one file, version 1 in two files.
        quota = _number(folder / "cpu.cfs_quota_us")
        period = _number(folder / "cpu.cfs_period_us")
        with suppress(OSError, ValueError):  # no such file, or "max"
            quota, period = map(int, (folder / "cpu.max").read_text().split())
        if quota and period and quota > 0:
            cores.append(quota / period)
    # Groups around the innermost one count other programs' kills, too.
    smallest = min(memory, default=None), min(room, default=None), min(cores, default=None)
    return Container(*smallest, kills[0] if kills else 0)


def total_memory() -> int:
    """Bytes of memory that this machine has, or this process's container or job may use."""
    import psutil  # not for every start

    return min(int(psutil.virtual_memory().total), container().memory or 2**63)


def available_memory() -> int:
    """Bytes of memory that a new process may take, in a container or job, too."""
    import psutil

    room, available = container().room, int(psutil.virtual_memory().available)
    return available if room is None else min(available, room)


def why_killed() -> str:
    """What may have killed a process that left no word, as a part of a sentence."""
    if kills := container().kills:
        return f"for lack of memory the system has killed {kills} of this container's processes"
    return "perhaps the system killed it for lack of memory"


def available_cores() -> int:
    """Cores whose time this process gets, whole ones: at least one."""
    there, quota = len(core_numbers()), container().cores
    return there if quota is None else max(1, min(there, int(quota)))


BF16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")
"""Of processors that multiply bfloat16."""


def cpu_flags() -> set[str]:
    """The processor's flags; empty where the system does not list them."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"^(?:flags|Features)\s*:(.*)", text, re.MULTILINE):
            return set(found[1].split())
    return set()


def core_numbers() -> list[int]:
    """The cores that this process may run on, whatever share of their time it gets."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _folders(controller: str) -> Iterator[Path]:
    """This process's control group and those around it, the innermost first; a container may see
    its own as the root."""
    try:
        lines = _OWN_CGROUP.read_text().splitlines()
    except OSError:  # not Linux
        return
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") > 1):
        if not controllers:
            mounts = {_CGROUPS, _CGROUPS / "unified"}  # version 2, alone or beside version 1
        elif controller in controllers.split(","):
            mounts = {_CGROUPS / controllers, _CGROUPS / controller}
        else:
            continue
        group = Path(path.lstrip("/"))
        yield from (mount / part for part in (group, *group.parents) for mount in mounts)


def _number(file: Path, *names: str) -> int | None:
    """The number in a file; of a file of lines, the one that follows one of the names."""
    try:
        text = file.read_text()
        entries = dict(line.split(" ", 1) for line in text.splitlines()) if names else {"": text}
        return next(int(entries[name]) for name in names or ("",) if name in entries)
    except (OSError, ValueError, StopIteration):  # no such file, or "max"
        return None
