from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnntrain.data.graph import Edges
from gnntrain.data.pyg_graph import PyGGraph
from gnntrain.data.store import StoredGraph
from gnntrain.errors import UserError
from gnntrain.loading.batch import MiniBatch
from gnntrain.loading.features import MappedFeatures
from gnntrain.loading.loader import NeighborLoader, SeedPlan
from gnntrain.loading.pyg_loader import PyGNeighborLoader
from gnntrain.sampling.block import BlockNeeds
from gnntrain.sampling.cpu import CPUNeighborSampler
from tests.graphs import random_graph, stored
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
) -> PyGNeighborLoader:
    features, graph = MappedFeatures(store), PyGGraph(store)
    return PyGNeighborLoader(store, features, graph, plan, fan_outs, needs=NEEDS, **options)


def own(store: StoredGraph, plan: SeedPlan, fan_outs: tuple[int, ...] = (3, 2)) -> NeighborLoader:
    sampler = CPUNeighborSampler(store.indptr, store.indices, fan_outs, edge_ids=True)
    return NeighborLoader(store, MappedFeatures(store), sampler, plan, needs=NEEDS, threads=0)


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
        edge_ids = batch.sampled.hops[-1].edge_ids
        assert edge_ids is not None
        assert outer.weight is not None
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
def test_epochs_ranks_and_seeds_draw_anew(store: StoredGraph) -> None:
    hub = np.zeros(1, np.int64)  # the node with the most in-neighbours

    def draw(epoch: int, seed: int, rank: int) -> str:
        loader = stock(store, SeedPlan(hub, 1, rank, 2, seed=seed), (4, 4))
        loader.set_epoch(epoch)
        return str(edges(list(loader)))

    assert draw(1, 0, 0) == draw(1, 0, 0)
    assert len({draw(1, 0, 0), draw(2, 0, 0), draw(1, 1, 0), draw(1, 0, 1)}) == 4


@pytest.mark.usefixtures("backend")
def test_steps_draw_anew(tmp_path: Path) -> None:
    # All nodes have the same in-neighbours: seeded alike, all steps would draw the same ones.
    everyone = np.arange(60)
    graph = random_graph(src=np.tile(everyone, 60), dst=np.repeat(everyone, 60))
    loader = stock(stored(tmp_path / "whole", graph), SeedPlan(everyone[:20], 1), (4,))
    drawn = {str(batch.sampled.edge_ids % 60) for batch in loader}  # type: ignore[union-attr,operator]
    assert len(drawn) > 15


@pytest.mark.usefixtures("backend")
def test_sampling_leaves_the_generator_of_dropout_alone(store: StoredGraph) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    list(stock(store, SeedPlan(store.split("train"), 4)))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.usefixtures("backend")
def test_the_root_logger_is_not_set_up_behind_our_back(
    store: StoredGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    list(stock(store, SeedPlan(store.split("train"), 4)))
    assert logging.root.handlers == []  # else every record of ours would be printed as well


@pytest.mark.usefixtures("backend")
def test_a_model_that_uses_no_graph_gets_its_seeds_alone(store: StoredGraph) -> None:
    batch = next(iter(stock(store, SeedPlan(store.split("train"), 4), ())))
    assert batch.blocks == ()
    assert batch.n_id.tolist() == seeds_of(batch)
    assert batch.edge_index.shape == (2, 0)
    np.testing.assert_array_equal(batch.x, store.features[batch.n_id.numpy()])


def test_the_graph_is_copied_for_torch_sparse_alone(
    store: StoredGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_backend("pyg", monkeypatch)
    indices, indptr, permutation = PyGGraph(store).csc()
    assert permutation is None
    assert np.shares_memory(indices.numpy(), store.indices)
    assert indices.dtype == indptr.dtype == torch.int32
    use_backend("torch_sparse", monkeypatch)
    indices, indptr, _ = PyGGraph(store).csc()
    assert np.shares_memory(indptr.numpy(), store.indptr)
    assert indices.dtype == indptr.dtype == torch.int64


def test_more_edges_than_32_bits_can_number_are_read_in_64_bits(
    store: StoredGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_backend("pyg", monkeypatch)
    monkeypatch.setattr(Edges, "__len__", lambda _: 2**31)
    indices, indptr, _ = PyGGraph(store).csc()
    assert indices.dtype == indptr.dtype == torch.int64


def test_repeated_seeds_and_a_missing_backend_are_refused(
    store: StoredGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_backend("pyg", monkeypatch)
    with pytest.raises(UserError, match="1 of 3 seeds are repetitions"):
        stock(store, SeedPlan(np.array([4, 5, 4]), 2))
    use_backend("none", monkeypatch)
    with pytest.raises(UserError, match="neither can be imported"):
        stock(store, SeedPlan(np.array([4, 5]), 2))
