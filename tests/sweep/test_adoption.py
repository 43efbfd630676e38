"""The folders that other sweepers leave can be gone on with, and reported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own

from gnntrain.config import Config
from gnntrain.reporting.run_lookup import run_directories
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.sweep.adoption import find_sweep
from gnntrain.sweep.folder import SweepFolder

BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


def write_run(path: Path, overrides: Sequence[str], status: str | None) -> None:
    RunDirectory.create(
        directory=path,
        name=None,
        default_name="x",
        config=Config().to_dict(),
        overrides=overrides,
        seed=0,
    )
    if status is not None:
        found = {"accuracy": 0.5}
        summary = {"status": status, "metric": "accuracy", "val": found, "test": found}
        (path / "summary.json").write_text(json.dumps(summary))


def write_multirun(path: Path, task: Sequence[str], hydras: Sequence[str] = ()) -> None:
    sources = [
        {"path": "hydra.conf", "schema": "pkg", "provider": "hydra"},
        {"path": str(path / "mine"), "schema": "file", "provider": "command-line"},
    ]
    hydra: dict[str, Any] = {
        "sweeper": {"_target_": BASIC},
        "overrides": {"hydra": [*hydras], "task": [*task]},
        "runtime": {"config_sources": sources},
        "job": {"config_name": "config"},
    }
    (path / "multirun.yaml").write_text(yaml.safe_dump({"hydra": hydra}))


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "sweep"
    path.mkdir()
    return path


def test_trials_of_a_grid_that_never_began_are_known(sweep: Path) -> None:
    hydras = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra/sweeper=basic"]
    write_multirun(sweep, ["trainer.epochs=2", "model=sage,gcn", "trainer.seed=1,2"], hydras)
    write_run(sweep / "0", ["trainer.epochs=2", "model=sage", "trainer.seed=1"], "completed")
    write_run(sweep / "2", ["trainer.epochs=2", "model=gcn", "trainer.seed=1"], None)
    folder = find_sweep("sweep")
    assert folder is not None
    trials = folder.trials()
    assert [trial.status for trial in trials] == ["completed", "waiting", "interrupted", "waiting"]
    assert [Path(trial.run_dir).name for trial in trials] == ["0", "1", "2", "3"]
    assert trials[3].overrides == ["trainer.epochs=2", "model=gcn", "trainer.seed=2"]
    assert trials[0].val == 0.5
    command = folder.command()
    assert command.hydra == hydras[:2]
    assert list(command.sources.config_dirs) == [sweep / "mine"]


def test_of_other_sweepers_the_runs_are_the_trials(sweep: Path) -> None:
    for number, lr in enumerate((0.1, 0.2)):
        status = "failed" if number else "completed"
        write_run(sweep / "deep" / str(number), [f"trainer.lr={lr}", "trainer.epochs=2"], status)
    folder = find_sweep(sweep)
    assert folder is not None
    trials = folder.trials()
    assert [trial.status for trial in trials] == ["completed", "failed"]
    assert [trial.varied for trial in trials] == [["trainer.lr=0.1"], ["trainer.lr=0.2"]]
    assert find_sweep(sweep) == folder  # and from now on it is one of ours


def test_neither_a_run_nor_the_folder_of_all_runs_is_a_sweep(sweep: Path) -> None:
    write_run(sweep / "0", [], "completed")
    assert find_sweep(sweep / "0") is None
    sweep.rename("runs")
    assert find_sweep("runs") is None
    assert find_sweep("nowhere") is None
    assert not Path("runs/sweep.json").exists()


def test_runs_are_found_below_a_folder_in_the_order_of_their_numbers(sweep: Path) -> None:
    for name in ("10", "9", "a/b"):
        write_run(sweep / name, [], None)
    (sweep / "latest").symlink_to("9")
    (sweep / ".hydra").mkdir()
    (sweep / ".hydra" / "config.yaml").touch()
    assert run_directories(sweep) == [sweep / "9", sweep / "10", sweep / "a" / "b"]


def gnntrain(*arguments: str) -> int:
    command = [sys.executable, "-m", "gnntrain", *arguments]
    return subprocess.run(command, capture_output=True, check=False).returncode


@pytest.mark.slow
def test_a_killed_grid_of_hydras_own_sweeper_goes_on_exactly(sweep: Path) -> None:
    grid = ["-m", "dataset.num_nodes=300", "trainer.gpus=0", "trainer.lr=0.01,0.02"]
    basic = ["hydra/sweeper=basic", "hydra.sweep.dir=sweep", "trainer.epochs=60"]
    command = [sys.executable, "-m", "gnntrain", *grid, *basic]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, process_group=0)
    while not (sweep / "0" / "checkpoints" / "last.pt").is_file():
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert gnntrain("resume", "sweep") == 0
    trials = SweepFolder(sweep).trials()
    assert [trial.status for trial in trials] == ["completed"] * 2
    assert [trial.epochs for trial in trials] == [60, 60]
    assert gnntrain("report", "sweep", "--format", "csv") == 0
    assert len((sweep / "report.csv").read_text().splitlines()) == 3


@pytest.mark.slow
def test_a_search_by_another_sweeper_goes_on_where_a_run_failed(sweep: Path) -> None:
    reason = "hydra-optuna-sweeper wants optuna < 3: CI installs it by itself, without dependencies"
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason=reason)
    search = ["-m", "dataset.num_nodes=300", "trainer.gpus=0", "trainer.epochs=2"]
    keys = ["n_trials=2", "n_jobs=1", "direction=maximize"]
    search += ["hydra/sweeper=optuna", *(f"hydra.sweeper.{key}" for key in keys)]
    search += ["trainer.lr=interval(0.01,0.1)", "hydra.sweep.dir=sweep"]
    assert gnntrain(*search) == 0
    assert (sweep / "optimization_results.yaml").is_file()
    (sweep / "1" / "summary.json").unlink()
    assert gnntrain("resume", "sweep") == 0
    assert [trial.status for trial in SweepFolder(sweep).trials()] == ["completed"] * 2
    assert gnntrain("report", "sweep", "--format", "csv") == 0
