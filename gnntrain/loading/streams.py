"""Streams of loaders: a GPU makes or receives batches while it computes on earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch_geometric.data.data import BaseData

from gnntrain import devices

Batch = TypeVar("Batch")


class BatchStream(Generic[Batch]):
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

    def make(self, make: Callable[[], Batch]) -> tuple[Batch, Any]:
        """Call `make`, in the making thread.

        Returns:
            The batch, and the event of its completion (None: it is complete).
        """
        if self._side is None:
            return make(), None
        with self._module.stream(self._side):
            batch = make()
            return batch, self._side.record_event()

    def take(self, made: tuple[Batch, Any]) -> Batch:
        """The batch of `make`; device work that is enqueued later waits for it."""
        batch, done = made
        if self._side is not None:
            stream = self._module.current_stream(self._device)
            stream.wait_event(done)
            for tensor in tensors_in(batch):
                if tensor.device.type == self._device.type:
                    tensor.record_stream(stream)
        return batch


def tensors_in(value: object) -> Iterator[Tensor]:
    """Every tensor of a batch: in PyG's data, dataclasses, sequences and mappings, at any depth."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, BaseData):
        yield from tensors_in([list(store.values()) for store in value.stores])
    elif is_dataclass(value):
        yield from tensors_in([getattr(value, field.name) for field in fields(value)])
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
