"""Training with feature rows in ranges of machines gives the numbers of one machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gnntrain.app import compose_config
from gnntrain.config import from_dict
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.inference import load_best
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.run import train

KEYS = [
    "dataset.num_nodes=500",
    "trainer.epochs=3",
    "trainer.batch_size=32",
    "trainer.gpus=0",
    "distributed.num_processes=3",
    "distributed.threads=1",
    "distributed.graph=sharded",
    "model.hidden_channels=8",
    "logger=[jsonl]",
]
COMPARED = ("epoch", "train_loss", "train/", "val/", "test/")


def trained(path: Path, *keys: str) -> tuple[list[dict[str, Any]], list[float | None]]:
    """The numbers of each epoch of a run, and its hit rates."""
    train(compose_config([*KEYS, *keys, f"run.dir={path}"]).config)
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    numbers = [{k: v for k, v in line.items() if k.startswith(COMPARED)} for line in lines]
    return numbers, [line.get("cache_hit_rate") for line in lines]


@pytest.mark.parametrize("model", ["sage", "gat"])
def test_machines_that_share_out_the_rows_give_the_numbers_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    keys = [f"model={model}"]
    alone, rates = trained(tmp_path / "alone", *keys)
    assert rates == [None] * 3  # on one machine all rows are its own
    assert all("val/accuracy" in numbers for numbers in alone)
    # The first rank has a machine of its own, the other two share one.
    plan = LaunchPlan(3, "cpu", 1, 60.0, (0, 1, 1))
    monkeypatch.setattr(LaunchPlan, "of", classmethod(lambda *_: plan))
    cached, rates = trained(tmp_path / "cached", *keys)
    assert cached == alone
    assert all(rate is not None and 0 < rate < 1 for rate in rates)
    fetched, rates = trained(tmp_path / "fetched", "features.cache_bytes=0", *keys)
    assert fetched == alone
    assert rates == [0.0] * 3


@pytest.mark.parametrize("placement", ["sharded", "wholegraph"])
def test_one_process_evaluates_what_several_gpus_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placement: str
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    trained(tmp_path / "run", "distributed.num_processes=1", "evaluation=sampled")
    keys = RunDirectory.open(tmp_path / "run").config()
    keys["distributed"]["graph"] = "replicated"
    keys["features"]["placement"], keys["sampler"]["backend"] = placement, "triton"
    assert set(load_best(tmp_path / "run", config=from_dict(keys)).evaluate()[0]) == {
        "train",
        "val",
        "test",
    }


def test_sampled_evaluation_reads_rows_of_other_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    keys = ["evaluation=sampled", "features.cache_ratio=0.1"]
    alone, _ = trained(tmp_path / "alone", *keys)
    plan = LaunchPlan(3, "cpu", 1, 60.0, (0, 1, 2))
    monkeypatch.setattr(LaunchPlan, "of", classmethod(lambda *_: plan))
    assert trained(tmp_path / "sampled", *keys)[0] == alone
