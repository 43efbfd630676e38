"""What several runs differ in, and which of them are the same but for their seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gnntrain.report.runs import ReportedRun
from gnntrain.reporting.trials import REPEATED

# They say where and how a run is kept, not what it is.
_IMMATERIAL = (
    *("run.", "sweep.", "logger.", "checkpoint.", "dataset.root", "dataset.store_dir"),
    *("trainer.log_every", "trainer.max_restarts", "distributed.timeout"),
)


@dataclass(frozen=True)
class Spread:
    """The mean of repetitions.

    Attributes:
        mean: Their mean; None where no value is known.
        std: Their sample standard deviation; None for fewer than two.
    """

    mean: float | None
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Over the values that are numbers."""
        known = [value for value in values if value == value]  # NaN is not itself
        return cls(
            statistics.fmean(known) if known else None,
            statistics.stdev(known) if len(known) > 1 else None,
        )


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but seed and split.

    Attributes:
        label: What tells them from the other groups.
        runs: They.
    """

    label: str
    runs: Sequence[ReportedRun]

    @property
    def counted(self) -> Sequence[ReportedRun]:
        """The runs that completed; all where none did."""
        return [run for run in self.runs if run.status == "completed"] or self.runs

    @property
    def cost(self) -> float:
        """The mean of the runs' costs; infinite where none has a validation metric."""
        costs = [run.cost for run in self.counted if run.cost < math.inf]
        return statistics.fmean(costs) if costs else math.inf

    def spread(self, split: str) -> Spread:
        """The deciding metric on a split, over the runs that count."""
        return Spread.of([run.score(split) for run in self.counted])


def differences(runs: Sequence[ReportedRun]) -> list[str]:
    """The keys that the runs' configurations do not agree in, those that say what it is first."""
    keys = dict.fromkeys(key for run in runs for key in run.config if _is_material(key))
    differing = [key for key in keys if _differ(runs, key)]
    return sorted(differing, key=lambda key: (not key.endswith(".name"), key in REPEATED))


def _differ(runs: Sequence[ReportedRun], key: str) -> bool:
    """Whether runs disagree in a key; another model (data set) may simply not have it."""
    having = [run for run in runs if key in run.config]
    if len({repr(run.config[key]) for run in having}) > 1:
        return True
    option = f"{key.partition('.')[0]}.name"
    lacking = {run.config.get(option) for run in runs if key not in run.config}
    return any(run.config.get(option) in lacking for run in having)


def _is_material(key: str) -> bool:
    return not any(key == name or key.startswith(name) for name in _IMMATERIAL)


def groups_of(runs: Sequence[ReportedRun]) -> list[Group]:
    """The runs by what they are repetitions of, in the order in which they are given."""
    keys = [key for key in differences(runs) if key not in REPEATED]
    members: dict[tuple[str, ...], list[ReportedRun]] = {}
    for run in runs:
        members.setdefault(tuple(repr(run.config.get(key)) for key in keys), []).append(run)
    return [Group(_label(keys, group), group) for group in members.values()]


def _label(keys: Sequence[str], runs: Sequence[ReportedRun]) -> str:
    config = runs[0].config
    named = [f"{_short(key)}={shown_value(config[key])}" for key in keys if key in config]
    return ", ".join(named) or f"{runs[0].dataset} {runs[0].model}"


def _short(key: str) -> str:
    return key.removesuffix(".name").removeprefix("trainer.").removeprefix("model.")


def shown_value(value: Any) -> str:
    """A configuration's value as it is typed."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(shown_value, value))}]"
    return str(value)


def best_of(runs: Sequence[ReportedRun]) -> ReportedRun:
    """The run with the best validation metric among those of the first one's data set."""
    alike = [run for run in runs if (run.dataset, run.metric) == (runs[0].dataset, runs[0].metric)]
    return min(alike, key=lambda run: run.cost)
