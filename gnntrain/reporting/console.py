"""A run on a terminal or in a log: facts at the start, a line an epoch, results at the end."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from itertools import accumulate, count

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gnntrain.data.summary import EDGES_ALONE
from gnntrain.reporting.columns import (
    GAP,
    Column,
    epoch_columns,
    epoch_line,
    fitting,
    plain_table,
    to_table,
)
from gnntrain.reporting.progress import Progress, format_speed
from gnntrain.reporting.screen import DOT, INDENT, LABEL, Screen
from gnntrain.reporting.text import (
    counted,
    counted_inputs,
    counted_outputs,
    format_bytes,
    format_loss,
    format_metric,
    format_seconds,
    shown_metric,
    shown_path,
    sparkline,
)
from gnntrain.training.records import EpochRecord, Metrics, RunInfo, StepProgress, Summary

Pairs = list[tuple[str, str]]

_BAR = 60
_FEW_STEPS = 5
_MANY_EPOCHS = 100
_MANY_LINES = 50


class Console(Screen):
    """Shows a run. Use it as a context manager, so that the terminal is restored in any case.

    On a terminal, a table that grows by a row an epoch, and a live view below it; a run of more
    than 100 epochs keeps only every 5th, 10th, 20th … row. In a log, one line an epoch, and one a
    minute inside a longer epoch.
    """

    _run: Progress | None = None
    _columns: Sequence[Column[EpochRecord]] = ()
    _unshown: Callable[[], None] | None = None

    def on_start(self, info: RunInfo) -> None:
        """Show data set, model, devices and the run directory."""
        self._run = Progress(info, self._clock)
        self._print_start(start_pairs(info))

    def on_step(self, progress: StepProgress) -> None:
        """Refresh the live view."""
        if self._run is None:
            return
        self._run.note_step(progress)
        if self.is_live:
            self._draw()
        elif self._is_quiet():
            self._print(GAP.join((*self._position(self._run), *self._run.facts())))

    def on_epoch(self, record: EpochRecord) -> None:
        """Add the epoch's row."""
        run = self._run
        if run is None:
            return
        is_best = run.note_epoch(record)
        if not self._columns:
            columns = epoch_columns(run.info.epochs, run.info.metric, record)
            self._columns = fitting(columns, self._rich.width)
            if self.is_live:
                self._print_block(to_table(self._columns))
        is_due = self._is_due(record.epoch, run)
        if is_due:
            self._print_epoch(record, is_best=is_best)
        self._unshown = None if is_due else lambda: self._print_epoch(record, is_best=is_best)
        if self.is_live:
            self._draw()

    def on_message(self, text: str) -> None:
        """Show a notice as one line."""
        self._print_note(text)

    def on_finish(self, summary: Summary) -> None:
        """End the live view and show the results."""
        self.close()
        if self._unshown is not None:
            self._unshown()
        info = self._run.info if self._run is not None else None
        self._print_status(summary.status, _end_sentence(summary, info))
        if summary.metrics:
            self._print_block(_metrics_table(summary.metrics), indent=INDENT)
            self._print()
        values = self._run.values if self._run is not None else []
        self._print_pairs(_end_pairs(summary, info, values, self._rich.width - INDENT - LABEL))

    def _print_epoch(self, record: EpochRecord, *, is_best: bool) -> None:
        if self.is_live:
            best = record if is_best else None
            self._print_block(to_table(self._columns, [record], best=best, header=False))
        else:
            self._print(epoch_line(self._columns, record, is_best=is_best))

    def _is_due(self, epoch: int, run: Progress) -> bool:
        interval = _line_interval(run.info.epochs) if self.is_live else 1
        return epoch in (run.first_epoch, run.info.epochs) or epoch % interval == 0

    def _position(self, run: Progress) -> tuple[str, str]:
        assert run.step is not None
        step = f"step {run.step.step}/{run.step.num_steps}"
        return run.epoch(), f"{step}  ETA {run.eta()}"

    def __rich__(self) -> RenderableType:
        """The state of the epoch, its speed, and the metric so far."""
        from rich.progress_bar import ProgressBar  # a log does without it

        run = self._run
        if run is None or run.step is None:
            return ""
        # A bar over a handful of steps would flicker: it then shows the whole run.
        few = run.step.num_steps < _FEW_STEPS
        share = run.share() if few else run.step.step / run.step.num_steps
        epoch, step = self._position(run)
        grid = Table.grid(padding=(0, 2, 0, 0))
        for width in (None, _BAR, None):
            grid.add_column(max_width=width, no_wrap=width is None)
        grid.add_row(epoch, ProgressBar(1.0, share), step)
        lines: list[RenderableType] = ["", grid, _dim(_fitting(run.facts(), self._rich.width))]
        if run.best is not None and len(run.known_values) > 1:
            best = f"best {format_metric(run.best.value)} in epoch {run.best.epoch}"
            room = min(_BAR, self._rich.width - len(best) - 3)
            lines.append(_dim(f"{sparkline(run.known_values, max(0, room))}  {best}"))
        return Group(*lines)


