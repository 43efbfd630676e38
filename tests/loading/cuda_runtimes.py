"""CUDA's runtime as the tests of pinned memory need it."""

from __future__ import annotations

import mmap

import pytest
import torch

from gnntrain.distributed.cuda_runtime import CudaError
from gnntrain.loading import pinned

AWAY = 1 << 40


class Runtime:
    """In the place of CUDA's runtime; its GPU has other addresses for the host's memory.

    Attributes:
        room: Bytes that it registers at most.
        registered: The size of what it has registered, by address.
    """

    def __init__(self, room: int = 1 << 40) -> None:
        self.room = room
        self.registered: dict[int, int] = {}

    def register_host_memory(self, address: int, size: int) -> None:
        assert address % mmap.PAGESIZE == 0
        assert address not in self.registered
        if sum(self.registered.values()) + size > self.room:
            raise CudaError("cudaHostRegister has failed: out of memory.")
        self.registered[address] = size

    def unregister_host_memory(self, address: int) -> None:
        del self.registered[address]

    def device_address(self, address: int) -> int:
        first = max(start for start in self.registered if start <= address)
        assert address < first + self.registered[first]
        return address + AWAY


def runtime(monkeypatch: pytest.MonkeyPatch, room: int = 1 << 40) -> Runtime:
    """The runtime, in the place of CUDA's."""
    made = Runtime(room)
    monkeypatch.setattr(pinned, "cuda_runtime", made)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    return made
