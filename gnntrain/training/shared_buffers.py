"""Matrices that all ranks of a machine share: one copy, in memory or on disk by size."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.shared import shared_tensor
from gnntrain.errors import RunError


class SharedBuffers:
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
        directory = None if in_memory else self._directory
        try:
            return shared_tensor((num_rows, num_columns), torch.float32, self._context, directory)
        except OSError as error:
            raise RunError(
                f"Evaluation needs {num_bytes:,} bytes for activations: {error}.",
                "Free some space there, or set evaluation=sampled.",
            ) from error
