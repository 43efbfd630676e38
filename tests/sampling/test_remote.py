"""Sampling from a graph in parts gives the blocks of the whole graph, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.data.graph import NODE, FusedCSC
from gnntrain.errors import RunError
from gnntrain.sampling import cpu
from gnntrain.sampling.base import SampleKey
from gnntrain.sampling.block import BlockNeeds
from gnntrain.sampling.kernels import CHUNK_EDGES
from gnntrain.sampling.remote import DRAW, NodeNumbers
from tests.examples import examples
from tests.hetero_graphs import hetero_graph
from tests.sampling.graphs import (
    assert_equal,
    blocks_of,
    csc,
    each_scope,
    of_one_type,
    random_csc,
    sampler_of,
    seeds_of,
    some_fan_outs,
    some_seeds,
    target_of,
    typed_graphs,
)
from tests.sampling.parts import Partition, by_turns, originals_of, remote_sampler

KEY = SampleKey(seed=1, epoch=2, step=3)


@examples(100)
@given(
    graph=typed_graphs(),
    num_parts=st.sampled_from([1, 2, 4]),
    parts_each=st.integers(1, 2),
    key=st.builds(SampleKey, *[st.integers(-(2**63), 2**64)] * 3),
    scope=st.sampled_from(["relation", "node"]),
    replace=st.booleans(),
    data=st.data(),
)
def test_blocks_are_those_of_the_whole_graph_whatever_the_partition(
    graph: FusedCSC,
    num_parts: int,
    parts_each: int,
    key: SampleKey,
    scope: str,
    replace: bool,
    data: st.DataObject,
) -> None:
    """Weights are those of the edges; degrees those of the whole graph."""
    part = st.integers(0, num_parts - 1)
    partitions = {
        name: Partition.of(data.draw(st.lists(part, min_size=size, max_size=size)), num_parts)
        for name, size in graph.num_nodes.items()
    }
    seeds, fan_outs = data.draw(some_seeds(graph)), data.draw(some_fan_outs(graph, scope))
    options: dict[str, Any] = {"scope": scope, "replace": replace}
    csc_of = {name: graph.part(number) for number, name in enumerate(graph.edge_types)}
    weights = {name: np.arange(len(own[1]), dtype=np.float32) for name, own in csc_of.items()}
    sampler, _ = remote_sampler(
        graph,
        partitions,
        fan_outs,
        parts_each=parts_each,
        weights=weights,
        needs=BlockNeeds(weight=True, degree=True),
        **options,
    )
    given_seeds = partitions[target_of(graph)].new[np.array(seeds, np.int64)]
    found = sampler.sample(seeds_of(torch.from_numpy(given_seeds), graph), key)
    whole = sampler_of(graph, fan_outs, edge_ids=True, **options)
    expected = whole.sample(seeds_of(seeds, graph), key)
    assert_equal(found, expected, originals_of(partitions))
    for number, (hop, wanted) in enumerate(zip(found.hops, expected.hops, strict=True)):
        for name, block in hop.edges.items():
            assert block.weight is not None
            assert block.weight.dtype == torch.float32
            np.testing.assert_array_equal(block.weight, weights[name][wanted.edges[name].edge_ids])
            if number > 0:  # the last hop's destinations begin with those of all others
                assert block.degree is None
                continue
            assert block.degree is not None
            assert block.degree.dtype == torch.float32
            nodes = expected.nodes[name[2]][: block.num_dst]
            np.testing.assert_array_equal(block.degree, np.diff(csc_of[name][0])[nodes])


@each_scope
@pytest.mark.parametrize("fan_out", [25, -1])
def test_hubs_beyond_a_chunk_of_edges(fan_out: int, scope: str) -> None:
    num_edges = 3 * CHUNK_EDGES + 1
    hub = of_one_type(csc(5000, np.arange(num_edges) % 5000, np.arange(num_edges) % 10 // 9))
    partitions = by_turns(hub, 3)
    sampler, _ = remote_sampler(hub, partitions, [fan_out, 2], scope=scope)
    found = sampler.sample(seeds_of(torch.from_numpy(partitions[NODE].new[[1, 0]])), KEY)
    expected = sampler_of(hub, [fan_out, 2], scope=scope).sample(seeds_of([1, 0]), KEY)
    assert_equal(found, expected, originals_of(partitions))


@pytest.mark.parametrize(
    "graph", [of_one_type(random_csc(30_000, 200_000)), hetero_graph().fused], ids=["one", "typed"]
)
def test_a_used_sampler_gives_what_a_fresh_one_gives(graph: FusedCSC) -> None:
    """Batches that grow the table, and batches that find old numbers in it."""
    rng, target = np.random.default_rng(0), target_of(graph)
    partitions = by_turns(graph, 4)
    used, _ = remote_sampler(graph, partitions, [5, 4, 30])
    whole = sampler_of(graph, [5, 4, 30])
    for step in range(10):
        size = rng.integers(0, 60) * (1 + 20 * (step % 5 == 4))
        seeds, key = rng.integers(0, graph.num_nodes[target], size), SampleKey(0, 0, step)
        found = used.sample(seeds_of(torch.from_numpy(partitions[target].new[seeds]), graph), key)
        expected = whole.sample(seeds_of(torch.from_numpy(seeds), graph), key)
        assert_equal(found, expected, originals_of(partitions))


def test_a_batch_of_too_many_nodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "MAX_BATCH_NODES", CHUNK_EDGES + 10)
    numbers = NodeNumbers()
    numbers.start(np.arange(11))
    with pytest.raises(RunError, match="batch size"):
        numbers.relabel(np.arange(3 * CHUNK_EDGES))


def test_owners_are_asked_once_a_hop_and_send_ids_counts_and_sources_alone() -> None:
    graph = of_one_type(random_csc(3000, 60_000))
    sampler, caller = remote_sampler(graph, by_turns(graph, 2), [5, 3])
    blocks = blocks_of(sampler.sample(seeds_of(torch.arange(0, 3000, 6)), KEY))
    num_dst = sum(block.num_dst for block in blocks)
    num_edges = sum(block.num_edges for block in blocks)
    assert [asked[:2] for asked in caller.asked] == [(DRAW, 0), (DRAW, 1)] * 2
    assert sum(asked for _, _, asked, _ in caller.asked) == 4 * num_dst + 4 * 48
    assert sum(answered for *_, answered in caller.asked) == num_dst + 4 * num_edges
