"""Batches that the CPU draws arrive whole on a device, by few copies and without a wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnntrain import devices
from gnntrain.compute.selection import KernelChoice, select
from gnntrain.config import from_dict
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import UserError
from gnntrain.loading.batch import MiniBatch
from gnntrain.loading.build import LoaderBuilder
from gnntrain.loading.loader import BlockLoader, FullGraphLoader, SeedPlan
from gnntrain.loading.streams import tensors_in
from gnntrain.sampling.block import BlockNeeds
from tests.graphs import random_graph, stored
from tests.loading.graphs import cpu_loader
from tests.simulated_device import no_waits, present, watched

TORCH = KernelChoice("torch")
ALL = BlockNeeds(norm=True, weight=True, degree=True)
NEEDS = [ALL, BlockNeeds(rows=True), BlockNeeds(edge_index=True)]
PLACEMENTS: list[dict[str, Any]] = [
    {},
    {"placement": "resident"},
    {"placement": "memmap"},
    {"placement": "cached", "cache_ratio": 0.5},
    {"placement": "cached", "cache_ratio": 0.0},
]


@pytest.fixture(autouse=True)
def sim() -> Iterator[torch.device]:
    select(TORCH, "sim")
    with present():
        yield torch.device("sim", 0)


@pytest.fixture(params=["float32", "bfloat16"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> StoredGraph:
    weights = np.random.default_rng(1).random(240).astype(np.float32)
    graph = random_graph(edge_weight=weights)
    return stored(tmp_path / "store", graph, feature_dtype=request.param)


def plan_of(store: StoredGraph) -> SeedPlan:
    return SeedPlan(store.split("train"), 7, seed=5)


def builder(
    store: StoredGraph, device: torch.device, needs: BlockNeeds = ALL, **keys: Any
) -> LoaderBuilder:
    config = from_dict({"sampler": {"fan_outs": [3, 2]}} | keys)
    targets = torch.from_numpy(store.labels)
    context = DistributedContext(device=device)
    return LoaderBuilder(config, store, context, needs, plan_of(store), targets)


def loader(
    store: StoredGraph, device: torch.device, needs: BlockNeeds = ALL, **keys: Any
) -> BlockLoader | FullGraphLoader:
    return builder(store, device, needs, **keys).training_loader()


def assert_equal(ours: MiniBatch, theirs: MiniBatch) -> None:
    for name in ("x", "y", "n_id"):
        found = getattr(ours, name)
        assert found.device.type == "sim"
        assert torch.equal(found.cpu(), getattr(theirs, name)), name
    for block, wanted in zip(ours.blocks, theirs.blocks, strict=True):
        assert block.num_src == wanted.num_src
        assert block.tensors.keys() == wanted.tensors.keys()
        for name, tensor in block.tensors.items():
            assert tensor.device.type == "sim"
            assert torch.equal(tensor.cpu(), wanted.tensors[name]), name


@pytest.mark.parametrize("needs", NEEDS, ids=["blocks", "rows", "edge_index"])
@pytest.mark.parametrize("features", PLACEMENTS, ids=str)
def test_an_epoch_is_the_cpus_by_few_copies_and_without_a_wait(
    store: StoredGraph, sim: torch.device, needs: BlockNeeds, features: dict[str, Any]
) -> None:
    expected = list(cpu_loader(store, plan_of(store), needs=needs, threads=0))
    made = loader(store, sim, needs, features=features)
    with watched() as traffic, no_waits():
        batches = list(made)
    assert len(batches) == len(expected) == 5
    assert len(traffic.copies) <= 6 * len(batches)
    assert not traffic.waits
    for ours, theirs in zip(batches, expected, strict=True):
        assert_equal(ours, theirs)
        assert torch.equal(ours.edge_index.cpu(), theirs.edge_index)
    assert not traffic.races


def test_a_model_that_takes_edges_by_pyg_finds_them_on_the_device(
    store: StoredGraph, sim: torch.device
) -> None:
    for batch in loader(store, sim, BlockNeeds(edge_index=True)):
        with no_waits():
            assert batch.edge_index.device.type == "sim"


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_later_batches_do_not_overwrite_earlier_ones(
    store: StoredGraph, sim: torch.device, threads: int
) -> None:
    sampler = {"fan_outs": [3, 2], "threads": threads}
    expected = list(cpu_loader(store, plan_of(store), needs=ALL, threads=0))
    sums = []
    with watched() as traffic:
        for batch in loader(store, sim, features={"placement": "memmap"}, sampler=sampler):
            sums.append(batch.x.sum(dtype=torch.float64))
            del batch
    assert not traffic.races
    assert not traffic.waits
    wanted = [float(batch.x.sum(dtype=torch.float64)) for batch in expected]
    assert [float(one) for one in sums] == pytest.approx(wanted)


def test_a_device_without_streams_is_used_by_one_thread(
    store: StoredGraph, sim: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "has_streams", lambda _: False)
    expected = cpu_loader(store, plan_of(store), needs=ALL, threads=0)
    with watched() as traffic:
        for ours, theirs in zip(loader(store, sim), expected, strict=True):
            assert_equal(ours, theirs)
    assert {copy.thread for copy in traffic.copies} == {threading.current_thread().name}


def test_reads_from_a_cache_are_counted(store: StoredGraph, sim: torch.device) -> None:
    made = loader(store, sim, features={"placement": "cached", "cache_ratio": 0.5})
    num_read = sum(batch.num_nodes for batch in made)
    hits, reads = made.take_reads()
    assert 0 < hits < reads == num_read
    assert made.take_reads() == (0, 0)


@pytest.mark.parametrize("index_type", [np.int32, np.int64])
def test_the_whole_graph_lies_on_the_device(
    tmp_path: Path, sim: torch.device, index_type: type[np.signedinteger[Any]]
) -> None:
    store = stored(tmp_path / "store", random_graph())
    edges = replace(store.only_edges, indices=store.indices.astype(index_type))
    wide = replace(store, edges=dict.fromkeys(store.edges, edges))
    made = loader(wide, sim, BlockNeeds(edge_index=True), sampler={"name": "full"})
    with no_waits():
        (batch,) = made
    assert all(t.device.type == "sim" for t in tensors_in(batch))
    assert batch.blocks[0].indices.dtype == torch.from_numpy(edges.indices).dtype
    destinations = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    wanted = np.stack([store.indices, destinations])
    assert np.array_equal(batch.edge_index.cpu().numpy(), wanted)
    assert torch.equal(batch.x.cpu(), torch.from_numpy(store.features))


def test_the_whole_graph_lies_once_on_the_device_if_half_its_memory_holds_it(
    store: StoredGraph, sim: torch.device
) -> None:
    with present() as module:
        made = builder(store, sim, ALL, sampler={"name": "full"})
        assert made.graph_on_device is not None
        before = module.memory_allocated(sim) + made.features.select().rows.nbytes
        batch = next(iter(made.training_loader()))
        of_batch = batch.x.nbytes + batch.y.nbytes + batch.n_id.nbytes
        assert (
            module.memory_allocated(sim) <= before + of_batch + batch.blocks[0].indptr.nbytes + 1024
        )
    with present(total_memory=4000):
        made = builder(store, sim, ALL, sampler={"name": "full"})
        assert made.graph_on_device is None
        assert made.features.select().device.type == "cpu"


def test_what_needs_a_kernel_that_this_run_has_not_is_refused(
    store: StoredGraph, sim: torch.device
) -> None:
    refused: list[dict[str, Any]] = [
        {"features": {"placement": "pinned"}},
        {"features": {"placement": "sharded"}},
        {"sampler": {"fan_outs": [3, 2], "topology": "resident"}},
        {"sampler": {"fan_outs": [3, 2], "topology": "pinned"}},
        {"sampler": {"fan_outs": [3, 2], "backend": "triton"}},
    ]
    for keys in refused:
        with pytest.raises(UserError):
            loader(store, sim, **keys)
