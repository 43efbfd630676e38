"""Batches that PyG's own sampler draws."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnntrain.data.store import StoredGraph
from gnntrain.loading.batch import MiniBatch
from gnntrain.loading.features import InPlaceFeatures
from gnntrain.loading.graph import GraphTensors
from gnntrain.loading.loader import BlockLoader, SeedPlan
from gnntrain.sampling.block import BlockNeeds
from gnntrain.sampling.pyg import PyGSampler
from tests.graphs import random_graph, stored
from tests.loading.graphs import cpu_loader
from tests.pyg_backends import BACKENDS, use_backend

pytestmark = pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without")

NEEDS = BlockNeeds(norm=True, degree=True, weight=True)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    use_backend(request.param, monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> StoredGraph:
    weight = np.random.default_rng(5).random(240).astype(np.float32)
    return stored(tmp_path / "store", random_graph(edge_weight=weight))


def stock(
    store: StoredGraph, plan: SeedPlan, fan_outs: tuple[int, ...] = (3, 2), **options: Any
) -> BlockLoader:
    graph = GraphTensors.of(store, NEEDS)
    sampler = PyGSampler(graph.indptr, graph.indices, fan_outs, **options)
    return BlockLoader(graph, InPlaceFeatures.of(store), sampler, plan, needs=NEEDS)


def own(store: StoredGraph, plan: SeedPlan, fan_outs: tuple[int, ...] = (3, 2)) -> BlockLoader:
    return cpu_loader(store, plan, fan_outs, needs=NEEDS, threads=0)


def seeds_of(batch: MiniBatch) -> list[int]:
    seeds: list[int] = batch.n_id[: batch.batch_size].tolist()
    return seeds


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(("num_seeds", "world_size"), [(30, 1), (29, 3), (2, 3)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_rank_takes_the_seeds_that_our_own_loader_would(
    store: StoredGraph, num_seeds: int, world_size: int, drop_last: bool
) -> None:
    seeds = store.split("train")[:num_seeds]
    for rank in range(world_size):
        plan = SeedPlan(seeds, 4, rank, world_size, drop_last=drop_last, seed=3)
        for epoch in (1, 2):
            loader, expected = stock(store, plan), own(store, plan)
            loader.set_epoch(epoch)
            expected.set_epoch(epoch)
            assert len(loader) == len(expected)
            for batch, by_us in zip(loader, expected, strict=True):
                assert seeds_of(batch) == seeds_of(by_us)
                assert batch.num_counted == by_us.num_counted
                assert batch.global_batch_size == by_us.global_batch_size
                assert torch.equal(batch.y, by_us.y)


@pytest.mark.usefixtures("backend")
def test_every_seed_counts_once_an_epoch_and_a_borrowed_one_never(store: StoredGraph) -> None:
    seeds = store.split("train")[:11]
    ranks = [list(stock(store, SeedPlan(seeds, 3, rank, 3))) for rank in range(3)]
    assert [len(batches) for batches in ranks] == [2, 2, 2]
    counted = [n for batches in ranks for b in batches for n in seeds_of(b)[: b.num_counted]]
    assert sorted(counted) == sorted(seeds.tolist())
    assert [batches[1].num_counted for batches in ranks] == [1, 1, 0]
    assert ranks[2][1].batch_size == 1


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("fan_outs", [(-1,), (-1, -1), (-1, -1, -1)])
def test_with_all_in_neighbours_a_batch_equals_our_own(
    store: StoredGraph, fan_outs: tuple[int, ...]
) -> None:
    plan = SeedPlan(store.split("train"), 4)
    pairs = zip(stock(store, plan, fan_outs), own(store, plan, fan_outs), strict=True)
    for batch, by_us in pairs:
        assert torch.equal(batch.n_id, by_us.n_id)
        assert torch.equal(batch.x, by_us.x)
        assert torch.equal(batch.edge_index, by_us.edge_index)
        assert batch.num_sampled_nodes == by_us.num_sampled_nodes
        assert batch.num_sampled_edges == by_us.num_sampled_edges
        for block, ours in zip(batch.blocks, by_us.blocks, strict=True):
            for name in ("indptr", "indices", "weight", "degree", "norm"):
                assert torch.equal(getattr(block, name), getattr(ours, name)), name
                assert getattr(block, name).dtype == getattr(ours, name).dtype, name


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("replace", [False, True])
def test_each_node_draws_as_many_true_in_edges_as_its_hop_asks_for(
    store: StoredGraph, replace: bool
) -> None:
    assert store.edge_weight is not None
    for batch in stock(store, SeedPlan(store.split("train"), 6), (3, 2), replace=replace):
        nodes = batch.n_id.numpy()
        outer = batch.blocks[0]
        assert batch.sampled is not None
        ids = batch.sampled.blocks[0].edge_ids
        assert ids is not None
        assert outer.weight is not None
        edge_ids = ids.numpy()
        np.testing.assert_array_equal(outer.weight, store.edge_weight[edge_ids])
        for dst in range(outer.num_dst):
            first, last = outer.indptr[dst : dst + 2].tolist()
            begin, end = store.indptr[nodes[dst] : nodes[dst] + 2].tolist()
            drawn = edge_ids[first:last]
            assert ((begin <= drawn) & (drawn < end)).all()
            sources = nodes[outer.indices[first:last].numpy()]
            np.testing.assert_array_equal(sources, store.indices[drawn])
            fan_out = 3 if dst < batch.batch_size else 2
            if replace:
                assert len(drawn) == (fan_out if begin < end else 0)
            else:
                assert len(set(drawn.tolist())) == len(drawn) == min(fan_out, end - begin)


def edges(batches: list[MiniBatch]) -> list[list[list[int]]]:
    return [batch.n_id[batch.edge_index].tolist() for batch in batches]


@pytest.mark.usefixtures("backend")
def test_an_epoch_goes_on_where_its_state_says_with_the_same_draws(store: StoredGraph) -> None:
    plan = SeedPlan(store.split("train"), 4)
    loader = stock(store, plan)
    loader.set_epoch(2)
    whole = edges(list(loader))
    loader.set_epoch(2)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    assert loader.state_dict() == {"epoch": 2, "step": 3}
    other = stock(store, plan)
    other.load_state_dict(loader.state_dict())
    torch.manual_seed(99)  # as another process might stand
    assert edges(list(other)) == whole[3:]


@pytest.mark.usefixtures("backend")
def test_batches_are_made_in_the_thread_of_the_step(store: StoredGraph) -> None:
    """Background threads would draw from the generator that dropout is drawing from."""
    loader = stock(store, SeedPlan(store.split("train"), 4))
    next(iter(loader))
    assert not [t for t in threading.enumerate() if t.name.startswith("gnntrain-loader")]
    assert set(loader.phases.drain()) == {"sample", "gather"}


@pytest.mark.usefixtures("backend")
def test_ranks_draw_anew(tmp_path: Path) -> None:
    # All nodes have the same in-neighbours: seeded alike, all ranks would draw the same ones.
    everyone = np.arange(60)
    graph = random_graph(src=np.tile(everyone, 60), dst=np.repeat(everyone, 60))
    store = stored(tmp_path / "whole", graph)
    ranks = [stock(store, SeedPlan(everyone[:4], 1, rank, 4), (4,)) for rank in range(4)]
    drawn = set()
    for batch in (batch for rank in ranks for batch in rank):
        assert batch.sampled is not None
        ids = batch.sampled.edge_ids
        assert ids is not None
        drawn.add(str(ids % 60))
    assert len(drawn) == 4


@pytest.mark.usefixtures("backend")
def test_a_model_that_uses_no_graph_gets_its_seeds_alone(store: StoredGraph) -> None:
    batch = next(iter(stock(store, SeedPlan(store.split("train"), 4), ())))
    assert batch.blocks == ()
    assert batch.n_id.tolist() == seeds_of(batch)
    assert batch.edge_index.shape == (2, 0)
    np.testing.assert_array_equal(batch.x, store.features[batch.n_id.numpy()])
