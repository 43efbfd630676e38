"""Sampling from a typed graph in parts gives the blocks of the whole graph, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.data.fused import FusedCSC
from gnntrain.data.graph import Edges, Graph, NodeType
from gnntrain.distributed.owners import NodeOwners
from gnntrain.errors import UserError
from gnntrain.sampling.base import SampleKey
from gnntrain.sampling.hetero import HeteroSubgraph
from gnntrain.sampling.hetero_cpu import HeteroCPUSampler
from gnntrain.sampling.hetero_partitioned import (
    HeteroDrawAnswers,
    HeteroPartDraws,
    PartitionedHeteroSampler,
)
from gnntrain.sampling.partitioned import DRAW
from tests.examples import examples
from tests.hetero_graphs import hetero_graph
from tests.sampling.parts import InProcess, Partition
from tests.sampling.test_hetero_cpu import FAN_OUTS, hetero_graphs

KEY = SampleKey(seed=1, epoch=2, step=3)
Partitions = Mapping[NodeType, Partition]


def part_draws(graph: Graph, partitions: Partitions, number: int) -> HeteroPartDraws:
    """Draws of one part: the in-edges of its nodes of each type."""
    edges, original = {}, {}
    for name, partition in partitions.items():
        original[name] = partition.originals[partition.ranges()[number]]
    for edge_type, whole in graph.edges.items():
        ids = [np.arange(*whole.indptr[node : node + 2]) for node in original[edge_type[2]]]
        taken = np.concatenate([np.empty(0, np.int64), *ids])
        indptr = np.append(0, np.cumsum([len(some) for some in ids])).astype(np.int64)
        sources = partitions[edge_type[0]].new[whole.indices[taken]].astype(whole.indices.dtype)
        edges[edge_type] = Edges(indptr, sources)
    sizes = {name: len(own) for name, own in original.items()}
    return HeteroPartDraws(FusedCSC.of(edges, sizes), original)


def partitioned(
    graph: Graph, partitions: Partitions, parts_each: int, fan_outs: Any, **options: Any
) -> PartitionedHeteroSampler:
    num_parts = next(iter(partitions.values())).owners.num_owners
    draws = [part_draws(graph, partitions, number) for number in range(num_parts)]
    held = {name: partition.held(parts_each) for name, partition in partitions.items()}
    answers = []
    for owner in range(len(range(0, num_parts, parts_each))):
        ranges = {name: own[owner][1] for name, own in held.items()}
        parts = draws[owner * parts_each : (owner + 1) * parts_each]
        answers.append(HeteroDrawAnswers(parts, ranges, list(graph.edges)))
    owners: dict[NodeType, NodeOwners] = {
        name: partition.machines(parts_each) for name, partition in partitions.items()
    }
    caller = InProcess({DRAW: list(answers)})
    return PartitionedHeteroSampler(
        caller, owners, list(graph.edges), graph.target, fan_outs, **options
    )


def assert_same(found: HeteroSubgraph, expected: HeteroSubgraph, partitions: Partitions) -> None:
    """Equal blocks; equal nodes but for the renumbering."""
    for name, nodes in found.nodes.items():
        np.testing.assert_array_equal(
            partitions[name].originals[nodes.numpy()], expected.nodes[name]
        )
    assert found.num_seeds == expected.num_seeds
    assert found.num_sampled_edges == expected.num_sampled_edges
    assert found.num_sampled_nodes == expected.num_sampled_nodes
    for hop, wanted in zip(found.blocks, expected.blocks, strict=True):
        assert (hop.num_dst, hop.num_src) == (wanted.num_dst, wanted.num_src)
        assert list(hop.edges) == list(wanted.edges)
        for edge_type, block in hop.edges.items():
            other = wanted.edges[edge_type]
            assert (block.num_src, block.max_in_edges) == (other.num_src, other.max_in_edges)
            for tensor, expects in [(block.indptr, other.indptr), (block.indices, other.indices)]:
                assert tensor.dtype == expects.dtype
                assert torch.equal(tensor, expects)


@examples(60)
@given(
    graph=hetero_graphs(),
    num_parts=st.sampled_from([1, 2, 4]),
    parts_each=st.integers(1, 2),
    num_hops=st.integers(1, 3),
    key=st.builds(SampleKey, *[st.integers(-(2**63), 2**64)] * 3),
    scope=st.sampled_from(["relation", "node"]),
    replace=st.booleans(),
    data=st.data(),
)
def test_blocks_are_those_of_the_whole_graph_whatever_the_partition(
    graph: Graph,
    num_parts: int,
    parts_each: int,
    num_hops: int,
    key: SampleKey,
    scope: Any,
    replace: bool,
    data: st.DataObject,
) -> None:
    part = st.integers(0, num_parts - 1)
    partitions = {
        name: Partition.of(
            data.draw(st.lists(part, min_size=len(nodes), max_size=len(nodes))), num_parts
        )
        for name, nodes in graph.nodes.items()
    }
    seeds = data.draw(st.lists(st.integers(0, len(graph.target_nodes) - 1), max_size=8))
    hops = st.lists(FAN_OUTS, min_size=num_hops, max_size=num_hops)
    drawn = {name: data.draw(hops) for name in [*graph.edges, *graph.nodes]}
    owners = {name: name if scope == "relation" else name[2] for name in graph.edges}
    fan_outs = {name: tuple(drawn[owner]) for name, owner in owners.items()}
    options = {"scope": scope, "replace": replace}
    sampler = partitioned(graph, partitions, parts_each, fan_outs, **options)
    given_seeds = partitions[graph.target].new[np.array(seeds, np.int64)]
    found = sampler.sample(torch.from_numpy(given_seeds), key)
    whole = HeteroCPUSampler(graph.fused, graph.target, fan_outs, **options)
    expected = whole.sample(torch.tensor(seeds, dtype=torch.int64), key)
    assert_same(found, expected, partitions)


def by_turns(graph: Graph, num_parts: int) -> dict[NodeType, Partition]:
    return {
        name: Partition.of([i % num_parts for i in range(len(nodes))], num_parts)
        for name, nodes in graph.nodes.items()
    }


@pytest.mark.parametrize("scope", ["relation", "node"])
def test_a_used_sampler_gives_what_a_fresh_one_gives(scope: Any) -> None:
    graph, rng = hetero_graph(), np.random.default_rng(0)
    partitions, fan_outs = by_turns(graph, 3), dict.fromkeys(graph.edges, (4, 3, 30))
    used = partitioned(graph, partitions, 1, fan_outs, scope=scope)
    whole = HeteroCPUSampler(graph.fused, graph.target, fan_outs, scope=scope)
    for step in range(10):
        seeds, key = rng.integers(0, 40, rng.integers(0, 30)), SampleKey(0, 0, step)
        found = used.sample(torch.from_numpy(partitions["paper"].new[seeds]), key)
        assert_same(found, whole.sample(torch.from_numpy(seeds), key), partitions)


def test_an_owner_is_asked_once_a_hop_for_all_edge_types() -> None:
    graph = hetero_graph()
    sampler = partitioned(graph, by_turns(graph, 2), 1, dict.fromkeys(graph.edges, (3, 2)))
    sampler.sample(torch.arange(40), KEY)
    assert isinstance(sampler._caller, InProcess)
    assert [(name, owner) for name, owner, *_ in sampler._caller.asked] == [
        (DRAW, owner) for _ in range(2) for owner in range(2)
    ]


def test_seeds_and_fan_outs_are_checked() -> None:
    graph = hetero_graph()
    sampler = partitioned(graph, by_turns(graph, 1), 1, dict.fromkeys(graph.edges, (3,)))
    with pytest.raises(UserError, match=r"1 of 2 .*40"):
        sampler.sample(torch.tensor([0, 40]), KEY)
    with pytest.raises(UserError, match="0"):
        partitioned(graph, by_turns(graph, 1), 1, dict.fromkeys(graph.edges, (0,)))
