"""A stand-in for `pylibwholegraph.torch` on CPU ranks, with the signatures of version 26.10.

Its gathers are collectives of torch's process group, as WholeGraph's are of its communicator's.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class WholeMemoryCommunicator:
    def barrier(self) -> None:
        dist.barrier()


class WholeMemoryTensor:
    def __init__(self, sizes: list[int], dtype: torch.dtype) -> None:
        self._each = -(-sizes[0] // dist.get_world_size())
        self._first = min(sizes[0], dist.get_rank() * self._each)
        stop = min(sizes[0], self._first + self._each)
        self._local = torch.zeros(stop - self._first, sizes[1], dtype=dtype)

    def get_local_tensor(self, host_view: bool = False) -> tuple[Tensor, int]:
        assert not host_view
        return self._local, self._first

    def gather(self, indice: Tensor, *, force_dtype: torch.dtype | None = None) -> Tensor:
        assert indice.dim() == 1
        assert force_dtype is None
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, self._local)
        return torch.cat(parts)[indice]


def init(
    world_rank: int, world_size: int, local_rank: int, local_size: int, wm_log_level: str = "info"
) -> None:
    assert wm_log_level in ("fatal", "error", "warn", "info", "debug", "trace")
    assert (world_rank, world_size) == (dist.get_rank(), dist.get_world_size())
    assert 0 <= local_rank < local_size <= world_size


def get_global_communicator(distributed_backend: str = "nccl") -> WholeMemoryCommunicator:
    assert distributed_backend == "nccl"
    return WholeMemoryCommunicator()


def create_wholememory_tensor(
    comm: WholeMemoryCommunicator,
    memory_type: str,
    memory_location: str,
    sizes: list[int],
    dtype: torch.dtype,
    strides: list[int] | None,
    tensor_entry_partition: list[int] | None = None,
) -> WholeMemoryTensor:
    assert isinstance(comm, WholeMemoryCommunicator)
    assert (memory_type, memory_location) == ("distributed", "cuda")
    assert strides is tensor_entry_partition is None
    return WholeMemoryTensor(sizes, dtype)


def install() -> None:
    """Have this process import it by WholeGraph's name."""
    package = ModuleType("pylibwholegraph")
    sys.modules |= {"pylibwholegraph": package, "pylibwholegraph.torch": sys.modules[__name__]}
