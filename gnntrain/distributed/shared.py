"""Tensors that all ranks of a machine map: one copy, in a file without a name.

Machines share no memory: `exchange_rows` sends what each has computed to the others.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gnntrain.distributed.context import DistributedContext

_MESSAGE_BYTES = 4 << 20


def shared_tensor(
    shape: Sequence[int], dtype: torch.dtype, context: DistributedContext, directory: Path | None
) -> Tensor:
    """A tensor of undefined content that all ranks of this machine map: of a file in the directory,
    or in memory. Collective among these ranks.

    Raises:
        OSError: There is not enough space; raised on all ranks of the machine.
    """
    size = max(1, math.prod(shape))
    path, problem = "", ""
    with ExitStack() as stack:
        if context.is_machine_main:
            try:
                file: Any
                if sys.platform != "linux":
                    file = stack.enter_context(tempfile.NamedTemporaryFile(dir=directory))
                # Without a name from the start: a rank that is killed leaves nothing.
                elif directory is not None:
                    file = stack.enter_context(tempfile.TemporaryFile(dir=directory))
                else:
                    file = stack.enter_context(os.fdopen(os.memfd_create("gnntrain-shared"), "w+b"))
                linux = f"/proc/{os.getpid()}/fd/{file.fileno()}"
                path = linux if sys.platform == "linux" else file.name
                # Reserved now: a disk that is full when a mapped page is written kills the process.
                reserve = getattr(os, "posix_fallocate", lambda fd, _, n: os.truncate(fd, n))
                reserve(file.fileno(), 0, size * dtype.itemsize)
            except OSError as error:
                problem = str(error)
        path, problem = context.on_machine.broadcast((path, problem))
        if problem:
            raise OSError(problem)
        flat = torch.from_file(path, shared=True, size=size, dtype=dtype)
        context.on_machine.barrier()
    return flat[: math.prod(shape)].view(*shape)


def exchange_rows(
    matrix: Tensor, ranges: Sequence[tuple[int, int]], context: DistributedContext
) -> None:
    """Give each machine's copy of `matrix`, `[num_rows, num_columns]` in host memory that its ranks
    share, the rows of the other machines; `ranges` are those that each has written. Collective.

    The machines' first ranks send and receive, to and from one other machine at a time, in messages
    of some MiB: no further copy of the rows is made.
    """
    if context.is_machine_main and matrix.numel() > 0:
        own, count, device = context.machine, context.num_machines, context.device
        rows = max(1, _MESSAGE_BYTES // (matrix.shape[1] * matrix.element_size()))
        messages = [
            [matrix[i : min(i + rows, stop)] for i in range(start, stop, rows)]
            for start, stop in ranges
        ]
        with context.control.waiting():
            for distance in range(1, count):
                to, source = (own + distance) % count, (own - distance) % count
                peers = context.ranks_of(to)[0], context.ranks_of(source)[0]
                for sent, received in zip_longest(messages[own], messages[source]):
                    # NCCL reads and writes the memory of GPUs only.
                    out = None if sent is None else sent.to(device)
                    into = received
                    if received is not None and device.type != "cpu":
                        into = torch.empty_like(received, device=device)
                    calls = (dist.isend, out, peers[0]), (dist.irecv, into, peers[1])
                    operations = [
                        dist.P2POp(call, rows, group=context.group, group_peer=peer)
                        for call, rows, peer in calls
                        if rows is not None
                    ]
                    for work in dist.batch_isend_irecv(operations):
                        work.wait()
                    if received is not None and into is not None and into is not received:
                        received.copy_(into)
    context.on_machine.barrier()
