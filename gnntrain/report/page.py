"""A page about runs as one HTML file that needs no network and no other file."""

from __future__ import annotations

import base64
import hashlib
import itertools
import math
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from gnntrain import __version__
from gnntrain.config.problems import as_typed
from gnntrain.data.graph import Graph
from gnntrain.data.summary import first_names, from_plain
from gnntrain.report import figures, tables
from gnntrain.report.findings import Findings
from gnntrain.report.runs import ReportedRun, differences, groups_of
from gnntrain.reporting import text
from gnntrain.reporting.text import counted, format_metric, format_seconds, shown_metric
from gnntrain.reporting.trials import rank
from gnntrain.training.records import json_safe

Page = dict[str, Any]  # the variables of the templates

_LOADER = PackageLoader("gnntrain.report")


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

    def drawn(figure: figures.Figure, title: str, width: int, height: int) -> figures.Drawing:
        prefix = f"figure-{next(numbers)}"
        return figures.draw(figure, prefix, width, height, title=title, folder=folder)

    def to_json(value: Any) -> Markup:  # without `<`, which could end the script element
        return htmlsafe_json_dumps(json_safe(value), separators=(",", ":"), ensure_ascii=False)

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
    """The page of one run; or of several, with the graph and findings of the best, `run`."""
    graph, projection = found.graph, found.projection
    page: Page = {"status": "", "error": "", "comparison": None, "training": None}
    page |= _of_one(run, graph) if len(runs) == 1 else _of_several(runs, run)
    data = from_plain(run.summary.get("data")) or (graph.summary if graph else None)
    positive = found.positive if found.scores else run.summary.get("positive_class")
    return page | {
        "notes": [*page["notes"], *found.notes],
        "run": run,
        "metric": shown_metric(run.metric or "metric"),
        "best_epoch": run.result.best_epoch,
        "positive": "" if positive is None else f"The positive class is {positive}.",
        "data": [(*line, False) for line in data.lines()] if data else None,
        "found": found,
        "plane": projection and partial(figures.plane, names=found.names, found=projection),
        "graph": graph,
    }


def _of_one(run: ReportedRun, graph: Graph | None) -> Page:
    """The head of a run's page, and its training."""
    summary, config, records = run.summary, run.config, run.records
    parameters, ranks = summary.get("num_parameters"), summary.get("world_size")
    size = f" ({graph.num_nodes:,} nodes, {graph.num_edges:,} edges)" if graph else ""
    prefix = "sampler.fan_outs."  # by edge type, else of all
    by_type = {k.removeprefix(prefix): v for k, v in config.items() if k.startswith(prefix)}
    fan_outs = f"fan-outs {as_typed(by_type or config.get('sampler.fan_outs'))}"
    words = [
        run.model + (f" with {parameters:,} parameters" if parameters else ""),
        f" on {run.dataset}{size}, ",
        "trained on the full graph" if config.get("sampler.name") == "full" else fan_outs,
        f", {counted(ranks, 'rank')}" if ranks else "",
        f", seed {config.get('trainer.seed')}.",
    ]
    notes = []
    if run.status != "completed":
        killed = " (it was probably killed)" * (run.status == "unfinished")
        trained = f"{len(records)} of {config.get('trainer.epochs')} epochs were trained."
        notes.append(f"Status {run.status}{killed}: {trained}")
    if replaced := (summary.get("kernels") or {}).get("replaced"):
        names = ", ".join(replaced)
        notes.append(f"Triton's kernels were replaced where they failed: {names}.")
    if nan := sum(not math.isfinite(record.train_loss) for record in records):
        notes.append(f"The training loss of {counted(nan, 'epoch')} is not a finite number.")
    if not any(record.metrics for record in records):
        lacks = "evaluated, so there is no metric" if records else "finished"
        notes.append(f"No epoch was {lacks}.")
    keys: list[tuple[str, str, str]] = []  # of a figure the name, the value, a line beneath
    metric, training = shown_metric(run.metric or ""), None
    if run.best:
        split, *others = [name for name in ("test", "val", "train") if name in run.best]
        more = " · ".join(f"{name} {format_metric(run.score(name))}" for name in others)
        keys.append((f"{split} {metric}", format_metric(run.score(split)), more))
        by = "the last: none has a" if math.isnan(run.score("val")) else "by"
        more = f"of {len(records)} trained, {by} val {metric}"
        keys.append(("best epoch", str(run.result.best_epoch), more))
    if records:
        last, phases = records[-1], tables.phases_table(run)
        keys.append(("train loss", text.format_loss(last.train_loss), f"in epoch {last.epoch}"))
        training = {
            "phases": phases if phases.rows else None,
            "clock": "The GPU's time." if last.gpu_memory_bytes else "Time of rank 0.",
            "background": tables.background_seconds(records),
        }
    if (seconds := summary.get("seconds_total")) is not None:
        each = f"{format_seconds(summary.get('seconds_per_epoch'))} an epoch"
        keys.append(("time", format_seconds(seconds), each))
    if (rate := summary.get("edges_per_s")) is not None:
        more = f"{text.format_rate(summary.get('seeds_per_s'))} seeds/s"
        keys.append(("edges/s", text.format_rate(rate), more))
    if memory := summary.get("peak_rss_bytes"):
        gpu = summary.get("peak_gpu_bytes")
        more = f"{text.format_bytes(gpu)} on the GPU" if gpu else "peak, all ranks"
        keys.append(("memory", text.format_bytes(memory), more))
    if graph is not None:
        width = graph.target_nodes.num_features
        sizes = text.counted_inputs(width, len(graph.nodes), len(graph.edges))
        more = f"{graph.num_edges:,} edges · {sizes}"
        keys.append(("nodes", f"{graph.num_nodes:,}", more))
    return {
        "title": run.name,
        "lead": "".join(words),
        "status": run.status,
        "error": summary.get("error") or "",
        "notes": notes,
        "keys": keys,
        "training": training,
    }


