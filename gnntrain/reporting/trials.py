"""Trials of a sweep, and groups of runs that differ in seed or split alone, in their order."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gnntrain.metrics import get_metric
from gnntrain.reporting.text import format_metric

# Keys that repeat a training rather than change it: over them stand mean and deviation.
SPLIT = "dataset.split"
REPEATED = ("trainer.seed", SPLIT)


class Scored:
    """A run of a sweep or of a report."""

    metric: str | None

    def score(self, split: str) -> float:
        """The deciding metric on a split at the best epoch; NaN where there is none."""
        raise NotImplementedError

    @property
    def cost(self) -> float:
        """The validation metric, negated where more is better; infinite where there is none."""
        value = self.score("val")
        if self.metric is None or math.isnan(value):
            return math.inf
        return get_metric(self.metric).cost(value)


@dataclass
class Trial(Scored):
    """One run of a sweep, as `sweep.json` tells it."""

    number: int  # from 0
    overrides: list[str]  # what was asked
    run_dir: str
    status: str = "waiting"  # or `running`, or the run's own
    metric: str | None = None  # None as long as there is none
    val: float | None = None  # at the best epoch, as `test`
    test: float | None = None
    seconds: float | None = None
    error: str | None = None
    varied: list[str] = field(default_factory=list)  # the overrides that not all trials share
    epochs: int | None = None  # that were trained
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

    def score(self, split: str) -> float:
        value = self.val if split == "val" else self.test
        return math.nan if value is None else value


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation; None for no value, and for a single one."""

    mean: float | None
    std: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Over the values that are not NaN."""
        known = [value for value in values if not math.isnan(value)]
        std = statistics.stdev(known) if len(known) > 1 else None
        return cls(statistics.fmean(known) if known else None, std)

    def __str__(self) -> str:
        mean = format_metric(self.mean)
        return mean if self.std is None else f"{mean} ± {format_metric(self.std, self.mean)}"


_Run = TypeVar("_Run", bound=Scored)


@dataclass(frozen=True)
class Group(Generic[_Run]):
    """Runs that differ in their seed or split alone."""

    varied: tuple[str, ...]  # what distinguishes the group from the others
    runs: Sequence[_Run]  # all of them
    counted: Sequence[_Run]  # those over which the means are taken
    data: tuple[str, ...]  # of those: their splits, in a report also their data set and metric

    @property
    def cost(self) -> float:
        """The mean of the costs that are finite; infinite where none is."""
        costs = [run.cost for run in self.counted if run.cost < math.inf]
        return statistics.fmean(costs) if costs else math.inf

    def spread(self, split: str) -> Spread:
        """The deciding metric on a split, over the runs that count."""
        return Spread.of(run.score(split) for run in self.counted)


def rank(groups: Sequence[Group[_Run]]) -> list[Group[_Run]]:
    """Groups over the same data as most runs, the best mean first; then the others, which cannot be
    ranked against them."""
    sizes = Counter(group.data for group in groups for run in group.counted if run.cost < math.inf)
    most = min(sizes, key=lambda data: (-sizes[data], data), default=())
    return sorted(groups, key=lambda g: (not g.counted, g.data != most, g.data, g.cost))


class SweepResults:
    """What the trials of a sweep say together.

    Attributes:
        trials: All, by number.
        groups: Trials that completed or were pruned, by what they differ in besides seed and
            split, ranked.
        metric: The metric that decides.
        best: The best trial of the best group, if a trial's metric is finite.
    """

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.trials = tuple(trials)
        ended = [t for status in ("completed", "pruned") for t in trials if t.status == status]
        distinct = {tuple(sorted(trial.varied)): trial for trial in reversed(ended)}
        members: dict[tuple[str, ...], list[Trial]] = {}
        for trial in sorted(distinct.values(), key=lambda trial: (trial.cost, trial.number)):
            own = (t for t in trial.varied if t.partition("=")[0] not in REPEATED)
            members.setdefault(tuple(own), []).append(trial)
        groups: list[Group[Trial]] = []
        for varied, runs in members.items():
            counted = [trial for trial in runs if trial.status == "completed"]
            splits = {trial.values[SPLIT] for trial in counted if SPLIT in trial.values}
            groups.append(Group(varied, runs, counted, tuple(sorted(splits))))
        self.groups = rank(groups)
        self.metric = next((trial.metric for trial in trials if trial.metric), "metric")
        self.best = next((t for g in self.groups[:1] for t in g.counted if t.cost < math.inf), None)

    def count(self, status: str) -> int:
        """How many trials are in this state."""
        return sum(trial.status == status for trial in self.trials)
