"""A page about runs as one HTML file that needs no network and no other file."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gnntrain import __version__
from gnntrain.config.problems import as_typed
from gnntrain.data.graph import Graph
from gnntrain.data.summary import from_plain
from gnntrain.report import figures, tables
from gnntrain.report.drawing import Drawing, Figure, draw
from gnntrain.report.findings import Findings
from gnntrain.report.runs import ReportedRun, differences, groups_of
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
from gnntrain.training.records import json_safe

Page = dict[str, Any]
"""The variables of the templates."""
Key = tuple[str, str, str]
"""A key figure: its name, its value, and a line beneath."""

_LOADER = PackageLoader("gnntrain.report")
_NAMED_RUNS = 5


def to_html(page: Page, folder: Path | None = None) -> str:
    """The page as HTML; its figures are written to a folder too, if there is one.

    Names of the user are escaped. Besides, the page's policy lets a browser load nothing, and run
    only the script whose digest it names.
    """
    environment = Environment(
        loader=_LOADER,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    numbers = itertools.count()

    def drawn(figure: Figure, title: str, width: int, height: int) -> Drawing:
        prefix = f"figure-{next(numbers)}"
        return draw(figure, prefix, width, height, title=title, folder=folder)

    def to_json(value: Any) -> Markup:
        """JSON inside a script element: without `<`, which could end the element."""
        text = json.dumps(json_safe(value), separators=(",", ":"), ensure_ascii=False)
        for sign in "<>&":
            text = text.replace(sign, f"\\u{ord(sign):04x}")
        return Markup(text)

    environment.filters |= {"json": to_json, "drawn": drawn}
    script = _LOADER.get_source(environment, "page.js")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html.j2").render(
        page,
        figures=figures,
        tables=tables,
        partial=partial,
        script=Markup(script),
        digest=Markup(f"'sha256-{digest}'"),
        footer=f"Made by gnntrain {__version__} on {datetime.now():%Y-%m-%d %H:%M}.",
    )


def page_of(runs: Sequence[ReportedRun], run: ReportedRun, found: Findings) -> Page:
    """The page of one run; or of several, with the details of the best.

    Args:
        runs: The runs.
        run: The best of them.
        found: Its graph and findings.
    """
    graph, projection, training = found.graph, found.projection, None
    page: Page
    if len(runs) == 1:
        if run.records:
            phases = tables.phases_table(run)
            is_gpu = run.records[-1].gpu_memory_bytes is not None
            beside = tables.background_seconds(run.records)
            training = {
                "phases": phases if phases.rows else None,
                "clock": "The GPU's time." if is_gpu else "Time of rank 0.",
                "background": " and ".join(f"{n} {format_seconds(s)}" for n, s in beside.items()),
            }
        page = {
            "title": run.name,
            "lead": _lead(run, graph),
            "status": run.status,
            "error": run.summary.get("error") or "",
            "notes": [*_notes_of_run(run), *found.notes],
            "keys": [*_keys_of_run(run, graph)],
            "comparison": None,
        }
    else:
        groups, keys = groups_of(runs), differences(runs)
        lead = f"They differ in {', '.join(keys) or 'no key'}."
        if len(groups) < len(runs):
            lead += f" Runs that differ in seed or split alone are a setting: {len(groups)} in all."
        page = {
            "title": f"{len(runs)} runs on {', '.join(dict.fromkeys(one.dataset for one in runs))}",
            "lead": lead,
            "status": "",
            "error": "",
            "notes": [*_notes_of_several(runs, groups), *found.notes],
            "keys": [*_keys_of_several(runs, groups, run)],
            "comparison": {
                "groups": groups,
                "runs": runs,
                "is_tested": any(one.best.get("test") for one in runs),
            },
        }
    data = from_plain(run.summary.get("data")) or (graph.summary if graph else None)
    positive = found.positive if found.scores else run.summary.get("positive_class")
    names = found.names or [name for name, _ in found.targets]
    return page | {
        "training": training,
        "run": run,
        "metric": shown_metric(run.metric or "metric"),
        "best_epoch": run.result.best_epoch,
        "positive": "" if positive is None else f"The positive class is {positive}.",
        "data": [(label, text, False) for label, text in data.lines()] if data else None,
        "found": found,
        "plane": partial(figures.plane, names=names, found=projection) if projection else None,
        "graph": graph,
    }


def _lead(run: ReportedRun, graph: Graph | None) -> str:
    parameters, ranks = run.summary.get("num_parameters"), run.summary.get("world_size")
    model = f"{run.model} with {parameters:,} parameters" if parameters else run.model
    size = f" ({graph.num_nodes:,} nodes, {graph.num_edges:,} edges)" if graph else ""
    prefix = "sampler.fan_outs."  # by edge type, else of all
    by_type = {k.removeprefix(prefix): v for k, v in run.config.items() if k.startswith(prefix)}
    fan_outs = as_typed(by_type or run.config.get("sampler.fan_outs"))
    is_full = run.config.get("sampler.name") == "full"
    words = [
        f"{model} on {run.dataset}{size}",
        "trained on the full graph" if is_full else f"fan-outs {fan_outs}",
        *([counted(ranks, "rank")] if ranks else []),
        f"seed {run.config.get('trainer.seed')}",
    ]
    return f"{', '.join(words)}."


def _notes_of_run(run: ReportedRun) -> Iterator[str]:
    if run.status != "completed":
        killed = " (it was probably killed)" * (run.status == "unfinished")
        asked = run.config.get("trainer.epochs")
        yield f"Status {run.status}{killed}: {len(run.records)} of {asked} epochs were trained."
    if replaced := (run.summary.get("kernels") or {}).get("replaced"):
        yield f"Triton's kernels were replaced where they failed: {', '.join(replaced)}."
    if nan := sum(not math.isfinite(record.train_loss) for record in run.records):
        yield f"The training loss of {counted(nan, 'epoch')} is not a finite number."
    if not run.records:
        yield "No epoch was finished."
    elif not any(record.metrics for record in run.records):
        yield "No epoch was evaluated, so there is no metric."


def _keys_of_run(run: ReportedRun, graph: Graph | None) -> Iterator[Key]:
    summary, metric = run.summary, shown_metric(run.metric or "")
    if run.best:
        split = next(name for name in ("test", "val", "train") if name in run.best)
        others = [name for name in ("val", "train") if name in run.best and name != split]
        more = " · ".join(f"{name} {format_metric(run.score(name))}" for name in others)
        yield f"{split} {metric}", format_metric(run.score(split)), more
        more = f"by val {metric}, of {len(run.records)} trained"
        yield "best epoch", str(run.result.best_epoch), more
    if run.records:
        last = run.records[-1]
        yield "train loss", format_loss(last.train_loss), f"in epoch {last.epoch}"
    if summary.get("seconds_total") is not None:
        each = format_seconds(summary.get("seconds_per_epoch"))
        yield "time", format_seconds(summary["seconds_total"]), f"{each} an epoch"
    if summary.get("edges_per_s") is not None:
        seeds = format_rate(summary.get("seeds_per_s"))
        yield "edges/s", format_rate(summary["edges_per_s"]), f"{seeds} seeds/s"
    if summary.get("peak_rss_bytes"):
        gpu = summary.get("peak_gpu_bytes")
        more = f"{format_bytes(gpu)} on the GPU" if gpu else "peak, all ranks"
        yield "memory", format_bytes(summary["peak_rss_bytes"]), more
    if graph is not None:
        sizes = counted_inputs(graph.target_nodes.num_features, len(graph.nodes), len(graph.edges))
        yield "nodes", f"{graph.num_nodes:,}", f"{format_rate(graph.num_edges)} edges · {sizes}"


def _notes_of_several(
    runs: Sequence[ReportedRun], groups: Sequence[Group[ReportedRun]]
) -> Iterator[str]:
    incomplete = [run for run in runs if run.status != "completed"]
    if incomplete:
        errors = [" ".join(str(run.summary.get("error") or "").split()) for run in incomplete]
        named = [
            f"{run.name} ({run.status}{f': {error}' if error else ''})"
            for run, error in zip(incomplete, errors, strict=True)
        ]
        if len(named) > _NAMED_RUNS:
            named[_NAMED_RUNS:] = [f"and {len(named) - _NAMED_RUNS} more, see the table of runs"]
        yield f"{len(incomplete)} of {len(runs)} runs did not complete: {'; '.join(named)}."
    ranked = rank(groups)
    if len(ranked) < sum(group.runs[0].metric is not None for group in groups):
        first, number = ranked[0].runs[0], sum(len(group.runs) for group in ranked)
        over = f", split {', '.join(ranked[0].splits)}" * bool(ranked[0].splits)
        yield (
            "Runs of different data sets, splits, metrics or positive classes are not ranked "
            f"against each other: the best run is of the {counted(number, 'run')} on "
            f"{first.dataset}{over}, by {shown_metric(first.metric or '')}."
        )


def _keys_of_several(
    runs: Sequence[ReportedRun], groups: Sequence[Group[ReportedRun]], best: ReportedRun
) -> Iterator[Key]:
    split, leader = "test" if best.best.get("test") else "val", rank(groups)[0]
    label = f"best setting: {leader.varied[0]}"
    yield f"{split} {shown_metric(best.metric or '')}", str(leader.spread(split)), label
    yield "best run", format_metric(best.score(split)), best.name
    completed = sum(run.status == "completed" for run in runs)
    yield "runs", str(len(runs)), f"{completed} completed"
    yield "settings", str(len(groups)), "that differ in more than seed or split"
    seconds = [run.summary["seconds_total"] for run in runs if run.summary.get("seconds_total")]
    if seconds:
        longest = f"the longest run {format_seconds(max(seconds))}"
        yield "time", format_seconds(sum(seconds)), longest
