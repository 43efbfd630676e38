"""The trials of a sweep, their order by the validation metric, and what they say together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gnntrain.metrics import get_metric

# Keys that repeat a training rather than change it: over them stand mean and deviation.
REPEATED = ("trainer.seed", "dataset.split")


@dataclass
class Trial:
    """One run of a sweep, as `sweep.json` tells it.

    Attributes:
        number: Place in the sweep, from 0.
        overrides: What was asked.
        run_dir: Its run directory.
        status: `waiting`, `running`, or the run's own.
        metric: The metric's name; None as long as there is none.
        val: The metric on the validation nodes at the best epoch.
        test: The metric on the test nodes at the best epoch.
        seconds: How long it took.
        error: What went wrong.
        varied: The overrides that not all trials share.
        epochs: Epochs that were trained.
        best_epoch: The epoch with the best validation metric.
    """

    number: int
    overrides: list[str]
    run_dir: str
    status: str = "waiting"
    metric: str | None = None
    val: float | None = None
    test: float | None = None
    seconds: float | None = None
    error: str | None = None
    varied: list[str] = field(default_factory=list)
    epochs: int | None = None
    best_epoch: int | None = None

    @property
    def has_ended(self) -> bool:
        """Whether there is nothing to be done for it any more."""
        return self.status in ("completed", "pruned", "failed")

    @property
    def values(self) -> dict[str, str]:
        """The varied keys and their values, as typed."""
        pairs = (text.partition("=") for text in self.varied)
        return {key: value for key, _, value in pairs}


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation; the latter None for a single value."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None for no values."""
        if not values:
            return None
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Group:
    """Completed trials that differ in their seed or split alone.

    Attributes:
        varied: What distinguishes the group from the others.
        trials: The best first.
    """

    varied: tuple[str, ...]
    trials: tuple[Trial, ...]

    @cached_property
    def val(self) -> Spread | None:
        """Of the validation metric."""
        return Spread.of([trial.val for trial in self.trials if trial.val is not None])

    @cached_property
    def test(self) -> Spread | None:
        """Of the test metric."""
        return Spread.of([trial.test for trial in self.trials if trial.test is not None])

    @property
    def cost(self) -> float:
        """The mean of the trials' costs, see `Metric.cost`; infinite where none has a value."""
        costs = [_cost(trial) for trial in self.trials if trial.val is not None]
        return statistics.fmean(costs) if costs else math.inf


@dataclass(frozen=True)
class SweepResults:
    """What the trials of a sweep say together.

    Attributes:
        trials: All, by number.
        ranked: The completed ones, the best validation metric first.
        groups: Those by what they differ in besides seed and split, the best mean first.
        repeated: The keys over which the groups' means are taken; none where no group has several.
    """

    trials: tuple[Trial, ...]
    ranked: tuple[Trial, ...]
    groups: tuple[Group, ...]
    repeated: tuple[str, ...]

    @classmethod
    def of(cls, trials: Sequence[Trial]) -> SweepResults:
        """The order of the trials as they stand."""
        completed = [trial for trial in trials if trial.status == "completed"]
        ranked = tuple(sorted(completed, key=_cost))
        members: dict[tuple[str, ...], list[Trial]] = {}
        for trial in ranked:
            members.setdefault(_own_values(trial), []).append(trial)
        groups = [Group(varied, tuple(several)) for varied, several in members.items()]
        groups.sort(key=lambda group: group.cost)
        varied = {key for trial in completed for key in trial.values}
        has_several = any(len(group.trials) > 1 for group in groups)
        repeated = tuple(key for key in REPEATED if key in varied) if has_several else ()
        return cls(tuple(trials), ranked, tuple(groups), repeated)

    @property
    def metric(self) -> str:
        """The metric that decides."""
        return next((trial.metric for trial in self.trials if trial.metric), "metric")

    @property
    def best(self) -> Trial | None:
        """The best trial, of the best group where trials were repeated."""
        if self.repeated:
            return self.groups[0].trials[0]
        return self.ranked[0] if self.ranked else None

    @property
    def pruned(self) -> tuple[Trial, ...]:
        """The trials that were ended early, the best validation metric first."""
        return tuple(sorted((t for t in self.trials if t.status == "pruned"), key=_cost))

    def count(self, status: str) -> int:
        """How many trials are in this state."""
        return sum(trial.status == status for trial in self.trials)


def _cost(trial: Trial) -> float:
    """The validation metric turned such that less is better; infinite where there is none."""
    if trial.val is None or trial.metric is None:
        return math.inf
    return get_metric(trial.metric).cost(trial.val)


def _own_values(trial: Trial) -> tuple[str, ...]:
    return tuple(text for text in trial.varied if text.partition("=")[0] not in REPEATED)
