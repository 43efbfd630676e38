"""Matrices that all ranks of a machine share: one copy, in memory or on disk by size."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import RunError


class Scratch:
    """Hands out float32 matrices that every rank reads and writes.

    One rank alone gets ordinary memory. Several ranks map one file: in memory (which the size of
    /dev/shm does not limit), or in `directory` beyond `memory_limit`, as a single rank then does
    too. On Linux the file has no name, and whatever ends the ranks, it goes with them; elsewhere
    it loses its name as soon as every rank has mapped it.

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
        file: _SharedFile | None = None
        problem: str | None = None
        if self._context.is_main:
            try:
                file = _SharedFile(num_bytes, None if in_memory else self._directory)
            except OSError as error:
                problem = f"Evaluation needs {num_bytes:,} bytes for activations: {error}."
        try:
            path, problem = self._context.broadcast((None if file is None else file.path, problem))
            if path is None:
                raise RunError(problem or "", "Free some space there, or set evaluation=sampled.")
            flat = torch.from_file(path, shared=True, size=num_rows * num_columns)
            self._context.barrier()
        finally:
            if file is not None:
                file.forget()
        return flat.view(num_rows, num_columns)


class _SharedFile:
    """A file of `num_bytes` that is there until it is forgotten and nobody maps it any more.

    Attributes:
        path: Where other processes of this user can open it.

    Raises:
        OSError: There is no room for it.
    """

    def __init__(self, num_bytes: int, directory: Path | None) -> None:
        self._name: str | None = None
        if directory is None and hasattr(os, "memfd_create"):
            self._handle = os.memfd_create("gnntrain-scratch")
        else:
            self._handle, self._name = tempfile.mkstemp(prefix=".gnntrain-scratch-", dir=directory)
        self.path = self._name or ""
        try:
            if sys.platform == "linux":
                self._unlink()
                self.path = f"/proc/{os.getpid()}/fd/{self._handle}"
            if hasattr(os, "posix_fallocate"):
                # Reserved now, since a full disk under a mapped page would kill the process.
                os.posix_fallocate(self._handle, 0, num_bytes)
            else:
                os.truncate(self._handle, num_bytes)
        except OSError:
            self.forget()
            raise

    def forget(self) -> None:
        """Let go of it: those who mapped it keep it."""
        self._unlink()
        os.close(self._handle)

    def _unlink(self) -> None:
        if self._name is not None:
            Path(self._name).unlink()
            self._name = None
