"""The CPU sampler of typed graphs draws exactly what the slow oracle draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.data.graph import EDGE, NODE, Edges, EdgeType, Graph, Nodes
from gnntrain.errors import UserError
from gnntrain.sampling.base import SampleKey
from gnntrain.sampling.hetero import HeteroSubgraph
from gnntrain.sampling.hetero_cpu import HeteroCPUSampler
from tests.examples import examples
from tests.hetero_graphs import hetero_graph
from tests.sampling import hetero_oracle
from tests.sampling.graphs import CSC, cpu_sampler, csc, random_csc

KEY = SampleKey(seed=1, epoch=2, step=3)


@st.composite
def hetero_graphs(draw: st.DrawFn) -> Graph:
    """Graphs of up to three node types and five edge types, with empty ones."""
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    sizes = {name: draw(st.integers(int(name == "a"), 12)) for name in names}
    edges = {}
    for number in range(draw(st.integers(1, 5))):
        source, destination = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        ends = st.tuples(*(st.integers(0, max(0, sizes[end] - 1)) for end in (source, destination)))
        most = 60 if sizes[source] and sizes[destination] else 0
        pairs = np.array(draw(st.lists(ends, max_size=most)), np.int64).reshape(-1, 2)
        edges[source, f"r{number}", destination] = Edges(*csc(sizes[destination], *pairs.T))
    nodes = {name: Nodes(np.empty((size, 0), np.float32)) for name, size in sizes.items()}
    return Graph(nodes, edges, target="a")


def of_one_type(edges: CSC) -> Graph:
    nodes = {NODE: Nodes(np.empty((len(edges[0]) - 1, 0), np.float32))}
    return Graph(nodes, {EDGE: Edges(*edges)})


def sampler_of(
    graph: Graph, fan_outs: Mapping[EdgeType, Sequence[int]], **options: Any
) -> HeteroCPUSampler:
    given = {edge_type: tuple(of_type) for edge_type, of_type in fan_outs.items()}
    return HeteroCPUSampler(graph.fused, graph.target, given, edge_ids=True, **options)


def assert_same(subgraph: HeteroSubgraph, expected: hetero_oracle.HeteroOracleSample) -> None:
    assert {name: nodes.tolist() for name, nodes in subgraph.nodes.items()} == expected.nodes
    sizes = zip(subgraph.blocks[::-1], expected.edges, pairwise(expected.num_known), strict=True)
    for block, edges, (before, after) in sizes:
        assert (block.num_dst, block.num_src) == (before, after)
        assert list(block.edges) == list(edges)
        for edge_type, of_type in edges.items():
            hop, drawn = block.edges[edge_type], [edge for one in of_type for edge in one]
            assert hop.num_src == after[edge_type[0]]
            assert hop.indptr.diff().tolist() == list(map(len, of_type))
            assert hop.indices.tolist() == [source for source, _ in drawn]
            assert hop.edge_ids is not None
            assert hop.edge_ids.tolist() == [edge for _, edge in drawn]
    for name, counts in subgraph.num_sampled_nodes.items():
        known = [0, *(sizes[name] for sizes in expected.num_known)]
        assert counts == [after - before for before, after in pairwise(known)]
    for edge_type, num_edges in subgraph.num_sampled_edges.items():
        known = [0, *(sizes[edge_type[2]] for sizes in expected.num_known)]
        assert num_edges == [
            sum(map(len, edges[edge_type][oldest:]))
            for edges, oldest in zip(expected.edges, known, strict=False)
        ]


FAN_OUTS = st.sampled_from([-1, 1, 2, 5, 30])


@examples(100)
@given(
    graph=hetero_graphs(),
    key=st.builds(SampleKey, *[st.integers(-(2**63), 2**64)] * 3),
    num_hops=st.integers(1, 3),
    scope=st.sampled_from(["relation", "node"]),
    replace=st.booleans(),
    data=st.data(),
)
def test_nodes_and_edges_are_the_oracles_in_the_same_order(
    graph: Graph, key: SampleKey, num_hops: int, scope: str, replace: bool, data: st.DataObject
) -> None:
    seeds = data.draw(st.lists(st.integers(0, len(graph.target_nodes) - 1), max_size=8))
    hops = st.lists(FAN_OUTS, min_size=num_hops, max_size=num_hops)
    owners = (edge if scope == "relation" else edge[2] for edge in graph.edges)
    drawn = {owner: data.draw(hops) for owner in owners}
    fan_outs = {edge: drawn[edge if scope == "relation" else edge[2]] for edge in graph.edges}
    options: dict[str, Any] = {"scope": scope, "replace": replace}
    sampler = sampler_of(graph, fan_outs, **options)
    subgraph = sampler.sample(torch.tensor(seeds, dtype=torch.int64), key)
    expected = hetero_oracle.sample(graph, seeds, fan_outs, key, num_hops, **options)
    assert_same(subgraph, expected)


@pytest.mark.parametrize("scope", ["relation", "node"])
@pytest.mark.parametrize("replace", [False, True])
def test_of_one_type_it_draws_what_the_sampler_of_homogeneous_graphs_draws(
    replace: bool, scope: str
) -> None:
    edges = random_csc(200, 4000)
    graph = of_one_type(edges)
    seeds = torch.tensor([0, 7, 7, 150])
    sampler = sampler_of(graph, {EDGE: (5, 30, -1)}, replace=replace, scope=scope)
    drawn = sampler.sample(seeds, KEY)
    plain = cpu_sampler(edges, [5, 30, -1], replace=replace, edge_ids=True)
    expected = plain.sample(seeds, KEY)
    assert drawn.nodes[NODE].tolist() == expected.nodes.tolist()
    assert drawn.num_sampled_nodes[NODE] == expected.num_sampled_nodes
    assert drawn.num_sampled_edges[EDGE] == expected.num_sampled_edges
    for typed, block in zip(drawn.blocks, expected.blocks, strict=True):
        of_type = typed.edges[EDGE]
        assert (of_type.num_src, of_type.max_in_edges) == (block.num_src, block.max_in_edges)
        for name, tensor in block.tensors.items():
            assert torch.equal(of_type.tensors[name], tensor)


def test_a_used_sampler_gives_what_a_fresh_one_gives() -> None:
    graph, rng = hetero_graph(), np.random.default_rng(0)
    fan_outs = dict.fromkeys(graph.edges, (4, 3, 2))
    used = sampler_of(graph, fan_outs)
    for step in range(20):
        seeds = rng.integers(0, 40, rng.integers(0, 30))
        key = SampleKey(0, 0, step)
        assert_same(
            used.sample(torch.from_numpy(seeds), key),
            hetero_oracle.sample(graph, seeds.tolist(), fan_outs, key, 3),
        )


def test_wrong_arguments_are_refused() -> None:
    graph = hetero_graph()
    with pytest.raises(UserError, match="0"):
        sampler_of(graph, dict.fromkeys(graph.edges, (2, 0)))
    own = dict.fromkeys(graph.edges, (2,)) | {("author", "writes", "paper"): (3,)}
    with pytest.raises(UserError, match="cites/paper"):
        sampler_of(graph, own, scope="node")
    sampler = sampler_of(graph, dict.fromkeys(graph.edges, (2,)))
    with pytest.raises(UserError, match="40"):
        sampler.sample(torch.tensor([3, 40]), KEY)
