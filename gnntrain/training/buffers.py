"""Matrices of all nodes that ranks compute together: in memory, on disk, or on their GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.shared import shared_tensor
from gnntrain.errors import RunError
from gnntrain.loading.pinned import pinned_room

# One chunk on a CPU: bounds what is held beside the matrices.
_MAX_CHUNK_NUMBERS = 1 << 20  # rows × width: 4 MiB of float32
_MAX_CHUNK_EDGES = 1 << 20

# On a GPU: 256 MiB of float32; so many edges × width, too, where rows are gathered.
_MAX_DEVICE_NUMBERS = 1 << 26
_MAX_DEVICE_EDGES = 1 << 24


class Buffers(Protocol):
    """Hands out float32 matrices by name."""

    def begin(self, num_bytes: int) -> None:
        """Announce how many bytes of matrices will be held at the same time. Collective."""
        ...

    def chunk_limits(self, width: int) -> tuple[int, int]:
        """The most rows and edges that are computed at a time, of so many columns."""
        ...

    def matrix(self, name: str, num_rows: int, num_columns: int) -> Tensor:
        """The matrix `name` of that shape, the same one at every call; its content is undefined.

        Collective: all ranks ask for the same matrices in the same order.
        """
        ...

    def sync(self, matrix: Tensor, ranges: Sequence[tuple[int, int]]) -> None:
        """Give every rank the rows of the others, once all have met.

        Args:
            matrix: From `matrix`.
            ranges: The rows of each rank that computes.
        """
        ...

    def release(self, name: str | None = None) -> None:
        """Forget the matrix `name`, or all: free once nobody holds it. Called on all ranks."""
        ...


class SharedBuffers:
    """One copy on a machine, which all its ranks read and write.

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

    def begin(self, num_bytes: int) -> None:
        """See `Buffers.begin`."""

    def chunk_limits(self, width: int) -> tuple[int, int]:
        """See `Buffers.chunk_limits`."""
        return max(1, _MAX_CHUNK_NUMBERS // width), _MAX_CHUNK_EDGES

    def sync(self, matrix: Tensor, ranges: Sequence[tuple[int, int]]) -> None:
        """See `Buffers.sync`: what all ranks write to needs nothing."""

    def matrix(self, name: str, num_rows: int, num_columns: int) -> Tensor:
        """See `Buffers.matrix`."""
        key = (name, num_rows, num_columns)
        if key not in self._matrices:
            self._matrices[key] = self._allocate(num_rows, num_columns)
        return self._matrices[key]

    def release(self, name: str | None = None) -> None:
        """See `Buffers.release`."""
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


class DeviceBuffers:
    """On each rank's GPU where they fit, else in host memory or on disk.

    Where all matrices fit into half of the GPU's free memory they stay there, and each rank is sent
    the rows of the others. Else they lie in host memory, pinned where one rank is alone, or, beyond
    the limit of `host`, on disk.

    Args:
        context: This rank.
        host: Gives matrices in host memory or on disk.
        room: Bytes of the GPU's memory for the matrices; None: half of what is free.
    """

    def __init__(
        self, context: DistributedContext, host: SharedBuffers, room: int | None = None
    ) -> None:
        self._context = context
        self._host = host
        self._room = room
        self._is_resident = False
        self._matrices: dict[str, Tensor] = {}

    def begin(self, num_bytes: int) -> None:
        """See `Buffers.begin`."""
        self._is_resident = num_bytes <= self._free()

    def chunk_limits(self, width: int) -> tuple[int, int]:
        """See `Buffers.chunk_limits`."""
        max_rows = max(1, _MAX_DEVICE_NUMBERS // width)
        return max_rows, _MAX_DEVICE_EDGES if self._is_resident else max_rows

    def matrix(self, name: str, num_rows: int, num_columns: int) -> Tensor:
        """See `Buffers.matrix`."""
        size = num_rows, num_columns
        alone = self._context.world_size == 1 and self._context.device.type == "cuda"
        pins = alone and 4 * num_rows * num_columns <= self._host.memory_limit
        if not self._is_resident and not pins:
            return self._host.matrix(name, *size)
        if name not in self._matrices:
            device = self._context.device
            made = torch.empty(size, device=device) if self._is_resident else pinned_room(size)
            self._matrices[name] = made
        return self._matrices[name]

    def sync(self, matrix: Tensor, ranges: Sequence[tuple[int, int]]) -> None:
        """See `Buffers.sync`. Where rank 0 computes alone, nobody else asks for the rows."""
        if self._is_resident and len(ranges) > 1:
            for rank, (a, b) in enumerate(ranges):
                if b > a:
                    dist.broadcast(matrix[a:b], src=rank)

    def release(self, name: str | None = None) -> None:
        """See `Buffers.release`."""
        for key in list(self._matrices):
            if name in (None, key):
                del self._matrices[key]
        self._host.release(name)

    def _free(self) -> int:
        """Bytes of memory for the matrices: what the rank with the least has."""
        if self._room is not None:
            return self._room
        device = self._context.device
        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return min(self._context.gather(free + unused)) // 2
