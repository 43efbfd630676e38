"""Several runs: the keys they differ in, and repetitions that differ in seed or split alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gnntrain.config.problems import as_typed
from gnntrain.report.runs import ReportedRun
from gnntrain.reporting.trials import REPEATED, SPLIT, Group, rank

# They change where and how a run is stored, not its result.
_IMMATERIAL = (
    *("run.", "sweep.", "logger.", "checkpoint.", "dataset.root", "dataset.store_dir"),
    *("trainer.log_every", "trainer.max_restarts", "distributed.timeout", "distributed.grace"),
)
_MEASURED = (
    *("num_parameters", "seconds_total", "seconds_per_epoch", "edges_per_s", "seeds_per_s"),
    *("peak_rss_bytes", "peak_gpu_bytes"),
)


def differences(runs: Sequence[ReportedRun]) -> list[str]:
    """The keys in which the runs' configurations differ, names of data set and model first."""
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


def groups_of(runs: Sequence[ReportedRun]) -> list[Group[ReportedRun]]:
    """Groups of repetitions, in the order of the runs. Completed runs count, all where none is; of
    equal ones the first by name."""
    keys = [key for key in differences(runs) if key not in REPEATED]
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
        splits = {str(run.config[SPLIT]) for run in counted if SPLIT in run.config}
        first = several[0]
        data = (first.dataset, first.metric or "", str(first.summary.get("positive_class")))
        label = (_label(keys, several),)
        groups.append(Group(label, several, counted, tuple(sorted(splits)), data))
    return groups


def _label(keys: Sequence[str], runs: Sequence[ReportedRun]) -> str:
    config = runs[0].config
    short = [key.removesuffix(".name") for key in keys if key in config]
    short = [key.removeprefix("trainer.").removeprefix("model.") for key in short]
    values = (as_typed(config[key]) for key in keys if key in config)
    return ", ".join(map("{}={}".format, short, values)) or f"{runs[0].dataset} {runs[0].model}"


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
