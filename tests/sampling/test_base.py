"""The view of a sampled subgraph that PyG's models take."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import trim_to_layer

from gnntrain.sampling.base import SampledSubgraph, SampleKey
from tests.examples import examples
from tests.sampling.graphs import CSC, cpu_sampler, graphs, random_csc

KEY = SampleKey(0, 0, 0)
sampled_graphs = st.tuples(graphs(), st.sets(st.integers(0, 24), max_size=5))


def distances(graph: CSC, seeds: list[int], num_hops: int) -> list[list[int]]:
    """The nodes at distance 0, 1, …, `num_hops` against the direction of the edges."""
    indptr, indices = graph
    levels = [seeds]
    seen = set(seeds)
    for _ in range(num_hops):
        sources = {int(u) for v in levels[-1] for u in indices[indptr[v] : indptr[v + 1]]} - seen
        levels.append(sorted(sources))
        seen |= sources
    return levels


@examples(50)
@given(sampled_graphs, st.integers(1, 3))
def test_with_all_neighbours_the_view_has_the_in_edges_of_all_nodes_but_the_farthest(
    drawn: tuple[CSC, set[int]], num_hops: int
) -> None:
    graph = drawn[0]
    indptr, indices = graph
    seeds = [seed for seed in drawn[1] if seed < len(indptr) - 1]
    sampler = cpu_sampler((indptr, indices), [-1] * num_hops, edge_ids=True)
    subgraph = sampler.sample(torch.tensor(seeds, dtype=torch.int64), key=KEY)
    levels = distances(graph, seeds, num_hops)
    in_edges = [[e for v in level for e in range(indptr[v], indptr[v + 1])] for level in levels]
    assert subgraph.num_sampled_nodes == [len(level) for level in levels]
    assert subgraph.num_sampled_edges == [len(edges) for edges in in_edges[:-1]]
    assert subgraph.edge_ids is not None
    expected = sorted(edge for edges in in_edges[:-1] for edge in edges)
    assert sorted(subgraph.edge_ids.tolist()) == expected
    sources, destinations = subgraph.nodes[subgraph.edge_index]
    np.testing.assert_array_equal(sources, indices[subgraph.edge_ids])
    np.testing.assert_array_equal(
        destinations, np.searchsorted(indptr, subgraph.edge_ids, side="right") - 1
    )


@examples(30)
@given(sampled_graphs, st.lists(st.sampled_from([1, 3, -1]), min_size=1, max_size=3))
def test_hops_and_view_agree_on_the_edges_of_new_nodes(
    drawn: tuple[CSC, set[int]], fan_outs: list[int]
) -> None:
    indptr, indices = drawn[0]
    seeds = [seed for seed in drawn[1] if seed < len(indptr) - 1]
    subgraph = cpu_sampler((indptr, indices), fan_outs).sample(
        torch.tensor(seeds, dtype=torch.int64), key=KEY
    )
    assert sum(subgraph.num_sampled_nodes) == len(subgraph.nodes)
    at, oldest = 0, 0
    for hop, num_edges in zip(subgraph.blocks[::-1], subgraph.num_sampled_edges, strict=True):
        sources, destinations = subgraph.edge_index[:, at : at + num_edges]
        for destination in range(oldest, hop.num_dst):
            expected = hop.indices[hop.indptr[destination] : hop.indptr[destination + 1]]
            np.testing.assert_array_equal(sources[destinations == destination], expected)
        assert ((destinations >= oldest) & (destinations < hop.num_dst)).all()
        at, oldest = at + num_edges, hop.num_dst


def forward(convs: list[SAGEConv], x: Tensor, edge_index: Tensor) -> Tensor:
    for conv in convs:
        x = conv(x, edge_index).relu()
    return x


def trimmed_forward(convs: list[SAGEConv], x: Tensor, subgraph: SampledSubgraph) -> Tensor:
    edge_index = subgraph.edge_index
    for layer, conv in enumerate(convs):
        x, edge_index, _ = trim_to_layer(
            layer, subgraph.num_sampled_nodes, subgraph.num_sampled_edges, x, edge_index
        )
        x = conv(x, edge_index).relu()
    return x[: subgraph.num_seeds]


def test_trimmed_layers_give_the_seeds_what_whole_layers_give_them() -> None:
    torch.manual_seed(0)
    indptr, indices = random_csc(80, 600)
    features = torch.randn(80, 4)
    convs = [SAGEConv(4, 4) for _ in range(3)]
    seeds = torch.tensor([0, 3, 79, 11, 3])
    subgraph = cpu_sampler((indptr, indices), [3, 4, 2]).sample(seeds, key=KEY)
    x = features[subgraph.nodes]
    whole = forward(convs, x, subgraph.edge_index)[: len(seeds)]
    torch.testing.assert_close(trimmed_forward(convs, x, subgraph), whole)


def test_with_all_neighbours_trimmed_layers_give_what_the_whole_graph_gives() -> None:
    torch.manual_seed(0)
    indptr, indices = random_csc(80, 600)
    features = torch.randn(80, 4)
    convs = [SAGEConv(4, 4) for _ in range(3)]
    seeds = torch.tensor([0, 3, 79, 11])
    subgraph = cpu_sampler((indptr, indices), [-1, -1, -1]).sample(seeds, key=KEY)
    destinations = np.repeat(np.arange(80), np.diff(indptr))
    edge_index = torch.from_numpy(np.stack([indices, destinations]))
    expected = forward(convs, features, edge_index)[seeds]
    torch.testing.assert_close(trimmed_forward(convs, features[subgraph.nodes], subgraph), expected)
