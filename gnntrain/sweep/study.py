"""The Optuna study from which a search draws its trials.

It is a journal file, `optuna.journal`, which Optuna's own tools read. A sweep that goes on writes
it anew from the trials' folders.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.pruners import MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial

from gnntrain.config import SweepConfig
from gnntrain.metrics import get_metric
from gnntrain.reporting.loggers import reached
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.reporting.trials import Trial
from gnntrain.sweep.folder import SweepFolder
from gnntrain.sweep.plan import SweepPlan
from gnntrain.sweep.runner import TrialQueue
from gnntrain.sweep.search_space import parsed_value, value_text

_STATES = {
    "completed": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}


class Study(TrialQueue):
    """The trials of a search by `plan`, which improves the validation metric `metric`; `trials` are
    those that were begun.

    The values of a trial depend on the seed, its number and the trials that have ended: a search
    that was interrupted goes on as if it had not been, one trial at a time.
    """

    def __init__(
        self, trials: Sequence[Trial], folder: SweepFolder, plan: SweepPlan, metric: str
    ) -> None:
        search = plan.search
        assert search is not None, "a grid is a TrialQueue"
        super().__init__(trials, tuple(_STATES))  # failed ones: a search learns from them
        self.num_trials = search.trials
        self._folder, self._search, self._fixed = folder, search, plan.fixed
        self._space = dict(plan.space or {})
        self._asked: dict[int, optuna.Trial] = {}
        logging.getLogger("optuna").setLevel(logging.WARNING)
        self._study = optuna.create_study(
            storage=JournalStorage(_Journal(folder.path / "optuna.journal")),
            study_name="gnntrain",
            pruner=NopPruner() if search.pruner == "none" else MedianPruner(),
            direction="maximize" if get_metric(metric).higher_is_better else "minimize",
        )
        for trial in self.ended:
            state, value = _result(trial)
            done = create_trial(
                state=state,
                value=value,
                params=self._params(trial),
                distributions=self._space,
                intermediate_values=_history(trial),
                user_attrs={"run_dir": folder.relative(trial.run_dir)},
            )
            self._study.add_trial(done)

    def next(self) -> Trial | None:
        """The next trial of those that were begun, else one that is drawn; None: there is none."""
        trial = super().next()
        if trial is not None:
            self._study.enqueue_trial(self._params(trial))
            self._asked[trial.number] = asked = self._study.ask(self._space)
            for epoch, value in _history(trial).items():
                asked.report(value, epoch)
        elif (number := len(self.trials)) < self.num_trials:
            self._study.sampler = _sampler(self._search, number)
            self._asked[number] = asked = self._study.ask(self._space)
            drawn = {key: value_text(self._space[key], asked.params[key]) for key in self._space}
            varied = [f"{key}={text}" for key, text in drawn.items()]
            texts, most = [*self._fixed, *varied], self.num_trials
            run_dir = self._folder.trial_dir(number, most, texts, varied, self.trials)
            trial = Trial(number, texts, str(run_dir), varied=varied)
            self.trials.append(trial)
        return trial

    def should_prune(self, trial: Trial, epoch: int, epochs: int, value: float | None) -> bool:
        """Whether its best value so far is worse than the median of the others at this epoch.

        Not in the first tenth of the epochs, which tell little, nor in the last one.
        """
        if value is None or math.isnan(value):
            return False
        asked = self._asked[trial.number]
        asked.report(value, epoch)
        return epochs / 10 < epoch < epochs and bool(asked.should_prune())

    def tell(self, trial: Trial) -> None:
        """Tell the study how a trial ended."""
        asked = self._asked.pop(trial.number)
        if trial.status in _STATES:
            asked.set_user_attr("run_dir", self._folder.relative(trial.run_dir))
            state, value = _result(trial)
            self._study.tell(asked, value, state)

    def _params(self, trial: Trial) -> dict[str, object]:
        return {key: parsed_value(self._space[key], text) for key, text in trial.values.items()}


class _Journal(JournalFileBackend):
    """A new journal. This process alone writes it, and a sweep that goes on writes it anew: it
    takes no lock, and waits for no disk after each epoch."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        super().__init__(str(path))
        self._path = path

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """See `JournalFileBackend`."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(log) + "\n" for log in logs))


def _result(trial: Trial) -> tuple[TrialState, float | None]:
    state = _STATES[trial.status]
    if state != TrialState.COMPLETE:
        return state, None
    return (state, trial.val) if trial.val is not None else (TrialState.FAIL, None)


def _history(trial: Trial) -> dict[int, float]:
    """The validation metric by epoch, as far as it was trained."""
    if trial.metric is None:
        return {}
    records = reached(RunDirectory(Path(trial.run_dir)), trial.metric).records
    values = {record.epoch: record.metric("val", trial.metric) for record in records}
    return {epoch: v for epoch, v in values.items() if v is not None and not math.isnan(v)}


def _sampler(config: SweepConfig, number: int) -> BaseSampler:
    # Hashed: a sum would make the trials of seed 1 those of seed 0, one later.
    seed = int(np.random.SeedSequence([config.seed, number]).generate_state(1)[0])
    if config.sampler == "random":
        return RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # Trials that are still trained count as bad ones, so that none is drawn twice.
        return TPESampler(seed=seed, constant_liar=True)
