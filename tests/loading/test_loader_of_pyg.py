"""Batches that PyG's own sampler draws."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnntrain.data.graph import Graph
from gnntrain.loading.batch import Batch
from gnntrain.loading.loader import SampledLoader, SeedPlan
from gnntrain.sampling.block import BlockNeeds
from gnntrain.sampling.pyg import PyGSampler
from tests.graphs import random_graph, stored
from tests.loading.graphs import KINDS, assert_same, cpu_loader, graph_of, plan_of
from tests.pyg_backends import BACKENDS, use_backend

pytestmark = pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without")

NEEDS = BlockNeeds(norm=True, degree=True, weight=True)


@pytest.fixture(params=BACKENDS, autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    use_backend(request.param, monkeypatch)


@pytest.fixture(params=KINDS)
def graph(tmp_path: Path, request: pytest.FixtureRequest) -> Graph:
    return graph_of(request.param, tmp_path / "store")


def stock(
    graph: Graph, plan: SeedPlan, fan_outs: tuple[int, ...] = (3, 2), **options: Any
) -> SampledLoader:
    return cpu_loader(graph, plan, fan_outs, needs=NEEDS, kind=PyGSampler, **options)


@pytest.mark.parametrize("fan_outs", [(-1,), (-1, -1), (-1, -1, -1), ()])
def test_with_all_in_neighbours_or_none_a_batch_equals_our_own(
    tmp_path: Path, fan_outs: tuple[int, ...]
) -> None:
    """Of many types PyG numbers the sources of a hop in another order."""
    graph = graph_of("one type", tmp_path / "store")
    plan = plan_of(graph, 4)
    by_us = cpu_loader(graph, plan, fan_outs, needs=NEEDS, threads=0)
    for batch, same in zip(stock(graph, plan, fan_outs), by_us, strict=True):
        assert_same(batch, same)


def test_weights_are_those_of_the_drawn_edges(graph: Graph) -> None:
    for batch in stock(graph, plan_of(graph)):
        assert batch.sample is not None
        for hop, drawn in zip(batch.hops, batch.sample.hops, strict=True):
            for name, block in hop.edges.items():
                ids, weight = drawn.edges[name].edge_ids, graph.edges[name].weight
                assert ids is not None
                assert weight is not None
                np.testing.assert_array_equal(block.weight, weight[ids])


def edges(batch: Batch) -> list[Any]:
    n_id = batch.n_id_dict
    return [
        [n_id[name[0]][pairs[0]].tolist(), n_id[name[2]][pairs[1]].tolist()]
        for name, pairs in batch.edge_index_dict.items()
    ]


def test_an_epoch_goes_on_where_its_state_says_with_the_same_draws(graph: Graph) -> None:
    """In the step's thread: others would draw from the generator that dropout is drawing from."""
    loader = stock(graph, plan_of(graph, 4), threads=1)
    loader.set_epoch(2)
    whole = list(map(edges, loader))
    loader.set_epoch(2)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    assert not [t for t in threading.enumerate() if t.name.startswith("gnntrain-loader")]
    assert loader.state_dict() == {"epoch": 2, "step": 3}
    other = stock(graph, plan_of(graph, 4))
    other.load_state_dict(loader.state_dict())
    torch.manual_seed(99)  # as another process might stand
    assert list(map(edges, other)) == whole[3:]


def test_ranks_draw_anew(tmp_path: Path) -> None:
    # All nodes have the same in-neighbours: seeded alike, all ranks would draw the same ones.
    everyone = np.arange(60)
    weights = np.ones(3600, np.float32)
    data = random_graph(src=np.tile(everyone, 60), dst=np.repeat(everyone, 60), edge_weight=weights)
    store = stored(tmp_path / "whole", data)
    ranks = [stock(store, SeedPlan(everyone[:4], 1, rank, 4), (4,)) for rank in range(4)]
    drawn = {str(edges(batch)[0][0]) for rank in ranks for batch in rank}
    assert len(drawn) == 4
