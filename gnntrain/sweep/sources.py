"""Which trials a sweep has: all combinations, known from the start, or what a search draws."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from gnntrain.app import Composed, compose_config
from gnntrain.config import Config, ConfigError, Problem
from gnntrain.reporting.trials import Trial
from gnntrain.sweep.folder import SweepFolder, run_name


class Source(Protocol):
    """Where the trials come from."""

    trials: list[Trial]
    """Those known so far, by number."""
    num_trials: int
    """How many there will be."""
    num_ended: int
    """Those of them that are not to be trained any more, when the sweep begins or goes on."""

    def next(self) -> tuple[Trial, Config] | None:
        """The next trial to train and its configuration; None: there is none."""

    def is_hopeless(self, trial: Trial, epoch: int, epochs: int, value: float | None) -> bool:
        """Whether a trial that reached `value` in an epoch, of `epochs`, is to stop."""

    def note_end(self, trial: Trial) -> None:
        """Take in how a trial ended."""


class GridSource:
    """All combinations of the values.

    Args:
        trials: All; those that have been completed or pruned stay as they are.
        configs: Theirs.
    """

    def __init__(self, trials: list[Trial], configs: Sequence[Config]) -> None:
        self.trials = trials
        self.num_trials = len(trials)
        self._left = [
            (trial, config)
            for trial, config in zip(trials, configs, strict=True)
            if trial.status not in ("completed", "pruned")
        ]
        self.num_ended = len(trials) - len(self._left)

    def next(self) -> tuple[Trial, Config] | None:
        """The next that is left."""
        return self._left.pop(0) if self._left else None

    def is_hopeless(self, trial: Trial, epoch: int, epochs: int, value: float | None) -> bool:  # noqa: ARG002
        """Never: all were asked for."""
        return False

    def note_end(self, trial: Trial) -> None:
        """Nothing depends on it."""


def compose_all(asked: Sequence[Sequence[str]], config_dirs: Sequence[Path]) -> list[Composed]:
    """The configurations of all trials.

    Raises:
        ConfigError: With every mistake of every trial.
    """
    composed: list[Composed] = []
    problems: list[Problem] = []
    for overrides in asked:
        try:
            composed.append(compose_config(overrides, config_dirs))
        except ConfigError as error:
            problems.extend(error.problems)
    if len({one.config.run.dir for one in composed}) > 1:
        expects = "one folder, in which every trial gets its own"
        problems.append(Problem("run.dir", "several values", expects))
    if problems:
        raise ConfigError(problems)
    return composed


def listed_trials(composed: Sequence[Composed], folder: SweepFolder) -> list[Trial]:
    """A trial for each of the configurations, with the name of its run directory."""
    shared = set.intersection(*(set(one.overrides) for one in composed))
    trials = []
    for number, one in enumerate(composed):
        varied = [text for text in one.overrides if text not in shared]
        run_dir = folder.path / run_name(number, len(composed), varied)
        trials.append(Trial(number, one.overrides, str(run_dir), varied=varied))
    return trials
