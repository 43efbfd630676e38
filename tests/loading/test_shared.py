"""Of a graph that machines share out each reads the whole graph's batches, and asks for each row
once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.data.graph import NODE, NodeType
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.owners import NodeOwners, answers_of
from gnntrain.loading import read_counts
from gnntrain.loading.read_counts import DenseReadCounts, SparseReadCounts, most_read_nodes
from gnntrain.loading.shared import ROWS, ShardedFeatures
from tests.distributed.exchanges import exchanges
from tests.examples import examples
from tests.loading import graphs
from tests.sampling.parts import InProcess
from tests.simulated_device import present, watched


class Sharded:
    """A matrix (the oracle) in ranges, which begin at `starts`; that of this machine (`owner`) is
    cut into matrices at `cuts`. See `ShardedFeatures`."""

    def __init__(
        self,
        matrix: torch.Tensor,
        starts: Sequence[int],
        owner: int | None,
        cuts: Sequence[int] = (),
        cached: Sequence[int] = (),
        device: torch.device = graphs.CPU,
    ) -> None:
        owners = NodeOwners(np.array(starts))
        parts = [[matrix[a:b]] for a, b in pairwise(starts)]
        if owner is not None:
            ends = [starts[owner], *sorted(cuts), starts[owner + 1]]
            parts[owner] = [matrix[a:b].clone() for a, b in pairwise(ends)]
        bits = torch.uint16 if matrix.dtype == torch.bfloat16 else matrix.dtype  # as in a store
        answers = [answers_of([part.view(bits).numpy() for part in own]) for own in parts]
        self.calls = InProcess({ROWS: [*answers]})
        own, first = ([], 0) if owner is None else (parts[owner], starts[owner])
        context, nodes = DistributedContext(device=device), np.array(cached, np.int64)
        self.source = ShardedFeatures(own, first, matrix, owners, self.calls, context)
        self.source.cache_by_table(nodes)
        self.calls.asked.clear()
        self.calls.num_calls = 0


@st.composite
def shardings(draw: st.DrawFn) -> tuple[torch.Tensor, Sharded, set[int], range]:
    """Ranges of unequal length, some of them empty; own rows in several matrices; any cache."""
    num_nodes = draw(st.integers(1, 40))
    dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    torch.manual_seed(draw(st.integers(0, 9)))
    matrix = torch.randn(num_nodes, draw(st.sampled_from([1, 3, 8]))).to(dtype)
    node = st.integers(0, num_nodes)
    starts = [0, *sorted(draw(st.lists(node, max_size=4))), num_nodes]
    owner = draw(st.none() | st.integers(0, len(starts) - 2))
    own = range(0) if owner is None else range(starts[owner], starts[owner + 1])
    cuts = draw(st.lists(st.sampled_from(own), max_size=2)) if own else []
    others = [n for n in range(num_nodes) if n not in own]
    cached = draw(st.sets(st.sampled_from(others))) if others else set()
    order = draw(st.permutations(sorted(cached)))
    return matrix, Sharded(matrix, starts, owner, cuts, order), cached, own


@examples(100)
@given(given=shardings(), data=st.data())
def test_rows_are_those_of_the_whole_matrix_and_hits_those_in_the_cache(
    given: tuple[torch.Tensor, Sharded, set[int], range], data: st.DataObject
) -> None:
    matrix, sharded, cached, own = given
    nodes = data.draw(st.lists(st.integers(0, len(matrix) - 1), unique=True))
    rows = sharded.source.select(torch.tensor(nodes, dtype=torch.int64))
    assert torch.equal(rows.read(0, len(nodes), matrix.dtype), matrix[nodes])
    assert torch.equal(rows.whole(), matrix[nodes].float())
    others = [node for node in nodes if node not in own]
    hits = [node for node in others if node in cached]
    assert sharded.source.take_reads() == (len(hits), len(others))
    assert sharded.source.take_reads() == (0, 0)
    # One call, of each remote row once; its number takes four bytes.
    assert sharded.calls.num_calls == (len(others) > len(hits))
    asked = sum(num_bytes for *_, num_bytes, _ in sharded.calls.asked)
    assert asked == 4 * (len(others) - len(hits))


def test_rows_of_other_machines_are_copied_to_a_gpu_without_a_wait() -> None:
    matrix = torch.randn(10, 4).bfloat16()
    nodes = torch.tensor([3, 9, 0, 5])
    with present(), watched() as traffic:
        device = torch.device("sim", 0)
        rows = Sharded(matrix, [0, 4, 10], 1, cached=[0], device=device).source.select(nodes).rows
        assert torch.equal(rows.cpu(), matrix[nodes])
    assert [copy.is_blocking for copy in traffic.copies] == [False, True]


@pytest.mark.parametrize(
    ("num_machines", "kind", "features", "num_rows"),
    [
        (2, "one type", {}, {NODE: 6}),
        (3, "one type", {"cache_bytes": 5 * 2 * 7 + 3}, {NODE: 7}),
        (3, "one type", {"cache_ratio": 0.0}, {NODE: 0}),
        (2, "typed", {}, {"paper": 4, "author": 6}),
        # Types share the bytes by their size: 40 rows of 5 numbers, and 60 of 3.
        (2, "typed", {"cache_bytes": 190}, {"paper": 10, "author": 15}),
    ],
    ids=str,
)
def test_as_many_rows_are_cached_as_the_keys_say(
    tmp_path: Path,
    num_machines: int,
    kind: str,
    features: dict[str, Any],
    num_rows: dict[NodeType, int],
) -> None:
    graph = graphs.graph_of(kind, tmp_path / "store", "float16")
    machines = range(num_machines)
    with exchanges(machines, [[machine] for machine in machines]) as ranks:
        made = [
            graphs.builder(
                graph,
                options={"exchange": exchange},
                features=features,
                distributed={"graph": "sharded"},
            )
            for exchange in ranks
        ]
        for of_rank in made:
            of_rank.training_loader()
            for name, source in of_rank.features.items():
                assert isinstance(source, ShardedFeatures)
                assert source.cached_rows is not None
                assert len(source.cached_rows) == num_rows[name]


# The cached rows are those that training's batches read most


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
