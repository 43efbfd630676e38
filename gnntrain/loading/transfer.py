"""Copies from host memory to a GPU: few large ones, from pinned memory, without waiting."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate

import torch
from torch import Tensor

from gnntrain import devices

_log = logging.getLogger("gnntrain")

# Tensors begin at multiples of so many bytes: there kernels read several numbers at once.
_ALIGNMENT = 128


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
    out, places = list(tensors), defaultdict(list)
    for i, tensor in enumerate(tensors):
        if tensor.device.type != device.type:
            places[tensor.dtype].append(i)
    for alike in places.values():
        sent = _send_alike([tensors[i] for i in alike], device)
        for i, tensor in zip(alike, sent, strict=True):
            out[i] = tensor
    return out


def _send_alike(tensors: Sequence[Tensor], device: torch.device) -> Iterator[Tensor]:
    """Tensors of one type, by one copy."""
    dtype = tensors[0].dtype
    step = max(1, _ALIGNMENT // dtype.itemsize)
    starts = list(accumulate((-(-t.numel() // step) * step for t in tensors), initial=0))
    staged = staging(starts[-1:], dtype, device)
    for start, tensor in zip(starts, tensors, strict=False):
        _part(staged, start, tensor).copy_(tensor)
    sent = send(staged, device)
    return (_part(sent, start, tensor) for start, tensor in zip(starts, tensors, strict=False))


def _part(buffer: Tensor, start: int, like: Tensor) -> Tensor:
    return buffer[start : start + like.numel()].view(like.shape)
