"""Matrices that all ranks of a machine share: one copy, in memory or on disk by size."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import RunError

_SHARED_MEMORY = Path("/dev/shm")


class Scratch:
    """Hands out float32 matrices that every rank reads and writes.

    One rank alone gets ordinary memory. Several ranks map one file, in shared memory where there
    is ample room and else in `directory`; so does a single rank beyond `memory_limit`. Files are
    unlinked as soon as every rank has mapped them, so that the end of the job frees them.

    Args:
        directory: Where files go that are too large for memory.
        memory_limit: Bytes; a larger matrix goes to disk.
    """

    def __init__(self, context: DistributedContext, directory: Path, memory_limit: int) -> None:
        self._context = context
        self._directory = directory
        self.memory_limit = memory_limit
        self._matrices: dict[tuple[str, int, int], Tensor] = {}

    def matrix(self, name: str, num_rows: int, num_columns: int) -> Tensor:
        """The matrix `name` of that shape, the same one at every call; its content is undefined.

        Collective: all ranks ask for the same matrices in the same order.
        """
        key = (name, num_rows, num_columns)
        if key not in self._matrices:
            self._matrices[key] = self._allocate(num_rows, num_columns)
        return self._matrices[key]

    def release(self, name: str | None = None) -> None:
        """Forget the matrix `name`, or all: free once nobody holds it. Called on all ranks."""
        for key in list(self._matrices):
            if name in (None, key[0]):
                del self._matrices[key]

    def _allocate(self, num_rows: int, num_columns: int) -> Tensor:
        num_bytes = 4 * num_rows * num_columns
        in_memory = num_bytes <= self.memory_limit
        if num_bytes == 0 or (self._context.world_size == 1 and in_memory):
            return torch.empty(num_rows, num_columns)
        path: Path | None = None
        error: str | None = None
        if self._context.is_main:
            try:
                path = self._reserve(num_bytes, in_memory)
            except OSError as failure:
                error = f"Evaluation needs {num_bytes / 2**30:.1f} GiB for activations: {failure}."
        path, error = self._context.broadcast((path, error))
        if path is None:
            raise RunError(error or "", "Free some disk space, or set evaluation=sampled.")
        flat = torch.from_file(str(path), shared=True, size=num_rows * num_columns)
        self._context.barrier()
        if self._context.is_main:
            path.unlink()
        return flat.view(num_rows, num_columns)

    def _reserve(self, num_bytes: int, in_memory: bool) -> Path:
        directory = self._directory
        # Half of what is free: other matrices and other programs need some too.
        roomy = _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free > 2 * num_bytes
        if in_memory and roomy:
            directory = _SHARED_MEMORY
        prefix = _prefix(self._context.board.owner)
        handle, name = tempfile.mkstemp(prefix=prefix, dir=directory)
        try:
            if hasattr(os, "posix_fallocate"):
                # Reserved now, since a full disk under a mapped page would kill the process.
                os.posix_fallocate(handle, 0, num_bytes)
            else:
                os.truncate(handle, num_bytes)
        except OSError:
            Path(name).unlink()
            raise
        finally:
            os.close(handle)
        return Path(name)


def sweep_scratch(directory: Path) -> None:
    """Remove the files of ranks of this process that were killed before all had mapped them."""
    for place in (directory, _SHARED_MEMORY):
        with contextlib.suppress(OSError):
            for path in place.glob(f"{_prefix(os.getpid())}*"):
                path.unlink()


def _prefix(owner: int) -> str:
    return f".gnntrain-scratch-{owner}-"