def start_pairs(info: RunInfo) -> Pairs:
    """The facts at a run's start, each with its label."""
    sizes = [
        f"{info.num_nodes:,} nodes",
        f"{info.num_edges:,} edges",
        counted_inputs(info.num_features, info.num_node_types, info.num_edge_types),
        counted_outputs(info.num_classes, info.label_kind),
    ]
    training = [
        counted(info.epochs, "epoch"),
        f"{counted(info.steps_per_epoch, 'step')} an epoch",
        f"{counted(info.global_batch_size, 'seed')} a step",
        f"seed {info.seed}",
    ]
    # A warning says what the model does not read of edges.
    read = [] if info.data is None else info.data.lines(besides=EDGES_ALONE)
    if info.data is not None and not info.data.ids:  # not a user's own graph
        read = [line for line in read if line[0] == "split"]
    return [
        ("dataset", info.dataset),
        ("graph", DOT.join(sizes)),
        ("positive", info.positive_class),
        *read,
        ("store", f"{info.store_reason} ({format_seconds(info.store_seconds)})"),
        ("", shown_path(info.store_path)),
        ("model", f"{info.model}{DOT}{info.num_parameters:,} parameters"),
        ("weights", info.initial_weights),
        ("sampler", info.sampler),
        *[("", line) for line in info.placement],
        ("training", DOT.join(training)),
        ("device", info.device),
        ("run", shown_path(info.run_dir)),
    ]


def _end_sentence(summary: Summary, info: RunInfo | None) -> str:
    # A run that is resumed for fewer epochs than it has had keeps those.
    asked = max(summary.epochs, info.epochs if info is not None else 0)
    words = f"after {summary.epochs:,} of {counted(asked, 'epoch')}"
    if summary.best_epoch is not None:
        words += f", the best was epoch {summary.best_epoch}"
    if summary.error is not None:
        words += f": {' '.join(summary.error.split())}"
    return words


def _metrics_table(metrics: Metrics) -> Table:
    """Metrics by splits: a binary task has more metrics than a terminal has room for columns."""
    table = plain_table()
    table.add_column(min_width=8)
    for split in metrics:
        table.add_column(split, justify="right", min_width=8)
    for name in dict.fromkeys(name for row in metrics.values() for name in row):
        table.add_row(shown_metric(name), *(format_metric(r.get(name)) for r in metrics.values()))
    return table


def _end_pairs(
    summary: Summary, info: RunInfo | None, values: Sequence[float | None], width: int
) -> Pairs:
    """Courses, speed, time, memory, the run directory and the next command."""
    run = shown_path(info.run_dir) if info is not None else ""
    times = [format_seconds(summary.seconds_total)]
    if summary.seconds_per_epoch is not None:
        times.append(f"{format_seconds(summary.seconds_per_epoch)} an epoch")
    memory = [f"{format_bytes(summary.peak_rss_bytes)} peak"]
    if summary.peak_gpu_bytes:
        memory.append(f"{format_bytes(summary.peak_gpu_bytes)} on the GPU")
    constant = ", ".join(summary.extra.get("constant_outputs", ()))
    # The command itself says at its end how to go on with a run that did not complete.
    has_next = run and summary.best_epoch is not None and summary.status == "completed"
    return [
        ("estimated", summary.extra.get("estimated", "")),
        ("constant", f"the same outputs for all nodes of {constant}" if constant else ""),
        (shown_metric(summary.metric), _course(values, format_metric, width)),
        ("loss", _course(summary.train_loss, format_loss, width)),
        ("speed", DOT.join(format_speed(summary.seeds_per_s, summary.edges_per_s))),
        ("time", DOT.join(times)),
        ("memory", DOT.join(memory)),
        ("run", run),
        ("next", f"gnntrain evaluate {shlex.quote(run)}" if has_next else ""),
    ]


def _course(
    values: Sequence[float | None], to_text: Callable[[float | None], str], width: int
) -> str:
    """A sparkline with its first and last value; empty where there are not two finite values."""
    known = [value for value in values if value is not None]
    if len(known) < 2 or not any(map(math.isfinite, known)):
        return ""
    ends = f"{to_text(known[0])} → {to_text(known[-1])}"
    return f"{sparkline(known, max(1, min(_BAR, width - len(ends) - 2)))}  {ends}"


def _fitting(facts: Sequence[str], width: int) -> str:
    """The first facts, as many as fit the width whole; at least one."""
    first, *longer = accumulate(facts, "{}  {}".format)
    return [first, *(line for line in longer if len(line) <= width)][-1]


def _dim(text: str) -> Text:
    return Text(text, "dim", no_wrap=True, overflow="ellipsis")


def _line_interval(epochs: int) -> int:
    """The interval of epochs whose rows stay: 1, else 5, 10, 20 … so that some 50 rows stay."""
    if epochs <= _MANY_EPOCHS:
        return 1
    intervals = (int(digit * 10**power) for power in count() for digit in (1, 2, 5))
    return next(interval for interval in intervals if epochs <= _MANY_LINES * interval)
