"""The trials of a sweep, their order by the validation metric, and what they say together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeVar

from gnntrain.metrics import get_metric

# Keys that repeat a training rather than change it: over them stand mean and deviation.
SPLIT = "dataset.split"
REPEATED = ("trainer.seed", SPLIT)
_COUNTED = ("completed", "pruned")


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
        trials: The best first, of equal ones the first.
        pruned: Those that were ended early, and do not count.
    """

    varied: tuple[str, ...]
    trials: tuple[Trial, ...]
    pruned: tuple[Trial, ...] = ()

    @property
    def runs(self) -> tuple[Trial, ...]:
        """As `trials`."""
        return self.trials

    @cached_property
    def ranked_with(self) -> tuple[str, ...]:
        """Its splits: groups over other splits had other data."""
        return tuple(sorted({trial.values.get(SPLIT, "") for trial in self.trials} - {""}))

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


class Setting(Protocol):
    """Runs that differ in seed and split alone, of a sweep or of a report."""

    @property
    def runs(self) -> Sequence[object]: ...

    @property
    def cost(self) -> float: ...

    @property
    def ranked_with(self) -> tuple[str, ...]: ...


_Setting = TypeVar("_Setting", bound=Setting)


def rank_settings(settings: Sequence[_Setting]) -> list[_Setting]:
    """The settings that can be ranked against each other, the best mean first.

    They agree in `ranked_with`; of several such sets the one with the most runs, of equally large
    ones the first by name.
    """
    alike: dict[tuple[str, ...], list[_Setting]] = {}
    known = [one for one in settings if one.cost < math.inf]
    for setting in known or [one for one in settings if one.runs]:
        alike.setdefault(setting.ranked_with, []).append(setting)
    sets = sorted(alike, key=lambda key: (-sum(len(one.runs) for one in alike[key]), key))
    return sorted(alike[sets[0]], key=lambda setting: setting.cost) if sets else []


@dataclass(frozen=True)
class SweepResults:
    """What the trials of a sweep say together.

    Attributes:
        trials: All, by number.
        ranked: The completed ones, the best validation metric first.
        groups: Those by what they differ in besides seed and split: the ones that can be ranked
            against each other, the best mean first, then the others.
        num_ranked: How many groups are ranked.
        repeated: The keys over which the groups' means are taken; none where no group has several.
    """

    trials: tuple[Trial, ...]
    ranked: tuple[Trial, ...]
    groups: tuple[Group, ...]
    num_ranked: int
    repeated: tuple[str, ...]

    @classmethod
    def of(cls, trials: Sequence[Trial]) -> SweepResults:
        """The order of the trials as they stand."""
        completed = [trial for trial in trials if trial.status == "completed"]
        ranked = tuple(sorted(completed, key=_cost))
        ended = [t for word in _COUNTED for t in trials if t.status == word]
        distinct = {tuple(sorted(trial.varied)): trial for trial in reversed(ended)}
        members: dict[tuple[str, ...], list[Trial]] = {}
        for trial in sorted(distinct.values(), key=lambda trial: (_cost(trial), trial.number)):
            members.setdefault(_own_values(trial), []).append(trial)
        found = [
            Group(varied, *(tuple(t for t in several if t.status == word) for word in _COUNTED))
            for varied, several in members.items()
        ]
        best = rank_settings(found)
        others = [group for group in found if group not in best]
        others.sort(key=lambda group: (not group.trials, group.ranked_with, group.cost))
        varied = {key for trial in completed for key in trial.values}
        has_several = any(len(group.trials) > 1 for group in found)
        repeated = tuple(key for key in REPEATED if key in varied) if has_several else ()
        return cls(tuple(trials), ranked, (*best, *others), len(best), repeated)

    @property
    def metric(self) -> str:
        """The metric that decides."""
        return next((trial.metric for trial in self.trials if trial.metric), "metric")

    @property
    def best(self) -> Trial | None:
        """The best trial of the best group."""
        return next((trial for group in self.groups[:1] for trial in group.trials), None)

    @property
    def unranked(self) -> str:
        """A sentence where some groups are not ranked against the first; else empty."""
        over = {group.ranked_with for group in self.groups if group.trials}
        if len(over) < 2:
            return ""
        splits = ", ".join(self.groups[0].ranked_with)
        return f"settings over other splits are not ranked against those over split {splits}"

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
