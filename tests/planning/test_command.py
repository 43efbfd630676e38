"""`gnntrain plan`: exit codes, JSON, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gnntrain.cli import main
from tests.processes import started, wait_until


def test_the_command_writes_json_and_leaves_nothing_behind(
    small: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["plan", *small, "--json", "plan.json"]) == 0
    assert "peak_rss_bytes" in capsys.readouterr().out
    told: dict[str, Any] = json.loads(Path("plan.json").read_text())
    assert told["num_nodes"] == 400
    assert told["memory"]["peak_rss"] > told["memory"]["needed"] > 0
    assert told["times"]["step_range"][0] <= told["times"]["step"]
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_behind(small: list[str], tmp_path: Path) -> None:
    slow = ["model.hidden_channels=4096", "trainer.batch_size=100"]
    process = started("-m", "gnntrain", "plan", *small, *slow, start_new_session=True)
    wait_until(lambda: list(tmp_path.glob(".gnntrain-plan-*")))
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_told_as_for_training(
    small: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *small, "modle=sage", "trainer.epochs=ten"]) == 2
    assert "2 mistakes in the configuration" in capsys.readouterr().err
    assert main(["plan", *small, "trainer.drop_last=true", "trainer.batch_size=1000"]) == 2
    assert main(["plan", *small, "trainer.gpus=4"]) == 2
    assert "trainer.gpus" in capsys.readouterr().err


def test_of_a_large_graph_that_is_not_prepared_its_published_size_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ["dataset=ogbn-papers100M", f"dataset.store_dir={tmp_path}/none/yet"]
    assert main(["plan", *keys]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert "111,059,956 nodes" in err
    assert "gnntrain prepare" in err or "dataset.store_dir" in err
    assert list(tmp_path.iterdir()) == []
