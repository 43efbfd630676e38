"""Tensors that all ranks of a machine map: one copy, in a file without a name."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from gnntrain.distributed.context import DistributedContext


def shared_tensor(
    shape: Sequence[int], dtype: torch.dtype, context: DistributedContext, directory: Path | None
) -> Tensor:
    """A tensor of undefined content in memory that all ranks map. Collective.

    Args:
        directory: The folder of its file; None: in memory.

    Raises:
        OSError: There is not enough space; raised on all ranks.
    """
    size = max(1, math.prod(shape))
    file: SharedFile | None = None
    problem: str | None = None
    if context.is_main:
        try:
            file = SharedFile(size * dtype.itemsize, directory)
        except OSError as error:
            problem = str(error)
    try:
        path, problem = context.broadcast((None if file is None else file.path, problem))
        if path is None:
            raise OSError(problem)
        flat = torch.from_file(path, shared=True, size=size, dtype=dtype)
        context.barrier()
    finally:
        if file is not None:
            file.close()
    return flat[: math.prod(shape)].view(*shape)


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
