"""The blocks of text at a run's start and end, as pairs of a label and what it says."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence

from gnntrain.reporting.progress import format_speed
from gnntrain.reporting.text import (
    Symbols,
    counted,
    counted_outputs,
    format_bytes,
    format_loss,
    format_metric,
    format_seconds,
    shown_metric,
    shown_path,
    sparkline,
)
from gnntrain.training.records import RunInfo, Summary

Pairs = list[tuple[str, str]]

_SPARKLINE = 60


def start_block(info: RunInfo, symbols: Symbols) -> Pairs:
    """What is trained, on what, and where it goes."""
    dot = f" {symbols.dot} "
    sizes = [
        f"{info.num_nodes:,} nodes",
        f"{info.num_edges:,} edges",
        f"{info.num_features:,} features",
        counted_outputs(info.num_classes, info.label_kind),
    ]
    training = [
        counted(info.epochs, "epoch"),
        f"{counted(info.steps_per_epoch, 'step')} an epoch",
        f"{counted(info.global_batch_size, 'seed')} a step",
        f"seed {info.seed}",
    ]
    return [
        ("dataset", info.dataset),
        ("graph", dot.join(sizes)),
        *_read_lines(info),
        ("store", f"{info.store_reason} ({format_seconds(info.store_seconds)})"),
        ("", shown_path(info.store_path)),
        ("model", f"{info.model}{dot}{info.num_parameters:,} parameters"),
        *([("weights", info.initial_weights)] if info.initial_weights else []),
        ("sampler", info.sampler),
        *[("", line) for line in info.placement],
        ("training", dot.join(training)),
        ("device", info.device),
        ("run", shown_path(info.run_dir)),
    ]


def _read_lines(info: RunInfo) -> Pairs:
    """What was read: a line each for a user's own graph, the split alone for all others."""
    if info.data is None:
        return []
    return [line for line in info.data.lines() if info.data.ids or line[0] == "split"]


def end_sentence(summary: Summary, info: RunInfo | None) -> str:
    """How far the run came, after its status."""
    asked = info.epochs if info is not None else summary.epochs
    words = f"after {summary.epochs} of {counted(asked, 'epoch')}"
    if summary.best_epoch is not None:
        words += f", the best was epoch {summary.best_epoch}"
    if summary.error is not None:
        words += f": {' '.join(summary.error.split())}"
    return words


def end_block(
    summary: Summary,
    info: RunInfo | None,
    values: Sequence[float | None],
    width: int,
    symbols: Symbols,
) -> Pairs:
    """Courses, speed, time, memory, where everything is, and what to type next.

    Args:
        summary: The run's end.
        info: The run, ``None`` where it ended before it began.
        values: The validation metric of every epoch.
        width: Characters a line may have.
        symbols: What to draw with.
    """
    dot = f" {symbols.dot} "
    run = shown_path(info.run_dir) if info is not None else ""
    times = [format_seconds(summary.seconds_total)]
    if summary.seconds_per_epoch is not None:
        times.append(f"{format_seconds(summary.seconds_per_epoch)} an epoch")
    memory = [f"{format_bytes(summary.peak_rss_bytes)} peak"]
    if summary.peak_gpu_bytes:
        memory.append(f"{format_bytes(summary.peak_gpu_bytes)} on the GPU")
    return [
        (shown_metric(summary.metric), _course(values, format_metric, width, symbols)),
        ("loss", _course(summary.train_loss, format_loss, width, symbols)),
        ("speed", dot.join(format_speed(summary.seeds_per_s, summary.edges_per_s))),
        ("time", dot.join(times)),
        ("memory", dot.join(memory)),
        ("run", run),
        ("next", _next_command(summary, run)),
    ]


def _next_command(summary: Summary, run: str) -> str:
    # How to go on with what did not complete, the command says at its very end.
    if not run or summary.best_epoch is None or summary.status != "completed":
        return ""
    return f"gnntrain evaluate {shlex.quote(run)}"


def _course(
    values: Sequence[float | None],
    to_text: Callable[[float | None], str],
    width: int,
    symbols: Symbols,
) -> str:
    """A sparkline with its first and last value; nothing where there are not two, or no number."""
    known = [value for value in values if value is not None]
    if len(known) < 2 or not any(map(math.isfinite, known)):
        return ""
    ends = f"{to_text(known[0])} {symbols.arrow} {to_text(known[-1])}"
    line = sparkline(known, max(1, min(_SPARKLINE, width - len(ends) - 2)), symbols)
    return f"{line}  {ends}"
