"""The tables of a report: rows of texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.colors import to_hex

from gnntrain.config.problems import as_typed
from gnntrain.data.graph import SPLITS, Graph
from gnntrain.phases import BACKGROUND
from gnntrain.report.findings import METRICS, SCORED_SPLITS, SplitScores, regression_scores
from gnntrain.report.runs import ReportedRun, differences
from gnntrain.reporting.text import format_bytes, format_metric, format_seconds, shown_metric
from gnntrain.reporting.trials import Group, Spread, rank
from gnntrain.training.records import EpochRecord

_WORST_NODES = 10
_SHOWN_APART = ("command", "packages", "memory_bytes", "gpus", "variables", "jobs")
_OUTPUTS = {"multilabel": "labels", "continuous": "targets"}
_DEGREES = ("median degree", "mean degree", "largest degree", "nodes without an in-edge")
PHASES = {
    "sample": ("sample", "#2a9d8f"),
    "gather": ("gather", "#8ab17d"),
    "wait": ("wait for a batch", "#e9c46a"),
    "forward": ("forward", "#3a86ff"),
    "backward": ("backward", "#7b5ea7"),
    "all_reduce": ("all-reduce", "#e63946"),
    "optimizer": ("optimizer", "#f4a261"),
    "replay": ("replayed steps", "#457b9d"),
    "other": ("everything else", "#adb5bd"),
    "evaluation": ("evaluation", "#5fb3a3"),
}
"""The phases of an epoch in their order, with label and colour."""

_VISIBLE = 0.0005


def class_color(number: int) -> str:
    """The colour of a class or a group of runs: ten distinct ones, then hues around the circle."""
    if number < 10:
        return to_hex(matplotlib.colormaps["tab10"](number))
    return to_hex(matplotlib.colormaps["hsv"](number * 0.381966 % 1))  # by the golden angle


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows."""

    heads: Sequence[str]  # of the columns
    rows: Sequence[Sequence[str]]  # the cells
    texts: int = 1  # the first columns, which hold no numbers
    best: int | None = None  # the row that stands out
    colors: Sequence[str] | None = None  # a colour a row, where rows are series of a figure


Settings = dict[str, list[tuple[str, str, bool]]]
"""By section a key, its value, and whether the command line had it."""


def metrics_table(run: ReportedRun) -> Table:
    """All metrics of the best epoch by split."""
    names = [*dict.fromkeys(name for metrics in run.best.values() for name in metrics)]
    values = {split: map(metrics.get, names) for split, metrics in run.best.items()}
    rows = [[split, *map(format_metric, row)] for split, row in values.items()]
    return Table(["split", *map(shown_metric, names)], rows)


def phases_table(run: ReportedRun) -> Table:
    """Median seconds and share of each visible phase of an epoch; of evaluations over the epochs
    with one."""
    warm = phase_seconds(_warm(run.records))
    typical = warm.median()
    typical["evaluation"] = warm["evaluation"][warm["evaluation"] > 0].median()
    typical = typical[typical > _VISIBLE * typical.sum()]
    rows = [
        [PHASES[name][0], format_seconds(seconds), f"{seconds / typical.sum():.1%}"]
        for name, seconds in typical.items()
    ]
    colors = [PHASES[name][1] for name in typical.index]
    return Table(["phase", "an epoch", "share"], rows, colors=colors)


def phase_seconds(records: Sequence[EpochRecord]) -> Any:
    """A frame of seconds by epoch (rows; those with times) and phase (columns); a row's sum is the
    epoch's length."""
    timed = [record for record in records if record.time]
    rows, epochs = [record.time for record in timed], [record.epoch for record in timed]
    frame = pd.DataFrame(rows, epochs).reindex(columns=[*PHASES]).fillna(0.0)
    training = frame.drop(columns="evaluation").sum(axis=1)
    frame["other"] = ([record.seconds for record in timed] - training).clip(lower=0.0)
    return frame


def background_seconds(records: Sequence[EpochRecord]) -> str:
    """The median seconds an epoch of the phases that run beside the steps, in words."""
    medians = pd.DataFrame([record.time for record in _warm(records)]).fillna(0.0).median()
    beside = medians[[name for name in medians.index if name.startswith(BACKGROUND)]].items()
    return " and ".join(f"{k.removeprefix(BACKGROUND)} {format_seconds(s)}" for k, s in beside)


def _warm(records: Sequence[EpochRecord]) -> Sequence[EpochRecord]:
    """The timed epochs but the first of several, which compiles and warms up."""
    timed = [record for record in records if record.time]
    return timed[1:] or timed


def graph_tables(graph: Graph) -> dict[str, Table]:
    """Sizes and in-degrees, of a typed graph by type; each table with its title."""
    edges = []
    for name, of_type in graph.edges.items():
        degrees = np.diff(of_type.indptr)
        cells = [f"{np.median(degrees):g}", f"{degrees.mean():.1f}", f"{degrees.max():,}"]
        edges.append(["/".join(name), f"{len(of_type):,}", *cells, f"{(degrees == 0).sum():,}"])
    sizes = {
        "nodes": f"{graph.num_nodes:,}",
        "edges": f"{graph.num_edges:,}",
        _OUTPUTS.get(graph.task, "classes"): f"{graph.num_classes:,}",
        **{f"{name} nodes": f"{len(graph.split(name)):,}" for name in SPLITS},
    }
    if not graph.is_hetero:
        sizes["features"] = f"{graph.num_features:,}"
        sizes |= zip(_DEGREES, edges[0][2:], strict=True)
        return {"Sizes": Table(["quantity", "value"], [*sizes.items()])}
    nodes = []
    for node_type, of_node in graph.nodes.items():
        features = f"{of_node.num_features:,}" if of_node.num_features else "learnt"
        target = " (target)" * (node_type == graph.target)
        nodes.append([node_type + target, f"{len(of_node):,}", features])
    return {
        "Sizes": Table(["quantity", "value"], [*sizes.items()]),
        "Node types": Table(["node type", "nodes", "features"], nodes),
        "Edge types": Table(["edge type", "edges", *_DEGREES], edges),
    }


