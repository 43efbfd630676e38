"""The number of cores for this process."""

from __future__ import annotations

import os


def available_cores() -> int:
    """Cores that this process may run on, which a container or batch system may have limited."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
