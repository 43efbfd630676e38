"""Runs, read from their directories, and compared: the keys they differ in, and repetitions that
differ in seed or split alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnntrain.config.problems import as_typed
from gnntrain.config.types import flattened
from gnntrain.errors import UserError
from gnntrain.paths import is_file
from gnntrain.reporting import rundir
from gnntrain.reporting.loggers import reached
from gnntrain.reporting.rundir import RUNS, RunDirectory
from gnntrain.reporting.text import short_key, shown_metric, shown_path
from gnntrain.reporting.trials import REPEATED, SPLIT, Group, Scored, rank
from gnntrain.training.records import SPLIT_ORDER, EpochRecord, FitResult, Metrics

# They change where and how a run is stored, not its result.
_IMMATERIAL = (
    *("run.", "sweep.", "logger.", "checkpoint.", "dataset.root", "dataset.store_dir"),
    *("trainer.log_every", "trainer.max_restarts", "distributed.timeout", "distributed.grace"),
)
_MEASURED = (
    *("num_parameters", "seconds_total", "seconds_per_epoch", "edges_per_s", "seeds_per_s"),
    *("peak_rss_bytes", "peak_gpu_bytes"),
)


@dataclass(frozen=True)
class ReportedRun(Scored):
    """A run as its files describe it."""

    run: RunDirectory
    name: str  # in the report; no other run of the report has it
    config: Mapping[str, Any]  # resolved, by dotted key
    summary: Mapping[str, Any]  # content of `summary.json`; empty where the run was killed
    status: str  # as in the summary; or `running`, or `unfinished` where the run was killed
    metric: str | None  # it decides which epoch is the best; None before any evaluation
    result: FitResult  # its epochs, and the best epoch

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

    def course(self, split: str) -> dict[int, float]:
        """The deciding metric of the evaluated epochs."""
        values = {record.epoch: record.metric(split, self.metric or "") for record in self.records}
        return {epoch: value for epoch, value in values.items() if value is not None}

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
) -> tuple[list[ReportedRun], Path | None]:
    """The runs of paths, names under `root`, `latest` or folders of runs, each run once.

    Returns:
        The runs, in the order of the arguments; the folder of the only argument, a run's or a
        sweep's.

    Raises:
        UserError: There is none of that name, or no run in a folder.
    """
    folders = [rundir.find_run(argument, root) for argument in arguments]
    directories: dict[Path, None] = {}
    for folder, argument in zip(folders, arguments, strict=True):
        found = [folder] if is_file(folder / "config.yaml") else rundir.run_directories(folder)
        if not found:
            raise UserError(
                f"{folder} is no run directory and holds none: there is no config.yaml in it",
                rundir.known_runs(argument, root),
            )
        directories |= dict.fromkeys(run.resolve() for run in found)
    lasts = [path.name for path in directories]
    # two of one name are called by their paths
    names = [p.name if lasts.count(p.name) == 1 else shown_path(p) for p in directories]
    home = folders[0].resolve() if len(folders) == 1 else None
    return [*map(read_run, directories, names)], home


def read_run(path: Path, name: str | None = None) -> ReportedRun:
    """Read a run directory; missing and broken files but `config.yaml` are left out.

    Raises:
        UserError: Its configuration cannot be read.
    """
    run = RunDirectory.open(path)
    summary = run.summary() or {}
    status = "running" if rundir.is_running(path) else "unfinished"
    metric = summary.get("metric") or None
    if metric is None:  # the data set's own comes first among an epoch's
        metrics = next((row.metrics for row in reached(run, "").records if row.metrics), {})
        metric = next((name for split in ("val", "train") for name in metrics.get(split, {})), None)
    return ReportedRun(
        run=run,
        name=name or run.path.name,
        config=flattened(run.config()),
        summary=summary,
        status=str(summary.get("status") or status),
        metric=metric,
        result=reached(run, metric or ""),
    )


def differences(runs: Sequence[ReportedRun]) -> list[str]:
    """The keys in which the runs' configurations differ, names of data set and model first."""
    differing = []
    for key in dict.fromkeys(key for run in runs for key in run.config):
        # Another model (data set) may simply not have the key.
        having, option = [run for run in runs if key in run.config], f"{key.partition('.')[0]}.name"
        lacking = {run.config.get(option) for run in runs if key not in run.config}
        differ = len({repr(run.config[key]) for run in having}) > 1
        differ = differ or any(run.config.get(option) in lacking for run in having)
        if differ and not key.startswith(_IMMATERIAL):
            differing.append(key)
    return sorted(differing, key=lambda key: (not key.endswith(".name"), key in REPEATED))


def groups_of(runs: Sequence[ReportedRun]) -> list[Group[ReportedRun]]:
    """Groups of repetitions, in the order of the runs. Completed runs count, all where none is; of
    equal ones the first by name."""
    differing = differences(runs)
    keys = [key for key in differing if key not in REPEATED]
    members: dict[tuple[str, ...], list[ReportedRun]] = {}
    for run in runs:
        members.setdefault(tuple(repr(run.config.get(key)) for key in keys), []).append(run)
    groups = []
    for several in members.values():
        completed = [run for run in several if run.status == "completed"] or several
        distinct = {
            (*(repr(run.config.get(key)) for key in REPEATED), run.cost, run.score("test")): run
            for run in sorted(completed, key=lambda run: run.name, reverse=True)
        }
        counted = [run for run in completed if run in distinct.values()]
        first = min(counted, key=lambda run: run.cost)  # one with a metric, where there is one
        known = (key for key in keys if key in first.config)
        label = ", ".join(f"{short_key(key)}={as_typed(first.config[key])}" for key in known)
        varied = (label or f"{first.dataset} {first.model}",)
        positive = first.summary.get("positive_class")
        data = [first.dataset, shown_metric(first.metric or "no metric")]
        data += [] if positive is None else [f"positive class {positive}"]
        splits = sorted({as_typed(run.config.get(SPLIT)) for run in counted})
        data += [f"split {', '.join(splits)}"] * (SPLIT in differing)
        groups.append(Group(varied, several, counted, tuple(data)))
    return groups


def best_of(runs: Sequence[ReportedRun]) -> ReportedRun:
    """The run with the best validation metric of the best setting; of equally good runs the first
    by name."""
    return min(rank(groups_of(runs))[0].counted, key=lambda run: (run.cost, run.name))


def run_rows(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
    """A row a run, for other programs: plain numbers under the names of keys and metrics."""
    keys = dict.fromkeys([*REPEATED, *differences(runs)])
    return [
        {
            "run": run.name,
            "directory": str(run.run.path),
            "status": run.status,
            "dataset": run.dataset,
            "model": run.model,
            **{key: run.config.get(key) for key in keys},
            "epochs": len(run.records),
            "best_epoch": run.result.best_epoch,
            "metric": run.metric,
            **{f"{split}/{name}": v for split, row in run.best.items() for name, v in row.items()},
            **{name: run.summary.get(name) for name in _MEASURED},
        }
        for run in runs
    ]
