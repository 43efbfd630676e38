"""Matrices of all nodes, computed by all ranks: in memory, on disk, or on their GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from gnntrain import devices
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.shared import exchange_rows, shared_tensor
from gnntrain.errors import RunError
from gnntrain.loading.pinned import PinningError, empty_pinned

# One chunk on a CPU: bounds the memory beside the matrices.
_MAX_CHUNK_NUMBERS = 1 << 20  # rows × width: 4 MiB of float32
_MAX_CHUNK_EDGES = 1 << 20

# On a GPU: 256 MiB of float32; so many edges × width, too, where rows are gathered.
_MAX_DEVICE_NUMBERS = 1 << 26
_MAX_DEVICE_EDGES = 1 << 24
# What a chunk takes of a GPU's memory: matrices as wide as the layer while a row is computed, and
# bytes an edge: numbers, factors and the scores of some heads.
_MATRICES_PER_ROW = 8
_BYTES_PER_EDGE = 256


class SharedBuffers:
    """Hands out float32 matrices by name: one copy on each machine, shared by all its ranks.

    A machine's only rank gets ordinary memory. Several ranks map one file: in memory (a `memfd`,
    which the size of /dev/shm does not limit). Beyond `memory_limit` (bytes) the file is in
    `directory`, also for a single rank. On Linux the file has no name and is freed with the
    processes, however they end; elsewhere it is unlinked as soon as every rank has mapped it.

    Attributes:
        most_shared, most_on_disk: The most bytes that ranks shared in memory, and that files had.
    """

    most_shared = most_on_disk = 0

    def __init__(self, context: DistributedContext, directory: Path, memory_limit: int) -> None:
        self.context, self._directory, self.memory_limit = context, directory, memory_limit
        self._matrices: dict[tuple[str, int, int], Tensor] = {}

    def begin(self, num_bytes: int) -> None:
        """Announce how many bytes of matrices will be held at the same time. Collective."""

    def chunk_limits(self, width: int) -> tuple[int, int]:
        """The most rows and edges of a chunk, for this number of columns."""
        return max(1, _MAX_CHUNK_NUMBERS // width), _MAX_CHUNK_EDGES

    def matrix(self, name: str, num_rows: int, num_columns: int) -> Tensor:
        """The matrix `name` of that shape, the same one at every call; its content is undefined.

        Collective: all ranks ask for the same matrices in the same order.
        """
        key = (name, num_rows, num_columns)
        if key not in self._matrices:
            self._matrices[key] = self._allocate(num_rows, num_columns)
            sizes = [matrix.nbytes for matrix in self._matrices.values() if matrix.is_cpu]
            on_disk = sum(size for size in sizes if size > self.memory_limit)
            in_memory = sum(sizes) - on_disk if len(self.context.machine_ranks) > 1 else 0
            self.most_shared = max(self.most_shared, in_memory)
            self.most_on_disk = max(self.most_on_disk, on_disk)
        return self._matrices[key]

    def sync(self, matrix: Tensor, ranges: Sequence[tuple[int, int]]) -> None:
        """Give every rank the rows of the others, once all have met. Collective.

        `ranges` are the rows of each rank, contiguous; of rank 0 alone if it computes alone: then
        the other ranks (of `SharedBuffers`: of other machines) receive nothing.
        """
        context = self.context
        if context.num_machines > 1 and len(ranges) > 1:
            machines = map(context.ranks_of, range(context.num_machines))
            exchange_rows(matrix, [(ranges[r[0]][0], ranges[r[-1]][1]) for r in machines], context)

    def release(self, name: str | None = None, *, but: str | None = None) -> None:
        """Drop the matrix `name`, or all `but` those whose names begin so; freed with the last
        reference. Called on all ranks."""
        for key in list(self._matrices):
            is_kept = but is not None and key[0].startswith(but)
            if name in (None, key[0]) and not is_kept:
                del self._matrices[key]

    def _allocate(self, num_rows: int, num_columns: int) -> Tensor:
        num_bytes = 4 * num_rows * num_columns
        in_memory = num_bytes <= self.memory_limit
        is_alone = len(self.context.machine_ranks) == 1
        if num_bytes == 0 or (is_alone and in_memory):
            return torch.empty(num_rows, num_columns)
        directory = None if in_memory else self._directory
        try:
            return shared_tensor((num_rows, num_columns), torch.float32, self.context, directory)
        except OSError as error:
            raise RunError(
                f"Evaluation needs {num_bytes:,} bytes for activations: {error}.",
                "Free some space there, or set evaluation=sampled.",
            ) from error


class DeviceBuffers(SharedBuffers):
    """On each rank's GPU if they fit, else in host memory or on disk.

    If all matrices fit into half of the GPU's free memory they stay there, and each rank receives
    the rows of the others. Else they are as those of `SharedBuffers`. A chunk takes at most half of
    what is left. If the GPU's kernels read pinned host memory (`reads_host`), a single rank pins
    matrices there. `free` are the bytes of the GPU's memory that may be used; None: what is free.
    """

    def __init__(
        self,
        context: DistributedContext,
        directory: Path,
        memory_limit: int,
        *,
        reads_host: bool = False,
        free: int | None = None,
    ) -> None:
        super().__init__(context, directory, memory_limit)
        self._free, self._is_resident, self._chunk_bytes = free, False, 0
        is_alone = len(context.machine_ranks) == 1
        self._pins = reads_host and is_alone and devices.is_gpu(context.device)

    def begin(self, num_bytes: int) -> None:
        self.release()
        free = devices.free_memory(self.context.device) if self._free is None else self._free
        free = min(self.context.gather(free))
        self._is_resident = num_bytes <= free // 2
        self._chunk_bytes = (free - num_bytes * self._is_resident) // 2

    def chunk_limits(self, width: int) -> tuple[int, int]:
        row, half = 4 * width * _MATRICES_PER_ROW, self._chunk_bytes // 2
        edge = _BYTES_PER_EDGE + row * (not self._is_resident)  # a row may be gathered for each
        max_rows = min(_MAX_DEVICE_NUMBERS // width, half // row)
        max_edges = min(_MAX_DEVICE_EDGES, half // edge)
        if not self._is_resident:
            max_edges = min(max_edges, _MAX_DEVICE_NUMBERS // width)
        return max(1, max_rows), max(1, max_edges)

    def sync(self, matrix: Tensor, ranges: Sequence[tuple[int, int]]) -> None:
        if not self._is_resident:
            super().sync(matrix, ranges)
        elif len(ranges) > 1:
            with self.context.control.waiting():
                for rank, (a, b) in enumerate(ranges):
                    if b > a:
                        dist.broadcast(matrix[a:b], group=self.context.group, group_src=rank)

    def _allocate(self, num_rows: int, num_columns: int) -> Tensor:
        if self._is_resident:
            return torch.empty(num_rows, num_columns, device=self.context.device)
        if self._pins and 4 * num_rows * num_columns <= self.memory_limit:
            try:
                return empty_pinned((num_rows, num_columns))
            except PinningError:  # chunks are copied then
                pass
        return super()._allocate(num_rows, num_columns)
