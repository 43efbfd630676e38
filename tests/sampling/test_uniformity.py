"""Every in-neighbour is equally likely, and no draw tells anything of another.

All keys are fixed, so that these tests cannot fail by chance; the limit on p is low because there
are many of them.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from gnntrain.data.graph import EDGE, Edges, EdgeType, FusedCSC, Int64Array
from gnntrain.sampling.base import SampleKey
from gnntrain.sampling.block import Block
from tests.sampling.graphs import blocks_of, cpu_sampler, sampler_of, seeds_of

NUM_NODES = 20_000
LEAST_P = 1e-4
FIRST, SECOND = ("a", "first", "a"), ("a", "second", "a")
KINDS = ["one type", "relation", "node"]
each_kind = pytest.mark.parametrize("kind", KINDS)


def regular(degree: int) -> Edges:
    """Every node has `degree` in-edges, all from itself (so that a batch does not grow)."""
    indptr = np.arange(NUM_NODES + 1) * degree
    return Edges(indptr, np.repeat(np.arange(NUM_NODES), degree))


def positions(
    kind: str, degree: int, fan_outs: list[int], key: SampleKey, replace: bool = False
) -> list[Int64Array]:
    """For each hop `[NUM_NODES, fan_out]`: which of its in-edges each node took.

    Of one type; of the second of two edge types that have fan-outs of their own; or of two edge
    types together, which share one: those of the first then come first.
    """
    degrees: dict[EdgeType, int] = {
        "one type": {EDGE: degree},
        "relation": {FIRST: 3, SECOND: degree},
        "node": {FIRST: degree - degree // 3, SECOND: degree // 3},
    }[kind]
    edges = {name: regular(own) for name, own in degrees.items()}
    graph = FusedCSC.of(edges, {next(iter(edges))[0]: NUM_NODES})
    scope = "node" if kind == "node" else "relation"
    sampler = sampler_of(graph, fan_outs, scope=scope, replace=replace, edge_ids=True)
    sample = sampler.sample(seeds_of(torch.arange(NUM_NODES), graph), key)
    if kind == "relation":
        del degrees[FIRST]
    hops = []
    for hop in reversed(sample.hops):
        nodes, taken, first = [], [], 0
        for name, own in degrees.items():
            destinations, of_type = drawn(hop.edges[name], own)
            nodes.append(destinations)
            taken.append(of_type + first)
            first += own
        order = np.argsort(np.concatenate(nodes), kind="stable")
        hops.append(np.concatenate(taken)[order].reshape(NUM_NODES, -1))
    return hops


def drawn(block: Block, degree: int) -> tuple[Int64Array, Int64Array]:
    """Of a `regular` graph: each edge's destination, and its position among the in-edges."""
    assert block.edge_ids is not None
    destinations = np.repeat(np.arange(block.num_dst), block.indptr.diff().numpy())
    taken = block.edge_ids.numpy() - destinations * degree
    assert ((taken >= 0) & (taken < degree)).all()
    return destinations, taken


def p_uniform(counts: Int64Array) -> float:
    return float(stats.chisquare(counts).pvalue)


def p_independent(left: Int64Array, right: Int64Array, degree: int) -> float:
    return p_uniform(np.bincount(left * degree + right, minlength=degree**2))


@each_kind
@pytest.mark.parametrize("step", range(3))
def test_every_subset_of_a_small_neighbourhood_is_equally_likely(kind: str, step: int) -> None:
    (taken,) = positions(kind, 6, [3], SampleKey(0, 0, step))
    subsets = list(combinations(range(6), 3))
    number = {subset: i for i, subset in enumerate(subsets)}
    found = [number[tuple(row)] for row in np.sort(taken, axis=1).tolist()]
    assert p_uniform(np.bincount(found, minlength=len(subsets))) > LEAST_P


@each_kind
@pytest.mark.parametrize(("degree", "fan_out"), [(7, 6), (25, 5), (40, 24), (60, 30), (300, 150)])
def test_every_position_is_equally_likely_by_scan_and_by_table(
    kind: str, degree: int, fan_out: int
) -> None:
    (taken,) = positions(kind, degree, [fan_out], SampleKey(1, 0, 0))
    share = fan_out / degree
    counts = np.bincount(taken.ravel(), minlength=degree)
    # Positions of one node exclude one another, hence not the plain χ² statistic.
    spread = ((counts - NUM_NODES * share) ** 2).sum() / (NUM_NODES * share * (1 - share))
    p = stats.chi2.sf(spread * (degree - 1) / degree, degree - 1)
    assert LEAST_P < p < 1 - LEAST_P


