"""Runs whose last ranks hold the graph, draw and gather: the numbers of a run without them."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from gnntrain.app import compose_config
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.partitioning.writing import write_parts
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.run import prepare_store, train
from gnntrain.run_graph import rank_graph
from gnntrain.training.checkpoint import load_checkpoint
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
COMPARED = ("epoch", "train_loss", "train/", "val/", "test/")

Numbers = tuple[list[dict[str, Any]], dict[str, torch.Tensor]]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def on_machines(monkeypatch: pytest.MonkeyPatch, *machines: int) -> None:
    """Have the ranks of the next runs believe that they are on several machines."""
    plan_of = LaunchPlan.of

    def plan(*arguments: Any) -> LaunchPlan:
        return replace(plan_of(*arguments), machines=machines)

    monkeypatch.setattr(LaunchPlan, "of", plan)


def trained(path: Path, ranks: int, *keys: str) -> Numbers:
    """The numbers of each epoch of a run, and its weights."""
    ranks_key = f"distributed.num_processes={ranks}"
    train(compose_config([*KEYS, ranks_key, *keys, f"run.dir={path}"]).config)
    return numbers_of(path)


def numbers_of(path: Path) -> Numbers:
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    numbers = [{k: v for k, v in line.items() if k.startswith(COMPARED)} for line in lines]
    return numbers, load_checkpoint(path / "checkpoints" / "last.pt")["model"]


def assert_equal(found: Numbers, wanted: Numbers) -> None:
    assert found[0] == wanted[0]
    assert all(torch.equal(found[1][name], weight) for name, weight in wanted[1].items())


@pytest.mark.parametrize(
    "keys",
    [["model=sage"], ["model=gcn", "features.cache_bytes=0"], ["model=gat"]],
    ids=str,
)
def test_served_ranks_compute_the_numbers_of_ranks_that_hold_the_graph(
    tmp_path: Path, keys: list[str]
) -> None:
    alone = trained(tmp_path / "alone", 2, *keys)
    assert all("val/accuracy" in numbers for numbers in alone[0])
    assert_equal(trained(tmp_path / "served", 4, "distributed.servers=2", *keys), alone)


def test_trainers_and_servers_may_be_on_several_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = trained(tmp_path / "alone", 2)
    on_machines(monkeypatch, 0, 1, 1, 2)
    keys = ["distributed.servers=2", "distributed.graph=sharded", "evaluation.ranks=0"]
    assert_equal(trained(tmp_path / "served", 4, *keys), alone)
    for line in (tmp_path / "served" / "metrics.jsonl").read_text().splitlines():
        times = json.loads(line)["time"]
        assert min(times[f"background/server_{name}"] for name in ("draw", "rows")) > 0


@pytest.mark.parametrize("keys", [[], ["evaluation=sampled"]], ids=str)
def test_servers_may_hold_the_parts_of_a_graph(tmp_path: Path, keys: list[str]) -> None:
    alone = trained(tmp_path / "alone", 1, *keys)
    store = prepare_store(compose_config(KEYS).config.dataset).store
    part_of = np.random.default_rng(0).integers(0, 4, store.num_nodes).astype(np.uint8)
    write_parts(tmp_path / "parts", store, part_of, 4, "random")
    parts = ["distributed.graph=partitioned", f"distributed.parts={tmp_path / 'parts'}"]
    found = trained(tmp_path / "served", 3, "distributed.servers=2", *parts, *keys)
    for epoch, wanted in zip(found[0], alone[0], strict=True):
        assert epoch == pytest.approx(wanted, rel=1e-5)
    assert all(torch.equal(found[1][name], weight) for name, weight in alone[1].items())


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
            held.append([part.number for part in graph.parts.opened])
    assert held == [[], [0, 1], [2, 3]]


def test_a_run_that_began_without_servers_goes_on_with_them(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", 2, "trainer.epochs=4")
    trained(tmp_path / "run", 2)
    go_on(tmp_path / "run", "trainer.epochs=4", "distributed.num_processes=3", *SERVER)
    assert_equal(numbers_of(tmp_path / "run"), whole)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [None, 2], ids=["interrupted", "killed"])
def test_a_served_run_that_was_broken_off_goes_on_bit_for_bit(
    cache: Path, tmp_path: Path, killed: int | None
) -> None:
    # Of a broken-off epoch the hit rate is that of its second part: without a cache it is 0.
    keys = [*SERVER, "distributed.num_processes=3", "features.cache_bytes=0"]
    keys += ["trainer.epochs=15", "trainer.batch_size=8"]
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
