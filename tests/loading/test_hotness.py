"""The hot rows are those that training's batches read most."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.distributed.context import DistributedContext
from gnntrain.loading import hotness
from gnntrain.loading.hotness import (
    DenseReadCounts,
    HashedReadCounts,
    dry_epochs,
    hottest,
    hottest_on_machine,
    presampled,
)
from gnntrain.loading.loader import SeedPlan
from gnntrain.sampling.base import SampleKey
from tests.examples import examples
from tests.graphs import random_graph, stored
from tests.sampling.graphs import cpu_sampler


def test_reads_are_counted_over_all_steps_of_all_epochs() -> None:
    drawn: list[tuple[np.ndarray[tuple[int], np.dtype[np.int64]], SampleKey]] = []

    def draw(seeds: np.ndarray[tuple[int], np.dtype[np.int64]], key: SampleKey) -> torch.Tensor:
        drawn.append((seeds, key))
        return torch.tensor([*seeds.tolist(), 9])

    plan = SeedPlan(np.arange(5), 2, seed=1)
    counts = presampled(draw, plan, 10, 3)
    assert counts.tolist() == [3] * 5 + [0] * 4 + [9]  # three steps in each of three epochs
    assert len({key for _, key in drawn}) == 9
    assert not {key.seed for _, key in drawn} & {plan.seed}  # training draws other batches


def test_a_dry_epoch_draws_the_batches_of_the_trainers_first() -> None:
    plan = SeedPlan(np.arange(5), 2, seed=1)
    drawn = list(dry_epochs(lambda seeds, key: torch.tensor([*seeds, key.epoch]), plan, 1))
    order = plan.order(1)  # the trainer counts epochs from 1
    steps = [plan.rank_batch(order, step).seeds.tolist() for step in range(plan.num_steps)]
    assert [nodes.tolist() for nodes in drawn] == [[*seeds, 1] for seeds in steps]


def test_without_a_step_nothing_is_hot() -> None:
    plan = SeedPlan(np.arange(3), 5, drop_last=True)
    counts = presampled(lambda *_: torch.empty(0), plan, 4, 2)
    assert counts.tolist() == [0, 0, 0, 0]


def test_the_hottest_are_ascending_and_equal_ones_go_by_number() -> None:
    counts = torch.tensor([5, 1, 7, 5, 5, 0])
    assert hottest(counts, 3).tolist() == [0, 2, 3]
    assert hottest(counts, 0).tolist() == []
    assert hottest(counts, 99).tolist() == [0, 1, 2, 3, 4, 5]


@examples(50)
@given(
    batches=st.lists(st.sets(st.integers(0, 4999), max_size=300), max_size=6),
    start=st.integers(0, 4000),
    size=st.integers(0, 999),
)
def test_all_reads_are_counted(batches: list[set[int]], start: int, size: int) -> None:
    oracle = Counter(node for batch in batches for node in batch)
    for counts in (DenseReadCounts(5000), HashedReadCounts(5000)):
        for batch in batches:
            counts.add(np.array(sorted(batch), np.int64))
        for stop in (start + size, start):
            expected = [oracle[node] for node in range(start, stop)]
            assert counts.between(start, stop).tolist() == expected


def test_more_nodes_than_are_expected_are_counted() -> None:
    counts, nodes = HashedReadCounts(10**6), np.arange(0, 10**7, 100)
    for _ in range(2):
        counts.add(nodes)
    reads = counts.between(0, 10**7)
    assert (reads[nodes] == 2).all()
    assert reads.sum() == 2 * len(nodes)


def test_nothing_is_forgotten_up_to_the_limit() -> None:
    counts, nodes = HashedReadCounts(limit=100), np.arange(0, 1000, 10)
    for _ in range(3):
        counts.add(nodes)
    assert (counts.between(0, 1000)[nodes] == 3).all()


def test_beyond_the_limit_the_most_read_nodes_stay() -> None:
    counts, hot = HashedReadCounts(limit=100), np.arange(30)
    for step in range(20):
        counts.add(np.concatenate([hot, 1000 * (step + 1) + np.arange(40)]))
    reads = counts.between(0, 30_000)
    assert (reads > 0).sum() <= 100
    assert (reads[hot] == 20).all()


@examples(50)
@given(
    reads=st.dictionaries(st.integers(0, 50), st.integers(1, 4)),
    num_rows=st.integers(0, 60),
    at_once=st.sampled_from([1, 7, 100]),
)
def test_the_most_read_nodes_of_a_machine(
    reads: dict[int, int], num_rows: int, at_once: int
) -> None:
    counts = HashedReadCounts(100)
    for node, number in reads.items():
        for _ in range(number):
            counts.add(np.array([node]))
    with patch.object(hotness, "_NODES_AT_ONCE", at_once):
        hot = hottest_on_machine(counts, num_rows, 51, DistributedContext())
    expected = sorted(reads, key=lambda node: (-reads[node], node))[:num_rows]
    assert hot.tolist() == sorted(expected)


def test_drawing_in_advance_finds_what_training_reads(tmp_path: Path) -> None:
    """On a graph where one part is never reached, however large its degrees are."""
    src = np.concatenate([np.random.default_rng(0).integers(0, 30, 200), np.full(500, 45)])
    dst = np.concatenate([np.arange(200) % 30, np.full(500, 46)])
    data = random_graph(
        50,
        700,
        src=src,
        dst=dst,
        splits={"train": np.arange(30), "val": np.arange(30, 40), "test": np.arange(40, 50)},
    )
    store = stored(tmp_path / "store", data)
    sampler = cpu_sampler((store.indptr, store.indices), (3, 3))  # type: ignore[arg-type]
    counts = presampled(
        lambda seeds, key: sampler.sample(torch.from_numpy(seeds), key).nodes,
        SeedPlan(store.split("train"), 8),
        store.num_nodes,
        2,
    )
    assert int(counts[30:].sum()) == 0
