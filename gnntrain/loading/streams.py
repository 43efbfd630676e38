"""CUDA streams of loaders: one makes batches while another computes on earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch_geometric.data import Data

Batch = TypeVar("Batch")


class BatchStream(Generic[Batch]):
    """Where a thread makes batches, and their hand-over to the thread that computes on them.

    With a side stream of a GPU the taker's stream waits for the batch, the host does not. And the
    allocator is told that the batch's memory, which belongs to the side stream, is in use on the
    taker's: when the batch is forgotten there, its memory is not given to a later batch before the
    taker's stream has passed.

    Args:
        device: Where batches are made.
        is_side: Make them on a stream of their own, if the device has streams; else on the current.
    """

    def __init__(self, device: torch.device, *, is_side: bool) -> None:
        self._side: Any = None
        if is_side and device.type == "cuda":
            self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # no types here
            # The graph must have reached the device first.
            self._side.wait_stream(torch.cuda.current_stream(device))

    def make(self, make: Callable[[], Batch]) -> tuple[Batch, Any]:
        """Call `make`, in the making thread.

        Returns:
            The batch, and the event that the device reaches when it is complete (None: it is).
        """
        if self._side is None:
            return make(), None
        with torch.cuda.stream(self._side):
            batch = make()
            return batch, self._side.record_event()

    def take(self, made: tuple[Batch, Any]) -> Batch:
        """What `make` made; device work that is enqueued from now on finds it complete."""
        batch, done = made
        if self._side is not None:
            stream = torch.cuda.current_stream(self._side.device)
            stream.wait_event(done)
            for tensor in tensors_in(batch):
                if tensor.is_cuda:
                    tensor.record_stream(stream)
        return batch


def tensors_in(value: object) -> Iterator[Tensor]:
    """Every tensor of a batch: in PyG's data, dataclasses, sequences and mappings, at any depth."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Data):
        yield from tensors_in(list(value._store.values()))
    elif is_dataclass(value):
        yield from tensors_in([getattr(value, field.name) for field in fields(value)])
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
