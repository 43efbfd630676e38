"""One rank's view of the job: who it is, where it computes, how it talks to the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gnntrain.distributed.board import Board
from gnntrain.errors import Interrupted

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DistributedContext:
    """Rank, world size and device, and the few collectives the rest needs.

    With a world size of 1 no process group exists and every collective is the identity.
    """

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    board: Board = field(default_factory=lambda: Board.create(1), compare=False)

    @property
    def is_main(self) -> bool:
        """Whether this rank speaks for all: it prints, logs and writes checkpoints."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The element-wise sum of every rank's `values` (same shape and dtype on all)."""
        if self.world_size > 1:
            values = values.clone()
            with self.exchanging():
                dist.all_reduce(values)
        return values

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        if self.world_size > 1:
            with self.exchanging():
                dist.barrier()

    def meet(self) -> None:
        """Wait until all ranks are here.

        Raises:
            Interrupted: On all ranks alike, where one of them has seen that the run is to stop.
        """
        asked = torch.tensor(self.board.stop_asked, device=self.device)
        if self.world_size > 1:
            with self.exchanging():
                dist.all_reduce(asked, dist.ReduceOp.MAX)
        if number := int(asked):
            raise Interrupted(number)

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """What is done meanwhile waits for the other ranks; who fails there has waited for them."""
        self.board.wait(self.rank, True)
        yield
        self.board.wait(self.rank, False)

    def broadcast(self, value: T) -> T:
        """Rank 0's `value` (plain data) on every rank."""
        if self.world_size == 1:
            return value
        box: list[Any] = [value]
        with self.exchanging():
            dist.broadcast_object_list(box, src=0, device=self._object_device())
        return cast(T, box[0])

    def gather(self, value: T) -> list[T]:
        """Every rank's `value` (plain data or CPU tensors) on every rank, in rank order."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        with self.exchanging():
            dist.all_gather_object(values, value)
        return cast(list[T], values)

    def gather_to_main(self, value: T) -> list[T]:
        """Every rank's `value` (plain data or CPU tensors) on rank 0, in rank order; else none."""
        if self.world_size == 1:
            return [value]
        values: list[Any] | None = [None] * self.world_size if self.is_main else None
        with self.exchanging():
            dist.gather_object(value, values, dst=0)
        return cast(list[T], values or [])

    def synchronize_buffers(self, module: nn.Module) -> None:
        """Give every rank rank 0's buffers (batch-norm statistics), as the checkpoint has them."""
        if self.world_size > 1:
            with self.exchanging():
                for buffer in module.buffers():
                    dist.broadcast(buffer, src=0)

    def _object_device(self) -> torch.device | None:
        return self.device if self.device.type == "cuda" else None


def rank_range(num_items: int, rank: int, world_size: int) -> slice:
    """The contiguous part of `num_items` that `rank` takes; sizes differ by one at most."""
    base, extra = divmod(num_items, world_size)
    start = rank * base + min(rank, extra)
    return slice(start, start + base + (rank < extra))
