"""What a report says of several runs: which are best, what they differ in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gnntrain.report import figures
from gnntrain.report.comparison import (
    Group,
    Spread,
    differences,
    groups_of,
    shown_value,
)
from gnntrain.report.content import Block, Figure, Key, Report, Section, Table
from gnntrain.report.outcome import Outcome
from gnntrain.report.runs import ReportedRun
from gnntrain.report.single import configuration_sections, detail_sections
from gnntrain.report.style import class_color
from gnntrain.reporting.text import format_bytes, format_metric, format_seconds, shown_metric
from gnntrain.reporting.trials import REPEATED

_MANY_GROUPS = 10
_NAMED_RUNS = 5


def comparison_of(
    runs: Sequence[ReportedRun], best: ReportedRun, outcome: Outcome, notes: Sequence[str] = ()
) -> Report:
    """The runs beside each other, and the details of the best.

    Args:
        runs: The runs, at least two.
        best: The one whose details are shown.
        outcome: Its own.
        notes: What is missing.
    """
    groups = groups_of(runs)
    return Report(
        title=_title(runs),
        lead=_lead(runs, groups),
        status="",
        error="",
        notes=[*_notes(runs), *notes, *outcome.notes],
        keys=list(_keys(runs, groups, best)),
        sections=[
            _comparison_section(groups),
            Section("Runs", [runs_table(runs, best)]),
            *_of_the_best(best, [*detail_sections(best, outcome), *configuration_sections(best)]),
        ],
    )


def _title(runs: Sequence[ReportedRun]) -> str:
    datasets = ", ".join(dict.fromkeys(run.dataset for run in runs))
    return f"{len(runs)} runs on {datasets}"


def _lead(runs: Sequence[ReportedRun], groups: Sequence[Group]) -> str:
    keys = differences(runs)
    words = f"They differ in {', '.join(keys)}." if keys else "They were all asked for the same."
    if len(groups) < len(runs):
        words += f" Runs that differ in seed or split alone are one of {len(groups)} settings"
        words += " of which means and sample standard deviations are shown."
    return words


def _notes(runs: Sequence[ReportedRun]) -> Iterator[str]:
    incomplete = [run for run in runs if run.status != "completed"]
    if incomplete:
        named = "; ".join(f"{run.name} ({_ending(run)})" for run in incomplete[:_NAMED_RUNS])
        more = len(incomplete) - _NAMED_RUNS
        rest = f"; and {more} more, see the table of runs" if more > 0 else ""
        yield f"{len(incomplete)} of {len(runs)} runs did not complete: {named}{rest}."
    metrics = dict.fromkeys(shown_metric(run.metric) for run in runs if run.metric)
    if len(metrics) > 1:
        yield f"The runs are judged by different metrics: {', '.join(metrics)}."


def _ending(run: ReportedRun) -> str:
    error = " ".join(str(run.summary.get("error", "")).split()).rstrip(".")
    return f"{run.status}: {error}" if error else run.status


def _keys(runs: Sequence[ReportedRun], groups: Sequence[Group], best: ReportedRun) -> Iterator[Key]:
    metric = shown_metric(best.metric or "")
    split = "test" if best.best.get("test") else "val"
    own = next(group for group in groups if best in group.runs)
    leader = min(
        (group for group in groups if group.cost < math.inf),
        key=lambda group: group.cost,
        default=own,
    )
    yield Key(f"{split} {metric}", _spread(leader.spread(split)), f"best setting: {leader.label}")
    yield Key("best run", format_metric(best.score(split)), best.name)
    completed = sum(run.status == "completed" for run in runs)
    yield Key("runs", str(len(runs)), f"{completed} completed")
    yield Key("settings", str(len(groups)), "that differ in more than seed or split")
    seconds = [run.summary["seconds_total"] for run in runs if run.summary.get("seconds_total")]
    if seconds:
        longest = f"the longest run {format_seconds(max(seconds))}"
        yield Key("time", format_seconds(sum(seconds)), longest)


def _spread(spread: Spread) -> str:
    if spread.std is None:
        return format_metric(spread.mean)
    return f"{format_metric(spread.mean)} ± {format_metric(spread.std, spread.mean)}"


def _comparison_section(groups: Sequence[Group]) -> Section:
    blocks: list[Block] = [groups_table(groups)]
    if any(run.score("test") == run.score("test") for group in groups for run in group.runs):
        caption = "Each run, and the mean and standard deviation of its setting (diamonds)."
        spec = figures.spread_figure(groups, "test")
        height = "tall" if len(groups) > _MANY_GROUPS else ""
        blocks.append(Figure("Test metric by setting", caption, spec, wide=True, height=height))
    caption = "A colour a setting, as in the table."
    blocks.append(Figure("Validation", caption, figures.metrics_figure(groups)))
    blocks.append(Figure("Training loss", caption, figures.losses_figure(groups)))
    return Section("Comparison", blocks)


def groups_table(groups: Sequence[Group]) -> Table:
    """A row a setting: mean and standard deviation of the deciding metric over its runs."""
    rows = [
        [
            group.label,
            _number_of(group),
            shown_metric(group.runs[0].metric or "-"),
            *(_spread(group.spread(split)) for split in ("val", "test")),
            format_seconds(_mean(group, "seconds_per_epoch")),
        ]
        for group in groups
    ]
    costs = [group.cost for group in groups]
    is_one_metric = len({group.runs[0].metric for group in groups}) == 1
    best = costs.index(min(costs)) if is_one_metric and min(costs) < math.inf else None
    heads = ["setting", "runs", "metric", "val", "test", "an epoch"]
    caption = (
        "Mean ± sample standard deviation over seeds and splits, of the runs that completed, each "
        "at its best epoch."
    )
    return Table(
        "Settings",
        caption,
        heads,
        rows,
        texts=frozenset({0, 2}),
        best=best,
        colors=[class_color(number) for number in range(len(groups))],
        wide=True,
    )


def _number_of(group: Group) -> str:
    counted, runs = len(group.counted), len(group.runs)
    return str(runs) if counted == runs else f"{counted} of {runs}"


def _mean(group: Group, field: str) -> float | None:
    known = [
        float(run.summary[field]) for run in group.counted if run.summary.get(field) is not None
    ]
    return sum(known) / len(known) if known else None


def runs_table(runs: Sequence[ReportedRun], best: ReportedRun | None = None) -> Table:
    """A row a run: what it differs in, how it ended, what it reached and took."""
    keys = [*differences(runs)]
    heads = ["run", *keys, "status", "best epoch", "val", "test", "an epoch", "total", "memory"]
    rows = [
        [
            run.name,
            *(shown_value(run.config[key]) if key in run.config else "-" for key in keys),
            run.status,
            str(run.result.best_epoch or "-"),
            format_metric(run.score("val")),
            format_metric(run.score("test")),
            format_seconds(run.summary.get("seconds_per_epoch")),
            format_seconds(run.summary.get("seconds_total")),
            format_bytes(run.summary.get("peak_rss_bytes")),
        ]
        for run in runs
    ]
    texts = frozenset(range(len(keys) + 2))
    place = None if best is None else list(runs).index(best)
    caption = "With all that their configurations differ in."
    return Table("All runs", caption, heads, rows, texts=texts, best=place, wide=True)


def run_rows(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
    """A row a run for other programs: numbers as they are, names with dots and slashes."""
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
            **_flat_metrics(run),
            **{name: run.summary.get(name) for name in _MEASURED},
        }
        for run in runs
    ]


_MEASURED = (
    *("num_parameters", "seconds_total", "seconds_per_epoch", "edges_per_s", "seeds_per_s"),
    *("peak_rss_bytes", "peak_gpu_bytes"),
)


def _flat_metrics(run: ReportedRun) -> Mapping[str, float]:
    return {
        f"{split}/{name}": value
        for split, metrics in run.best.items()
        for name, value in metrics.items()
    }


def _of_the_best(best: ReportedRun, sections: Sequence[Section]) -> Iterator[Section]:
    for section in sections:
        text = f"Of the best run, {best.name}. {section.text}".rstrip()
        yield Section(section.title, section.blocks, text)
