"""The soak itself, for a few seconds and with faults that are not left to chance."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from gnntrain.training.checkpoint import load_checkpoint, save_checkpoint
from scripts.soak.disturbed import Soak, differences
from scripts.soak.faults import damage_last, kill_parent
from scripts.soak.growth import relative_growth

KEYS = [
    *("dataset.num_nodes=200", "model.hidden_channels=8", "trainer.batch_size=4"),
    *("trainer.epochs=30", "trainer.gpus=0", "distributed.threads=1", "logger=[csv]"),
    "checkpoint.every_steps=1",
]


@pytest.mark.slow
def test_a_run_that_is_killed_and_damaged_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    told: list[str] = []
    keys = [*KEYS, f"dataset.store_dir={tmp_path / 'stores'}"]
    (tmp_path / "runs").mkdir()
    soak = Soak(tmp_path / "runs", keys, seed=3, tell=told.append)
    soak.prepare()
    undisturbed = tmp_path / "runs" / "undisturbed"
    soak.disturb_one(iter([kill_parent, damage_last, kill_parent]))
    report = soak.report.to_dict()
    assert report["clean"], report
    assert json.loads(json.dumps(report)) == report
    assert (report["runs"], report["equal"], report["states_lost"]) == (1, 1, 0)
    assert sum(report["faults"].values()) >= 1, told
    assert sum(report["faults"].values()) == sum(report["survived"].values())

    # What the soak rests on: it sees a difference of one bit, and of one line.
    other = tmp_path / "other"
    shutil.copytree(undisturbed, other)
    assert differences(other, undisturbed) == []
    state = load_checkpoint(other / "checkpoints" / "last.pt")
    weight = next(iter(state["model"].values())).view(-1)
    weight[0] = torch.nextafter(weight[0], torch.tensor(2.0))
    save_checkpoint(other / "checkpoints" / "last.pt", state)
    lines = (other / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    last["val/accuracy"] += 1e-9
    (other / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]))
    assert differences(other, undisturbed) == ["metrics.jsonl", "last.pt: model"]


def test_growth_is_told_from_noise() -> None:
    dice = np.random.default_rng(0)
    noise = 700e6 + 1e6 * dice.standard_normal(2000)
    noise[::97] += 50e6  # some epochs write a checkpoint
    assert abs(relative_growth(noise)) < 0.001
    leak = noise + np.linspace(0, 14e6, 2000)
    assert relative_growth(leak) == pytest.approx(0.02, rel=0.1)
