"""The data of a page: what the templates take."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from gnntrain.data.graph import Graph
from gnntrain.data.summary import from_plain
from gnntrain.report import figures, tables
from gnntrain.report.best_model import Outcome
from gnntrain.report.classification import ClassFindings
from gnntrain.report.comparison import differences, groups_of, shown_value
from gnntrain.report.regression import ValueFindings
from gnntrain.report.runs import ReportedRun
from gnntrain.report.timing import background_seconds
from gnntrain.reporting.text import (
    counted,
    counted_inputs,
    format_bytes,
    format_loss,
    format_metric,
    format_rate,
    format_seconds,
    shown_metric,
)
from gnntrain.reporting.trials import Group, rank

Page = dict[str, Any]
"""The variables of the templates."""

_LONG_NUMBER = 1_000_000
_NAMED_RUNS = 5
_STATES = {
    "interrupted": "The run was interrupted: {}.",
    "pruned": "The run was pruned by its sweep: {}.",
    "failed": "The run failed: {}.",
    "running": "The run has not ended yet: {} so far.",
    "unfinished": "The run ended without a summary (it was probably killed): {}.",
}


class Key(NamedTuple):
    """A key figure: its name, its value, and a line beneath."""

    label: str
    value: str
    more: str = ""


def page_of(run: ReportedRun, outcome: Outcome, notes: Sequence[str] = ()) -> Page:
    """The page of one run."""
    return {
        "title": run.name,
        "lead": _lead(run, outcome.graph),
        "status": run.status,
        "error": run.summary.get("error") or "",
        "notes": [*_state_notes(run), *notes, *outcome.notes],
        "keys": [*_keys(run, outcome.graph)],
        "comparison": None,
        "training": _training(run) if run.records else None,
        **_details(run, outcome),
    }


def comparison_of(
    runs: Sequence[ReportedRun], best: ReportedRun, outcome: Outcome, notes: Sequence[str] = ()
) -> Page:
    """The page of several runs, with the details of the best.

    Args:
        runs: The runs, at least two.
        best: The best of them.
        outcome: Its graph and findings.
        notes: Missing runs, in sentences.
    """
    groups = groups_of(runs)
    datasets = ", ".join(dict.fromkeys(run.dataset for run in runs))
    return {
        "title": f"{len(runs)} runs on {datasets}",
        "lead": _lead_of_several(runs, groups),
        "status": "",
        "error": "",
        "notes": [*_notes(runs), *notes, *outcome.notes],
        "keys": [*_keys_of_several(runs, groups, best)],
        "comparison": {
            "groups": groups,
            "runs": runs,
            "is_tested": any(run.best.get("test") for run in runs),
        },
        "training": None,
        **_details(best, outcome),
    }


def _details(run: ReportedRun, outcome: Outcome) -> Page:
    """The parts of a page about data, predictions, graph and configuration of a run."""
    graph, findings = outcome.graph, outcome.findings
    data = from_plain(run.summary.get("data")) or (graph.summary if graph else None)
    projection = findings.projection if findings else None
    classes = findings if isinstance(findings, ClassFindings) and findings.scores else None
    targets = findings.targets if isinstance(findings, ValueFindings) else None
    plane = None
    if projection and isinstance(findings, ClassFindings):
        plane = partial(figures.classes_in_the_plane, found=findings, projection=projection)
    elif projection and isinstance(findings, ValueFindings) and targets:
        plane = partial(figures.values_in_the_plane, found=findings, projection=projection)
    return {
        "run": run,
        "metric": shown_metric(run.metric or "metric"),
        "best_epoch": run.result.best_epoch,
        "positive": _positive(run, classes),
        "data": [(label, text, False) for label, text in data.lines()] if data else None,
        "classes": classes,
        "targets": targets,
        "projection": projection,
        "plane": plane,
        "has_rings": isinstance(findings, ClassFindings) and findings.predicted is not None,
        "graph": graph,
    }


def _positive(run: ReportedRun, classes: ClassFindings | None) -> str:
    """A sentence on the positive class of a binary task; else empty."""
    name = classes.positive if classes else run.summary.get("positive_class")
    return "" if name is None else f"The positive class is {name}."


def _training(run: ReportedRun) -> Page:
    phases = tables.phases_table(run)
    beside = background_seconds(run.records)
    return {
        "phases": phases if phases.rows else None,
        "clock": "The GPU's time." if run.records[-1].gpu_memory_bytes else "Time of rank 0.",
        "background": " and ".join(f"{name} {format_seconds(s)}" for name, s in beside.items()),
    }


def _lead(run: ReportedRun, graph: Graph | None) -> str:
    parameters, ranks = run.summary.get("num_parameters"), run.summary.get("world_size")
    model = f"{run.model} with {parameters:,} parameters" if parameters else run.model
    size = f" ({graph.num_nodes:,} nodes, {graph.num_edges:,} edges)" if graph else ""
    is_full = run.config.get("sampler.name") == "full"
    fan_outs = f"fan-outs {shown_value(_fan_outs(run.config))}"
    words = [
        f"{model} on {run.dataset}{size}",
        "trained on the full graph" if is_full else fan_outs,
    ]
    words += [counted(ranks, "rank")] if ranks else []
    return ", ".join([*words, f"seed {run.config.get('trainer.seed')}"]) + "."


def _fan_outs(config: Mapping[str, Any]) -> object:
    """Those of all edge types, or by edge type."""
    prefix = "sampler.fan_outs."
    by_type = {
        key.removeprefix(prefix): fan_outs
        for key, fan_outs in config.items()
        if key.startswith(prefix)
    }
    return by_type or config.get("sampler.fan_outs")


def _state_notes(run: ReportedRun) -> Iterator[str]:
    if run.status in _STATES:
        asked = run.config.get("trainer.epochs")
        yield _STATES[run.status].format(f"{len(run.records)} of {asked} epochs were trained")
    if replaced := (run.summary.get("kernels") or {}).get("replaced"):
        names = ", ".join(replaced)
        yield f"Triton's kernels were replaced where they failed: {names}."
    nan = sum(not math.isfinite(record.train_loss) for record in run.records)
    if nan:
        yield f"The training loss of {counted(nan, 'epoch')} is not a finite number."
    if not run.records:
        yield "No epoch was finished."
    elif not any(record.metrics for record in run.records):
        yield "No epoch was evaluated, so there is no metric."


def _keys(run: ReportedRun, graph: Graph | None) -> Iterator[Key]:
    summary, metric = run.summary, shown_metric(run.metric or "")
    if run.best:
        split = next(name for name in ("test", "val", "train") if name in run.best)
        others = [name for name in ("val", "train") if name in run.best and name != split]
        more = " · ".join(f"{name} {format_metric(run.score(name))}" for name in others)
        yield Key(f"{split} {metric}", format_metric(run.score(split)), more)
        more = f"by val {metric}, of {len(run.records)} trained"
        yield Key("best epoch", str(run.result.best_epoch), more)
    if run.records:
        last = run.records[-1]
        yield Key("train loss", format_loss(last.train_loss), f"in epoch {last.epoch}")
    if summary.get("seconds_total") is not None:
        each = format_seconds(summary.get("seconds_per_epoch"))
        yield Key("time", format_seconds(summary["seconds_total"]), f"{each} an epoch")
    if summary.get("edges_per_s") is not None:
        seeds = format_rate(summary.get("seeds_per_s"))
        yield Key("edges/s", format_rate(summary["edges_per_s"]), f"{seeds} seeds/s")
    if summary.get("peak_rss_bytes"):
        gpu = summary.get("peak_gpu_bytes")
        more = f"{format_bytes(gpu)} on the GPU" if gpu else "peak, all ranks"
        yield Key("memory", format_bytes(summary["peak_rss_bytes"]), more)
    if graph is not None:
        sizes = counted_inputs(graph.target_nodes.num_features, len(graph.nodes), len(graph.edges))
        more = f"{format_rate(graph.num_edges)} edges · {sizes}"
        is_short = graph.num_nodes < _LONG_NUMBER
        number = f"{graph.num_nodes:,}" if is_short else format_rate(graph.num_nodes)
        yield Key("nodes", number, more)


def _lead_of_several(runs: Sequence[ReportedRun], groups: Sequence[Group[ReportedRun]]) -> str:
    keys = differences(runs)
    text = f"They differ in {', '.join(keys)}." if keys else "Their configurations are the same."
    if len(groups) < len(runs):
        text += f" Runs that differ in seed or split alone are one setting: {len(groups)} in all."
    return text


def _notes(runs: Sequence[ReportedRun]) -> Iterator[str]:
    incomplete = [run for run in runs if run.status != "completed"]
    if incomplete:
        named = "; ".join(f"{run.name} ({_ending(run)})" for run in incomplete[:_NAMED_RUNS])
        more = len(incomplete) - _NAMED_RUNS
        rest = f"; and {more} more, see the table of runs" if more > 0 else ""
        yield f"{len(incomplete)} of {len(runs)} runs did not complete: {named}{rest}."
    groups = groups_of(runs)
    ranked = rank(groups)
    if len(ranked) < sum(group.runs[0].metric is not None for group in groups):
        first, number = ranked[0].runs[0], sum(len(group.runs) for group in ranked)
        over = f", split {', '.join(ranked[0].splits)}" * bool(ranked[0].splits)
        yield (
            "Runs of different data sets, splits, metrics or positive classes are not ranked "
            f"against each other: the best run is of the {counted(number, 'run')} on "
            f"{first.dataset}{over}, by {shown_metric(first.metric or '')}."
        )


def _ending(run: ReportedRun) -> str:
    error = " ".join(str(run.summary.get("error") or "").split()).rstrip(".")
    return f"{run.status}: {error}" if error else run.status


def _keys_of_several(
    runs: Sequence[ReportedRun], groups: Sequence[Group[ReportedRun]], best: ReportedRun
) -> Iterator[Key]:
    metric = shown_metric(best.metric or "")
    split = "test" if best.best.get("test") else "val"
    leader = rank(groups)[0]
    yield Key(f"{split} {metric}", str(leader.spread(split)), f"best setting: {leader.varied[0]}")
    yield Key("best run", format_metric(best.score(split)), best.name)
    completed = sum(run.status == "completed" for run in runs)
    yield Key("runs", str(len(runs)), f"{completed} completed")
    yield Key("settings", str(len(groups)), "that differ in more than seed or split")
    seconds = [run.summary["seconds_total"] for run in runs if run.summary.get("seconds_total")]
    if seconds:
        longest = f"the longest run {format_seconds(max(seconds))}"
        yield Key("time", format_seconds(sum(seconds)), longest)
