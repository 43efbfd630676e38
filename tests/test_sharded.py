"""A run with feature rows in ranges is read elsewhere; for its numbers see
`test_same_numbers.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnntrain.app import compose_config
from gnntrain.config import from_dict
from gnntrain.inference import load_best
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.run import train

KEYS = [
    "dataset.num_nodes=500",
    "trainer.epochs=1",
    "trainer.gpus=0",
    "distributed.graph=sharded",
    "evaluation=sampled",
    "model.hidden_channels=8",
]


@pytest.mark.parametrize("placement", ["sharded", "wholegraph"])
def test_one_process_evaluates_what_several_gpus_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placement: str
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    train(compose_config([*KEYS, f"run.dir={tmp_path / 'run'}"]))
    keys = RunDirectory.open(tmp_path / "run").config()
    keys["distributed"]["graph"] = "replicated"
    keys["features"]["placement"], keys["sampler"]["backend"] = placement, "triton"
    best = load_best(tmp_path / "run", config=from_dict(keys))
    assert set(best.evaluator().evaluate(best.model)) == {
        "train",
        "val",
        "test",
    }
