"""Pinned host memory: ordinary memory whose addresses are noted."""

from __future__ import annotations

import bisect
import threading
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

_lock = threading.RLock()  # a finalizer may run while it is held
_ranges: list[tuple[int, int]] = []  # first address and end, ascending


def pinned_like(tensor: Tensor) -> Tensor:
    """Uninitialised pinned memory for a tensor of the same shape and type, contiguous."""
    memory = np.empty(max(1, tensor.nbytes), np.uint8)
    first = memory.ctypes.data
    note = (first, first + memory.nbytes)
    with _lock:
        bisect.insort(_ranges, note)
    weakref.finalize(memory, _forget, note)
    return torch.from_numpy(memory)[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)


def is_pinned(tensor: Tensor, device: Any = None) -> bool:
    """Whether a copy of the tensor's memory need not wait."""
    del device
    if tensor.device.type != "cpu":
        return False
    address = tensor.data_ptr()
    with _lock:
        at = bisect.bisect_right(_ranges, (address, 1 << 64)) - 1
        return at >= 0 and address < _ranges[at][1]


def pin_memory(tensor: Tensor, device: Any = None) -> Tensor:
    """A pinned copy."""
    del device
    return tensor if is_pinned(tensor) else pinned_like(tensor).copy_(tensor)


def _forget(note: tuple[int, int]) -> None:
    with _lock:
        _ranges.remove(note)
