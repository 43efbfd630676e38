"""Every in-neighbour of a typed graph is equally likely, and no draw tells anything of another.

All keys are fixed, so that these tests cannot fail by chance.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch

from gnntrain.data.graph import Edges, EdgeType, Graph, Nodes
from gnntrain.sampling.base import Int64Array, SampleKey
from gnntrain.sampling.hetero import HeteroSubgraph
from gnntrain.sampling.hetero_cpu import HeteroCPUSampler
from tests.hetero_graphs import hetero_graph
from tests.sampling.test_cpu_uniformity import LEAST_P, NUM_NODES, p_independent, p_uniform

BOTH: list[EdgeType] = [("a", "first", "a"), ("a", "second", "a")]


def drawn(
    degrees: tuple[int, int], fan_outs: tuple[int, ...], key: SampleKey, **options: Any
) -> list[list[list[list[int]]]]:
    """By hop, edge type and node: which of its in-edges the node took.

    Every node has in-edges of both types, all from itself (so that a batch does not grow).
    """
    nodes = np.arange(NUM_NODES)
    edges = {
        edge_type: Edges(np.arange(NUM_NODES + 1) * degree, np.repeat(nodes, degree))
        for edge_type, degree in zip(BOTH, degrees, strict=True)
    }
    graph = Graph({"a": Nodes(np.empty((NUM_NODES, 0), np.float32))}, edges, target="a")
    given = dict.fromkeys(BOTH, fan_outs)
    sampler = HeteroCPUSampler(graph.fused, "a", given, edge_ids=True, **options)
    hops: list[list[list[list[int]]]] = []
    for hop in sampler.sample(torch.from_numpy(nodes), key).blocks[::-1]:
        hops.append([])
        for edge_type, degree in zip(BOTH, degrees, strict=True):
            block = hop.edges[edge_type]
            assert block.edge_ids is not None
            positions = (block.edge_ids % degree).tolist()
            ends = block.indptr.tolist()
            hops[-1].append([positions[i:j] for i, j in pairwise(ends)])
    return hops


def together(degrees: tuple[int, int], fan_out: int, key: SampleKey) -> list[list[int]]:
    """By node: the positions taken among the in-edges of both types."""
    ((first, second),) = drawn(degrees, (fan_out,), key, scope="node")
    pairs = zip(first, second, strict=True)
    return [own + [degrees[0] + position for position in others] for own, others in pairs]


def p_equal_triples(taken: list[list[int]]) -> float:
    """Whether all triples of 0 … 5 are equally frequent."""
    triples = [list(triple) for triple in combinations(range(6), 3)]
    found = [triples.index(sorted(row)) for row in taken]
    return p_uniform(np.bincount(found, minlength=len(triples)))


@pytest.mark.parametrize("step", range(3))
def test_every_subset_of_the_in_edges_of_all_types_is_equally_likely(step: int) -> None:
    assert p_equal_triples(together((4, 2), 3, SampleKey(0, 0, step))) > LEAST_P


def test_every_subset_of_each_types_in_edges_is_equally_likely() -> None:
    for of_type in drawn((6, 6), (3,), SampleKey(0, 0, 0))[0]:
        assert p_equal_triples(of_type) > LEAST_P


def test_the_draws_of_edge_types_hops_and_nodes_are_independent() -> None:
    degree = 16
    (first, second), (next_hop, _) = (
        [as_column(of_type) for of_type in hop]
        for hop in drawn((degree, degree), (1, 1), SampleKey(0, 0, 0))
    )
    for other in (second, next_hop, np.roll(first, 1), np.roll(second, 1)):
        assert p_independent(first, other, degree) > LEAST_P


def as_column(of_type: list[list[int]]) -> Int64Array:
    return np.array(of_type, np.int64)[:, 0]


def test_equal_numbers_of_different_node_types_share_no_draws() -> None:
    """Also with one fan-out for all relations of a node."""
    degree = 16
    nodes = Nodes(np.empty((NUM_NODES, 0), np.float32))
    indptr = np.arange(NUM_NODES + 1) * degree
    to_a, to_b = ("a", "in", "a"), ("a", "in", "b")
    # All nodes of both types are known after the first hop: a draws from b as well.
    own = np.repeat(np.arange(NUM_NODES), degree)
    one_each = Edges(np.arange(NUM_NODES + 1), np.arange(NUM_NODES))
    edges = {to_a: Edges(indptr, own), to_b: Edges(indptr, own), ("b", "in", "a"): one_each}
    graph = Graph({"a": nodes, "b": nodes}, edges, target="a")
    fan_outs = dict.fromkeys(edges, (-1, 1))
    sampler = HeteroCPUSampler(graph.fused, "a", fan_outs, scope="node", edge_ids=True)
    subgraph = sampler.sample(torch.arange(NUM_NODES), SampleKey(0, 0, 0))
    assert torch.equal(subgraph.nodes["b"], subgraph.nodes["a"])
    blocks = subgraph.blocks[0].edges
    of_a, of_b = blocks[to_a], blocks[to_b]
    assert of_a.edge_ids is not None
    assert of_b.edge_ids is not None
    drew = of_a.indptr.diff().numpy() == 1  # the others drew their edge from b
    left = of_a.edge_ids.numpy() % degree
    right = (of_b.edge_ids.numpy() % degree)[drew]
    assert p_independent(left, right, degree) > LEAST_P


def in_edges(subgraph: HeteroSubgraph) -> list[dict[tuple[EdgeType, int], list[int]]]:
    """By hop, edge type and destination: the drawn sources, all in the graph's numbers."""
    hops: list[dict[tuple[EdgeType, int], list[int]]] = []
    for block in subgraph.blocks[::-1]:
        hops.append({})
        for name, edges in block.edges.items():
            sources = subgraph.nodes[name[0]][edges.indices].tolist()
            ends = edges.indptr.tolist()
            for i, node in enumerate(subgraph.nodes[name[2]][: edges.num_dst].tolist()):
                hops[-1][name, node] = sources[ends[i] : ends[i + 1]]
    return hops


@pytest.mark.parametrize("scope", ["relation", "node"])
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_and_threads_draw_for_their_share_what_one_draws_for_the_whole(
    scope: Any, num_ranks: int
) -> None:
    graph = hetero_graph()
    fan_outs = dict.fromkeys(graph.edges, (3, 2))
    sampler = HeteroCPUSampler(graph.fused, "paper", fan_outs, scope=scope)
    seeds, key = torch.arange(40).flip(0), SampleKey(7, 0, 5)
    whole = in_edges(sampler.sample(seeds, key))
    with ThreadPoolExecutor(num_ranks) as pool:
        shares = [seeds[rank::num_ranks] for rank in range(num_ranks)] * 8
        for share in pool.map(lambda own: in_edges(sampler.sample(own, key)), shares):
            for found, expected in zip(share, whole, strict=True):
                assert found.items() <= expected.items()
