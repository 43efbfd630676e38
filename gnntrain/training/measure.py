"""Memory of this process and its device."""

from __future__ import annotations

import resource
import sys

import psutil
import torch


def resident_bytes() -> int:
    """Current resident memory of this process, shared pages included."""
    return int(psutil.Process().memory_info().rss)


def peak_resident_bytes() -> int:
    """The most resident memory this process ever had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


def peak_gpu_bytes(device: torch.device) -> int:
    """The most memory torch ever held on `device`; 0 on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
