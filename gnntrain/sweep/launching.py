"""Trials as jobs of a Hydra launcher: joblib's processes, or the queue of a cluster by submitit."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher

from gnntrain.app.train_task import TrainTask
from gnntrain.errors import Interrupted
from gnntrain.failures import sentence
from gnntrain.limits import available_cores
from gnntrain.paths import is_file
from gnntrain.reporting.run_lookup import has_checkpoint
from gnntrain.reporting.trials import Trial
from gnntrain.sweep.folder import SweepFolder
from gnntrain.sweep.plan import SweepPlan
from gnntrain.sweep.process import Outcome, outcome_of, redirect_output, summary_of
from gnntrain.sweep.trial_runner import View, begin, take_over

if TYPE_CHECKING:
    from gnntrain.sweep.study import Study  # imports Optuna

_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class TrialJob:
    """The function that a launcher calls for each trial, in another process or on another machine.

    A cluster that stops a job and starts it again finds the checkpoint.

    Attributes:
        train: Trains a new run by Hydra's configuration of the job.
        log: Where its output goes, where jobs share the terminal; None: where the launcher puts it.
        sweep_pid: The process of the sweep, in which a launcher may run jobs too.
    """

    train: TrainTask
    log: Path | None
    sweep_pid: int

    def __call__(self, cfg: Any) -> Outcome:
        """Train a trial, from its last checkpoint where it has one.

        Raises:
            Interrupted: The job was interrupted, and so is the sweep.
        """
        run_dir = HydraConfig.get().runtime.output_dir
        with self._logged():
            outcome = outcome_of(partial(self._train, cfg, run_dir), run_dir)
        if outcome.status == "interrupted":
            raise Interrupted(outcome.signal_number)
        return outcome

    @contextlib.contextmanager
    def _logged(self) -> Iterator[None]:
        if self.log is None:
            yield
        elif os.getpid() != self.sweep_pid:
            redirect_output(self.log)
            yield
        else:  # the sweep's own lines go on to the terminal
            with (
                self.log.open("a", encoding="utf-8") as file,
                contextlib.redirect_stdout(file),
                contextlib.redirect_stderr(file),
            ):
                yield

    def _train(self, cfg: Any, run_dir: str) -> dict[str, Any]:
        if has_checkpoint(run_dir):
            from gnntrain.run import resume

            return resume(run_dir)
        # Without what was added for Hydra.
        self.train(cfg, [text.removeprefix("++") for text in HydraConfig.get().overrides.task])
        return summary_of(run_dir)


@dataclass(frozen=True)
class JobLauncher:
    """A launcher, and how a sweep uses it.

    Attributes:
        launcher: Its task is a `TrialJob`.
        num_jobs: Jobs that it runs at the same time, -1 for one a core; None: unknown.
        hydra_overrides: From a trial's overrides to Hydra's syntax.
    """

    launcher: Launcher
    num_jobs: int | None
    hydra_overrides: Callable[[Sequence[str]], Sequence[str]]

    def jobs_at_a_time(self, plan: SweepPlan) -> int:
        """How many trials are trained at the same time; those of a batch where that is unknown."""
        return min(self._most_jobs or plan.num_trials, self.batch_size(plan))

    @property
    def _most_jobs(self) -> int | None:
        return available_cores() if self.num_jobs == -1 else self.num_jobs

    def batch_size(self, plan: SweepPlan) -> int:
        """How many trials are launched together.

        All trials of a grid: the launcher queues them. Of a search as few as keep the launcher
        busy, since their results say what is drawn next.
        """
        jobs = plan.config.sweep.jobs
        if plan.search is None:
            return plan.num_trials
        if jobs != "auto":
            return jobs
        return self._most_jobs or 1


class BatchRunner:
    """Trains the trials of a study by a launcher, a batch at a time.

    Args:
        folder: The sweep's.
        study: Where the trials come from.
        launcher: Trains them.
        batch_size: Trials of a batch.
        view: Who is told.
    """

    def __init__(
        self, folder: SweepFolder, study: Study, launcher: JobLauncher, batch_size: int, view: View
    ) -> None:
        self._folder = folder
        self._study = study
        self._launcher = launcher
        self._batch_size = batch_size
        self._view = view

    def run(self) -> None:
        """Train all trials. A trial that fails does not stop the others of its batch.

        Raises:
            KeyboardInterrupt: The sweep or a job was interrupted.
        """
        while batch := self._begin_batch():
            try:
                with self._watched(batch):
                    outcomes = self._launch(batch)
            except BaseException:
                self._end(batch, [_left_behind(trial, None) for trial in batch])
                raise
            self._end(batch, outcomes)

    def _begin_batch(self) -> list[Trial]:
        batch: list[Trial] = []
        while len(batch) < self._batch_size and (task := self._study.next()) is not None:
            begin(task[0])
            batch.append(task[0])
        while self._study.invalid:
            self._view.on_trial_end(self._study.invalid.pop(0))
        self._folder.write_trials(self._study.trials)
        return batch

    def _launch(self, batch: Sequence[Trial]) -> list[Outcome]:
        jobs = [self._job(trial) for trial in batch]
        try:
            returns = self._launcher.launcher.launch(jobs, batch[0].number)
            return [_outcome(one) for one in returns]
        except Exception as error:  # submitit's where the system ended a job
            return [_left_behind(trial, sentence(error)) for trial in batch]

    def _job(self, trial: Trial) -> list[str]:
        """A trial's overrides, with the names of its folders."""
        path = Path(trial.run_dir)
        folders = {"hydra.sweep.dir": path.parent, "hydra.sweep.subdir": path.name}
        named = [f"{key}={json.dumps(str(name))}" for key, name in folders.items()]
        return [*self._launcher.hydra_overrides(trial.overrides), *named]

    @contextlib.contextmanager
    def _watched(self, batch: Sequence[Trial]) -> Iterator[None]:
        """Tell of trials as they end: a launcher returns when all have ended."""
        began, is_over = time.time(), threading.Event()

        def watch() -> None:
            while not is_over.wait(_LOOK_SECONDS):
                running = [trial for trial in batch if trial.status == "running"]
                ended = [(t, o) for t in running if (o := _completed(t, began)) is not None]
                self._end([trial for trial, _ in ended], [outcome for _, outcome in ended])
                self._view.refresh()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _end(self, trials: Sequence[Trial], outcomes: Sequence[Outcome]) -> None:
        for trial, outcome in zip(trials, outcomes, strict=True):
            if trial.status == "running":
                take_over(trial, outcome)
                trial.seconds = outcome.summary.get("seconds_total")
                self._study.tell(trial)
                self._view.on_trial_end(trial)
        if trials:
            self._folder.write_trials(self._study.trials)
            self._study.save()


def _outcome(job: JobReturn) -> Outcome:
    outcome = job.return_value
    assert isinstance(outcome, Outcome)
    return outcome


def _completed(trial: Trial, since: float) -> Outcome | None:
    """How a trial ended; None where it has not, or where its job may be started again."""
    summary = Path(trial.run_dir) / "summary.json"
    if not is_file(summary) or summary.stat().st_mtime < since:
        return None
    outcome = _left_behind(trial, None)
    return outcome if outcome.status in ("completed", "pruned") else None


def _left_behind(trial: Trial, error: str | None) -> Outcome:
    """How a job ended that could not say it; without an error it was interrupted."""
    summary = summary_of(trial.run_dir)
    status = str(summary.get("status", "interrupted" if error is None else "failed"))
    return Outcome(status, summary, summary.get("error", error))
