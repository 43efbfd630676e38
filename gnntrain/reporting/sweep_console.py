"""A sweep on a terminal or in a log: a row a trial, and the trials that are being trained."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from rich.progress import TaskID

from gnntrain.reporting.display import BEST, DOT, GAP, INDENT, Cells, Display, Pairs, widths_of
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
_CURVE = 16


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
        curve = sparkline(self._values.get(trial.number, ()), _CURVE).ljust(_CURVE)
        self._head = self._head or ([*trial.values], trial.metric or "metric")
        cells = {**self._cells(trial, *self._head), "curve".ljust(_CURVE): curve}
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
        if results.repeated:
            has_splits = len({group.splits for group in results.groups if group.counted}) > 1
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
        if results.unranked:
            self.note(results.unranked)
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
