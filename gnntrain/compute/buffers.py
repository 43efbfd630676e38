"""Memory of large results on a CPU, used again.

A mini-batch's activations are new in every step. The system would fill their pages with zeros first
and take them back at the end of the step, which costs an eighth of a step's time.
"""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_LARGE = 1 << 20  # bytes; below it malloc does not return memory to the system


def _memory(size: int) -> mmap.mmap:
    """New pages, which go back to the system with their last user: buffers that live long, among
    malloc's shorter ones, would keep ever more of its heap from being returned."""
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without such pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class Buffers:
    """Buffers of host memory: at no time more bytes than were in use at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._returned: deque[Tensor] = deque()
        self._idle: list[Tensor] = []
        self._used = self._most = 0  # bytes

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """`torch.empty(shape, dtype=dtype)`, in memory that was used before where some fits."""
        size = math.prod(shape) * dtype.itemsize
        if size < _LARGE:
            return torch.empty(shape, dtype=dtype)
        with self._lock:
            self._collect()
            fitting = [
                (one.nbytes, i)
                for i, one in enumerate(self._idle)
                if size <= one.nbytes <= size + size // 4
            ]
            if fitting:
                buffer = self._idle.pop(min(fitting)[1])
            else:
                # It fits the next batches, too, some of whose blocks are larger; pages that nobody
                # writes to take no memory.
                step = 1 << size.bit_length() - 4
                room = -(-size // step) * step
                self._most = max(self._most, self._used + room)
                idle = sum(one.nbytes for one in self._idle)
                while self._idle and self._used + room + idle > self._most:
                    idle -= self._idle.pop(0).nbytes
                buffer = torch.frombuffer(_memory(room), dtype=torch.uint8)
            self._used += buffer.nbytes
        array = buffer.numpy()[:size]
        # The last tensor on them gives the bytes back.
        weakref.finalize(array, self._returned.append, buffer)
        memory = torch.from_numpy(array)
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        # No view: autograd would treat results as views of one another.
        return torch.empty(0, dtype=dtype).set_(memory.untyped_storage(), 0, shape, strides)

    def array(self, shape: Sequence[int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """`numpy.empty(shape, dtype)` likewise."""
        size = math.prod(shape) * dtype.itemsize
        if size < _LARGE:
            return np.empty(shape, dtype)
        return self.empty((size,), torch.uint8).numpy().view(dtype).reshape(shape)

    def _collect(self) -> None:
        # A tensor may go at any moment, in this thread too: that only appends to the queue.
        while self._returned:
            self._idle.append(self._returned.popleft())
            self._used -= self._idle[-1].nbytes

    def clear(self) -> None:
        """Return the memory that is not in use to the system."""
        with self._lock:
            self._collect()
            self._idle.clear()
            self._most = self._used


BUFFERS = Buffers()
