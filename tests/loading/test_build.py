"""One builder chooses who samples and where the graph lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnntrain.config import from_dict
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import UserError
from gnntrain.loading import build
from gnntrain.loading.build import LoaderBuilder
from gnntrain.loading.loader import BlockLoader, FullGraphLoader, SeedPlan
from gnntrain.loading.placement import Memory
from gnntrain.sampling.block import NO_NEEDS, BlockNeeds
from gnntrain.sampling.cpu import CPUSampler
from tests.graphs import random_graph, stored
from tests.loading.graphs import cpu_loader


@pytest.fixture
def store(tmp_path: Path) -> StoredGraph:
    weights = np.random.default_rng(1).random(240).astype(np.float32)
    return stored(tmp_path / "store", random_graph(edge_weight=weights))


def builder(
    store: StoredGraph,
    keys: dict[str, Any] | None = None,
    needs: BlockNeeds = NO_NEEDS,
    **options: Any,
) -> LoaderBuilder:
    config = from_dict({"sampler": {"fan_outs": [3, 2]}, **(keys or {})})
    plan = SeedPlan(store.split("train"), 7, seed=5)
    targets = torch.from_numpy(store.labels)
    return LoaderBuilder(config, store, DistributedContext(), needs, plan, targets, **options)


def test_a_cpu_samples_and_reads_the_store_in_place(store: StoredGraph) -> None:
    made = builder(store)
    assert made.backend == "numba"
    assert not made.samples_on_gpu
    assert made.graph.indices.data_ptr() == store.indices.ctypes.data
    assert made.features.select().whole().data_ptr() == store.features.ctypes.data
    assert made.why_placed == ()


def test_training_batches_are_those_of_the_plan(store: StoredGraph) -> None:
    needs = BlockNeeds(norm=True, weight=True, degree=True)
    loader = builder(store, needs=needs).training_loader()
    expected = cpu_loader(store, SeedPlan(store.split("train"), 7, seed=5), needs=needs, threads=0)
    for batch, same in zip(loader, expected, strict=True):
        assert torch.equal(batch.n_id, same.n_id)
        assert torch.equal(batch.x, same.x)
        for block, other in zip(batch.blocks, same.blocks, strict=True):
            for name in ("indptr", "indices", "norm", "weight", "degree"):
                assert torch.equal(getattr(block, name), getattr(other, name)), name


def test_loaders_share_the_sampler_of_equal_fan_outs(store: StoredGraph) -> None:
    made = builder(store)
    plan = SeedPlan(store.split("val"), 4)
    train, val = made.loader(plan, (3, 2)), made.loader(plan, [3, 2])
    assert train.sampler is val.sampler is made.sampler((3, 2))
    assert made.loader(plan, (2, 2)).sampler is not train.sampler
    assert isinstance(train.sampler, CPUSampler)


def test_a_model_without_edges_gets_its_seeds_alone(store: StoredGraph) -> None:
    batch = next(iter(builder(store, uses_graph=False).training_loader()))
    assert batch.blocks == ()
    assert len(batch.n_id) == batch.batch_size


def test_the_full_graph_is_a_loader_as_well(store: StoredGraph) -> None:
    loader = builder(store, {"sampler": {"name": "full"}}).training_loader()
    assert isinstance(loader, FullGraphLoader)
    (batch,) = loader
    assert len(batch.x) == store.num_nodes


def test_a_gpu_sampler_reads_placed_arrays_and_the_place_is_told(store: StoredGraph) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    features = {"placement": "cached", "cache_ratio": 0.5}
    keys = {"sampler": {"fan_outs": [3, 2], "backend": "triton"}, "features": features}
    made = builder(store, keys)
    assert made.why_placed == ()
    loader = made.training_loader()
    assert isinstance(loader, BlockLoader)
    assert made.samples_on_gpu
    assert len(made.why_placed) == 2
    expected = cpu_loader(store, SeedPlan(store.split("train"), 7, seed=5), threads=0)
    for batch, same in zip(loader, expected, strict=True):
        assert torch.equal(batch.n_id, same.n_id)
        assert torch.equal(batch.x, same.x)
    hits, reads = loader.take_reads()
    assert 0 < hits < reads


def test_steps_are_recorded_only_where_the_gpu_reads_the_rows(
    store: StoredGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    keys = {
        "sampler": {"fan_outs": [3, 2], "backend": "triton"},
        "features": {"placement": "cached", "cache_ratio": 0.5},
        "trainer": {"cuda_graph": True},
    }
    assert len(builder(store, keys).training_loader()) > 0
    monkeypatch.setattr(build, "measured_memory", lambda _: Memory((2**30,), host=0))
    with pytest.raises(UserError, match="cuda_graph"):
        builder(store, keys).training_loader()
