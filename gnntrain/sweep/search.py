"""A search for the best validation metric by Optuna.

The study is in memory, where asking it after every epoch costs nothing; what has ended is copied
to `optuna.db`, with which the search goes on, and which Optuna's own tools read.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import BasePruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import TrialState

from gnntrain.app import compose_config
from gnntrain.config import Config, ConfigError, OptunaSweepConfig
from gnntrain.failures import sentence
from gnntrain.reporting.logfiles import reached
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.reporting.trials import Trial
from gnntrain.search_space import Choices, Dimension
from gnntrain.sweep.folder import SweepFolder, run_name

_STATES = {
    "completed": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}
_NUMBER = "gnntrain_trial"


class Search:
    """Trials whose values Optuna draws; the validation metric is to grow.

    Which values a trial gets depends on the seed, its number and the trials that have ended: a
    search that was interrupted goes on as if it had not been, one trial at a time.

    Args:
        config: The `sweep` keys.
        space: What to draw from.
        fixed: The overrides that all trials share.
        config_dirs: As for `compose_config`.
        folder: Where the sweep is; what is there of it is gone on with.
        trials: Those that are there.
    """

    def __init__(
        self,
        config: OptunaSweepConfig,
        space: Sequence[Dimension],
        fixed: Sequence[str],
        config_dirs: Sequence[Path],
        folder: SweepFolder,
        trials: Sequence[Trial] = (),
    ) -> None:
        logging.getLogger("optuna").setLevel(logging.WARNING)
        self.trials = list(trials)
        self.num_trials = max(config.trials, len(self.trials))
        self.num_ended = sum(trial.has_ended for trial in self.trials)
        self._config = config
        self._space = {dimension.key: dimension for dimension in space}
        self._distributions = {key: _distribution(one) for key, one in self._space.items()}
        self._fixed = list(fixed)
        self._config_dirs = config_dirs
        self._folder = folder
        self._study = optuna.create_study(direction="maximize", pruner=_pruner(config))
        self._kept = optuna.create_study(
            storage=f"sqlite:///{folder.path / 'optuna.db'}",
            study_name="gnntrain",
            direction="maximize",
            load_if_exists=True,
        )
        self._study.add_trials(self._kept.get_trials(deepcopy=False))
        self._asked: dict[int, optuna.Trial] = {}
        self._begun = [trial for trial in self.trials if not trial.has_ended]

    def next(self) -> tuple[Trial, Config] | None:
        """One that was begun and not ended; else one that is drawn."""
        if self._begun:
            trial = self._begun.pop(0)
            self._ask_again(trial)
        elif len(self.trials) < self.num_trials:
            trial = self._draw()
        else:
            return None
        try:
            return trial, compose_config(trial.overrides, self._config_dirs).config
        except ConfigError as error:  # the values do not go together
            trial.status, trial.error = "failed", sentence(error)
            self.note_end(trial)
            return self.next()

    def is_hopeless(self, trial: Trial, epoch: int, epochs: int, value: float | None) -> bool:
        """Whether its best value so far is below the median of the others at this epoch.

        Not in the first tenth of the epochs, which tell little, nor in the last one.
        """
        asked = self._asked[trial.number]
        if value is None or value != value:
            return False
        asked.report(value, epoch)
        return epochs / 10 < epoch < epochs and asked.should_prune()

    def note_end(self, trial: Trial) -> None:
        """Tell the study, and keep what has ended."""
        asked = self._asked.pop(trial.number)
        state = _STATES.get(trial.status)
        if state is None:
            return  # interrupted: it is asked for again
        if state == TrialState.COMPLETE and trial.val is None:
            state = TrialState.FAIL
        asked.set_user_attr(_NUMBER, trial.number)
        asked.set_user_attr("run_dir", trial.run_dir)
        if state == TrialState.COMPLETE:
            self._study.tell(asked, trial.val, state)
        else:
            self._study.tell(asked, state=state)
        self._kept.add_trial(self._study.trials[asked.number])

    def _draw(self) -> Trial:
        number = len(self.trials)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._study.sampler = _sampler(self._config, number)
        asked = self._study.ask(self._distributions)
        values = {key: self._text(key, value) for key, value in asked.params.items()}
        varied = [f"{key}={text}" for key, text in values.items()]
        short = [f"{key}={_short(text)}" for key, text in values.items()]
        run_dir = self._folder.path / run_name(number, self._config.trials, short)
        trial = Trial(number, [*self._fixed, *varied], str(run_dir), varied=varied)
        self.trials.append(trial)
        self._asked[number] = asked
        return trial

    def _ask_again(self, trial: Trial) -> None:
        """A trial with the values it had, and what it has told already."""
        values = {key: self._value(key, text) for key, text in trial.values.items()}
        self._study.enqueue_trial(values)
        asked = self._study.ask(self._distributions)
        records = reached(RunDirectory(Path(trial.run_dir)), trial.metric or "").records
        for record in records:
            value = record.metric("val", trial.metric or "")
            if value is not None and value == value:
                asked.report(value, record.epoch)
        self._asked[trial.number] = asked

    def _text(self, key: str, value: object) -> str:
        dimension = self._space[key]
        if isinstance(dimension, Choices):
            return str(value)
        assert isinstance(value, int | float)
        return dimension.text(value)

    def _value(self, key: str, text: str) -> object:
        dimension = self._space[key]
        if isinstance(dimension, Choices):
            return text
        return int(text) if dimension.is_integer else float(text)


def _distribution(dimension: Dimension) -> BaseDistribution:
    if isinstance(dimension, Choices):
        return CategoricalDistribution(dimension.values)
    low, high, log = dimension.low, dimension.high, dimension.log
    if dimension.is_integer:
        return IntDistribution(int(low), int(high), log=log, step=int(dimension.step or 1))
    return FloatDistribution(low, high, log=log, step=dimension.step)


def _sampler(config: OptunaSweepConfig, number: int) -> BaseSampler:
    seed = (config.seed + number) % 2**32
    if config.sampler == "random":
        return RandomSampler(seed=seed)
    # Trials that are still trained count as bad ones, so that none is drawn twice.
    return TPESampler(seed=seed, constant_liar=True)


def _pruner(config: OptunaSweepConfig) -> BasePruner:
    return NopPruner() if config.pruner == "none" else MedianPruner()


def _short(text: str) -> str:
    """A number in four digits, for a folder's name."""
    try:
        return f"{float(text):.4g}" if "." in text or "e" in text else text
    except ValueError:
        return text
