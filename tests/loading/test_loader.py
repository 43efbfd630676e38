"""Mini-batches against the graph itself, and against PyG on all of it; seeds, order, state."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

from gnntrain.data.graph import NODE, Graph, NodeType
from gnntrain.loading.batch import Batch
from gnntrain.loading.loader import SampledLoader, SeedPlan
from gnntrain.sampling.block import BlockNeeds
from tests.examples import examples
from tests.loading.graphs import (
    KINDS,
    assert_same,
    builder,
    cpu_loader,
    full_loader,
    graph_of,
    plan_of,
)

ALL = BlockNeeds(norm=True, weight=True, degree=True)


@pytest.fixture(scope="module", params=KINDS)
def graph(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Graph:
    return graph_of(request.param, tmp_path_factory.mktemp("graph") / "store")


def loader(graph: Graph, plan: SeedPlan, threads: int = 0) -> SampledLoader:
    return cpu_loader(graph, plan, needs=ALL, threads=threads, prefetch=2)


def seeds_of(batch: Batch) -> list[int]:
    target = "paper" if "paper" in batch.n_id_dict else NODE
    seeds: list[int] = batch.n_id_dict[target][: batch.batch_size].tolist()
    return seeds


# Seeds


@examples(50)
@given(
    num_seeds=st.integers(0, 40),
    batch_size=st.integers(1, 7),
    world_size=st.integers(1, 5),
    epoch=st.integers(0, 3),
    drop_last=st.booleans(),
)
def test_every_seed_is_used_once_an_epoch_and_any_number_of_ranks_share_a_batch(
    num_seeds: int, batch_size: int, world_size: int, epoch: int, drop_last: bool
) -> None:
    """Ranks divide it within one seed; one without a seed borrows one that does not count."""
    seeds, keys = np.arange(100, 100 + num_seeds), {"drop_last": drop_last}
    plans = [SeedPlan(seeds, batch_size, r, world_size, **keys) for r in range(world_size)]
    alone = SeedPlan(seeds, batch_size * world_size, **keys)
    used: list[int] = []
    steps = zip(*(plan.batches(epoch) for plan in (alone, *plans)), strict=True)
    for (whole, key), *of_ranks in steps:
        sizes = [share.num_counted for share, _ in of_ranks]
        assert max(sizes) - min(sizes) <= 1
        assert {of_rank for _, of_rank in of_ranks} == {key}
        together = []
        for share, _ in of_ranks:
            assert len(share.seeds) == max(1, share.num_counted)
            assert share.global_batch_size == len(whole.seeds)
            together += share.seeds[: share.num_counted].tolist()
        assert together == whole.seeds.tolist()
        used += together
    kept = num_seeds - num_seeds % alone.batch_size if drop_last else num_seeds
    assert len(used) == len(set(used)) == kept
    assert set(used) <= {*seeds}


def test_epochs_are_shuffled_differently_and_reproducibly() -> None:
    plan = SeedPlan(np.arange(50), 5)
    assert plan.order(1).tolist() == plan.order(1).tolist()
    assert plan.order(1).tolist() != plan.order(2).tolist()
    assert plan.order(1).tolist() != SeedPlan(np.arange(50), 5, seed=1).order(1).tolist()
    assert SeedPlan(np.arange(50), 5, shuffle=False).order(1).tolist() == list(range(50))


# Threads and state


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_a_loader_goes_on_where_its_state_says_with_any_threads(graph: Graph, threads: int) -> None:
    plan = plan_of(graph, 4)
    first = loader(graph, plan)
    first.set_epoch(2)
    batches = list(first)
    again = loader(graph, plan, threads)
    again.set_epoch(2)
    iterator = iter(again)
    for _ in range(3):
        next(iterator)
    other = loader(graph, plan, threads)
    other.load_state_dict(again.state_dict())
    for batch, expected in zip(other, batches[3:], strict=True):
        assert_same(batch, expected)
    other.set_epoch(2)
    for batch, expected in zip(other, batches, strict=True):
        assert_same(batch, expected)


def test_an_abandoned_loader_ends_its_threads(graph: Graph) -> None:
    iterator = iter(loader(graph, plan_of(graph, 1), threads=2))
    next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("gnntrain-loader")]


# The values of a batch


@pytest.mark.parametrize("fan_outs", [(3, 2), (-1, -1, -1), (1,), ()])
def test_a_batch_holds_the_rows_targets_degrees_norms_and_weights_of_the_graph(
    graph: Graph, fan_outs: tuple[int, ...]
) -> None:
    seen = []
    for batch in cpu_loader(graph, plan_of(graph), fan_outs, needs=ALL, threads=0):
        n_id, seeds = batch.n_id_dict, seeds_of(batch)
        with_features = {name for name, nodes in graph.nodes.items() if nodes.num_features}
        assert batch.x_dict.keys() == batch.rows.keys() == with_features
        for name, x in batch.x_dict.items():
            np.testing.assert_array_equal(x, graph.nodes[name].features[n_id[name]])
        np.testing.assert_array_equal(batch.y, graph.labels[seeds])
        assert batch.seed_rows is None
        assert len(batch.hops) == len(fan_outs)
        known = {name: len(ids) for name, ids in n_id.items()}
        assert batch.sample is not None
        for hop, drawn in zip(batch.hops, batch.sample.hops, strict=True):
            assert hop.num_src == known
            known = dict(hop.num_dst)
            for edge_type, block in hop.edges.items():
                edges = graph.edges[edge_type]
                destinations = n_id[edge_type[2]][: block.num_dst]
                np.testing.assert_array_equal(block.degree, np.diff(edges.indptr)[destinations])
                edge_ids = drawn.edges[edge_type].edge_ids
                assert edge_ids is not None
                assert edges.weight is not None
                np.testing.assert_array_equal(block.weight, edges.weight[edge_ids])
                if edges.gcn_norm is not None and not graph.is_hetero:
                    sources = n_id[edge_type[0]][: block.num_src]
                    np.testing.assert_array_equal(block.norm, edges.gcn_norm[sources])
                assert block.edge_ids is None  # the sample has them
        assert known == dict.fromkeys(n_id, 0) | {graph.target: batch.batch_size}
        seen += seeds
    assert sorted(seen) == graph.split("train").tolist()


# PyG's view


def inputs(batch: Batch) -> dict[NodeType, Tensor]:
    """Rows for all types: those of a type without features are made of its ids."""
    x: dict[NodeType, Tensor] = dict(batch.x_dict)
    for name in batch.n_id_dict.keys() - x.keys():
        x[name] = torch.sin(batch.n_id_dict[name][:, None] * torch.arange(1.0, 5.0))
    return x


class Peer(nn.Module):
    """Two layers of PyG's; each of a sample computes no more than the next one reads."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.target = graph.target
        self.convs = nn.ModuleList(
            HeteroConv({edge: SAGEConv((-1, -1), 8) for edge in graph.edges}) for _ in range(2)
        )

    def forward(self, batch: Batch) -> Tensor:
        x, edges = inputs(batch), batch.edge_index_dict
        for i, conv in enumerate(self.convs):
            if batch.sample is not None:
                numbers = batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict
                x, edges, _ = trim_to_layer(i, *numbers, x, edges)
            x = {name: rows.relu() for name, rows in conv(x, edges).items()}
        return x[self.target]


