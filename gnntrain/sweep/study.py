"""The Optuna study that all trials of a sweep come from.

A grid is enqueued; a search draws. The study is in memory, where asking it after every epoch costs
nothing. It minimises costs (`Metric.cost`), since the metric's direction is known only once a trial
has begun. Trials that have ended are copied, with the metric's own values and direction, to
`optuna.db`, which Optuna's own tools read, and from which a search goes on.
"""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import optuna
from optuna.pruners import BasePruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from gnntrain.app import Composer
from gnntrain.config import Config, ConfigError, OptunaSweepConfig
from gnntrain.failures import sentence
from gnntrain.metrics import get_metric
from gnntrain.reporting.logfiles import reached
from gnntrain.reporting.run_lookup import has_checkpoint
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.reporting.trials import Trial
from gnntrain.sweep.folder import SweepFolder
from gnntrain.sweep.search_space import Space, grid_space, parsed_value, value_text

_STATES = {
    "completed": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}
_NUMBER = "gnntrain_trial"
_STUDY = "gnntrain"


class Study:
    """The trials of a sweep.

    The values that a search draws for a trial depend on the seed, its number and the trials that
    have ended: a search that was interrupted goes on as if it had not been, one trial at a time.

    Args:
        trials: All trials of a grid; of a search those that were begun.
        folder: The sweep's.
        composer: Composes the configurations of trials.
        search: The keys of a search; None: a grid.
        space: What a search draws from.
        fixed: The overrides that all trials of a search share.

    Attributes:
        trials: All trials so far, by number.
        num_trials: How many there will be.
        ended: Trials that are not trained any more, when the sweep begins or goes on.
        invalid: Trials that failed before they began; whoever tells of them removes them.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        folder: SweepFolder,
        composer: Composer,
        search: OptunaSweepConfig | None = None,
        space: Space | None = None,
        fixed: Sequence[str] = (),
    ) -> None:
        logging.getLogger("optuna").setLevel(logging.WARNING)
        self.trials = list(trials)
        self.num_trials = len(self.trials)
        ended: tuple[str, ...] = ("completed", "pruned")
        if search is not None:
            self.num_trials = max(search.trials, self.num_trials)
            ended = (*ended, "failed")  # a search learns from failures; a grid tries them again
        self._queue = deque(trial for trial in self.trials if trial.status not in ended)
        self.ended = [trial for trial in self.trials if trial.status in ended]
        self.invalid: list[Trial] = []
        self._search = search
        self._space = grid_space(trials) if space is None else space
        self._fixed = list(fixed)
        self._compose = composer.compose
        self._folder = folder
        self._storage = _Storage(folder.path / "optuna.db")
        self._study = optuna.create_study(pruner=_pruner(search), sampler=RandomSampler())
        self._asked: dict[int, optuna.Trial] = {}
        stored = self._storage.costs()
        if search is not None:
            self._study.add_trials(stored)
        self._add_unstored(self.ended, stored)

    def next(self) -> tuple[Trial, Config | None] | None:
        """The next trial of the queue, else one that is drawn; None: there is none.

        Its configuration is None where it goes on from a checkpoint.
        """
        while (trial := self._ask()) is not None:
            if has_checkpoint(trial.run_dir):
                return trial, None
            try:
                return trial, self._compose(trial.overrides).config
            except ConfigError as error:  # the values do not go together
                trial.status, trial.error = "failed", sentence(error)
                self.tell(trial)
                self.invalid.append(trial)
        return None

    def _ask(self) -> Trial | None:
        if self._queue:
            trial = self._queue.popleft()
            self._enqueue(trial)
            return trial
        if self._search is not None and len(self.trials) < self.num_trials:
            return self._draw(self._search)
        return None

    def _add_unstored(self, ended: Sequence[Trial], stored: Sequence[FrozenTrial]) -> None:
        """Add trials that ended before a crash, which came before they were stored."""
        numbers = {trial.user_attrs.get(_NUMBER) for trial in stored}
        for trial in ended:
            if trial.number not in numbers:
                self._enqueue(trial)
                self.tell(trial)
        self.save()

    def should_prune(self, trial: Trial, epoch: int, epochs: int, value: float | None) -> bool:
        """Whether its best value so far is below the median of the others at this epoch.

        Not in the first tenth of the epochs, which tell little, nor in the last one.
        """
        if value is None or math.isnan(value) or trial.metric is None:
            return False
        asked = self._asked[trial.number]
        asked.report(get_metric(trial.metric).cost(value), epoch)
        return epochs / 10 < epoch < epochs and asked.should_prune()

    def tell(self, trial: Trial) -> None:
        """Tell the study how a trial ended. An interrupted trial is asked for again later."""
        asked = self._asked.pop(trial.number)
        state = _STATES.get(trial.status)
        if state is None:
            return
        asked.set_user_attr(_NUMBER, trial.number)
        asked.set_user_attr("run_dir", self._folder.relative(trial.run_dir))
        value = None
        if state == TrialState.COMPLETE and trial.val is not None and trial.metric is not None:
            value = get_metric(trial.metric).cost(trial.val)
        elif state == TrialState.COMPLETE:
            state = TrialState.FAIL
        self._storage.add(self._study.tell(asked, value, state), trial.metric)

    def save(self) -> None:
        """Write the trials that have ended since the last call to `optuna.db`."""
        self._storage.write()

    def _enqueue(self, trial: Trial) -> None:
        """Ask for a trial with given values; it may have trained some epochs already."""
        values = {key: parsed_value(self._space[key], text) for key, text in trial.values.items()}
        self._study.enqueue_trial(values)
        asked = self._study.ask({key: self._space[key] for key in values})
        self._asked[trial.number] = asked
        if trial.metric is None or not has_checkpoint(trial.run_dir):
            return
        metric = get_metric(trial.metric)
        for record in reached(RunDirectory(Path(trial.run_dir)), metric.name).records:
            value = record.metric("val", metric.name)
            if value is not None and not math.isnan(value):
                asked.report(metric.cost(value), record.epoch)

    def _draw(self, search: OptunaSweepConfig) -> Trial:
        number = len(self.trials)
        self._study.sampler = _sampler(search, number)
        asked = self._study.ask({**self._space})
        texts = {key: value_text(self._space[key], asked.params[key]) for key in self._space}
        varied = [f"{key}={text}" for key, text in texts.items()]
        overrides = [*self._fixed, *varied]
        run_dir = self._folder.trial_dir(number, search.trials, overrides, varied, self.trials)
        trial = Trial(number, overrides, str(run_dir), varied=varied)
        self.trials.append(trial)
        self._asked[number] = asked
        return trial


class _Storage:
    """`optuna.db`: trials that have ended, with the metric's values and direction.

    It is created with the first trial whose metric is known; trials that failed before wait.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[FrozenTrial] = []
        self._metric: str | None = None
        self._study: optuna.Study | None = None

    def costs(self) -> list[FrozenTrial]:
        """The trials with costs as their values."""
        if self._path.exists():
            with contextlib.suppress(KeyError):  # interrupted before it was created
                self._study = optuna.load_study(study_name=_STUDY, storage=self._url)
        trials = [] if self._study is None else self._study.get_trials(deepcopy=False)
        return [self._turned(trial) for trial in trials]

    def add(self, trial: FrozenTrial, metric: str | None) -> None:
        """Keep a trial, whose values are costs, for the next call of `write`."""
        self._waiting.append(trial)
        self._metric = self._metric or metric

    def write(self) -> None:
        """Write the trials that wait."""
        if self._study is None and self._metric is not None and self._waiting:
            higher = get_metric(self._metric).higher_is_better
            self._study = optuna.create_study(
                storage=self._url,
                study_name=_STUDY,
                direction="maximize" if higher else "minimize",
                load_if_exists=True,
            )
        if self._study is not None:
            self._study.add_trials([self._turned(one) for one in self._waiting])
            self._waiting.clear()

    @property
    def _url(self) -> str:
        return f"sqlite:///{self._path}"

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


def _sampler(config: OptunaSweepConfig, number: int) -> BaseSampler:
    # Hashed: a sum would make the trials of seed 1 those of seed 0, one later.
    seed = int(np.random.SeedSequence([config.seed, number]).generate_state(1)[0])
    if config.sampler == "random":
        return RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # Trials that are still trained count as bad ones, so that none is drawn twice.
        return TPESampler(seed=seed, constant_liar=True)


def _pruner(search: OptunaSweepConfig | None) -> BasePruner:
    return NopPruner() if search is None or search.pruner == "none" else MedianPruner()
