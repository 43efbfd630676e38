"""A run, or a sweep, on a terminal or in a log: facts at the start, a line an epoch or a trial,
results at the end. rich prints."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TextIO

from rich.console import RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from gnntrain import __version__
from gnntrain.reporting import tables, text
from gnntrain.reporting.trials import Spread, SweepResults, Trial
from gnntrain.training.records import EpochRecord, FitResult, RunInfo, StepProgress, Summary

DOT = " · "
_GAP = "  "
_INDENT, _LABEL = 2, 10
_REFRESH_SECONDS, _QUIET_SECONDS = 0.2, 60.0
_BAR, _CURVE, _NARROWEST = 40, 60, 8
_MOST_ROWS, _MOST_RANKED = 100, 10
_STYLES = {"completed": "bold green", "failed": "bold red"}


class _Bars(Progress):
    """rich's bars, a task a row, with a line of facts below them."""

    facts = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from ("", self.make_tasks_table(self.tasks))
        if self.facts:
            yield Text(self.facts, "dim", no_wrap=True, overflow="ellipsis")


class Display:
    """Lines that stay, above progress bars. A context manager that restores the terminal.

    On a terminal the bars are drawn when there is news, five times a second at most; no thread
    draws them. In a log they are a line a minute, where no other line was printed.

    Args:
        stream: The output; standard output where ``None``.
        clock: A monotonic clock, seconds.
    """

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rich = tables.plain_console(text.TolerantStream(stream or sys.stdout))
        self.width = self._rich.width
        self.is_live = self.width < tables.WHOLE
        self._widths: dict[str, int] = {}  # of the table's columns
        self._clock, self._printed, self._drawn = clock, clock(), -math.inf
        self._time_left = TimeRemainingColumn(compact=True)
        self.bars = _Bars(  # each task has a field `state`, shown behind its bar
            TextColumn("{task.description}", markup=False),
            BarColumn(None, table_column=Column(max_width=_BAR)),
            TextColumn("{task.fields[state]}", markup=False),
            TextColumn("ETA"),
            self._time_left,
            console=self._rich,
            auto_refresh=False,
            transient=True,
            get_time=clock,
            speed_estimate_period=math.inf,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.bars.live.is_started:
            self.bars.stop()

    def refresh(self) -> None:
        """Draw the bars again, unless they were drawn just before; in a log, a line a minute."""
        now = self._clock()
        if self.is_live and now - self._drawn >= _REFRESH_SECONDS:
            self._drawn = now
            self.bars.start()
            self.bars.refresh()
        elif not self.is_live and self.bars.tasks and now - self._printed >= _QUIET_SECONDS:
            words = "; ".join(
                f"{task.description}  {task.fields['state']}  ETA {self._time_left.render(task)}"
                for task in self.bars.tasks
            )
            self.line(f"{words}  {self.bars.facts}".rstrip())

    def line(self, *parts: str | tuple[str, str]) -> None:
        """Print one line, of texts and texts with a style of rich. Only the terminal itself breaks
        it: a path can be copied."""
        self._rich.print(Text.assemble(*parts), soft_wrap=True)
        self._printed = self._clock()

    def table(self, titles: Sequence[str], cells: Iterable[Sequence[str]], left: int = 1) -> None:
        """Print rows below titles, the first columns to the left, and an empty line."""
        self._rich.print(Padding.indent(tables.rows(titles, cells, left=left), _INDENT))
        self.line()

    def row(self, cells: Mapping[str, str], style: str = "") -> None:
        """Print cells by the titles of their columns, the most important first: on a terminal below
        the titles of the first row, in a log each with its own."""
        if not self.is_live:
            named = [(title.strip(), cell.strip()) for title, cell in cells.items()]
            self.line(_GAP.join(f"{title} {cell}" for title, cell in named if cell))
            return
        if not self._widths:  # the first columns that fit; the first cells are equally long
            left = self.width
            for title, cell in cells.items():
                width = max(len(title), _NARROWEST if self._widths else len(cell))
                if (left := left - width) < 0:
                    break
                left -= len(_GAP)
                self._widths[title] = width
            self.line((_GAP.join(title.rjust(n) for title, n in self._widths.items()), "dim"))
        fitting = ((cells.get(title, ""), n) for title, n in self._widths.items())
        shown = [cell.rjust(n) if len(cell) <= n else f"{cell[: n - 1]}…" for cell, n in fitting]
        self.line((_GAP.join(shown), style))

    def on_message(self, notice: str) -> None:
        """Print a notice as one line."""
        self.line(("note", "yellow"), "  " + " ".join(notice.split()))

    def start(self, facts: Mapping[str, str]) -> None:
        """Print the version and the facts at the start."""
        self.line((f"gnntrain {__version__}", "bold"))
        self.line()
        self.facts(facts)
        self.line()

    def end(self, status: str, words: str) -> None:
        """End the bars and print how it ended."""
        self.__exit__()
        self.line()
        self.line((status, _STYLES.get(status, "bold yellow")), f" {words}")
        self.line()

    def facts(self, facts: Mapping[str, str]) -> None:
        """Print labels with their lines; an empty text is left out."""
        for label, lines in facts.items():
            for number, line in enumerate(lines.splitlines()):
                head = "" if number else label
                self.line(" " * _INDENT, (f"{head.ljust(_LABEL - 1)} ", "dim"), line)


class Console(Display):
    """Shows a run; on a terminal one of over 100 epochs keeps only every second, third … row."""

    _loss: float | None = None

    def on_start(self, info: RunInfo) -> None:
        """Show data set, model, devices and the run directory."""
        self._info = info
        self._result, done = FitResult(), len(info.records)
        for record in info.records:
            self._result.add(record, info.metric)
        self._task = self.bars.add_task("", total=info.epochs, completed=done, state="")
        self.start({**info.facts, "run": text.shown_path(info.run_dir)})

    def on_step(self, step: StepProgress) -> None:
        """Refresh the bar, and the facts below it."""
        self._loss = step.loss if step.loss is not None else self._loss  # not read in each step
        loss, memory = f"loss {text.format_loss(self._loss)}", text.format_bytes(step.memory_bytes)
        self.bars.facts = _GAP.join([loss, *_speeds(step), memory])
        self.bars.update(
            self._task,
            completed=step.epoch - 1 + step.step / max(1, step.num_steps),
            description=f"epoch {step.epoch}/{self._info.epochs}",
            state=f"step {step.step}/{step.num_steps}" if step.num_steps > 1 else "",
        )
        self.refresh()

    def on_epoch(self, record: EpochRecord) -> None:
        """Add the epoch's row."""
        info, epoch = self._info, record.epoch
        self._result.add(record, info.metric)
        interval = -(-info.epochs // _MOST_ROWS) if self.is_live else 1
        if epoch in (len(info.records) + 1, info.epochs) or epoch % interval == 0:
            name, val = text.shown_metric(info.metric), record.metric("val", info.metric)
            is_best = epoch == self._result.best_epoch and not math.isnan(val or 0)
            shown: list[tuple[str, float | None, Callable[[float | None], str]]] = [
                ("time", record.seconds, text.format_seconds),
                ("memory", record.memory_bytes, text.format_bytes),
                ("GPU", record.gpu_memory_bytes, text.format_bytes),
                ("edges/s", record.edges_per_s, text.format_rate),
                ("seeds/s", record.seeds_per_s, text.format_rate),
                ("eval", record.eval_seconds, text.format_seconds),
                ("cache", record.cache_hit_rate, text.format_metric),
                ("lr", record.lr, "{:.3g}".format),
                (f"test {name}", record.metric("test", info.metric), text.format_metric),
                (f"train {name}", record.metric("train", info.metric), text.format_metric),
            ]
            cells = {
                "epoch": f"{epoch:{len(str(info.epochs))}}/{info.epochs}",
                "loss": text.format_loss(record.train_loss),
                f"val {name}".rjust(11): "* " * is_best + text.format_metric(val),
                **{title: to_text(value) for title, value, to_text in shown if value is not None},
            }
            self.row(cells, "bold green" if is_best else "")
        # A short epoch ends before one of its steps was reported.
        rates = (record.seeds_per_s, record.edges_per_s)
        self.on_step(StepProgress(epoch, 1, 1, record.train_loss, *rates, record.memory_bytes))

    def on_finish(self, summary: Summary) -> None:
        """End the bar and show metrics, curves, speed, time, memory and the next command."""
        # A run that is resumed for fewer epochs than it has had keeps those.
        planned = text.counted(max(summary.epochs, self._info.epochs), "epoch")
        words = f"after {summary.epochs:,} of {planned}"
        metric, best, name = summary.metric, summary.best_epoch, text.shown_metric(summary.metric)
        if best is not None and math.isnan(summary.val.get(metric, math.nan)):
            words += f"; none has a val {name}: epoch {best} counts as the best"
        elif best is not None:
            words += f", the best was epoch {best}"
        if summary.error is not None:
            words += f": {' '.join(summary.error.split())}"
        self.end(summary.status, words)
        if splits := summary.metrics:
            names = dict.fromkeys(name for metrics in splits.values() for name in metrics)
            rows = ((name, [metrics.get(name) for metrics in splits.values()]) for name in names)
            cells = ([text.shown_metric(name), *map(text.format_metric, row)] for name, row in rows)
            self.table(["", *splits], cells)
        run = text.shown_path(self._info.run_dir)
        values = (record.metric("val", metric) for record in self._result.records)
        known = [value for value in values if value is not None]
        time = text.format_seconds(summary.seconds_total)
        if summary.seconds_per_epoch is not None:
            time += f"{DOT}{text.format_seconds(summary.seconds_per_epoch)} an epoch"
        memory = f"{text.format_bytes(summary.peak_rss_bytes)} peak"
        if summary.peak_gpu_bytes:
            memory += f"{DOT}{text.format_bytes(summary.peak_gpu_bytes)} on the GPU"
        constant = ", ".join(summary.extra.get("constant_outputs", ()))
        # The command itself says at its end how to go on with a run that did not complete.
        has_next = best is not None and summary.status == "completed"
        self.facts(
            {
                "estimated": summary.extra.get("estimated", ""),
                "constant": constant and f"the same outputs for all nodes of {constant}",
                name: self._curve(known, text.format_metric),
                "loss": self._curve(summary.train_loss, text.format_loss),
                "speed": DOT.join(_speeds(summary)),
                "time": time,
                "memory": memory,
                "run": run,
                "next": f"gnntrain evaluate {shlex.quote(run)}" if has_next else "",
            }
        )

    def _curve(self, values: Sequence[float], to_text: Callable[[float | None], str]) -> str:
        """A sparkline with its first and last value; empty where there are not two finite ones."""
        if sum(map(math.isfinite, values)) < 2:
            return ""
        ends = f"{to_text(values[0])} → {to_text(values[-1])}"
        width = min(_CURVE, self.width - _INDENT - _LABEL - len(ends) - len(_GAP))
        return f"{text.sparkline(values, max(1, width))}{_GAP}{ends}"


class SweepConsole(Display):
    """Shows a sweep."""

    def on_start(
        self, num_trials: int, ended: Sequence[Trial], folder: str, facts: Mapping[str, str]
    ) -> None:
        """Show the facts of a sweep and the folder of its results; some trials ended before this
        process resumed the sweep."""
        self._num_trials, self._ended, self._folder = num_trials, [*ended], folder
        self._best = SweepResults(self._ended).best
        self._tasks: dict[int, TaskID] = {}
        self._whole = self.bars.add_task("", total=num_trials, state="")
        self._advance()
        self.start({**facts, "folder": folder})

    def on_trial(self, trial: Trial) -> None:
        """Add a trial to the bars."""
        words = f"trial {trial.number}{_GAP}{shown_overrides(trial.varied)}"[: self.width // 3]
        self._tasks[trial.number] = self.bars.add_task(words.rstrip(), total=1, state="starting")
        self.refresh()

    def on_step(self, trial: Trial, progress: StepProgress, epochs: int) -> None:
        """Move a trial's bar, which ends after so many epochs."""
        done = progress.epoch - 1 + progress.step / max(1, progress.num_steps)
        more: dict[str, Any] = {"state": f"epoch 1/{epochs}"} if progress.epoch == 1 else {}
        self.bars.update(self._tasks[trial.number], completed=done / epochs, **more)
        self._advance()

    def on_epoch(self, trial: Trial, record: EpochRecord, epochs: int) -> None:
        """Show a trial's last epoch and its validation metric beside its bar."""
        value = text.format_metric(record.metric("val", trial.metric or ""))
        state = f"epoch {record.epoch}/{epochs}{_GAP}val {value}"
        self.bars.update(self._tasks[trial.number], completed=record.epoch / epochs, state=state)
        self._advance()

    def on_trial_end(self, trial: Trial) -> None:
        """Add the trial's row, with a column a varied key."""
        if trial.number in self._tasks:
            self.bars.remove_task(self._tasks.pop(trial.number))
        if trial.has_ended:
            self._ended.append(trial)
        self._best = SweepResults(self._ended).best
        values = {
            text.short_key(key).rjust(10): text.short_number(value)
            for key, value in trial.values.items()
        }
        is_best, name = trial is self._best, text.shown_metric(trial.metric or "metric")
        cells = {
            "trial": f"{trial.number:{max(5, len(str(self._num_trials)))}}",
            f"val {name}".rjust(11): "* " * is_best + text.format_metric(trial.val),
            "status": "" if trial.status == "completed" else trial.status,
            **values,
            f"test {name}": text.format_metric(trial.test),
            "epochs": "-" if trial.epochs is None else str(trial.epochs),
            "time": text.format_seconds(trial.seconds),
        }
        self.row(cells, "bold green" if is_best else "dim" * (trial.status == "pruned"))
        for line in (trial.error or "").splitlines():
            self.line(" " * _INDENT, (line, "red"))
        self._advance()
        self.refresh()

    def on_finish(self, results: SweepResults, status: str, seconds: float) -> None:
        """End the bars and show the ranking of the settings and the best trial."""
        statuses = ("completed", "pruned", "failed", "interrupted")
        counts = [f"{results.count(name)} {name}" for name in statuses if results.count(name)]
        num_ended = sum(trial.has_ended for trial in results.trials)
        words = f"after {num_ended} of {text.counted(self._num_trials, 'trial')}"
        self.end(status, f"{words}: {', '.join(counts) or 'none ended'}")
        best, groups, name = results.best, results.groups, text.shown_metric(results.metric)
        if sum(len(group.runs) for group in groups) > 1:
            cells = []
            for group in groups[:_MOST_RANKED]:
                number, pruned = len(group.counted), len(group.runs) - len(group.counted)
                row = [str((group.counted or group.runs)[0].number)]
                row.append(shown_overrides(group.varied) or "all")
                if group.counted and group.data != groups[0].data:
                    row[-1] += f" (not ranked: split {', '.join(group.data)})"
                row.append(f"{number}" + f" + {pruned} pruned" * bool(pruned))
                cells.append([*row, str(group.spread("val")), str(group.spread("test"))])
            if any(len(group.counted) > 1 for group in groups):
                self.line(" " * _INDENT, "mean ± standard deviation over seeds and splits")
            titles = ["best", "setting", "trials", f"val {name}", f"test {name}"]
            self.table(titles, cells, left=2)
            if len(groups) > _MOST_RANKED:
                self.line(" " * _INDENT, f"and {len(groups) - _MOST_RANKED} more in sweep.json")
                self.line()
        facts = {"best": f"none: no trial has completed with a val {name}"}
        if best is not None:
            val, test = map(text.format_metric, (best.val, best.test))
            facts["best"] = f"trial {best.number}{DOT}val {name} {val}{DOT}test {test}"
            facts["best"] += f"\n{shown_overrides(best.varied)}"
        mean = Spread.of(trial.seconds or math.nan for trial in results.trials).mean
        times = f"{text.format_seconds(seconds)}{DOT}{text.format_seconds(mean)} a trial"
        facts |= {"time": times, "folder": self._folder}
        if best is not None:
            facts["next"] = f"gnntrain {shlex.quote(f'{self._folder}/best.yaml')}"
        self.facts(facts)

    def _advance(self) -> None:
        """Move the bar of the sweep."""
        shares = sum(task.completed for task in self.bars.tasks if task.id != self._whole)
        state, best = "", self._best
        if best is not None:
            state = f"best {text.format_metric(best.val)} in trial {best.number}"
        self.bars.update(
            self._whole,
            completed=len(self._ended) + shares,
            description=f"{len(self._ended)}/{self._num_trials} trials",
            state=state,
        )


def shown_overrides(overrides: Sequence[str]) -> str:
    """Overrides with their numbers in four digits."""
    pairs = (override.partition("=") for override in overrides)
    return " ".join(f"{key}{sign}{text.short_number(value)}" for key, sign, value in pairs)


def _speeds(of: StepProgress | Summary) -> list[str]:
    """The known rates with their units."""
    rates = {"seeds/s": of.seeds_per_s, "edges/s": of.edges_per_s}
    return [f"{text.format_rate(rate)} {unit}" for unit, rate in rates.items() if rate is not None]
