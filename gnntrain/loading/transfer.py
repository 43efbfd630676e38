"""Copies from host memory to a GPU: few large ones, from pinned memory, on a stream of the loader.

Nothing waits for them: the GPU receives a batch while it computes on an earlier one.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor

from gnntrain import devices

_log = logging.getLogger("gnntrain")

# Tensors begin at multiples of so many bytes: there kernels read several numbers at once.
_ALIGNMENT = 128

_Value = TypeVar("_Value")


def staging(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Uninitialised host memory to send to a device by `send`.

    torch pins it where that device needs pinned memory, and does not reuse it before the copies
    from it are complete. What the system refuses to pin is ordinary memory, after one warning.
    """
    if devices.pins_memory(device):
        try:
            return torch.empty(*shape, dtype=dtype, pin_memory=True)
        except RuntimeError as error:
            _warn_unpinned(str(error).strip().partition("\n")[0])
    return torch.empty(*shape, dtype=dtype)


@cache
def _warn_unpinned(reason: str) -> None:
    _log.warning("Host memory cannot be pinned (%s): copies to the GPU are slower.", reason)


def send(staged: Tensor, device: torch.device) -> Tensor:
    """A tensor of `staging` on the device; the host waits only where its memory is not pinned."""
    is_pinned = devices.pins_memory(device) and staged.is_pinned()
    return staged.to(device, non_blocking=is_pinned)


def send_all(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """The tensors on a device: those in host memory by one copy for each type of numbers.

    On a CPU, or if all are there already, nothing is copied. The results of one copy share memory.
    """
    out, positions = list(tensors), defaultdict(list)
    for i, tensor in enumerate(tensors):
        if tensor.device.type != device.type:
            positions[tensor.dtype].append(i)
    for dtype, alike in positions.items():
        step = max(1, _ALIGNMENT // dtype.itemsize)
        sizes = [tensors[i].numel() for i in alike]
        starts = list(accumulate((-(-size // step) * step for size in sizes), initial=0))
        staged = staging(starts[-1:], dtype, device)
        places = list(zip(alike, starts, sizes, strict=False))
        for i, start, size in places:
            staged[start : start + size].view(tensors[i].shape).copy_(tensors[i])
        sent = send(staged, device)
        for i, start, size in places:
            out[i] = sent[start : start + size].view(tensors[i].shape)
    return out


def sent(value: _Value, device: torch.device) -> _Value:
    """A value with all tensors in it on a device, see `send_all`."""
    made: _Value = _with_tensors(value, iter(send_all(list(tensors_in(value)), device)))
    return made


# No inner function: one that calls itself is a cycle, which would keep the batch until Python
# collects its garbage.
def _with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The value with these tensors in place of its own, in the order of `tensors_in`."""
    if isinstance(value, Tensor):
        return next(tensors)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        return replace(value, **{n: _with_tensors(getattr(value, n), tensors) for n in names})
    if isinstance(value, dict):
        return {name: _with_tensors(item, tensors) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_with_tensors(item, tensors) for item in value)
    return value


def tensors_in(value: object) -> Iterator[Tensor]:
    """Every tensor of a batch: in dataclasses, sequences and mappings, at any depth."""
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


class BatchStream:
    """The stream on which a thread makes batches, and their hand-over to the training thread.

    With a side stream of a GPU the training stream waits for the batch, the host does not. The
    batch's memory belongs to the side stream; `record_stream` keeps the allocator from reusing it
    before the training stream has finished with it.

    Args:
        device: The device that makes batches, or to which they are copied.
        is_side: Make them on a side stream, if the device has streams; else on the current one.
    """

    def __init__(self, device: torch.device, *, is_side: bool) -> None:
        self._device = device
        self._side: Any = None
        if is_side and devices.has_streams(device):
            self._module: Any = torch.get_device_module(device.type)
            self._side = self._module.Stream(device)
            # The copies of the graph to the device must be complete.
            self._side.wait_stream(self._module.current_stream(device))

    def make(self, make: Callable[[], _Value]) -> tuple[_Value, Any]:
        """Call `make`, in the making thread: the batch, and the event of its completion (None: it
        is complete)."""
        if self._side is None:
            return make(), None
        with self._module.stream(self._side):
            batch = make()
            return batch, self._side.record_event()

    def take(self, made: tuple[_Value, Any]) -> _Value:
        """The batch of `make`; device work that is enqueued later waits for it."""
        batch, done = made
        if self._side is not None:
            stream = self._module.current_stream(self._device)
            stream.wait_event(done)
            for tensor in tensors_in(batch):
                if tensor.device.type == self._device.type:
                    tensor.record_stream(stream)
        return batch
