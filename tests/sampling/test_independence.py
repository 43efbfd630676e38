"""What a node draws depends on the key alone: not on threads, ranks or the rest of the batch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import torch

from gnntrain.data.graph import FusedCSC
from gnntrain.sampling.base import SampleKey
from gnntrain.sampling.block import Sample
from tests.sampling.graphs import (
    assert_equal,
    each_scope,
    in_edges,
    on_each_graph,
    sampler_of,
    seeds_of,
)

KEY = SampleKey(seed=7, epoch=0, step=5)
SEEDS = torch.from_numpy(np.random.default_rng(0).permutation(40))


@on_each_graph
@each_scope
def test_many_threads_at_once_give_what_one_gives(graph: FusedCSC, scope: str) -> None:
    sampler = sampler_of(graph, [8, 30, 3], scope=scope, edge_ids=True)
    rng = np.random.default_rng(0)
    batches = [torch.from_numpy(rng.integers(0, 40, 40)) for _ in range(64)]
    num_threads = 8
    together = Barrier(num_threads)

    def work(thread: int) -> list[Sample]:
        together.wait()
        return [
            sampler.sample(seeds_of(batches[i], graph), SampleKey(0, 0, i))
            for i in range(thread, len(batches), num_threads)
        ]

    with ThreadPoolExecutor(num_threads) as pool:
        drawn = list(pool.map(work, range(num_threads)))
    for i, seeds in enumerate(batches):
        alone = sampler.sample(seeds_of(seeds, graph), SampleKey(0, 0, i))
        assert_equal(drawn[i % num_threads][i // num_threads], alone)


@on_each_graph
@each_scope
@pytest.mark.parametrize("replace", [False, True])
def test_ranks_draw_for_their_share_what_one_rank_draws_for_the_whole(
    graph: FusedCSC, scope: str, replace: bool
) -> None:
    """Neither does the order of the seeds matter."""
    sampler = sampler_of(graph, [6, 4, 3], scope=scope, replace=replace)
    whole = in_edges(sampler.sample(seeds_of(SEEDS, graph), KEY))
    shares = [SEEDS.flip(0), *(SEEDS[rank::ranks] for ranks in (2, 4) for rank in range(ranks))]
    for share in shares:
        for found, expected in zip(
            in_edges(sampler.sample(seeds_of(share, graph), KEY)), whole, strict=True
        ):
            assert found.items() <= expected.items()


@on_each_graph
@each_scope
def test_seed_epoch_step_and_hop_each_change_the_draws(graph: FusedCSC, scope: str) -> None:
    sampler = sampler_of(graph, [3, 3], scope=scope)
    keys = [KEY, SampleKey(8, 0, 5), SampleKey(7, 1, 5), SampleKey(7, 0, 6), SampleKey(5, 0, 7)]
    drawn = []
    for key in keys:
        first, second = in_edges(sampler.sample(seeds_of(SEEDS, graph), key))
        drawn += [str([hop[node] for node in first]) for hop in (first, second)]
    assert len(set(drawn)) == 2 * len(keys)
