"""Trials as jobs of a Hydra launcher: joblib's processes, or the queue of a cluster by submitit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import SIGINT
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.plugins.launcher import Launcher

from gnntrain.app.hydra_main import TrainTask
from gnntrain.errors import Interrupted
from gnntrain.limits import available_cores
from gnntrain.reporting.rundir import has_checkpoint
from gnntrain.sweep.plan import SweepPlan
from gnntrain.sweep.workers import Outcome, left_behind, outcome_of


@dataclass(frozen=True)
class TrialJob:
    """What a launcher calls for each trial, in another process or on another machine."""

    train: TrainTask
    log: Path | None  # where its output goes, where jobs share the terminal

    def __call__(self, cfg: Any) -> Outcome:
        """Train a trial, from its last checkpoint where it has one, as where a cluster has stopped
        the job.

        Raises:
            Interrupted: The job was interrupted, and so is the sweep.
        """
        run_dir = HydraConfig.get().runtime.output_dir
        with contextlib.ExitStack() as stack:
            if self.log is not None:
                file = stack.enter_context(self.log.open("a", encoding="utf-8"))
                stack.enter_context(contextlib.redirect_stdout(file))
                stack.enter_context(contextlib.redirect_stderr(file))
            outcome = outcome_of(partial(self._train, cfg, run_dir), run_dir)
        if outcome["status"] == "interrupted":
            raise Interrupted(outcome.get("signal", SIGINT))
        return outcome

    def _train(self, cfg: Any, run_dir: str) -> Outcome:
        if has_checkpoint(run_dir):
            from gnntrain.run import resume

            return resume(run_dir)
        # Without what was added for Hydra.
        self.train(cfg, [text.removeprefix("++") for text in HydraConfig.get().overrides.task])
        return left_behind(run_dir, "failed")


@dataclass(frozen=True)
class JobLauncher:
    """A launcher, and how a sweep uses it."""

    launcher: Launcher  # of `TrialJob`s
    num_jobs: int | None  # that it runs at the same time, -1 for one a core; None: unknown
    hydra_overrides: Callable[[Sequence[str]], Sequence[str]]  # a trial's, in Hydra's syntax

    def jobs_at_a_time(self, plan: SweepPlan) -> int:
        """How many trials are trained at the same time; those of a batch where that is unknown."""
        most = available_cores() if self.num_jobs == -1 else self.num_jobs
        return min(most or plan.num_trials, self.batch_size(plan))

    def batch_size(self, plan: SweepPlan) -> int:
        """How many trials are launched together: a grid's all, since the launcher queues them; of a
        search as few as keep it busy, since their results say what is drawn next."""
        if plan.search is None:
            return plan.num_trials
        jobs = plan.config.sweep.jobs
        if jobs == "auto":
            jobs = available_cores() if self.num_jobs == -1 else self.num_jobs or 1
        return jobs
