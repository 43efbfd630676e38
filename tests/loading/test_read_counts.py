"""The cached rows are those that training's batches read most."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.distributed.context import DistributedContext
from gnntrain.loading import read_counts
from gnntrain.loading.loader import SeedPlan
from gnntrain.loading.read_counts import (
    DenseReadCounts,
    HashedReadCounts,
    most_read,
    most_read_nodes,
    presampled,
)
from gnntrain.sampling.base import Seeds
from tests.examples import examples
from tests.graphs import random_graph, stored
from tests.loading.graphs import builder, plan_of


def test_batches_are_those_of_the_trainers_first_epochs() -> None:
    plan = SeedPlan(np.arange(5), 2, seed=1)
    drawn = list(presampled(lambda seeds, key: [*seeds.tolist(), key], plan, 3))
    expected = [
        [*plan.rank_batch(plan.order(epoch), step).seeds.tolist(), plan.key(epoch, step)]
        for epoch in (1, 2, 3)  # the trainer counts epochs from 1
        for step in range(plan.num_steps)
    ]
    assert drawn == expected
    assert len({batch[-1] for batch in drawn}) == 9
    empty = SeedPlan(np.arange(3), 5, drop_last=True)
    assert list(presampled(lambda *_: 0, empty, 2)) == []


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
    counts, often = HashedReadCounts(limit=100), np.arange(30)
    for step in range(20):
        counts.add(np.concatenate([often, 1000 * (step + 1) + np.arange(40)]))
    reads = counts.between(0, 30_000)
    assert (reads > 0).sum() <= 100
    assert (reads[often] == 20).all()


def test_the_most_read_are_ascending_and_equal_ones_go_by_number() -> None:
    counts = np.array([5, 1, 7, 5, 5, 0])
    assert most_read(counts, 3).tolist() == [0, 2, 3]
    assert most_read(counts, 0).tolist() == []
    assert most_read(counts, 99).tolist() == [0, 1, 2, 3, 4, 5]


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
    with patch.object(read_counts, "_NODES_AT_ONCE", at_once):
        found = most_read_nodes(counts, num_rows, 51, DistributedContext())
    expected = sorted(reads, key=lambda node: (-reads[node], node))[:num_rows]
    assert found.tolist() == sorted(expected)


def test_drawing_in_advance_finds_what_training_reads(tmp_path: Path) -> None:
    """On a graph where one part is never reached, however large its degrees are."""
    src = np.concatenate([np.random.default_rng(0).integers(0, 30, 200), np.full(500, 45)])
    dst = np.concatenate([np.arange(200) % 30, np.full(500, 46)])
    splits = {"train": np.arange(30), "val": np.arange(30, 40), "test": np.arange(40, 50)}
    store = stored(tmp_path / "store", random_graph(50, 700, src=src, dst=dst, splits=splits))
    sampler = builder(store).sampler((3, 3))
    counts = DenseReadCounts(store.num_nodes)
    for sample in presampled(
        lambda seeds, key: sampler.sample(Seeds({store.target: torch.from_numpy(seeds)}), key),
        plan_of(store),
        2,
    ):
        counts.add(sample.nodes[store.target].numpy())
    assert most_read_nodes(counts, 50, 50).max() < 30