@each_kind
def test_with_replacement_every_position_is_equally_likely(kind: str) -> None:
    (taken,) = positions(kind, 12, [5], SampleKey(2, 0, 0), replace=True)
    assert p_uniform(np.bincount(taken.ravel(), minlength=12)) > LEAST_P


@pytest.mark.parametrize("fan_out", [10, 100])
def test_hubs_of_100_000_are_sampled_evenly(fan_out: int) -> None:
    """A 16-bit random number modulo the degree would favour the low positions here, twofold."""
    degree, num_hubs = 100_000, 10
    graph = np.arange(num_hubs + 1) * degree, np.zeros(num_hubs * degree, np.int32)
    sampler = cpu_sampler(graph, [fan_out], edge_ids=True)
    steps: list[Any] = []
    for step in range(200_000 // fan_out // num_hubs):
        (block,) = blocks_of(sampler.sample(seeds_of(range(num_hubs)), SampleKey(0, 0, step)))
        steps.append(block.edge_ids)
    taken = np.concatenate(steps) % degree
    assert p_uniform(np.bincount(taken // 500, minlength=200)) > LEAST_P
    assert p_uniform(np.bincount(taken % 64, minlength=64)[: degree % 64]) > LEAST_P
    low = int((taken < degree // 2).sum())
    assert stats.binomtest(low, len(taken)).pvalue > LEAST_P


@each_kind
def test_draws_of_neighbouring_keys_are_independent(kind: str) -> None:
    degree = 16
    here, next_hop = (hop[:, 0] for hop in positions(kind, degree, [1, 1], SampleKey(0, 0, 0)))
    others = {
        "hop": next_hop,
        "node": np.roll(here, 1),
        "step": positions(kind, degree, [1], SampleKey(0, 0, 1))[0][:, 0],
        "epoch": positions(kind, degree, [1], SampleKey(0, 1, 0))[0][:, 0],
        "seed": positions(kind, degree, [1], SampleKey(1, 0, 0))[0][:, 0],
    }
    if kind == "relation":  # of the first edge type
        others["type"] = positions("one type", degree, [1], SampleKey(0, 0, 0))[0][:, 0]
    for name, there in others.items():
        assert p_independent(here, there, degree) > LEAST_P, name


@pytest.mark.parametrize("kind", ["one type", "relation"])
def test_successive_draws_of_a_node_and_its_neighbours_are_independent(kind: str) -> None:
    (taken,) = positions(kind, 16, [4], SampleKey(3, 0, 0), replace=True)
    for left, right in combinations(range(4), 2):
        assert p_independent(taken[:, left], taken[:, right], 16) > LEAST_P
    for shift in (1, 2, 3):  # neighbouring nodes share no stream
        assert p_independent(taken[:-1, shift], taken[1:, 0], 16) > LEAST_P


def test_equal_numbers_of_different_node_types_share_no_draws() -> None:
    """Also with one fan-out for all relations of a node."""
    degree = 16
    to_a, to_b = ("a", "in", "a"), ("a", "in", "b")
    # All nodes of both types are known after the first hop: a draws from b as well.
    edges = {to_a: regular(degree), to_b: regular(degree), ("b", "in", "a"): regular(1)}
    graph = FusedCSC.of(edges, {"a": NUM_NODES, "b": NUM_NODES})
    sampler = sampler_of(graph, [-1, 1], scope="node", edge_ids=True)
    sample = sampler.sample(seeds_of(torch.arange(NUM_NODES), graph), SampleKey(0, 0, 0))
    assert torch.equal(sample.nodes["b"], sample.nodes["a"])
    of_a, of_b = (drawn(sample.hops[0].edges[name], degree) for name in (to_a, to_b))
    # The other nodes of type a drew their edge from b.
    assert p_independent(of_a[1], of_b[1][of_a[0]], degree) > LEAST_P
