"""What a report says of one run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gnntrain.data.summary import DataSummary, from_plain
from gnntrain.report import figures
from gnntrain.report.comparison import shown_value
from gnntrain.report.content import (
    Block,
    Code,
    Figure,
    Key,
    Report,
    Section,
    Settings,
    Table,
)
from gnntrain.report.courses import PHASES, background_seconds, typical_phases
from gnntrain.report.outcome import GraphSummary, Outcome
from gnntrain.report.runs import ReportedRun
from gnntrain.report.style import PHASES as PHASE_COLORS
from gnntrain.reporting.text import (
    format_bytes,
    format_loss,
    format_metric,
    format_rate,
    format_seconds,
    shown_metric,
)

_LONG_NUMBER = 1_000_000


def report_of(run: ReportedRun, outcome: Outcome, notes: Sequence[str] = ()) -> Report:
    """Everything about one run."""
    return Report(
        title=run.name,
        lead=_lead(run, outcome.graph),
        status=run.status,
        error=str(run.summary.get("error", "")),
        notes=[*_state_notes(run), *notes, *outcome.notes],
        keys=list(_keys(run, outcome.graph)),
        sections=[
            *_training_sections(run),
            *detail_sections(run, outcome),
            *configuration_sections(run),
        ],
    )


def detail_sections(run: ReportedRun, outcome: Outcome) -> list[Section]:
    """What was read, and what takes the graph and the best model: predictions, embeddings,
    degrees."""
    sections = []
    read = from_plain(run.summary.get("data"))
    if read is None and outcome.graph is not None:
        read = outcome.graph.data
    if read is not None:
        sections.append(_data_section(read))
    if outcome.findings is not None:
        sections += outcome.findings.sections(run.result.best_epoch)
    if outcome.graph is not None:
        sections.append(_graph_section(outcome.graph))
    return sections


def configuration_sections(run: ReportedRun) -> list[Section]:
    """What was asked, and on what it ran."""
    command = run.environment.get("command")
    blocks: list[Block] = [Code(str(command))] if command else []
    groups: dict[str, list[tuple[str, str, bool]]] = {}
    for key, value in run.config.items():
        section, _, name = key.partition(".")
        is_typed = any(_names_key(override, key) for override in run.overrides)
        groups.setdefault(section, []).append((name or key, shown_value(value), is_typed))
    text = "What was typed stands out; all else is a default or a recipe's."
    sections = [Section("Configuration", [*blocks, Settings(groups)], text)]
    if run.environment:
        sections.append(Section("Environment", [_environment(run.environment)]))
    return sections


def _names_key(override: str, key: str) -> bool:
    typed = override.lstrip("+~").partition("=")[0]
    return typed == key or f"{typed}.name" == key


def _lead(run: ReportedRun, graph: GraphSummary | None) -> str:
    parameters = run.summary.get("num_parameters")
    model = f"{run.model} with {parameters:,} parameters" if parameters else run.model
    size = f" ({graph.num_nodes:,} nodes, {graph.num_edges:,} edges)" if graph else ""
    words = [f"{model} on {run.dataset}{size}", _sampler(run.config)]
    ranks = run.summary.get("world_size")
    if ranks:
        words.append("1 rank" if ranks == 1 else f"{ranks} ranks")
    words.append(f"seed {run.config.get('trainer.seed')}")
    return ", ".join(words) + "."


def _sampler(config: Mapping[str, Any]) -> str:
    if config.get("sampler.name") == "full":
        return "trained on the full graph"
    return f"fan-outs {shown_value(config.get('sampler.fan_outs'))}"


def _state_notes(run: ReportedRun) -> Iterator[str]:
    asked = run.config.get("trainer.epochs")
    reached = f"{len(run.records)} of {asked} epochs were trained"
    if run.status == "interrupted":
        yield f"The run was interrupted: {reached}. This is what is there."
    elif run.status == "pruned":
        yield f"The run was pruned by its sweep: {reached}."
    elif run.status == "failed":
        yield f"The run failed: {reached}. This is what is there."
    elif run.status == "running":
        yield f"The run is still going on: {reached} so far."
    elif run.status == "unfinished":
        yield f"The run ended without a word (it was killed, perhaps): {reached}."
    spoilt = sum(not math.isfinite(record.train_loss) for record in run.records)
    if spoilt:
        yield f"The training loss of {spoilt} epochs is not a finite number."
    if run.records and not any(record.metrics for record in run.records):
        yield "No epoch was evaluated, so there is no metric."


def _keys(run: ReportedRun, graph: GraphSummary | None) -> Iterator[Key]:
    summary, metric = run.summary, shown_metric(run.metric or "")
    if run.best:
        split = next(name for name in ("test", "val", "train") if name in run.best)
        others = [name for name in ("val", "train") if name in run.best and name != split]
        more = " · ".join(f"{name} {format_metric(run.score(name))}" for name in others)
        yield Key(f"{split} {metric}", format_metric(run.score(split)), more)
        yield Key(
            "best epoch",
            str(run.result.best_epoch),
            f"by val {metric}, of {len(run.records)} trained",
        )
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
        more = f"{format_rate(graph.num_edges)} edges · {graph.num_features:,} features"
        exact = graph.num_nodes < _LONG_NUMBER
        number = f"{graph.num_nodes:,}" if exact else format_rate(graph.num_nodes)
        yield Key("nodes", number, more)


def _training_sections(run: ReportedRun) -> Iterator[Section]:
    if not run.records:
        yield Section("Training", [], "No epoch was finished.")
        return
    blocks: list[Block] = []
    if run.best:
        metric = shown_metric(run.metric or "metric")
        best = run.result.best_epoch
        caption = f"The dotted line is the best epoch, {best}, chosen by {metric} on val."
        title = metric[:1].upper() + metric[1:]
        blocks.append(Figure(title, caption, figures.metric_figure(run)))
    blocks.append(Figure("Loss", "Mean over an epoch's seed nodes.", figures.loss_figure(run)))
    if run.best:
        blocks.append(_metrics_table(run))
    yield Section("Training", blocks)
    yield Section("Time and memory", list(_speed_blocks(run)))


def _metrics_table(run: ReportedRun) -> Table:
    names = list(dict.fromkeys(name for metrics in run.best.values() for name in metrics))
    rows = [
        [split, *(format_metric(metrics.get(name)) for name in names)]
        for split, metrics in run.best.items()
    ]
    heads = ["split", *map(shown_metric, names)]
    return Table(
        f"Metrics of epoch {run.result.best_epoch}",
        "The best epoch, all splits.",
        heads,
        rows,
        wide=True,
    )


def _speed_blocks(run: ReportedRun) -> Iterator[Block]:
    if typical_phases(run.records):
        whose = "The GPU's own time." if run.records[-1].gpu_memory_bytes else "Time of rank 0."
        caption = f"{whose} {_background_words(run)}"
        figure = figures.typical_figure(run)
        yield Figure("A typical epoch", f"Medians. {caption}", figure, wide=True, height="low")
        yield _phase_table(run)
        caption = f"{whose} Colours as above."
        yield Figure("Where each epoch's time went", caption, figures.time_figure(run))
    else:
        note = "The run is from before phases were measured."
        yield Table("Where the time went", note, ["phase"], [])
    caption = "In the training part of an epoch, over all ranks."
    yield Figure("Throughput", caption, figures.throughput_figure(run))
    yield Figure("Memory", "At the end of an epoch.", figures.memory_figure(run))


def _background_words(run: ReportedRun) -> str:
    beside = background_seconds(run.records)
    if not beside:
        return ""
    words = " and ".join(f"{name} {format_seconds(value)}" for name, value in beside.items())
    return f"Batches are made in background threads, beside the steps: {words} an epoch."


def _phase_table(run: ReportedRun) -> Table:
    phases = typical_phases(run.records)
    whole = sum(phases.values())
    rows = [
        [PHASES[name], format_seconds(seconds), f"{seconds / whole:.1%}"]
        for name, seconds in phases.items()
    ]
    colors = [PHASE_COLORS[name] for name in phases]
    heads = ["phase", "an epoch", "share"]
    return Table("Phases", "Medians over the epochs.", heads, rows, colors=colors)


def _data_section(read: DataSummary) -> Section:
    rows = [[label, text] for label, text in read.lines()]
    caption = "As it was when the graph's store was built."
    table = Table("What was read", caption, ["", ""], rows, frozenset({0, 1}), wide=True)
    return Section("Data", [table])


def _graph_section(graph: GraphSummary) -> Section:
    degrees = graph.degrees
    rows = [
        ["nodes", f"{graph.num_nodes:,}"],
        ["edges", f"{graph.num_edges:,}"],
        ["features", f"{graph.num_features:,}"],
        [graph.outputs, f"{graph.num_outputs:,}"],
        *([f"{name} nodes", f"{size:,}"] for name, size in graph.split_sizes.items()),
        ["median degree", f"{degrees.median:g}"],
        ["mean degree", f"{degrees.mean:.1f}"],
        ["largest degree", f"{degrees.largest:,}"],
        ["nodes without an in-edge", f"{degrees.num_isolated:,}"],
    ]
    caption = "Nodes by number of in-neighbours, from 1; high degrees in bins."
    figure = Figure("Degree distribution", caption, figures.degree_figure(degrees))
    return Section(
        "Graph", [figure, Table("Facts", "As it is stored.", ["quantity", "value"], rows)]
    )


def _environment(environment: Mapping[str, Any]) -> Settings:
    packages = environment.get("packages") or {}
    gpus = environment.get("gpus") or []
    machine = {
        "time": environment.get("time"),
        "platform": environment.get("platform"),
        "cpu": environment.get("cpu"),
        "cores": environment.get("cores_available"),
        "memory": format_bytes(environment.get("memory_bytes")),
        "gpus": ", ".join(str(gpu.get("name")) for gpu in gpus) or "none",
        "cuda": environment.get("cuda") or "none",
    }
    software = {
        "python": environment.get("python"),
        **packages,
        "git commit": environment.get("git_commit"),
    }
    return Settings({"machine": _pairs(machine), "software": _pairs(software)})


def _pairs(values: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    return [(key, str(value), False) for key, value in values.items() if value is not None]
