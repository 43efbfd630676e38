"""A sweep on a terminal or in a log: a row a trial, and the trials that are being trained."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.progress import TaskID

from gnntrain.reporting.display import BEST, DOT, GAP, INDENT, Column, Display, Pairs, fitting
from gnntrain.reporting.tables import rows
from gnntrain.reporting.text import (
    counted,
    format_metric,
    format_seconds,
    short_number,
    shown_metric,
    sparkline,
)
from gnntrain.reporting.trials import SweepResults, Trial
from gnntrain.training.records import EpochRecord, RunInfo, StepProgress

_MOST_RANKED = 10
_COURSE = 16
_VALUE = 10


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
        self._columns: Sequence[Column[Trial]] = ()
        self._tasks: dict[int, TaskID] = {}
        self._infos: dict[int, RunInfo] = {}
        self._values: dict[int, list[float | None]] = {}
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
        self._infos[trial.number] = info
        self._values[trial.number] = []
        self._begin_table(trial, info.metric)

    def on_step(self, trial: Trial, progress: StepProgress) -> None:
        """Take in a trial's step."""
        done = progress.epoch - 1 + progress.step / max(1, progress.num_steps)
        self._advance(trial, progress.epoch, done)

    def on_epoch(self, trial: Trial, record: EpochRecord) -> None:
        """Take in a trial's epoch."""
        metric = self._infos[trial.number].metric
        self._values[trial.number].append(record.metric("val", metric))
        self._advance(trial, record.epoch, record.epoch)

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
        self._begin_table(trial, trial.metric or "metric")
        styles = {"pruned": "dim"} | ({"completed": "bold green"} if trial is self._best else {})
        self.row(self._columns, trial, styles.get(trial.status, ""))
        if trial.error:
            self.line(" " * INDENT, (" ".join(trial.error.split()), "red"))
        self._advance()
        self.refresh()

    def on_finish(self, results: SweepResults, status: str, seconds: float) -> None:
        """End the bars and show the ranking and the best trial."""
        statuses = ("completed", "pruned", "failed", "interrupted")
        counts = [f"{results.count(name)} {name}" for name in statuses if results.count(name)]
        num_ended = sum(trial.has_ended for trial in results.trials)
        words = f"after {num_ended} of {counted(self._num_trials, 'trial')}"
        self.ending(status, ": ".join(filter(None, (words, ", ".join(counts)))))
        self._best = results.best
        ranking = [*results.ranked("completed"), *results.ranked("pruned")]
        if len(ranking) > 1:
            keys = dict.fromkeys(key for trial in ranking for key in trial.values)
            columns = fitting(self._trial_columns(keys, results.metric), self.width - INDENT)
            cells = [[column.cell(trial) for column in columns] for trial in ranking[:_MOST_RANKED]]
            self.block(rows([column.title for column in columns], cells, left=0))
            if rest := ranking[_MOST_RANKED:]:
                pruned = sum(trial.status == "pruned" for trial in rest)
                more = f"and {len(rest)} more in sweep.json" + f", {pruned} pruned" * bool(pruned)
                self.block(more)
        if results.repeated:
            self._print_groups(results)
        if results.unranked:
            self.note(results.unranked)
        self.pairs(self._end_pairs(results, seconds))

    def _begin_table(self, trial: Trial, metric: str) -> None:
        if not self._columns:
            columns = self._trial_columns(trial.values, metric)
            if self.is_live:
                columns.append(Column("course".ljust(_COURSE), self._course))
            self._columns = fitting(columns, self.width)
            self.head(self._columns)

    def _advance(self, trial: Trial | None = None, epoch: int = 0, done: float = 0) -> None:
        """Move the bar of a trial, and that of the sweep."""
        if trial is not None:
            info, values = self._infos[trial.number], self._values[trial.number]
            last = [f"val {format_metric(value)}" for value in values[-1:]]
            self.bars.update(
                self._tasks[trial.number],
                completed=done,
                total=info.epochs,
                state=GAP.join([f"epoch {epoch}/{info.epochs}", *last]),
            )
        shares = [task.percentage / 100 for task in self.bars.tasks if task.id != self._whole]
        words = [] if self._best is None else [f"best {format_metric(self._best.val)}"]
        words += [] if self._best is None else [f"in trial {self._best.number}"]
        self.bars.update(
            self._whole,
            completed=len(self._ended) + sum(shares),
            description=f"{len(self._ended)}/{self._num_trials} trials",
            state=" ".join(words),
        )

    def _trial_columns(self, keys: Iterable[str], metric: str) -> list[Column[Trial]]:
        """The columns of a table of trials, the most important first."""
        name = shown_metric(metric)

        def val(trial: Trial) -> str:
            return f"{BEST} " * (trial is self._best) + format_metric(trial.val)

        def epochs(trial: Trial) -> str:
            return "-" if trial.epochs is None else str(trial.epochs)

        return [
            Column("trial", lambda t: str(t.number), len(str(self._num_trials))),
            Column(f"val {name}", val, 11),
            Column("status", lambda t: "" if t.status == "completed" else t.status),
            *(Column(title, _value_of(key), _VALUE) for key, title in _short_keys(keys).items()),
            Column(f"test {name}", lambda t: format_metric(t.test)),
            Column("epochs", epochs),
            Column("time", lambda t: format_seconds(t.seconds)),
        ]

    def _course(self, trial: Trial) -> str:
        return sparkline(self._values.get(trial.number, ()), _COURSE).ljust(_COURSE)

    def _print_groups(self, results: SweepResults) -> None:
        """Print means and deviations of groups of trials, the best first."""
        name, groups = shown_metric(results.metric), results.groups
        has_splits = len({group.splits for group in groups if group.counted}) > 1
        cells = []
        for group in groups[:_MOST_RANKED]:
            pruned = len(group.runs) - len(group.counted)
            cells.append(
                [
                    shown_overrides(group.varied) or "all trials",
                    *[",".join(group.splits)] * has_splits,
                    f"{len(group.counted)}" + f" + {pruned} pruned" * bool(pruned),
                    *(str(group.spread(split)) for split in ("val", "test")),
                ]
            )
        self.line(" " * INDENT, f"mean ± standard deviation over {' and '.join(results.repeated)}")
        titles = [*["splits"] * has_splits, "trials", f"val {name}", f"test {name}"]
        self.block(rows(["", *titles], cells))

    def _end_pairs(self, results: SweepResults, seconds: float) -> Pairs:
        times = [format_seconds(seconds)]
        own = [trial.seconds for trial in results.trials if trial.seconds is not None]
        if own:
            times.append(f"{format_seconds(sum(own) / len(own))} a trial")
        ends = [("time", DOT.join(times)), ("folder", self._folder)]
        best = results.best
        if best is None:
            return ends
        val = f"val {shown_metric(results.metric)} {format_metric(best.val)}"
        return [
            ("best", DOT.join([f"trial {best.number}", val, f"test {format_metric(best.test)}"])),
            ("", shown_overrides(best.varied)),
            *ends,
            ("next", f"gnntrain {shlex.quote(f'{self._folder}/best.yaml')}"),
        ]


def shown_overrides(overrides: Sequence[str]) -> str:
    """Overrides with their numbers in four digits."""
    pairs = (text.partition("=") for text in overrides)
    return " ".join(f"{key}{sign}{short_number(value)}" for key, sign, value in pairs)


def _short_keys(keys: Iterable[str]) -> Mapping[str, str]:
    """The last part of each dotted key, or the whole where two have the same."""
    last = {key: key.rpartition(".")[2] for key in keys}
    names = [*last.values()]
    return {key: name if names.count(name) == 1 else key for key, name in last.items()}


def _value_of(key: str) -> Callable[[Trial], str]:
    return lambda trial: short_number(trial.values.get(key, "-"))
