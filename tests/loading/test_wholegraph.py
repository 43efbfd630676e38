"""Batches whose rows WholeGraph gathers are those of the whole matrix.

This module stands in for `pylibwholegraph.torch` on CPU ranks, with the signatures of version
26.10; its gathers are collectives of torch's process group.
"""

from __future__ import annotations

import sys
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.exchange import open_exchange
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.loading.features import WholeGraphFeatures
from gnntrain.loading.loader import SeedPlan
from tests.graphs import random_graph, stored
from tests.loading.graphs import assert_same, builder, cpu_loader, plan_of

pytest.importorskip("triton", reason="triton is not installed")


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


def _compare_batches(context: DistributedContext, path: str) -> None:
    install()
    store = StoredGraph.open(Path(path))
    plan = plan_of(store, rank=context.rank, world_size=context.world_size)
    keys: dict[str, Any] = {
        "sampler": {"fan_outs": [3, 2], "backend": "triton"},
        "features": {"placement": "wholegraph"},
        "distributed": {"graph": "sharded"},
    }
    owners = [context.ranks_of(machine) for machine in range(context.num_machines)]
    with open_exchange(context, owners=owners, timeout=60) as exchange:
        made = builder(store, context=context, plan=plan, options={"exchange": exchange}, **keys)
        loader = made.training_loader()
        expected = cpu_loader(store, plan, threads=0)
        with patch.object(exchange, "call", side_effect=AssertionError("WholeGraph reads alone")):
            for batch, same in zip(loader, expected, strict=True):
                assert_same(batch, same)
        assert loader.take_reads() == (0, 0)
        # One rank evaluates: without the others' gathers.
        val = SeedPlan(store.split("val"), 7)
        loader, expected = made.loader(val, (3, 2)), cpu_loader(store, val, threads=0)
        if context.is_main:
            for batch, same in zip(loader, expected, strict=True):
                assert torch.equal(batch.x, same.x)


def test_batches_are_those_of_the_whole_graph(tmp_path: Path) -> None:
    store = stored(tmp_path / "store", random_graph(), feature_dtype="bfloat16")
    launch(_compare_batches, str(store.path), LaunchPlan(3, "cpu", 1, 60, (0, 0, 1)))


def test_the_stand_in_takes_what_wholegraph_takes() -> None:
    library = pytest.importorskip(
        "pylibwholegraph.torch", reason="pylibwholegraph is not installed"
    )
    for name in ("init", "create_wholememory_tensor"):
        ours, theirs = signature(globals()[name]), signature(getattr(library, name))
        assert list(ours.parameters) == list(theirs.parameters)
    assert hasattr(library, "get_global_communicator")
    assert hasattr(library.WholeMemoryTensor, "gather")
    assert WholeGraphFeatures.waits
