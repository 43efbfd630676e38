"""What there is of a run: read from its directory, whole or broken off."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gnntrain.errors import UserError
from gnntrain.metrics import get_metric
from gnntrain.reporting.logfiles import reached
from gnntrain.reporting.run_lookup import RUNS, find_run, known_runs, run_directories
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.reporting.text import shown_path
from gnntrain.training.records import SPLIT_ORDER, EpochRecord, FitResult, Metrics

_SWEEP_FILE = "sweep.json"


@dataclass(frozen=True)
class ReportedRun:
    """A run as far as its files tell of it.

    Attributes:
        run: Its directory.
        name: What the report calls it; no other run of the report has that name.
        config: The resolved configuration, by dotted key.
        overrides: What was typed.
        environment: What it ran on; empty where that is not known.
        summary: What `summary.json` says; empty where the run did not end in order.
        status: `completed`, `pruned`, `interrupted`, `failed`, `running`, or `unfinished` where it
            ended without a word.
        metric: The metric that decides which epoch is the best; None before any evaluation.
        result: Its epochs, and the best of them.
    """

    run: RunDirectory
    name: str
    config: Mapping[str, Any]
    overrides: Sequence[str]
    environment: Mapping[str, Any]
    summary: Mapping[str, Any]
    status: str
    metric: str | None
    result: FitResult

    @property
    def records(self) -> Sequence[EpochRecord]:
        """An epoch each."""
        return self.result.records

    @property
    def best(self) -> Metrics:
        """Metrics by split at the best epoch."""
        return {name: self.result.best[name] for name in SPLIT_ORDER if self.result.best.get(name)}

    @property
    def cost(self) -> float:
        """The validation metric turned such that less is better; infinite where there is none."""
        value = self.score("val")
        if self.metric is None or math.isnan(value):
            return math.inf
        return get_metric(self.metric).cost(value)

    def score(self, split: str) -> float:
        """The deciding metric at the best epoch; NaN where there is none."""
        return self.best.get(split, {}).get(self.metric or "", math.nan)

    @cached_property
    def dataset(self) -> str:
        """Name of the data set."""
        return str(self.summary.get("dataset") or self.config.get("dataset.name", "?"))

    @cached_property
    def model(self) -> str:
        """Name of the model."""
        return str(self.config.get("model.name", "?"))


@dataclass(frozen=True)
class Found:
    """The runs that a command names.

    Attributes:
        runs: The runs, in the order of the words.
        home: The directory that they have in common, where one was named: a run's or a sweep's.
        notes: What is missing, in sentences.
    """

    runs: list[ReportedRun]
    home: Path | None
    notes: list[str]


def find_runs(words: Sequence[str | Path], root: Path = RUNS) -> Found:
    """The runs that paths, names under `root`, `latest` or folders of sweeps mean, each once.

    Raises:
        UserError: There is none of that name, or it is neither a run nor a sweep.
    """
    directories: dict[Path, None] = {}
    notes: list[str] = []
    for word in words:
        path = find_run(word, root)
        if (path / "config.yaml").is_file():
            directories[path.resolve()] = None
        elif (jobs := run_directories(path)) or (path / _SWEEP_FILE).is_file():
            directories |= dict.fromkeys(job.resolve() for job in jobs)
            notes += _missing_jobs(path, len(jobs))
        else:
            raise UserError(
                f"{path} is neither a run directory nor the folder of a sweep: there is no "
                "config.yaml in it, and no run below it",
                known_runs(word, root),
            )
    if not directories:
        raise UserError(
            f"no run of the sweep {words[0]} has begun",
            f"Look into its {_SWEEP_FILE} for what went wrong.",
        )
    home = find_run(words[0], root).resolve() if len(words) == 1 else None
    names = _names(list(directories))
    return Found([read_run(path, name) for path, name in names.items()], home, notes)


def _missing_jobs(folder: Path, num_found: int) -> list[str]:
    """What to say of a sweep's jobs that have no run directory."""
    try:
        told = json.loads((folder / _SWEEP_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        told = None
    if not isinstance(told, list) or len(told) <= num_found:
        return []
    num_missing = len(told) - num_found
    return [f"{num_missing} of {len(told)} jobs of {shown_path(folder)} have no run directory."]


def _names(directories: Sequence[Path]) -> dict[Path, str]:
    """The directories' last parts, or whole paths where two are called the same."""
    lasts = [path.name for path in directories]
    return {
        path: path.name if lasts.count(path.name) == 1 else shown_path(path) for path in directories
    }


def read_run(path: Path, name: str | None = None) -> ReportedRun:
    """Read what a run directory holds; what is missing or broken is left out.

    Raises:
        UserError: Its configuration cannot be read.
    """
    run = RunDirectory.open(path)
    summary = run.summary() or {}
    metric = summary.get("metric") or _first_metric(reached(run, "").records)
    return ReportedRun(
        run=run,
        name=name or run.name,
        config=flattened(run.config()),
        overrides=_lines(path / "overrides.txt"),
        environment=_object(path / "env.json"),
        summary=summary,
        status=str(summary.get("status") or _status(run)),
        metric=metric,
        result=reached(run, metric or ""),
    )


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A configuration by dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _first_metric(records: Sequence[EpochRecord]) -> str | None:
    """The data set's own metric: it comes first among an epoch's."""
    evaluated = (record.metrics for record in records if record.metrics)
    metrics = next(evaluated, {})
    return next((name for split in ("val", "train") for name in metrics.get(split, {})), None)


def _status(run: RunDirectory) -> str:
    try:
        with run.held():
            return "unfinished"
    except UserError:
        return "running"


def _lines(path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    return []


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
