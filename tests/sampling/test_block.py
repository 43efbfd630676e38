"""The view of a sample that PyG's models take."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import trim_to_layer

from gnntrain.data.fused import FusedCSC
from gnntrain.data.graph import EDGE, NODE, NodeType
from gnntrain.sampling.base import SampleKey
from gnntrain.sampling.block import Sample
from tests.examples import examples
from tests.sampling.graphs import (
    cpu_sampler,
    random_csc,
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
        expected, oldest = [], 0
        for hop, num_edges in zip(
            reversed(sample.hops), sample.num_sampled_edges[name], strict=True
        ):
            block = hop.edges[name]
            ends = block.indptr.tolist()
            edges = [
                (source, destination)
                for destination in range(oldest, block.num_dst)
                for source in block.indices[ends[destination] : ends[destination + 1]].tolist()
            ]
            assert len(edges) == num_edges
            expected += edges
            oldest = block.num_dst
        assert list(zip(*edge_index.tolist(), strict=True)) == expected


def forward(convs: list[SAGEConv], x: Tensor, edge_index: Tensor) -> Tensor:
    for conv in convs:
        x = conv(x, edge_index).relu()
    return x


def trimmed_forward(convs: list[SAGEConv], x: Tensor, sample: Sample) -> Tensor:
    edge_index = sample.edge_index()[EDGE]
    sizes = sample.num_sampled_nodes[NODE], sample.num_sampled_edges[EDGE]
    for layer, conv in enumerate(convs):
        x, edge_index, _ = trim_to_layer(layer, *sizes, x, edge_index)
        x = conv(x, edge_index).relu()
    return x[: sample.num_seeds[NODE]]


def test_trimmed_layers_give_the_seeds_what_whole_layers_give_them() -> None:
    """With all neighbours, also what the whole graph gives them."""
    torch.manual_seed(0)
    indptr, indices = graph = random_csc(80, 600)
    features = torch.randn(80, 4)
    convs = [SAGEConv(4, 4) for _ in range(3)]
    seeds = torch.tensor([0, 3, 79, 11, 3])
    for fan_outs in ([3, 4, 2], [-1, -1, -1]):
        sample = cpu_sampler(graph, fan_outs).sample(seeds_of(seeds), KEY)
        x = features[sample.nodes[NODE]]
        whole = forward(convs, x, sample.edge_index()[EDGE])[: len(seeds)]
        torch.testing.assert_close(trimmed_forward(convs, x, sample), whole)
    destinations = np.repeat(np.arange(80), np.diff(indptr))
    edge_index = torch.from_numpy(np.stack([indices, destinations]))
    torch.testing.assert_close(whole, forward(convs, features, edge_index)[seeds])
