"""The cached rows are those that training's batches read most."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.distributed.context import DistributedContext
from gnntrain.loading import read_counts
from gnntrain.loading.read_counts import DenseReadCounts, SparseReadCounts, most_read_nodes
from tests.examples import examples


@examples(50)
@given(
    batches=st.lists(st.sets(st.integers(0, 4999), max_size=300), max_size=6),
    start=st.integers(0, 4000),
    size=st.integers(0, 999),
    pending=st.sampled_from([0, 100, 10_000]),
)
def test_all_reads_are_counted(
    batches: list[set[int]], start: int, size: int, pending: int
) -> None:
    oracle = Counter(node for batch in batches for node in batch)
    with patch.object(read_counts, "_LEAST_PENDING", pending):
        for counts in (DenseReadCounts(5000), SparseReadCounts(5000)):
            for batch in batches:
                counts.add(np.array(sorted(batch), np.int64))
            for stop in (start + size, start):
                expected = [oracle[node] for node in range(start, stop)]
                assert counts.between(start, stop).tolist() == expected


def test_beyond_the_limit_the_most_read_nodes_stay() -> None:
    often = np.arange(30)
    with patch.object(read_counts, "_LEAST_PENDING", 0):
        counts = SparseReadCounts(limit=100)
        for step in range(20):
            counts.add(np.concatenate([often, 1000 * (step + 1) + np.arange(40)]))
    reads = counts.between(0, 30_000)
    assert (reads > 0).sum() <= 100
    assert (reads[often] == 20).all()


@examples(50)
@given(
    reads=st.dictionaries(st.integers(0, 50), st.integers(1, 4)),
    num_rows=st.integers(0, 60),
    at_once=st.sampled_from([1, 7, 100]),
)
def test_the_most_read_nodes_of_a_machine(
    reads: dict[int, int], num_rows: int, at_once: int
) -> None:
    counts = SparseReadCounts(100)
    for node, number in reads.items():
        for _ in range(number):
            counts.add(np.array([node]))
    with patch.object(read_counts, "_NODES_AT_ONCE", at_once):
        found = most_read_nodes(counts.between, num_rows, 51, DistributedContext())
    expected = sorted(reads, key=lambda node: (-reads[node], node))[:num_rows]
    assert found.tolist() == sorted(expected)