def classes_table(names: Sequence[str], scores: Mapping[str, SplitScores]) -> Table:
    """Precision, recall and F1 of each class."""
    rows = [[name] for name in names]
    for scored in scores.values():
        for i, row in enumerate(rows):
            numbers = (scored.precision[i], scored.recall[i], scored.f1[i])
            row += [*map(format_metric, map(float, numbers)), f"{scored.support[i]:,}"]
    return Table(["class", *_by_split(scores, "precision", "recall", "F1", "support")], rows)


def targets_table(targets: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """The metrics of each target."""
    rows = [[name] for name, _ in targets]
    for row, (_, points) in zip(rows, targets, strict=True):
        for split in SCORED_SPLITS:
            known = points.get(split, ())
            scores = regression_scores(known) if len(known) else [math.nan] * len(METRICS)
            row += [*map(format_metric, scores), f"{len(known):,}"]
    heads = _by_split(SCORED_SPLITS, *map(shown_metric, METRICS), "nodes")
    return Table(["target", *heads], rows)


def _by_split(splits: Iterable[str], *heads: str) -> list[str]:
    return [f"{split} {head}" for split in splits for head in heads]


def worst_table(points: Any) -> Table:
    """The nodes with the largest errors, the largest first."""
    errors = (points["predicted"] - points["true"]).abs()
    worst = points.loc[errors.nlargest(_WORST_NODES).index]
    rows = []
    for node, true, predicted in worst.itertuples(index=False):
        rows.append([node, f"{true:.6g}", f"{predicted:.6g}", f"{predicted - true:+.6g}"])
    return Table(["node", "true", "predicted", "error"], rows)


def groups_table(groups: Sequence[Group[ReportedRun]]) -> Table:
    """Mean and standard deviation of the deciding metric by setting."""
    rows, leader = [], rank(groups)[0]
    for group in groups:
        counted = sum(run.status == "completed" for run in group.counted)
        runs = len(group.runs)
        number = str(runs) if counted == runs else f"{counted} of {runs}"
        each = [run.summary.get("seconds_per_epoch") or math.nan for run in group.counted]
        means = [str(group.spread(split)) for split in SCORED_SPLITS]
        metric = shown_metric(group.runs[0].metric or "-")
        label = group.varied[0]
        if group.data != leader.data:
            label += f" (not ranked: {', '.join(group.data)})"
        rows.append([label, metric, number, *means, format_seconds(Spread.of(each).mean)])
    best = groups.index(leader) if leader.cost < math.inf else None
    heads = ["setting", "metric", "runs", "val", "test", "an epoch"]
    colors = [class_color(number) for number in range(len(groups))]
    return Table(heads, rows, texts=2, best=best, colors=colors)


def runs_table(runs: Sequence[ReportedRun], best: ReportedRun) -> Table:
    """The keys in which runs differ, their metrics, time and memory."""
    keys = differences(runs)
    heads = ["run", *keys, "status", "best epoch", "val", "test", "an epoch", "total", "memory"]
    rows = [
        [
            run.name,
            *(as_typed(run.config[key]) if key in run.config else "-" for key in keys),
            run.status,
            str(run.result.best_epoch or "-"),
            *(format_metric(run.score(split)) for split in ("val", "test")),
            *map(format_seconds, map(run.summary.get, ("seconds_per_epoch", "seconds_total"))),
            format_bytes(run.summary.get("peak_rss_bytes")),
        ]
        for run in runs
    ]
    row = [*runs].index(best) if best.cost < math.inf else None
    return Table(heads, rows, texts=len(keys) + 2, best=row)


def configuration(run: ReportedRun) -> Settings:
    """The configuration by section."""
    typed = {text.lstrip("+~").partition("=")[0] for text in run.run.overrides()}
    groups: Settings = {}
    for key, value in run.config.items():
        section, _, name = key.partition(".")
        is_typed = bool({key, key.removesuffix(".name")} & typed)
        groups.setdefault(section, []).append((name or key, as_typed(value), is_typed))
    return groups


def environment(found: Mapping[str, Any], kernels: Mapping[str, Any]) -> Settings:
    """Machine, kernels and software: `env.json`, and `kernels` of `summary.json`."""
    machine = {key.replace("_", " "): found[key] for key in found if key not in _SHOWN_APART}
    machine["memory"] = format_bytes(found.get("memory_bytes"))
    machine["gpus"] = ", ".join(str(gpu.get("name")) for gpu in found.get("gpus") or []) or "none"
    replaced = {name: f"torch: {why}" for name, why in kernels.get("replaced", {}).items()}
    operators = {"kernels": kernels.get("kernels"), **replaced}
    sections = {"machine": machine, "operators": operators, "software": found.get("packages") or {}}
    shown: Settings = {}
    for title, values in sections.items():
        for name, value in values.items():
            if value is not None:
                shown.setdefault(title, []).append((name, str(value), False))
    return shown
