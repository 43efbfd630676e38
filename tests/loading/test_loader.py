from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from gnntrain.data.graph import EDGE
from gnntrain.data.store import StoredGraph
from gnntrain.loading.batch import MiniBatch
from gnntrain.loading.features import InPlaceFeatures
from gnntrain.loading.graph import GraphTensors
from gnntrain.loading.loader import BlockLoader, FullGraphLoader, SeedPlan, whole_graph_block
from gnntrain.sampling.block import NO_NEEDS, BlockNeeds
from tests.examples import examples
from tests.graphs import random_graph, stored
from tests.loading.graphs import cpu_loader


@pytest.fixture
def store(tmp_path: Path) -> StoredGraph:
    return stored(tmp_path / "store")


def loader(store: StoredGraph, plan: SeedPlan, threads: int = 0) -> BlockLoader:
    needs = BlockNeeds(norm=True, degree=True)
    return cpu_loader(store, plan, needs=needs, threads=threads, prefetch=2)


def counted(batch: MiniBatch) -> list[int]:
    return [int(node) for node in batch.n_id[: batch.num_counted]]


@examples(50)
@given(
    num_seeds=st.integers(0, 40),
    batch_size=st.integers(1, 7),
    world_size=st.integers(1, 5),
    epoch=st.integers(0, 3),
    drop_last=st.booleans(),
)
def test_every_seed_is_used_once_an_epoch_in_equally_many_steps_on_every_rank(
    num_seeds: int, batch_size: int, world_size: int, epoch: int, drop_last: bool
) -> None:
    seeds = np.arange(100, 100 + num_seeds)
    plan = SeedPlan(seeds, batch_size, world_size=world_size, drop_last=drop_last)
    order = plan.order(epoch)
    used = [int(seed) for step in range(plan.num_steps) for seed in plan.global_batch(order, step)]
    if drop_last:
        assert len(used) == num_seeds - num_seeds % plan.global_batch_size
        assert len(set(used)) == len(used)
    else:
        assert sorted(used) == seeds.tolist()


def test_a_global_batch_is_the_same_on_any_number_of_ranks(store: StoredGraph) -> None:
    seeds = store.split("train")

    def global_batches(world_size: int) -> list[set[int]]:
        plans = [
            SeedPlan(seeds, 12 // world_size, r, world_size, seed=3) for r in range(world_size)
        ]
        by_rank = [list(loader(store, plan)) for plan in plans]
        assert len({len(batches) for batches in by_rank}) == 1
        return [set().union(*map(counted, batches)) for batches in zip(*by_rank, strict=True)]

    assert global_batches(1) == global_batches(2) == global_batches(4)


def test_ranks_share_a_global_batch_without_overlap_and_within_one_seed(store: StoredGraph) -> None:
    seeds = store.split("train")[:11]
    batches = [next(iter(loader(store, SeedPlan(seeds, 4, rank, 4)))) for rank in range(4)]
    assert sorted(node for b in batches for node in counted(b)) == sorted(seeds.tolist())
    assert {batch.num_counted for batch in batches} == {2, 3}
    assert {batch.global_batch_size for batch in batches} == {11}


def test_a_rank_without_a_seed_borrows_one_that_does_not_count(store: StoredGraph) -> None:
    seeds = store.split("train")[:2]
    batches = [next(iter(loader(store, SeedPlan(seeds, 5, rank, 3)))) for rank in range(3)]
    assert [batch.num_counted for batch in batches] == [1, 1, 0]
    assert batches[2].batch_size == 1
    assert {batch.global_batch_size for batch in batches} == {2}


def test_epochs_are_shuffled_differently_and_reproducibly() -> None:
    plan = SeedPlan(np.arange(50), 5)
    assert plan.order(1).tolist() == plan.order(1).tolist()
    assert plan.order(1).tolist() != plan.order(2).tolist()
    assert plan.order(1).tolist() != SeedPlan(np.arange(50), 5, seed=1).order(1).tolist()
    assert SeedPlan(np.arange(50), 5, shuffle=False).order(1).tolist() == list(range(50))


@pytest.mark.parametrize("threads", [1, 3])
def test_background_threads_give_the_same_batches_in_the_same_order(
    store: StoredGraph, threads: int
) -> None:
    plan = SeedPlan(store.split("train"), 4)
    for own, ahead in zip(loader(store, plan), loader(store, plan, threads), strict=True):
        assert torch.equal(own.n_id, ahead.n_id)
        assert torch.equal(own.x, ahead.x)
        for left, right in zip(own.blocks, ahead.blocks, strict=True):
            assert torch.equal(left.indices, right.indices)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_loader_goes_on_where_its_state_says(store: StoredGraph, threads: int) -> None:
    plan = SeedPlan(store.split("train"), 4)
    first = loader(store, plan, threads)
    first.set_epoch(2)
    batches = list(first)
    again = loader(store, plan, threads)
    again.set_epoch(2)
    iterator = iter(again)
    for _ in range(3):
        next(iterator)
    other = loader(store, plan, threads)
    other.load_state_dict(again.state_dict())
    rest = list(other)
    assert [batch.n_id.tolist() for batch in rest] == [batch.n_id.tolist() for batch in batches[3:]]


def test_an_abandoned_loader_ends_its_threads(store: StoredGraph) -> None:
    import threading

    iterator = iter(loader(store, SeedPlan(store.split("train"), 1), threads=2))
    next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("gnntrain-loader")]


