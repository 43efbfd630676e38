"""A run, or a sweep, on a terminal or in a log: facts at the start, a line an epoch or a trial,
results at the end."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Sequence

from rich.progress import TaskID

from gnntrain.data.summary import EDGES_ALONE
from gnntrain.reporting.display import (
    BEST,
    DOT,
    GAP,
    INDENT,
    LABEL,
    Cells,
    Display,
    Pairs,
    widths_of,
)
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
    short_number,
    shown_metric,
    shown_path,
    sparkline,
)
from gnntrain.reporting.trials import SweepResults, Trial
from gnntrain.training.records import EpochRecord, FitResult, RunInfo, StepProgress, Summary

_CURVE, _TRIALS_CURVE = 60, 16
_MOST_ROWS = 100
_MOST_RANKED = 10


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
        self.start(
            [
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
        )

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


class SweepConsole(Display):
    """Shows a sweep. Use it as a context manager, so that the terminal is restored in any case."""

    def on_start(self, num_trials: int, ended: Sequence[Trial], folder: str, pairs: Pairs) -> None:
        """Show the trials to come and the folder of their results.

        Args:
            num_trials: Number of trials.
            ended: Trials that ended before this process resumed the sweep.
            folder: Folder of the results.
            pairs: Other facts, each with its label.
        """
        self._num_trials, self._ended, self._folder = num_trials, [*ended], folder
        self._best = SweepResults.of(self._ended).best
        self._tasks: dict[int, TaskID] = {}
        self._infos: dict[int, RunInfo] = {}
        self._values: dict[int, list[float | None]] = {}
        self._head: tuple[Sequence[str], str] | None = None  # varied keys and metric of the table
        self._whole = self.bars.add_task("", total=num_trials, state="")
        self._advance()
        self.start([*pairs, ("folder", folder)])

    def on_trial(self, trial: Trial) -> None:
        """Add a trial to the bars."""
        words = f"trial {trial.number}{GAP}{shown_overrides(trial.varied)}"[: self.width // 3]
        self._tasks[trial.number] = self.bars.add_task(words.rstrip(), total=1, state="starting")
        self.refresh()

    def on_info(self, trial: Trial, info: RunInfo) -> None:
        """Take in the facts of a trial's run."""
        self._infos[trial.number], self._values[trial.number] = info, []
        self._head = self._head or ([*trial.values], info.metric)

    def on_step(self, trial: Trial, progress: StepProgress) -> None:
        """Take in a trial's step."""
        info, values = self._infos[trial.number], self._values[trial.number]
        last = [f"val {format_metric(value)}" for value in values[-1:]]
        self.bars.update(
            self._tasks[trial.number],
            completed=progress.epoch - 1 + progress.step / max(1, progress.num_steps),
            total=info.epochs,
            state=GAP.join([f"epoch {progress.epoch}/{info.epochs}", *last]),
        )
        self._advance()

    def on_epoch(self, trial: Trial, record: EpochRecord) -> None:
        """Take in a trial's epoch."""
        metric = self._infos[trial.number].metric
        self._values[trial.number].append(record.metric("val", metric))
        self.on_step(trial, StepProgress(record.epoch, 1, 1, None, 0, 0, 0))

    def on_message(self, trial: Trial, text: str) -> None:
        """Show a trial's notice as one line."""
        self.note(f"trial {trial.number}: {text}")

    def on_trial_end(self, trial: Trial) -> None:
        """Add the trial's row."""
        if trial.number in self._tasks:
            self.bars.remove_task(self._tasks.pop(trial.number))
        if trial.has_ended:
            self._ended.append(trial)
        self._best = SweepResults.of(self._ended).best
        styles = {"pruned": "dim"} | ({"completed": "bold green"} if trial is self._best else {})
        curve = sparkline(self._values.get(trial.number, ()), _TRIALS_CURVE).ljust(_TRIALS_CURVE)
        self._head = self._head or ([*trial.values], trial.metric or "metric")
        cells = {**self._cells(trial, *self._head), "curve".ljust(_TRIALS_CURVE): curve}
        self.row(cells, styles.get(trial.status, ""))
        if trial.error:
            self.line(" " * INDENT, (" ".join(trial.error.split()), "red"))
        self._advance()
        self.refresh()

    def on_finish(self, results: SweepResults, status: str, seconds: float) -> None:
        """End the bars and show the ranking, means of repetitions and the best trial."""
        statuses = ("completed", "pruned", "failed", "interrupted")
        counts = [f"{results.count(name)} {name}" for name in statuses if results.count(name)]
        num_ended = sum(trial.has_ended for trial in results.trials)
        words = f"after {num_ended} of {counted(self._num_trials, 'trial')}"
        self.ending(status, ": ".join(filter(None, (words, ", ".join(counts)))))
        best = self._best = results.best
        name = shown_metric(results.metric)
        ranking = [*results.ranked("completed"), *results.ranked("pruned")]
        if len(ranking) > 1:
            keys = dict.fromkeys(key for trial in ranking for key in trial.values)
            several = [self._cells(one, keys, results.metric) for one in ranking[:_MOST_RANKED]]
            titles = [*widths_of(several[0], self.width - INDENT)]
            cells = [[one[title] for title in titles] for one in several]
            self.block(rows([title.strip() for title in titles], cells, left=0))
            if rest := ranking[_MOST_RANKED:]:
                pruned = sum(trial.status == "pruned" for trial in rest)
                more = f"and {len(rest)} more in sweep.json" + f", {pruned} pruned" * bool(pruned)
                self.block(more)
        has_splits = len({group.splits for group in results.groups if group.counted}) > 1
        if results.repeated:
            cells = []
            for group in results.groups[:_MOST_RANKED]:
                pruned = len(group.runs) - len(group.counted)
                cells.append(
                    [
                        shown_overrides(group.varied) or "all trials",
                        *[",".join(group.splits)] * has_splits,
                        f"{len(group.counted)}" + f" + {pruned} pruned" * bool(pruned),
                        *(str(group.spread(split)) for split in ("val", "test")),
                    ]
                )
            over = " and ".join(results.repeated)
            self.line(" " * INDENT, f"mean ± standard deviation over {over}")
            titles = [*["splits"] * has_splits, "trials", f"val {name}", f"test {name}"]
            self.block(rows(["", *titles], cells))
        if has_splits:
            first = ", ".join(results.groups[0].splits)
            self.note(f"settings over other splits are not ranked against those over split {first}")
        times = [format_seconds(seconds)]
        own = [trial.seconds for trial in results.trials if trial.seconds is not None]
        if own:
            times.append(f"{format_seconds(sum(own) / len(own))} a trial")
        pairs = [("time", DOT.join(times)), ("folder", self._folder)]
        if best is not None:
            val, test = f"val {name} {format_metric(best.val)}", f"test {format_metric(best.test)}"
            pairs = [
                ("best", DOT.join([f"trial {best.number}", val, test])),
                ("", shown_overrides(best.varied)),
                *pairs,
                ("next", f"gnntrain {shlex.quote(f'{self._folder}/best.yaml')}"),
            ]
        self.pairs(pairs)

    def _advance(self) -> None:
        """Move the bar of the sweep."""
        shares = [task.percentage / 100 for task in self.bars.tasks if task.id != self._whole]
        best = self._best
        self.bars.update(
            self._whole,
            completed=len(self._ended) + sum(shares),
            description=f"{len(self._ended)}/{self._num_trials} trials",
            state="" if best is None else f"best {format_metric(best.val)} in trial {best.number}",
        )

    def _cells(self, trial: Trial, keys: Iterable[str], metric: str) -> Cells:
        """A row of a table of trials with the varied keys, each under its last part, or under the
        whole where two have the same."""
        last = {key: key.rpartition(".")[2] for key in keys}
        names = [*last.values()]
        short = {key: name if names.count(name) == 1 else key for key, name in last.items()}
        name, mark = shown_metric(metric), f"{BEST} " * (trial is self._best)
        return {
            "trial": f"{trial.number:{max(5, len(str(self._num_trials)))}}",
            f"val {name}".rjust(11): mark + format_metric(trial.val),
            "status": "" if trial.status == "completed" else trial.status,
            **{
                title.rjust(10): short_number(trial.values.get(key, "-"))
                for key, title in short.items()
            },
            f"test {name}": format_metric(trial.test),
            "epochs": "-" if trial.epochs is None else str(trial.epochs),
            "time": format_seconds(trial.seconds),
        }


def shown_overrides(overrides: Sequence[str]) -> str:
    """Overrides with their numbers in four digits."""
    pairs = (text.partition("=") for text in overrides)
    return " ".join(f"{key}{sign}{short_number(value)}" for key, sign, value in pairs)
