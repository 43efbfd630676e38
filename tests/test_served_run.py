"""Runs whose last ranks hold the graph, draw and gather; for their numbers see
`test_same_numbers.py`."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import psutil
import pytest

from gnntrain.app import compose_config
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.partitioning.build import write_parts
from gnntrain.distributed.context import DistributedContext
from gnntrain.run import prepare_store
from gnntrain.run_store import rank_graph
from scripts.soak.faults import rank_processes
from tests.distributed.exchanges import exchanges
from tests.test_resume import (
    assert_same_run,
    begin,
    cache,
    go_on,
    rows,
    start,
    wait_for_epochs,
)

__all__ = ["cache"]  # a fixture

KEYS = [
    "dataset.num_nodes=500",
    "trainer.epochs=2",
    "trainer.batch_size=32",
    "trainer.gpus=0",
    "distributed.threads=1",
    "distributed.timeout=60",
    "model.hidden_channels=8",
    "logger=[jsonl]",
]
SERVER = ["distributed.servers=1"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_ranks_that_train_open_no_part(tmp_path: Path) -> None:
    store = prepare_store(compose_config(KEYS).config.dataset).store
    part_of = (np.arange(store.num_nodes) % 4).astype(np.uint8)
    folder = write_parts(tmp_path / "parts", store, part_of, 4, "random").path
    keys = ["distributed.graph=partitioned", f"distributed.parts={folder}"]
    config = compose_config([*KEYS, *keys]).config
    held = []
    with exchanges([0, 1, 2], [[1], [2]]) as ranks:
        for exchange in ranks:
            graph = rank_graph(config, folder, DistributedContext(), exchange)
            assert isinstance(graph, PartitionedGraph)
            held.append([*graph.parts])
    assert held == [[], [0, 1], [2, 3]]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [None, 2], ids=["interrupted", "killed"])
def test_a_served_run_that_was_broken_off_goes_on_bit_for_bit(
    cache: Path, tmp_path: Path, killed: int | None
) -> None:
    keys = [*SERVER, "distributed.num_processes=3", "trainer.epochs=15", "trainer.batch_size=8"]
    job = start(tmp_path / "run", cache, *keys)
    wait_for_epochs(tmp_path / "run", job, 3)
    if killed is None:
        job.send_signal(signal.SIGTERM)
    else:
        ranks = rank_processes(psutil.Process(job.pid))
        sorted(ranks, key=lambda rank: rank.pid)[killed].kill()
    _, errors = job.communicate(timeout=60)
    assert job.returncode == (143 if killed is None else 138), errors
    assert killed is None or f"Rank {killed}" in errors
    assert 3 <= len(rows(tmp_path / "run")) < 15
    go_on(tmp_path / "run")
    begin(tmp_path / "whole", cache, *keys)
    assert_same_run(tmp_path / "run", tmp_path / "whole")
