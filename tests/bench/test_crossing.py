"""What ranks ask of other machines, against a count node by node and edge by edge."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from gnntrain.data.graph import EDGE, NODE
from scripts.bench.crossing import Batches, Traffic, cached_nodes, traffic
from tests.graphs import random_graph, stored

Flags = npt.NDArray[np.bool_]

WORLD_SIZE = 3
STEPS = range(1, 4)


@pytest.fixture
def batches(tmp_path: Path) -> Batches:
    return Batches(stored(tmp_path / "store", random_graph(200, 1200)), [3, 2], 8, WORLD_SIZE)


@pytest.fixture
def is_remote(batches: Batches) -> Flags:
    owner = np.random.default_rng(0).integers(0, WORLD_SIZE, batches.graph.num_nodes)
    return np.not_equal(owner, 1)


def test_the_cache_has_the_remote_nodes_that_most_batches_of_the_epoch_read(
    batches: Batches, is_remote: Flags
) -> None:
    ranks = [0, 2]
    reads = Counter(
        node
        for rank in ranks
        for batch in batches.of(rank, range(batches.num_steps))
        for node in batch.nodes[NODE].tolist()
        if is_remote[node]
    )
    cached = np.flatnonzero(cached_nodes(batches, ranks, is_remote, 20))
    assert len(cached) == 20
    assert is_remote[cached].all()
    rest = set(reads) - set(cached.tolist())
    assert min(reads[node] for node in cached.tolist()) >= max(reads[node] for node in rest)
    # A node that no batch reads is not worth a row.
    assert cached_nodes(batches, ranks, is_remote, 200).sum() == len(reads)


@pytest.mark.parametrize("edges_are_local", [False, True])
def test_traffic_is_what_the_other_machines_nodes_need(
    batches: Batches,
    is_remote: Flags,
    edges_are_local: bool,
) -> None:
    is_cached = cached_nodes(batches, [1], is_remote, 20)
    ids = edges = rows = remote = nodes = 0
    for batch in batches.of(1, STEPS):
        numbers = batch.nodes[NODE].tolist()
        for hop in () if edges_are_local else batch.hops:
            block = hop.edges[EDGE]
            for destination, (begin, end) in enumerate(
                zip(block.indptr[:-1].tolist(), block.indptr[1:].tolist(), strict=True)
            ):
                if is_remote[numbers[destination]]:
                    ids += 1
                    edges += end - begin
        for node in numbers:
            nodes += 1
            remote += int(is_remote[node])
            rows += int(is_remote[node] and not is_cached[node])
    assert 0 < rows < remote < nodes
    found = traffic(batches, 1, STEPS, is_remote, is_cached, edges_are_local=edges_are_local)
    assert found == Traffic(ids, edges, rows, remote, nodes)


def test_bytes_are_ids_counts_sources_and_rows() -> None:
    asked = Traffic(ids=10, edges=30, rows=5, remote=20, nodes=50)
    assert asked.bytes(400) == 4 * (10 + 5) + (10 + 4 * 30) + 5 * 400
    assert (asked.over(5).rows, asked.hit_rate()) == (1, 0.75)
    assert Traffic().hit_rate() == 1
