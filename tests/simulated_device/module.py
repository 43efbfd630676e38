"""`torch.sim`: what torch's modules for devices offer, for two simulated GPUs."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.simulated_device import streams

_lock = threading.RLock()


class DeviceModule:
    """As `torch.cuda`.

    Attributes:
        is_present: Whether the machine has these GPUs.
        num_devices: How many.
        total_memory: Bytes of each one's memory.
    """

    Stream = streams.Stream
    Event = streams.Event
    stream = streams.stream
    current_stream = staticmethod(streams.current_stream)
    default_stream = staticmethod(streams.default_stream)
    set_stream = staticmethod(streams.set_stream)
    current_device = staticmethod(streams.current_device)
    set_device = staticmethod(streams.set_device)
    synchronize = staticmethod(streams.synchronize)

    def __init__(self) -> None:
        self.is_present = False
        self.num_devices = 1
        self.total_memory = 4 << 30
        self._allocated = [0, 0]
        self._peak = [0, 0]

    @cached_property
    def generators(self) -> list[torch.Generator]:
        """Of each device; torch makes none while it is imported."""
        return [torch.Generator(), torch.Generator()]

    def is_available(self) -> bool:
        return self.is_present

    def is_initialized(self) -> bool:
        return True

    def init(self) -> None:
        """As torch."""

    def device_count(self) -> int:
        return self.num_devices if self.is_present else 0

    def get_device_name(self, device: Any = None) -> str:
        del device
        return "Simulated GPU"

    def get_device_properties(self, device: Any = None) -> SimpleNamespace:
        return SimpleNamespace(name=self.get_device_name(device), total_memory=self.total_memory)

    def _is_in_bad_fork(self) -> bool:
        return False

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def manual_seed_all(self, seed: int) -> None:
        for generator in self.generators:
            generator.manual_seed(seed)

    def manual_seed(self, seed: int) -> None:
        self.generators[streams.current_device()].manual_seed(seed)

    def get_rng_state(self, device: Any = "sim") -> Tensor:
        return self.generators[streams.index_of(device)].get_state()

    def set_rng_state(self, state: Tensor, device: Any = "sim") -> None:
        self.generators[streams.index_of(device)].set_state(state)

    def memory_allocated(self, device: Any = None) -> int:
        return self._allocated[streams.index_of(device)]

    def memory_reserved(self, device: Any = None) -> int:
        """As torch: the simulated allocator holds no more than tensors use."""
        return self.memory_allocated(device)

    def max_memory_allocated(self, device: Any = None) -> int:
        return self._peak[streams.index_of(device)]

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        index = streams.index_of(device)
        self._peak[index] = self._allocated[index]

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return self.total_memory - self.memory_allocated(device), self.total_memory

    def empty_cache(self) -> None:
        """As torch."""

    def allocate(self, index: int, nbytes: int) -> Callable[[int], None]:
        """Take memory; the result gives it back."""
        if self._allocated[index] + nbytes > self.total_memory:
            gc.collect()  # tensors in Python live on in cycles, which a real device's seldom form
        with _lock:
            if self._allocated[index] + nbytes > self.total_memory:
                raise torch.OutOfMemoryError(f"sim out of memory. Tried to allocate {nbytes} bytes")
            self._allocated[index] += nbytes
            self._peak[index] = max(self._peak[index], self._allocated[index])

        def release(nbytes: int) -> None:
            with _lock:
                self._allocated[index] -= nbytes

        return release


device_module = DeviceModule()
allocate = device_module.allocate


@contextmanager
def device_generator() -> Iterator[None]:
    """torch's functions draw from the device's generator instead of the CPU's."""
    own, default = device_module.generators[streams.current_device()], torch.default_generator
    with _lock:
        before = default.get_state()
        default.set_state(own.get_state())
        try:
            yield
        finally:
            own.set_state(default.get_state())
            default.set_state(before)
