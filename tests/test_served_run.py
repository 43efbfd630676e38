"""Runs whose last ranks hold the graph, draw and gather: the numbers of a run without them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gnntrain.app import compose_config
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.run import train
from gnntrain.training.checkpoint import load_checkpoint

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
COMPARED = ("epoch", "train_loss", "train/", "val/", "test/")

Numbers = tuple[list[dict[str, Any]], dict[str, torch.Tensor]]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def on_machines(monkeypatch: pytest.MonkeyPatch, *machines: int) -> None:
    """Have the ranks of the next runs believe that they are on several machines."""
    plan_of = LaunchPlan.of.__func__  # type: ignore[attr-defined]

    def plan(*arguments: Any) -> LaunchPlan:
        return replace(plan_of(LaunchPlan, *arguments), machines=machines)

    monkeypatch.setattr(LaunchPlan, "of", plan)


def trained(path: Path, ranks: int, *keys: str) -> Numbers:
    """The numbers of each epoch of a run, and its weights."""
    ranks_key = f"distributed.num_processes={ranks}"
    train(compose_config([*KEYS, ranks_key, *keys, f"run.dir={path}"]).config)
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
