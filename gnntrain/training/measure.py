"""Memory of this process."""

from __future__ import annotations

import resource
import sys

import psutil


def resident_bytes() -> int:
    """Current resident memory of this process, shared pages included."""
    return int(psutil.Process().memory_info().rss)


def peak_resident_bytes() -> int:
    """The most resident memory this process ever had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
