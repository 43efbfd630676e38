"""A search for the best validation metric by Optuna.

The study is in memory, where asking it after every epoch costs nothing. It minimises costs
(`Metric.cost`), since the direction of the metric is known only once a trial has begun. Trials that
have ended are copied, with the metric's own values and direction, to `optuna.db`, from which the
search goes on, and which Optuna's own tools read.
"""

from __future__ import annotations

import contextlib
import logging
import math
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
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from gnntrain.app import compose_config
from gnntrain.config import Config, ConfigError, OptunaSweepConfig
from gnntrain.failures import sentence
from gnntrain.metrics import get_metric
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
_STUDY = "gnntrain"


class Search:
    """Trials whose values Optuna draws, to better the validation metric.

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
        self._study = optuna.create_study(direction="minimize", pruner=_pruner(config))
        self._kept = _Kept(folder.path / "optuna.db")
        self._study.add_trials(self._kept.costs())
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
        if value is None or math.isnan(value) or trial.metric is None:
            return False
        asked.report(get_metric(trial.metric).cost(value), epoch)
        return epochs / 10 < epoch < epochs and asked.should_prune()

    def note_end(self, trial: Trial) -> None:
        """Tell the study, and keep what has ended."""
        asked = self._asked.pop(trial.number)
        state = _STATES.get(trial.status)
        if state is None:
            return  # interrupted: it is asked for again
        asked.set_user_attr(_NUMBER, trial.number)
        asked.set_user_attr("run_dir", trial.run_dir)
        if state != TrialState.COMPLETE:
            self._study.tell(asked, state=state)
        elif trial.val is None or trial.metric is None:
            self._study.tell(asked, state=TrialState.FAIL)
        else:
            self._study.tell(asked, get_metric(trial.metric).cost(trial.val), state)
        self._kept.add(self._study.trials[asked.number], trial.metric)

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
        self._asked[trial.number] = asked
        if trial.metric is None:
            return
        metric = get_metric(trial.metric)
        for record in reached(RunDirectory(Path(trial.run_dir)), metric.name).records:
            value = record.metric("val", metric.name)
            if value is not None and not math.isnan(value):
                asked.report(metric.cost(value), record.epoch)

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


class _Kept:
    """The study in `optuna.db`: trials that have ended, with the metric's values and direction.

    It is created with the first trial whose metric is known; trials that failed before wait.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[FrozenTrial] = []
        self._study: optuna.Study | None = None
        if path.exists():
            with contextlib.suppress(KeyError):  # interrupted before it was created
                self._study = optuna.load_study(study_name=_STUDY, storage=self._storage)

    @property
    def _storage(self) -> str:
        return f"sqlite:///{self._path}"

    def costs(self) -> list[FrozenTrial]:
        """The trials with costs as their values."""
        trials = [] if self._study is None else self._study.get_trials(deepcopy=False)
        return [self._turned(trial) for trial in trials]

    def add(self, trial: FrozenTrial, metric: str | None) -> None:
        """Keep a trial, whose values are costs."""
        self._waiting.append(trial)
        if self._study is None and metric is not None:
            higher = get_metric(metric).higher_is_better
            self._study = optuna.create_study(
                storage=self._storage,
                study_name=_STUDY,
                direction="maximize" if higher else "minimize",
                load_if_exists=True,
            )
        if self._study is not None:
            self._study.add_trials([self._turned(one) for one in self._waiting])
            self._waiting.clear()

    def _turned(self, trial: FrozenTrial) -> FrozenTrial:
        """From values to costs, or back."""
        assert self._study is not None
        if self._study.direction == StudyDirection.MINIMIZE:
            return trial
        return optuna.trial.create_trial(
            state=trial.state,
            value=None if trial.value is None else -trial.value,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs=trial.user_attrs,
            intermediate_values={step: -v for step, v in trial.intermediate_values.items()},
        )


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