def test_a_batch_holds_the_rows_labels_degrees_and_norms_of_its_nodes(store: StoredGraph) -> None:
    batch = next(iter(loader(store, SeedPlan(store.split("train"), 6))))
    nodes = batch.n_id.numpy()
    np.testing.assert_array_equal(batch.x.numpy(), store.features[nodes])
    np.testing.assert_array_equal(batch.y.numpy(), store.labels[nodes[: batch.batch_size]])
    inner, outer = batch.blocks
    assert outer.num_dst == batch.batch_size
    assert inner.num_dst == outer.num_src
    assert inner.num_src == len(nodes)
    degree = np.diff(store.indptr)[nodes[: inner.num_dst]]
    assert inner.degree is not None
    assert inner.norm is not None
    np.testing.assert_array_equal(inner.degree.numpy(), degree)
    np.testing.assert_array_equal(inner.norm.numpy(), store.gcn_norm[nodes])


def test_edge_weights_follow_their_edges(tmp_path: Path) -> None:
    data = random_graph()
    weight = np.random.default_rng(1).uniform(1, 2, len(data.src)).astype(np.float32)
    data.edges[EDGE].weight = weight
    store = stored(tmp_path / "store", data)
    plan = SeedPlan(store.split("train"), 1000, shuffle=False)
    (batch,) = cpu_loader(store, plan, (-1,), needs=BlockNeeds(weight=True), threads=0)
    (block,) = batch.blocks
    dst = np.repeat(batch.n_id[: block.num_dst].numpy(), np.diff(block.indptr.numpy()))
    src = batch.n_id.numpy()[block.indices.numpy()]
    assert block.weight is not None
    found = sorted(zip(src, dst, block.weight.numpy(), strict=True))
    train = set(store.split("train").tolist())
    given_edges = zip(data.src, data.dst, data.edge_weight, strict=True)
    assert found == sorted(edge for edge in given_edges if edge[1] in train)


def test_a_batch_runs_through_a_plain_pyg_model(store: StoredGraph) -> None:
    from torch_geometric.nn import GraphSAGE

    batch = next(iter(loader(store, SeedPlan(store.split("train"), 6))))
    model = GraphSAGE(5, 8, num_layers=2, out_channels=3)
    assert batch.num_nodes == len(batch.n_id)
    full = model(batch.x, batch.edge_index)[: batch.batch_size]
    trimmed = model(
        batch.x,
        batch.edge_index,
        num_sampled_nodes_per_hop=batch.num_sampled_nodes,
        num_sampled_edges_per_hop=batch.num_sampled_edges,
    )[: batch.batch_size]
    torch.testing.assert_close(full, trimmed)


def test_a_whole_graph_block_maps_the_stores_own_pages(store: StoredGraph) -> None:
    block = whole_graph_block(store, BlockNeeds(), 5, 20)
    assert block.indices.data_ptr() == store.indices[store.indptr[5] :].ctypes.data
    assert block.dst_offset == 5
    assert block.num_src == store.num_nodes
    for i, node in enumerate(range(5, 20)):
        own = store.indices[store.indptr[node] : store.indptr[node + 1]]
        assert block.indices[block.indptr[i] : block.indptr[i + 1]].tolist() == own.tolist()


def test_the_full_graph_is_one_step_with_each_rank_counting_its_share(store: StoredGraph) -> None:
    seeds = store.split("train")
    batches = []
    for rank in range(4):
        full = FullGraphLoader(
            GraphTensors.of(store, NO_NEEDS),
            InPlaceFeatures.of(store),
            SeedPlan(seeds, 1, rank, 4),
            num_layers=2,
        )
        full.set_epoch(1)
        (batch,) = full
        assert list(full) == []
        full.set_epoch(2)
        assert len(list(full)) == len(full) == 1
        batches.append(batch)
    rows = torch.cat([b.seed_rows[: b.num_counted] for b in batches if b.seed_rows is not None])
    assert rows.tolist() == seeds.tolist()
    assert all(batch.x.shape[0] == store.num_nodes for batch in batches)
    np.testing.assert_array_equal(batches[0].y, store.labels[batches[0].seed_rows])


def test_a_model_that_might_write_to_the_features_gets_its_own(store: StoredGraph) -> None:
    full = FullGraphLoader(
        GraphTensors.of(store, NO_NEEDS),
        InPlaceFeatures.of(store),
        SeedPlan(store.split("train"), 1, 0, 1),
        num_layers=2,
        needs=BlockNeeds(edge_index=True),
    )
    for epoch in (1, 2):
        full.set_epoch(epoch)
        (batch,) = full
        np.testing.assert_array_equal(batch.x, store.features)
        batch.x.zero_()


class Computed(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Notes the operators that compute, other than views and numbers read by the host."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and func is not torch.ops.aten._local_scalar_dense.default:
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


def test_on_the_host_torch_computes_nothing_to_make_a_batch(tmp_path: Path) -> None:
    """In a background thread its operators would start threads beside those of the step."""
    weights = np.random.default_rng(1).random(240).astype(np.float32)
    store = stored(tmp_path / "store", random_graph(edge_weight=weights))
    needs = BlockNeeds(norm=True, weight=True, degree=True, rows=True)
    batches = cpu_loader(store, SeedPlan(store.split("train"), 7), needs=needs, threads=0)
    with Computed() as computed:
        assert len(list(batches)) > 1
    assert computed.found == []
