"""One rank's view of the job: its rank, its device, and the collectives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gnntrain.distributed.run_control import RunControl
from gnntrain.errors import Interrupted

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DistributedContext:
    """Rank, world size, device, run control, and the collectives that gnntrain uses.

    With a world size of 1 no process group exists and every collective is the identity.
    """

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    control: RunControl = field(default_factory=RunControl, compare=False)
    machines: tuple[int, ...] = ()  # of each rank, ascending from 0; empty: all are on one
    host: str = "127.0.0.1"  # at which other ranks reach this one
    # Of the ranks of this machine (None: `group`), and of all (None: torch's default group).
    machine_group: dist.ProcessGroup | None = field(default=None, compare=False)
    group: dist.ProcessGroup | None = field(default=None, compare=False)

    def among(self, ranks: range, timeout: float) -> DistributedContext | None:
        """The context of some consecutive ranks of all, ranks and machines numbered from 0, for
        collectives among them, which may take `timeout` seconds; None on a rank that is not among
        them. Collective among all ranks of the run."""
        machines = self.machines[ranks.start : ranks.stop]
        numbers = {machine: i for i, machine in enumerate(dict.fromkeys(machines))}
        limit = timedelta(seconds=timeout)  # torch's default is half an hour
        group = dist.new_group(list(ranks), limit) if len(ranks) < self.world_size else self.group
        by_machine = [
            dist.new_group([rank for rank in ranks if self.machines[rank] == machine], limit)
            for machine in (numbers if len(numbers) > 1 else ())
        ]
        if self.rank not in ranks:
            return None
        return replace(
            self,
            rank=self.rank - ranks[0],
            world_size=len(ranks),
            machines=tuple(numbers[machine] for machine in machines),
            machine_group=by_machine[numbers[self.machine]] if by_machine else None,
            group=group,
        )

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which alone prints, logs and writes checkpoints."""
        return self.rank == 0

    @property
    def machine(self) -> int:
        return self.machines[self.rank] if self.machines else 0

    @property
    def num_machines(self) -> int:
        return self.machines[-1] + 1 if self.machines else 1

    def ranks_of(self, machine: int) -> range:
        """The ranks of a machine, which are consecutive and share its memory."""
        machines = self.machines or (0,) * self.world_size
        first = machines.index(machine)
        return range(first, first + machines.count(machine))

    @property
    def machine_ranks(self) -> range:
        return self.ranks_of(self.machine)

    @property
    def is_machine_main(self) -> bool:
        return self.rank == self.machine_ranks[0]

    @property
    def on_machine(self) -> DistributedContext:
        """The context of the ranks of this machine, numbered from 0."""
        ranks = self.machine_ranks
        if len(ranks) == self.world_size:
            return self
        return replace(
            self,
            rank=self.rank - ranks[0],
            world_size=len(ranks),
            machines=(),
            machine_group=None,
            group=self.machine_group,
        )

    def _together(self, collective: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        if self.world_size > 1:
            with self.control.waiting():
                collective(*arguments, group=self.group, **options)

    def sum(self, values: Tensor) -> Tensor:
        """The element-wise sum of every rank's `values` (same shape and dtype on all)."""
        values = values.clone()
        self._together(dist.all_reduce, values)
        return values

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        self._together(dist.barrier)

    def meet(self) -> None:
        """Wait until all ranks have called this; Interrupted on all, if any was asked to stop."""
        requested = torch.tensor(self.control.stop_requested, device=self.device)
        self._together(dist.all_reduce, requested, dist.ReduceOp.MAX)
        with self.control.waiting():  # of NCCL's collectives the host waits for the result
            number = int(requested)
        if number:
            raise Interrupted(number)

    def broadcast(self, value: T) -> T:
        """Rank 0's `value` (plain data) on every rank."""
        box: list[Any] = [value]
        self._together(dist.broadcast_object_list, box, group_src=0)
        return cast(T, box[0])

    def gather(self, value: T) -> list[T]:
        """Every rank's `value` (plain data or CPU tensors) on every rank, in rank order."""
        values: list[Any] = [value] * self.world_size
        self._together(dist.all_gather_object, values, value)
        return cast(list[T], values)

    def gather_to_main(self, value: T) -> list[T]:
        """Every rank's `value` (plain data, CPU tensors) on rank 0, in rank order; [] elsewhere."""
        values: list[Any] | None = [value] * self.world_size if self.is_main else None
        self._together(dist.gather_object, value, values, group_dst=0)
        return cast(list[T], values or [])

    def synchronize_buffers(self, module: nn.Module) -> None:
        """Copy rank 0's buffers (batch-norm statistics), which the checkpoint holds, to all."""
        for buffer in module.buffers():
            self._together(dist.broadcast, buffer, group_src=0)


def rank_range(num_items: int, rank: int, world_size: int) -> slice:
    """The contiguous part of `num_items` that `rank` takes; sizes differ by one at most."""
    base, extra = divmod(num_items, world_size)
    start = rank * base + min(rank, extra)
    return slice(start, start + base + (rank < extra))