def _of_several(runs: Sequence[ReportedRun], best: ReportedRun) -> Page:
    """The head of a page of several runs, and their comparison."""
    groups, differing = groups_of(runs), differences(runs)
    lead = f"They differ in {', '.join(differing) or 'no key'}."
    if len(groups) < len(runs):
        lead += f" Runs that differ in seed or split alone are a setting: {len(groups)} in all."
    notes, incomplete = [], []
    for run in runs:
        if run.status != "completed":
            error = " ".join(str(run.summary.get("error") or "").split())
            incomplete.append(f"{run.name} ({': '.join(filter(None, [run.status, error]))})")
    if incomplete:
        named = first_names(incomplete)
        notes.append(f"{len(incomplete)} of {len(runs)} runs did not complete: {named}.")
    leader = rank(groups)[0]
    alike = [group for group in groups if group.data == leader.data]
    if len(alike) < sum(group.runs[0].metric is not None for group in groups):
        number = counted(sum(len(group.runs) for group in alike), "run")
        notes.append(
            "Runs of different data sets, splits, metrics or positive classes are not ranked "
            f"against each other: the best run is of the {number} on {', '.join(leader.data)}."
        )
    split = "test" if best.best.get("test") else "val"
    name = f"{split} {shown_metric(best.metric or '')}"
    keys = []
    if best.cost < math.inf:
        keys.append((name, str(leader.spread(split)), f"best setting: {leader.varied[0]}"))
        keys.append(("best run", format_metric(best.score(split)), best.name))
    else:
        notes.append(f"No run has a validation metric: none is the best, {best.name} is shown.")
    keys += [
        ("runs", str(len(runs)), f"{len(runs) - len(incomplete)} completed"),
        ("settings", str(len(groups)), "that differ in more than seed or split"),
    ]
    seconds = [run.summary["seconds_total"] for run in runs if run.summary.get("seconds_total")]
    if seconds:
        longest = f"the longest run {format_seconds(max(seconds))}"
        keys.append(("time", format_seconds(sum(seconds)), longest))
    return {
        "title": f"{len(runs)} runs on {', '.join(dict.fromkeys(run.dataset for run in runs))}",
        "lead": lead,
        "notes": notes,
        "keys": keys,
        "comparison": {
            "groups": groups,
            "runs": runs,
            "is_tested": any(run.best.get("test") for run in runs),
        },
    }
