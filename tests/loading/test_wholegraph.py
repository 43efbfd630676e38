"""Batches whose rows WholeGraph gathers are those of the whole matrix."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch

from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.exchange import open_exchange
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.loading.features import WholeGraphFeatures
from gnntrain.loading.loader import SeedPlan
from tests.graphs import random_graph, stored
from tests.loading import fake_wholegraph
from tests.loading.graphs import assert_same, builder, cpu_loader, plan_of

pytest.importorskip("triton", reason="triton is not installed")


def _compare_batches(context: DistributedContext, path: str) -> None:
    fake_wholegraph.install()
    store = StoredGraph.open(Path(path))
    plan = plan_of(store, rank=context.rank, world_size=context.world_size)
    keys: dict[str, Any] = {
        "sampler": {"fan_outs": [3, 2], "backend": "triton"},
        "features": {"placement": "wholegraph"},
        "distributed": {"graph": "sharded"},
    }
    owners = [context.ranks_of(machine) for machine in range(context.num_machines)]
    with open_exchange(context, owners=owners, host=context.host, timeout=60) as exchange:
        exchanges = None if context.num_machines == 1 else exchange
        made = builder(store, context=context, plan=plan, options={"exchange": exchanges}, **keys)
        loader = made.training_loader()
        exchange.take_bytes()
        expected = cpu_loader(store, plan, threads=0)
        for batch, same in zip(loader, expected, strict=True):
            assert_same(batch, same)
        assert loader.take_reads() == (0, 0)
        assert exchange.take_bytes() == {}
        # One rank evaluates: without the others' gathers.
        val = SeedPlan(store.split("val"), 7)
        loader, expected = made.loader(val, (3, 2)), cpu_loader(store, val, threads=0)
        if context.is_main:
            for batch, same in zip(loader, expected, strict=True):
                assert torch.equal(batch.x, same.x)


@pytest.mark.parametrize("machines", [(), (0, 0, 1)], ids=str)
def test_batches_are_those_of_the_whole_graph(tmp_path: Path, machines: tuple[int, ...]) -> None:
    store = stored(tmp_path / "store", random_graph(), feature_dtype="bfloat16")
    launch(_compare_batches, str(store.path), LaunchPlan(3, "cpu", 1, 60, machines))


def test_the_stand_in_takes_what_wholegraph_takes() -> None:
    library = pytest.importorskip(
        "pylibwholegraph.torch", reason="pylibwholegraph is not installed"
    )
    for name in ("init", "create_wholememory_tensor"):
        ours, theirs = (signature(getattr(at, name)) for at in (fake_wholegraph, library))
        assert list(ours.parameters) == list(theirs.parameters)
    assert hasattr(library, "get_global_communicator")
    assert hasattr(library.WholeMemoryTensor, "gather")
    assert WholeGraphFeatures.waits
