"""The view of a sample that PyG's models take."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.data.graph import FusedCSC, NodeType
from gnntrain.sampling.base import SampleKey
from tests.examples import examples
from tests.sampling.graphs import (
    sampler_of,
    seeds_of,
    some_fan_outs,
    some_seeds,
    target_of,
    typed_graphs,
)

KEY = SampleKey(0, 0, 0)


def distances(graph: FusedCSC, seeds: list[int], num_hops: int) -> list[dict[NodeType, set[int]]]:
    """The nodes at distance 0, 1, …, `num_hops` against the direction of the edges."""
    seen = {name: set[int]() for name in graph.num_nodes}
    levels = [{**{name: set[int]() for name in seen}, target_of(graph): set(seeds)}]
    for _ in range(num_hops):
        for name, nodes in levels[-1].items():
            seen[name] |= nodes
        levels.append({name: set() for name in seen})
        for number, (source, _, destination) in enumerate(graph.edge_types):
            indptr, indices = graph.part(number)
            for node in levels[-2][destination]:
                levels[-1][source] |= {*indices[indptr[node] : indptr[node + 1]].tolist()}
        levels[-1] = {name: nodes - seen[name] for name, nodes in levels[-1].items()}
    return levels


@examples(50)
@given(typed_graphs(), st.integers(1, 3), st.data())
def test_with_all_neighbours_the_view_has_the_in_edges_of_all_nodes_but_the_farthest(
    graph: FusedCSC, num_hops: int, data: st.DataObject
) -> None:
    seeds = data.draw(some_seeds(graph, unique=True))
    sampler = sampler_of(graph, [-1] * num_hops)
    sample = sampler.sample(seeds_of(seeds, graph), KEY)
    levels = distances(graph, seeds, num_hops)
    for node_type, counts in sample.num_sampled_nodes.items():
        assert counts == [len(level[node_type]) for level in levels]
    view = sample.edge_index()
    for number, name in enumerate(graph.edge_types):
        indptr, indices = graph.part(number)
        expected = [
            [(int(u), v) for v in level[name[2]] for u in indices[indptr[v] : indptr[v + 1]]]
            for level in levels[:-1]
        ]
        assert sample.num_sampled_edges[name] == list(map(len, expected))
        sources, destinations = view[name]
        pairs = zip(
            sample.nodes[name[0]][sources].tolist(),
            sample.nodes[name[2]][destinations].tolist(),
            strict=True,
        )
        assert sorted(pairs) == sorted(edge for level in expected for edge in level)


@examples(30)
@given(typed_graphs(), st.data())
def test_hops_and_view_agree_on_the_edges_of_new_nodes(
    graph: FusedCSC, data: st.DataObject
) -> None:
    seeds, fan_outs = data.draw(some_seeds(graph)), data.draw(some_fan_outs(graph))
    sample = sampler_of(graph, fan_outs).sample(seeds_of(seeds, graph), KEY)
    for node_type, counts in sample.num_sampled_nodes.items():
        assert sum(counts) == len(sample.nodes[node_type])
    for name, edge_index in sample.edge_index().items():
        expected: list[tuple[int, int]] = []
        oldest = 0
        for number, hop in enumerate(reversed(sample.hops)):
            block = hop.edges[name]
            sources = torch.split(block.indices, block.indptr.diff().tolist())
            new = [(u, v) for v in range(oldest, block.num_dst) for u in sources[v].tolist()]
            assert len(new) == sample.num_sampled_edges[name][number]
            expected += new
            oldest = block.num_dst
        assert list(zip(*edge_index.tolist(), strict=True)) == expected
