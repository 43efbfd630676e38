"""Trials as jobs of a Hydra launcher: a stand-in that starts no process, and the real ones."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from signal import SIGINT, SIGTERM

import pytest
from hydra.core.utils import JobReturn, JobStatus

from gnntrain.config import Config, SweepConfig
from gnntrain.errors import Interrupted, RunError
from gnntrain.reporting.trials import Trial
from gnntrain.sweep import HydraOptions, run_sweep
from gnntrain.sweep.folder import SweepFolder
from gnntrain.sweep.launching import JobLauncher
from gnntrain.sweep.plan import SweepPlan
from gnntrain.sweep.workers import Outcome
from tests.processes import python

pytestmark = pytest.mark.usefixtures("here")
SMALL = ["dataset.num_nodes=300", "trainer.epochs=2", "trainer.gpus=0"]
SUMMARY: Outcome = {
    "status": "completed",
    "metric": "accuracy",
    "val": {"accuracy": 0.5},
    "test": {},
}


class StandIn:
    """A launcher whose jobs do and return what `train` says."""

    def __init__(self, train: Callable[[int], Outcome]) -> None:
        self._train = train

    def launch(self, jobs: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
        returns = [JobReturn(status=JobStatus.COMPLETED) for _ in jobs]
        for number, done in enumerate(returns, first):
            done.return_value = self._train(number)
        return returns


def launcher_of(stand_in: object, num_jobs: int | None = None) -> JobLauncher:
    return JobLauncher(stand_in, num_jobs, list)  # type: ignore[arg-type]


def run(train: Callable[[int], Outcome]) -> list[Trial]:
    """The three trials of a grid by a launcher."""
    options = HydraOptions(launcher=lambda _: launcher_of(StandIn(train)))
    with contextlib.suppress(RunError):  # trials failed
        run_sweep(["trainer.seed=0,1,2", "run.dir=sweep"], options=options)
    return SweepFolder(Path("sweep").absolute()).trials()


def write_summary(number: int) -> None:
    path = Path(f"sweep/{number}_trainer.seed={number}")
    path.mkdir()
    (path / "summary.json").write_text(json.dumps(SUMMARY))


def test_a_launcher_that_gives_up_costs_the_trials_without_a_summary() -> None:
    def train(number: int) -> Outcome:
        if number == 2:
            raise RuntimeError("the queue is closed")
        write_summary(number)
        return SUMMARY

    trials = run(train)
    assert [trial.status for trial in trials] == ["completed", "completed", "failed"]
    assert "the queue is closed" in str(trials[2].error)


def test_a_trial_is_told_when_it_completes_although_the_launcher_has_not_returned() -> None:
    def train(number: int) -> Outcome:
        if number == 0:
            write_summary(0)
        for _ in range(200):
            first, second, _ = SweepFolder(Path("sweep").absolute()).trials()
            if first.status == "completed":
                assert (first.val, second.status) == (0.5, "running")
                return SUMMARY
            time.sleep(0.05)
        raise AssertionError

    assert [trial.status for trial in run(train)] == ["completed"] * 3


@pytest.mark.parametrize("number", [SIGINT, SIGTERM])
def test_an_interrupted_job_interrupts_the_sweep(number: int, tmp_path: Path) -> None:
    def train(trial: int) -> Outcome:
        if trial:
            raise Interrupted(number)
        write_summary(trial)
        return SUMMARY

    with pytest.raises(Interrupted) as caught:
        run(train)
    assert caught.value.number == number
    trials = SweepFolder(tmp_path / "sweep").trials()
    assert [trial.status for trial in trials] == ["completed", "interrupted", "interrupted"]


@pytest.mark.parametrize(
    ("num_jobs", "asked", "size"), [(None, "auto", 1), (4, "auto", 4), (-1, "auto", 8), (4, 2, 2)]
)
def test_a_search_launches_as_many_trials_as_keep_the_launcher_busy(
    num_jobs: int | None, asked: int | str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnntrain.sweep.launching.available_cores", lambda: 8)
    search = SweepConfig.model_validate({"name": "optuna", "jobs": asked})
    launcher = launcher_of(None, num_jobs)
    assert launcher.batch_size(SweepPlan(Config(sweep=search), [], space={})) == size
    grid = SweepPlan(Config(), [], [[], [], []])
    assert launcher.batch_size(grid) == 3
    assert launcher.jobs_at_a_time(grid) == 3
    assert launcher_of(None, 2).jobs_at_a_time(grid) == 2


gnntrain = partial(python, "-m", "gnntrain")


def statuses(folder: str) -> list[str]:
    return [trial.status for trial in SweepFolder(Path(folder).absolute()).trials()]


@pytest.mark.slow
def test_a_grid_by_joblib_fails_in_part_and_goes_on_by_joblib() -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    joblib = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    assert gnntrain("-m", *SMALL, "trainer.lr=1e30,0.01", *joblib, "run.dir=s").returncode == 1
    assert statuses("s") == ["failed", "completed"]
    assert Path("s/best.yaml").is_file()
    done = gnntrain("resume", "s")
    assert done.returncode == 1
    assert "Joblib.Parallel(n_jobs=2" in done.stdout
    assert "2 trials" in done.stdout


@pytest.mark.slow
def test_a_search_by_joblib_draws_a_batch_at_a_time() -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    search = ["sweep=optuna", "sweep.trials=3", "trainer.lr=interval(0.01,0.1)", "sweep.jobs=2"]
    done = gnntrain("-m", *SMALL, *search, "hydra/launcher=joblib", "hydra.sweep.dir=s")
    assert done.returncode == 0
    assert [f"is launching {n} jobs" in done.stdout for n in (2, 1)] == [True, True]
    assert statuses("s") == ["completed"] * 3


@pytest.mark.slow
def test_submitit_trains_trials_in_folders_by_the_users_names() -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    folders = ["hydra.sweep.dir=s", "hydra.sweep.subdir=rate_${trainer.lr}"]
    launcher = "hydra/launcher=submitit_local"
    assert gnntrain("-m", *SMALL, "trainer.lr=0.01,0.02", launcher, *folders).returncode == 0
    assert statuses("s") == ["completed"] * 2
    assert Path("s/rate_0.01/summary.json").is_file()
    assert Path("s/rate_0.02/summary.json").is_file()
