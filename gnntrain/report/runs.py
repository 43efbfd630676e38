"""Runs, read from their directories: completed ones, and ones that ended early."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnntrain.config.types import flattened
from gnntrain.errors import UserError
from gnntrain.paths import is_file
from gnntrain.reporting.loggers import reached
from gnntrain.reporting.run_lookup import RUNS, find_run, is_running, known_runs, run_directories
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.reporting.text import shown_path
from gnntrain.reporting.trials import Scored
from gnntrain.training.records import SPLIT_ORDER, EpochRecord, FitResult, Metrics


@dataclass(frozen=True)
class ReportedRun(Scored):
    """A run as its files describe it.

    Attributes:
        run: Its directory.
        name: Its name in the report, which no other run of the report has.
        config: The resolved configuration, by dotted key.
        overrides: Keys of the command line.
        environment: Machine and software; empty where not known.
        summary: Content of `summary.json`; empty where the run was killed.
        status: `completed`, `pruned`, `interrupted`, `failed`, `running`, or `unfinished` where it
            was killed.
        metric: The metric that decides which epoch is the best; None before any evaluation.
        result: Its epochs, and the best epoch.
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
        """One record an epoch."""
        return self.result.records

    @property
    def best(self) -> Metrics:
        """Metrics by split at the best epoch."""
        return {name: self.result.best[name] for name in SPLIT_ORDER if self.result.best.get(name)}

    def score(self, split: str) -> float:
        """The deciding metric at the best epoch."""
        return self.best.get(split, {}).get(self.metric or "", math.nan)

    @property
    def dataset(self) -> str:
        """Name of the data set."""
        return str(self.summary.get("dataset") or self.config.get("dataset.name", "?"))

    @property
    def model(self) -> str:
        """Name of the model."""
        return str(self.config.get("model.name", "?"))


def find_runs(
    arguments: Sequence[str | Path], root: Path = RUNS
) -> tuple[list[ReportedRun], Path | None, list[str]]:
    """The runs of paths, names under `root`, `latest` or folders of runs, each run once.

    Returns:
        The runs, in the order of the arguments; the folder of the only argument, a run's or a
        sweep's; missing runs, in sentences.

    Raises:
        UserError: There is none of that name, or no run in a folder.
    """
    directories: dict[Path, None] = {}
    notes: list[str] = []
    for argument in arguments:
        path = find_run(argument, root)
        found = [path] if is_file(path / "config.yaml") else run_directories(path)
        if not found:
            raise UserError(
                f"{path} is no run directory and holds none: there is no config.yaml in it",
                known_runs(argument, root),
            )
        directories |= dict.fromkeys(run.resolve() for run in found)
        trials = _trials(path)
        if len(trials) > len(found):
            missing = f"{len(trials) - len(found)} of {len(trials)} trials"
            notes.append(f"{missing} of {shown_path(path)} have no run directory.")
    home = find_run(arguments[0], root).resolve() if len(arguments) == 1 else None
    lasts = [path.name for path in directories]
    # two of one name are called by their paths
    names = [p.name if lasts.count(p.name) == 1 else shown_path(p) for p in directories]
    return [*map(read_run, directories, names)], home, notes


def read_run(path: Path, name: str | None = None) -> ReportedRun:
    """Read a run directory; missing and broken files but `config.yaml` are left out.

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
        overrides=run.overrides(),
        environment=run.environment(),
        summary=summary,
        status=str(summary.get("status") or ("running" if is_running(path) else "unfinished")),
        metric=metric,
        result=reached(run, metric or ""),
    )


def _first_metric(records: Sequence[EpochRecord]) -> str | None:
    """The data set's own metric: it comes first among an epoch's."""
    metrics = next((record.metrics for record in records if record.metrics), {})
    return next((name for split in ("val", "train") for name in metrics.get(split, {})), None)


def _trials(folder: Path) -> list[Any]:
    """The trials in a sweep's folder; none in another folder."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
        return found if isinstance(found, list) else []
    return []
