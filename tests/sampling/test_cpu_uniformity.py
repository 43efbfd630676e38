"""Every in-neighbour is equally likely, and no draw tells anything of another.

All keys are fixed, so that these tests cannot fail by chance; the limit on p is low because there
are many of them.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats

from gnntrain.sampling.base import Int64Array, SampleKey
from tests.sampling.graphs import cpu_sampler

NUM_NODES = 20_000
LEAST_P = 1e-4


def regular(degree: int) -> tuple[Int64Array, Int64Array]:
    """Every node has `degree` in-edges, all from itself (so that a batch does not grow)."""
    indptr = np.arange(NUM_NODES + 1) * degree
    return indptr, np.repeat(np.arange(NUM_NODES), degree)


def positions(
    degree: int, fan_outs: list[int], key: SampleKey, replace: bool = False
) -> list[Int64Array]:
    """For each hop `[NUM_NODES, fan_out]`: which of its in-edges each node took."""
    sampler = cpu_sampler(regular(degree), fan_outs, replace=replace, edge_ids=True)
    subgraph = sampler.sample(torch.arange(NUM_NODES), key=key)
    taken = []
    for hop in subgraph.blocks[::-1]:
        assert hop.edge_ids is not None
        taken.append(
            hop.edge_ids.numpy().reshape(NUM_NODES, -1)
            - hop.indptr.numpy()[:-1, None] // (hop.num_edges // NUM_NODES) * degree
        )
    return taken


def p_uniform(counts: Int64Array) -> float:
    return float(stats.chisquare(counts).pvalue)


@pytest.mark.parametrize("step", range(3))
def test_every_subset_of_a_small_neighbourhood_is_equally_likely(step: int) -> None:
    (taken,) = positions(6, [3], SampleKey(0, 0, step))
    subsets = list(combinations(range(6), 3))
    number = {subset: i for i, subset in enumerate(subsets)}
    drawn = [number[tuple(row)] for row in np.sort(taken, axis=1).tolist()]
    assert p_uniform(np.bincount(drawn, minlength=len(subsets))) > LEAST_P


@pytest.mark.parametrize(("degree", "fan_out"), [(7, 6), (25, 5), (40, 24), (60, 30), (300, 150)])
def test_every_position_is_equally_likely_by_scan_and_by_table(degree: int, fan_out: int) -> None:
    (taken,) = positions(degree, [fan_out], SampleKey(1, 0, 0))
    share = fan_out / degree
    counts = np.bincount(taken.ravel(), minlength=degree)
    # Positions of one node exclude one another, hence not the plain χ² statistic.
    spread = ((counts - NUM_NODES * share) ** 2).sum() / (NUM_NODES * share * (1 - share))
    p = stats.chi2.sf(spread * (degree - 1) / degree, degree - 1)
    assert LEAST_P < p < 1 - LEAST_P


def test_with_replacement_every_position_is_equally_likely() -> None:
    (taken,) = positions(12, [5], SampleKey(2, 0, 0), replace=True)
    assert p_uniform(np.bincount(taken.ravel(), minlength=12)) > LEAST_P


@pytest.mark.parametrize("fan_out", [10, 100])
def test_a_hub_of_100_000_is_sampled_evenly(fan_out: int) -> None:
    """A 16-bit random number modulo the degree would favour the low positions here, twofold."""
    degree = 100_000
    indices = np.zeros(degree, np.int32)
    sampler = cpu_sampler((np.array([0, degree]), indices), [fan_out], edge_ids=True)
    drawn = []
    for step in range(200_000 // fan_out):
        (hop,) = sampler.sample(torch.tensor([0]), key=SampleKey(0, 0, step)).blocks
        assert hop.edge_ids is not None
        drawn.append(hop.edge_ids.numpy())
    taken = np.concatenate(drawn)
    assert p_uniform(np.bincount(taken // 500, minlength=200)) > LEAST_P
    assert p_uniform(np.bincount(taken % 64, minlength=64)[: degree % 64]) > LEAST_P
    low = int((taken < degree // 2).sum())
    assert stats.binomtest(low, len(taken)).pvalue > LEAST_P


def p_independent(left: Int64Array, right: Int64Array, degree: int) -> float:
    together = np.bincount(left * degree + right, minlength=degree**2)
    return p_uniform(together)


def test_draws_of_neighbouring_keys_are_independent() -> None:
    degree = 16
    here, next_hop = (hop[:, 0] for hop in positions(degree, [1, 1], SampleKey(0, 0, 0)))
    others = {
        "hop": next_hop,
        "node": np.roll(here, 1),
        "step": positions(degree, [1], SampleKey(0, 0, 1))[0][:, 0],
        "epoch": positions(degree, [1], SampleKey(0, 1, 0))[0][:, 0],
        "seed": positions(degree, [1], SampleKey(1, 0, 0))[0][:, 0],
    }
    for name, there in others.items():
        assert p_independent(here, there, degree) > LEAST_P, name


def test_successive_draws_of_one_node_are_independent() -> None:
    (taken,) = positions(16, [3], SampleKey(3, 0, 0), replace=True)
    for left, right in combinations(range(3), 2):
        assert p_independent(taken[:, left], taken[:, right], 16) > LEAST_P


def test_neighbouring_nodes_do_not_share_a_stream() -> None:
    (taken,) = positions(16, [4], SampleKey(4, 0, 0), replace=True)
    for shift in (1, 2, 3):
        assert p_independent(taken[:-1, shift], taken[1:, 0], 16) > LEAST_P
