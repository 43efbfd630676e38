"""A run on a terminal or in a log: facts at the start, a line an epoch, results at the end."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence

from gnntrain.data.summary import EDGES_ALONE
from gnntrain.reporting.display import BEST, DOT, GAP, INDENT, LABEL, Cells, Display, Pairs
from gnntrain.reporting.tables import rows
from gnntrain.reporting.text import (
    counted,
    counted_inputs,
    counted_outputs,
    format_bytes,
    format_loss,
    format_metric,
    format_rate,
    format_seconds,
    shown_metric,
    shown_path,
    sparkline,
)
from gnntrain.training.records import EpochRecord, FitResult, RunInfo, StepProgress, Summary

_CURVE = 60
_MOST_ROWS = 100


class Console(Display):
    """Shows a run. Use it as a context manager, so that the terminal is restored in any case.

    On a terminal a run of more than 100 epochs keeps only every second, third … row.
    """

    _unshown: EpochRecord | None = None
    _loss: float | None = None

    def on_start(self, info: RunInfo) -> None:
        """Show data set, model, devices and the run directory."""
        self._info = info
        best = {} if info.best_value is None else {"val": {info.metric: info.best_value}}
        self._result = FitResult(best_epoch=info.best_epoch, best=best)
        self._task = self.bars.add_task(
            "", total=info.epochs, completed=info.first_epoch - 1, state=""
        )
        self.start(start_pairs(info))

    def on_step(self, progress: StepProgress) -> None:
        """Refresh the bar, and the facts below it."""
        info, step = self._info, progress
        self._loss = step.loss if step.loss is not None else self._loss  # not read in each step
        facts = [f"loss {format_loss(self._loss)}"]
        best = self._result.best.get("val", {}).get(info.metric)
        if best is not None:
            facts.append(f"best {format_metric(best)} in epoch {self._result.best_epoch}")
        self.bars.facts = GAP.join([*facts, *_speeds(step), format_bytes(step.memory_bytes)])
        self.bars.update(
            self._task,
            completed=step.epoch - 1 + step.step / max(1, step.num_steps),
            description=f"epoch {step.epoch}/{info.epochs}",
            state=f"step {step.step}/{step.num_steps}",
        )
        self.refresh()

    def on_epoch(self, record: EpochRecord) -> None:
        """Add the epoch's row."""
        info = self._info
        self._result.add(record, info.metric)
        interval = -(-info.epochs // _MOST_ROWS) if self.is_live else 1
        self._unshown = record
        if record.epoch in (info.first_epoch, info.epochs) or record.epoch % interval == 0:
            self._show_row()
        # A short epoch ends before one of its steps was reported.
        steps, rates = info.steps_per_epoch, (record.seeds_per_s, record.edges_per_s)
        loss, memory = record.train_loss, record.memory_bytes
        self.on_step(StepProgress(record.epoch, steps, steps, loss, *rates, memory))

    def on_message(self, text: str) -> None:
        """Show a notice as one line."""
        self.note(text)

    def on_finish(self, summary: Summary) -> None:
        """End the bar and show metrics, curves, speed, time, memory and the next command."""
        self.close()
        self._show_row()
        # A run that is resumed for fewer epochs than it has had keeps those.
        asked = max(summary.epochs, self._info.epochs)
        words = f"after {summary.epochs:,} of {counted(asked, 'epoch')}"
        if summary.best_epoch is not None:
            words += f", the best was epoch {summary.best_epoch}"
        if summary.error is not None:
            words += f": {' '.join(summary.error.split())}"
        self.ending(summary.status, words)
        if splits := summary.metrics:
            names = dict.fromkeys(name for metrics in splits.values() for name in metrics)
            cells = [
                [shown_metric(name), *(format_metric(row.get(name)) for row in splits.values())]
                for name in names
            ]
            self.block(rows(["", *splits], cells))
        times = [format_seconds(summary.seconds_total)]
        if summary.seconds_per_epoch is not None:
            times.append(f"{format_seconds(summary.seconds_per_epoch)} an epoch")
        memory = [f"{format_bytes(summary.peak_rss_bytes)} peak"]
        if summary.peak_gpu_bytes:
            memory.append(f"{format_bytes(summary.peak_gpu_bytes)} on the GPU")
        metric, run = summary.metric, shown_path(self._info.run_dir)
        values = [record.metric("val", metric) for record in self._result.records]
        constant = ", ".join(summary.extra.get("constant_outputs", ()))
        # The command itself says at its end how to go on with a run that did not complete.
        has_next = summary.best_epoch is not None and summary.status == "completed"
        width = self.width - INDENT - LABEL
        known = [value for value in values if value is not None]
        self.pairs(
            [
                ("estimated", summary.extra.get("estimated", "")),
                ("constant", f"the same outputs for all nodes of {constant}" if constant else ""),
                (shown_metric(metric), _curve(known, format_metric, width)),
                ("loss", _curve(summary.train_loss, format_loss, width)),
                ("speed", DOT.join(_speeds(summary))),
                ("time", DOT.join(times)),
                ("memory", DOT.join(memory)),
                ("run", run),
                ("next", f"gnntrain evaluate {shlex.quote(run)}" if has_next else ""),
            ]
        )

    def _show_row(self) -> None:
        """Print the last epoch's row, unless it stands there."""
        record, self._unshown = self._unshown, None
        if record is not None:
            is_best = record.epoch == self._result.best_epoch
            self.row(self._cells(record, is_best), "bold green" if is_best else "")

    def _cells(self, record: EpochRecord, is_best: bool) -> Cells:
        metric, epochs = self._info.metric, self._info.epochs
        name, mark = shown_metric(metric), f"{BEST} " * is_best
        cells = {
            "epoch": f"{record.epoch:{len(str(epochs))}}/{epochs}",
            "loss": format_loss(record.train_loss),
            f"val {name}".rjust(11): mark + format_metric(record.metric("val", metric)),
            "time": format_seconds(record.seconds),
            "memory": format_bytes(record.memory_bytes),
        }
        if record.gpu_memory_bytes is not None:
            cells["GPU"] = format_bytes(record.gpu_memory_bytes)
        cells["edges/s"] = format_rate(record.edges_per_s)
        cells["seeds/s"] = format_rate(record.seeds_per_s)
        cells["eval"] = format_seconds(record.eval_seconds)
        if record.cache_hit_rate is not None:
            cells["cache"] = format_metric(record.cache_hit_rate)
        for split in ("test", "train"):
            if record.metrics.get(split):
                cells[f"{split} {name}"] = format_metric(record.metric(split, metric))
        return cells | {"lr": f"{record.lr:.3g}"}


def _speeds(of: StepProgress | Summary) -> list[str]:
    """The known rates with their units."""
    rates = {"seeds/s": of.seeds_per_s, "edges/s": of.edges_per_s}
    return [f"{format_rate(rate)} {unit}" for unit, rate in rates.items() if rate is not None]


def _curve(values: Sequence[float], to_text: Callable[[float | None], str], width: int) -> str:
    """A sparkline with its first and last value; empty where there are not two finite values."""
    if len(values) < 2 or not any(map(math.isfinite, values)):
        return ""
    ends = f"{to_text(values[0])} → {to_text(values[-1])}"
    return f"{sparkline(values, max(1, min(_CURVE, width - len(ends) - 2)))}  {ends}"


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