def test_pyg_computes_on_full_neighbourhoods_what_it_computes_on_the_graph(graph: Graph) -> None:
    needs = BlockNeeds(edge_index=True)
    (whole,) = full_loader(graph, plan_of(graph), needs)
    peer = Peer(graph)
    expected = peer(whole)
    for batch in cpu_loader(graph, plan_of(graph), (-1, -1), needs=needs, threads=0):
        torch.testing.assert_close(peer(batch)[: batch.batch_size], expected[seeds_of(batch)])


def test_a_graph_of_one_type_has_pygs_names_without_types(tmp_path: Path) -> None:
    one, typed = (graph_of(kind, tmp_path / kind.replace(" ", "")) for kind in KINDS)
    names = ("x", "n_id", "edge_index", "num_sampled_nodes", "num_sampled_edges")
    batch = next(iter(loader(one, plan_of(one))))
    for name in names:
        (value,) = getattr(batch, f"{name}_dict").values()
        assert getattr(batch, name) is value or getattr(batch, name) == value
    batch = next(iter(loader(typed, plan_of(typed))))
    for name in names:
        with pytest.raises(AttributeError, match="types"):
            getattr(batch, name)


# The whole graph


def test_the_whole_graph_is_one_step_with_each_rank_counting_its_share(graph: Graph) -> None:
    seeds, batches = graph.split("train"), []
    for rank in range(4):
        full = full_loader(graph, SeedPlan(seeds, 1, rank, 4), BlockNeeds(norm=True))
        full.set_epoch(1)
        (batch,) = full
        assert list(full) == []
        full.set_epoch(2)
        assert len(list(full)) == len(full) == 1
        batches.append(batch)
    rows = torch.cat([b.seed_rows[: b.num_counted] for b in batches if b.seed_rows is not None])
    assert rows.tolist() == seeds.tolist()
    np.testing.assert_array_equal(
        torch.cat([b.y[: b.num_counted] for b in batches]), graph.labels[seeds]
    )
    for name, ids in batch.n_id_dict.items():
        assert ids.tolist() == list(range(len(graph.nodes[name])))
    for name, x in batch.x_dict.items():
        np.testing.assert_array_equal(x, graph.nodes[name].features)
    for edge_type, edges in graph.edges.items():
        destinations = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
        ends = np.stack([edges.indices, destinations])
        np.testing.assert_array_equal(batch.edge_index_dict[edge_type], ends)
        for hop in batch.hops:  # on the store's own pages
            assert hop.edges[edge_type].indices.data_ptr() == edges.indices.ctypes.data
            if not graph.is_hetero:
                np.testing.assert_array_equal(hop.edges[edge_type].norm, edges.gcn_norm)


def test_a_model_that_might_write_to_the_features_gets_its_own(graph: Graph) -> None:
    full = full_loader(graph, plan_of(graph), BlockNeeds(edge_index=True))
    for epoch in (1, 2):
        full.set_epoch(epoch)
        (batch,) = full
        for name, x in batch.x_dict.items():
            np.testing.assert_array_equal(x, graph.nodes[name].features)
            x.zero_()


class Computed(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Notes the operators that compute, other than views and numbers read by the host."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and func is not torch.ops.aten._local_scalar_dense.default:
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


def test_on_the_host_torch_computes_nothing_to_make_a_batch(graph: Graph) -> None:
    """In a background thread its operators would start threads beside those of the step."""
    needs = BlockNeeds(norm=True, weight=True, degree=True, rows=True)
    batches = cpu_loader(graph, plan_of(graph), needs=needs, threads=0)
    with Computed() as computed:
        assert len(list(batches)) > 1
    assert computed.found == []


def test_only_what_the_model_reads_is_there(graph: Graph) -> None:
    for hop in next(iter(cpu_loader(graph, plan_of(graph), threads=0))).hops:
        assert all(block.tensors.keys() == {"indptr", "indices"} for block in hop.edges.values())


def test_a_model_without_edges_gets_its_seeds_alone(graph: Graph) -> None:
    batch = next(iter(builder(graph, options={"uses_graph": False}).training_loader()))
    assert batch.hops == ()
    assert sum(map(len, batch.n_id_dict.values())) == batch.batch_size
