"""CUDA streams of loaders: one makes batches while another computes on earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor
from torch_geometric.data import Data

Batch = TypeVar("Batch")


class Lane(Protocol[Batch]):
    """The stream on which a thread makes batches, and the hand-over to the computing thread."""

    def make(self, make: Callable[[], Batch]) -> Made[Batch]:
        """Call `make`, in the making thread."""
        ...

    def take(self, made: Made[Batch]) -> Batch:
        """The batch; device work that is enqueued from now on finds it complete."""
        ...


class Made(Generic[Batch]):
    """A batch that the device may still be working on.

    Attributes:
        batch: The batch.
        done: Event that the device reaches when the batch is complete; None: it is complete.
    """

    def __init__(self, batch: Batch, done: Any = None) -> None:
        self.batch, self.done = batch, done


class SameStream(Lane[Batch]):
    """All work goes to one stream, in order."""

    def make(self, make: Callable[[], Batch]) -> Made[Batch]:
        """See `Lane.make`."""
        return Made(make())

    def take(self, made: Made[Batch]) -> Batch:
        """See `Lane.take`."""
        return made.batch


class SideStream(Lane[Batch]):
    """A second stream of a GPU.

    The taker's stream waits for the batch, the host does not. And the allocator is told that the
    batch's memory, which belongs to the side stream, is in use on the taker's: when the batch is
    forgotten there, its memory is not given to a later batch before the taker's stream has passed.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has none here
        # The graph must have reached the device first.
        self._stream.wait_stream(torch.cuda.current_stream(device))

    def make(self, make: Callable[[], Batch]) -> Made[Batch]:
        """See `Lane.make`."""
        with torch.cuda.stream(self._stream):
            batch = make()
            return Made(batch, self._stream.record_event())

    def take(self, made: Made[Batch]) -> Batch:
        """See `Lane.take`."""
        stream = torch.cuda.current_stream(self._stream.device)
        stream.wait_event(made.done)
        for tensor in tensors_in(made.batch):
            if tensor.is_cuda:
                tensor.record_stream(stream)
        return made.batch


def lane_of(device: torch.device, *, has_own: bool) -> Lane[Any]:
    """A side stream, if `device` has streams and one of its own is wanted."""
    return SideStream(device) if has_own and device.type == "cuda" else SameStream()


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
