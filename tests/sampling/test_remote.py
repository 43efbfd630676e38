"""Sampling from a graph in parts gives the blocks of the whole graph, bit for bit."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.data.graph import GraphData
from gnntrain.errors import RunError
from gnntrain.sampling import cpu
from gnntrain.sampling.base import SampleKey
from gnntrain.sampling.block import BlockNeeds
from gnntrain.sampling.kernels import CHUNK_EDGES
from gnntrain.sampling.remote import DRAW, NodeNumbers
from tests.data.oracles import partitions, small_graph
from tests.examples import examples
from tests.hetero_graphs import random_hetero_data
from tests.sampling.graphs import (
    assert_equal,
    blocks_of,
    each_scope,
    sampler_of,
    seeds_of,
    some_fan_outs,
    some_seeds,
    target_of,
)
from tests.sampling.parts import InParts

KEY = SampleKey(seed=1, epoch=2, step=3)


def by_turns(folder: Path, data: GraphData, num_parts: int) -> InParts:
    num_nodes = sum(nodes.num_nodes for nodes in data.nodes.values())
    return InParts.of(folder, data, np.arange(num_nodes) % num_parts)


@examples(100)
@given(
    drawn=partitions(),
    key=st.builds(SampleKey, *[st.integers(-(2**63), 2**64)] * 3),
    scope=st.sampled_from(["relation", "node"]),
    replace=st.booleans(),
    data=st.data(),
)
def test_blocks_are_those_of_the_whole_graph_whatever_the_partition(
    drawn: tuple[GraphData, list[int]],
    key: SampleKey,
    scope: str,
    replace: bool,
    data: st.DataObject,
) -> None:
    """Weights are those of the edges; degrees those of the whole graph."""
    with TemporaryDirectory() as folder:
        graph = InParts.of(Path(folder), *drawn)
        store, fused = graph.store, graph.store.fused
        seeds, fan_outs = data.draw(some_seeds(fused)), data.draw(some_fan_outs(fused, scope))
        options: dict[str, Any] = {"scope": scope, "replace": replace}
        weighted = {name for name, edges in store.edges.items() if edges.weight is not None}
        needs = BlockNeeds(weight=bool(weighted), degree=True)
        num_owners = data.draw(st.integers(1, max(drawn[1]) + 1))
        sampler, _ = graph.sampler(fan_outs, num_owners, needs=needs, **options)
        found = sampler.sample(graph.seeds(seeds), key)
        whole = sampler_of(fused, fan_outs, edge_ids=True, **options)
        expected = whole.sample(seeds_of(seeds, fused), key)
        assert_equal(found, expected, graph.originals)
        for number, (hop, wanted) in enumerate(zip(found.hops, expected.hops, strict=True)):
            for name, block in hop.edges.items():
                edges = store.edges[name]
                if edges.weight is not None:
                    edge_ids = wanted.edges[name].edge_ids
                    assert block.weight is not None
                    assert edge_ids is not None
                    of_whole = edges.weight[edge_ids.numpy()]
                    np.testing.assert_array_equal(block.weight, of_whole, strict=True)
                if number > 0:  # the last hop's destinations begin with those of all others
                    assert block.degree is None
                    continue
                nodes = expected.nodes[name[2]][: block.num_dst].numpy()
                degrees = np.diff(edges.indptr)[nodes].astype(np.float32)
                np.testing.assert_array_equal(block.degree, degrees, strict=True)


@each_scope
@pytest.mark.parametrize("fan_out", [25, -1])
def test_hubs_beyond_a_chunk_of_edges(tmp_path: Path, fan_out: int, scope: str) -> None:
    edges = np.arange(3 * CHUNK_EDGES + 1)
    graph = by_turns(tmp_path, small_graph(5000, src=edges % 5000, dst=edges % 10 // 9), 3)
    sampler, _ = graph.sampler([fan_out, 2], 3, scope=scope)
    expected = sampler_of(graph.store.fused, [fan_out, 2], scope=scope).sample(
        seeds_of([1, 0]), KEY
    )
    assert_equal(sampler.sample(graph.seeds([1, 0]), KEY), expected, graph.originals)


@pytest.mark.parametrize(
    "data", [small_graph(30_000, 200_000), random_hetero_data()], ids=["one", "typed"]
)
def test_a_used_sampler_gives_what_a_fresh_one_gives(tmp_path: Path, data: GraphData) -> None:
    """Batches that grow the table, and batches that find old numbers in it."""
    rng, graph = np.random.default_rng(0), by_turns(tmp_path, data, 4)
    fused = graph.store.fused
    used, _ = graph.sampler([5, 4, 30], 4)
    whole = sampler_of(fused, [5, 4, 30])
    for step in range(10):
        size = rng.integers(0, 60) * (1 + 20 * (step % 5 == 4))
        seeds, key = rng.integers(0, fused.num_nodes[target_of(fused)], size), SampleKey(0, 0, step)
        expected = whole.sample(seeds_of(torch.from_numpy(seeds), fused), key)
        assert_equal(used.sample(graph.seeds(seeds), key), expected, graph.originals)


def test_a_batch_of_too_many_nodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "MAX_BATCH_NODES", CHUNK_EDGES + 10)
    numbers = NodeNumbers()
    numbers.start(np.arange(11))
    with pytest.raises(RunError, match="batch size"):
        numbers.relabel(np.arange(3 * CHUNK_EDGES))


def test_owners_are_asked_once_a_hop_and_send_ids_counts_and_sources_alone(tmp_path: Path) -> None:
    sampler, caller = by_turns(tmp_path, small_graph(3000, 60_000), 2).sampler([5, 3], 2)
    blocks = blocks_of(sampler.sample(seeds_of(torch.arange(0, 3000, 6)), KEY))
    num_dst = sum(block.num_dst for block in blocks)
    num_edges = sum(block.num_edges for block in blocks)
    assert [asked[:2] for asked in caller.asked] == [(DRAW, 0), (DRAW, 1)] * 2
    assert sum(asked for _, _, asked, _ in caller.asked) == 4 * num_dst + 4 * 48
    assert sum(answered for *_, answered in caller.asked) == num_dst + 4 * num_edges
