"""What a node draws depends on the key alone: not on threads, ranks or the rest of the batch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import torch

from gnntrain.sampling.base import SampledSubgraph, SampleKey
from tests.sampling.graphs import cpu_sampler, global_in_edges, random_csc

KEY = SampleKey(seed=7, epoch=0, step=5)


def test_many_threads_at_once_give_what_one_gives() -> None:
    sampler = cpu_sampler(random_csc(2000, 60_000), [8, 30, 3], edge_ids=True)
    rng = np.random.default_rng(0)
    batches = [torch.from_numpy(rng.integers(0, 2000, 40)) for _ in range(64)]
    num_threads = 8
    together = Barrier(num_threads)

    def work(thread: int) -> list[SampledSubgraph]:
        together.wait()
        return [
            sampler.sample(batches[i], key=SampleKey(0, 0, i))
            for i in range(thread, len(batches), num_threads)
        ]

    with ThreadPoolExecutor(num_threads) as pool:
        drawn = list(pool.map(work, range(num_threads)))
    for i, seeds in enumerate(batches):
        alone = sampler.sample(seeds, key=SampleKey(0, 0, i))
        threaded = drawn[i % num_threads][i // num_threads]
        np.testing.assert_array_equal(threaded.nodes, alone.nodes)
        assert global_in_edges(threaded) == global_in_edges(alone)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("replace", [False, True])
def test_ranks_draw_for_their_share_what_one_rank_draws_for_the_whole(
    num_ranks: int, replace: bool
) -> None:
    sampler = cpu_sampler(random_csc(500, 9000), [6, 4, 3], replace=replace)
    seeds = torch.from_numpy(np.random.default_rng(0).permutation(500)[:100])
    whole = global_in_edges(sampler.sample(seeds, key=KEY))
    for rank in range(num_ranks):
        share = global_in_edges(sampler.sample(seeds[rank::num_ranks], key=KEY))
        for hop, in_edges in enumerate(share):
            for node, sources in in_edges.items():
                assert whole[hop][node] == sources, (hop, node)


def test_the_order_of_the_seeds_does_not_matter() -> None:
    sampler = cpu_sampler(random_csc(500, 9000), [6, 4])
    seeds = torch.arange(60)
    forward = global_in_edges(sampler.sample(seeds, key=KEY))
    assert global_in_edges(sampler.sample(seeds.flip(0), key=KEY)) == forward


def test_seed_epoch_step_and_hop_each_change_the_draws() -> None:
    sampler = cpu_sampler(random_csc(500, 20_000), [3, 3])
    seeds = torch.arange(100)
    keys = [KEY, SampleKey(8, 0, 5), SampleKey(7, 1, 5), SampleKey(7, 0, 6), SampleKey(5, 0, 7)]
    drawn = []
    for key in keys:
        hops = global_in_edges(sampler.sample(seeds, key=key))
        drawn += [str([hop[node] for node in seeds.tolist()]) for hop in hops]
    assert len(set(drawn)) == 2 * len(keys)
