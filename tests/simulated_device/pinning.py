"""Pinned host memory: ordinary memory whose addresses are noted."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

_pinned: set[int] = set()  # where storages begin


def pinned_like(tensor: Tensor) -> Tensor:
    """Uninitialised pinned memory for a tensor of the same shape and type, contiguous."""
    memory = np.empty(max(1, tensor.nbytes), np.uint8)
    _pinned.add(memory.ctypes.data)
    weakref.finalize(memory, _pinned.discard, memory.ctypes.data)
    return torch.from_numpy(memory)[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)


def is_pinned(tensor: Tensor, device: Any = None) -> bool:
    """Whether a copy of the tensor's memory need not wait."""
    del device
    return tensor.device.type == "cpu" and tensor.untyped_storage().data_ptr() in _pinned


def pin_memory(tensor: Tensor, device: Any = None) -> Tensor:
    """A pinned copy."""
    del device
    return tensor if is_pinned(tensor) else pinned_like(tensor).copy_(tensor)
