"""Tensors that all ranks of a machine map: one copy, in a file without a name.

Machines share no memory: `exchange_rows` sends what each has computed to the others.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from gnntrain.distributed.context import DistributedContext

_MESSAGE_BYTES = 4 << 20


def shared_tensor(
    shape: Sequence[int], dtype: torch.dtype, context: DistributedContext, directory: Path | None
) -> Tensor:
    """A tensor of undefined content in memory that all ranks of this machine map.

    Collective among these ranks.

    Args:
        directory: The folder of its file; None: in memory.

    Raises:
        OSError: There is not enough space; raised on all ranks of the machine.
    """
    size = max(1, math.prod(shape))
    file: SharedFile | None = None
    problem: str | None = None
    if context.is_machine_main:
        try:
            file = SharedFile(size * dtype.itemsize, directory)
        except OSError as error:
            problem = str(error)
    try:
        path, problem = context.on_machine.broadcast((None if file is None else file.path, problem))
        if path is None:
            raise OSError(problem)
        flat = torch.from_file(path, shared=True, size=size, dtype=dtype)
        context.on_machine.barrier()
    finally:
        if file is not None:
            file.close()
    return flat[: math.prod(shape)].view(*shape)


def exchange_rows(
    matrix: Tensor, ranges: Sequence[tuple[int, int]], context: DistributedContext
) -> None:
    """Give each machine's copy of `matrix` the rows of the other machines. Collective.

    The machines' first ranks send and receive, to and from one other machine at a time, in messages
    of some MiB: no further copy of the rows is made.

    Args:
        matrix: `[num_rows, num_columns]` in host memory that the machine's ranks share; each
            machine has written its own rows.
        ranges: The rows of each machine.
    """
    if context.is_machine_main and matrix.numel() > 0:
        own, count = context.machine, context.num_machines
        rows = max(1, _MESSAGE_BYTES // (matrix.shape[1] * matrix.element_size()))
        with context.in_collective():
            for distance in range(1, count):
                to, source = (own + distance) % count, (own - distance) % count
                _swap(
                    _messages(matrix, *ranges[own], rows),
                    _messages(matrix, *ranges[source], rows),
                    to=context.ranks_of(to)[0],
                    source=context.ranks_of(source)[0],
                    context=context,
                )
    context.on_machine.barrier()


def _messages(matrix: Tensor, start: int, stop: int, rows: int) -> Iterator[Tensor]:
    """The rows `start … stop − 1` of a matrix, cut into views of so many rows."""
    return (matrix[a : min(a + rows, stop)] for a in range(start, stop, rows))


def _swap(
    sent: Iterator[Tensor],
    received: Iterator[Tensor],
    *,
    to: int,
    source: int,
    context: DistributedContext,
) -> None:
    """Send messages to the rank `to` while the rank `source` sends some to this one."""
    group, device = context.group, context.device
    for out, into in zip_longest(sent, received):
        operations: list[dist.P2POp] = []
        if out is not None:
            operations.append(dist.P2POp(dist.isend, out.to(device), group=group, group_peer=to))
        if into is not None:
            # NCCL reads and writes the memory of GPUs only.
            room = into if device.type == "cpu" else torch.empty_like(into, device=device)
            operations.append(dist.P2POp(dist.irecv, room, group=group, group_peer=source))
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        if into is not None and room is not into:
            into.copy_(room)


class SharedFile:
    """A file of `num_bytes` that exists until it is closed and no longer mapped by any process.

    Attributes:
        path: The path at which other processes of this user can open it.

    Raises:
        OSError: There is not enough space.
    """

    def __init__(self, num_bytes: int, directory: Path | None) -> None:
        self._name: str | None = None
        if directory is None and hasattr(os, "memfd_create"):
            self._handle = os.memfd_create("gnntrain-shared")
        else:
            self._handle, self._name = tempfile.mkstemp(prefix=".gnntrain-shared-", dir=directory)
        self.path = self._name or ""
        try:
            if sys.platform == "linux":
                self._unlink()
                self.path = f"/proc/{os.getpid()}/fd/{self._handle}"
            if hasattr(os, "posix_fallocate"):
                # Reserved now: a disk that is full when a mapped page is written kills the process.
                os.posix_fallocate(self._handle, 0, num_bytes)
            else:
                os.truncate(self._handle, num_bytes)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file. Processes that mapped it keep it."""
        self._unlink()
        os.close(self._handle)

    def _unlink(self) -> None:
        if self._name is not None:
            Path(self._name).unlink()
            self._name = None
