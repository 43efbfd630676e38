"""A sweep on a terminal or in a log: a row a trial, and the trials that are being trained."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gnntrain.reporting.columns import GAP, Column, to_table
from gnntrain.reporting.progress import Progress, format_eta
from gnntrain.reporting.screen import DOT, INDENT, Screen
from gnntrain.reporting.text import counted, format_metric, format_seconds, shown_metric
from gnntrain.reporting.trial_table import (
    group_table,
    shown_overrides,
    trial_columns,
    trial_line,
)
from gnntrain.reporting.trials import SweepResults, Trial
from gnntrain.training.records import EpochRecord, RunInfo, StepProgress

_MOST_RANKED = 10
_BAR = 20
_POSITION = len("    epoch 100/100  val 0.7500")


@dataclass(frozen=True)
class SweepInfo:
    """A sweep before its first trial.

    Attributes:
        num_trials: Number of trials.
        ended: Trials that ended before this process resumed the sweep.
        kind: Kind of sweep, for example "all combinations".
        jobs: Trials at a time.
        shared: The overrides that all trials share.
        space: The search space: key and values in words.
        examples: Trials with values of typical width.
        folder: Folder of the results.
    """

    num_trials: int
    ended: Sequence[Trial]
    kind: str
    jobs: int
    shared: Sequence[str]
    space: Sequence[tuple[str, str]]
    examples: Sequence[Trial]
    folder: str


class SweepConsole(Screen):
    """Shows a sweep. Use it as a context manager, so that the terminal is restored in any case.

    On a terminal, a table that grows by a row a trial, and below it a live view of those that are
    being trained. In a log, one line a trial, and one a minute while no trial ends.
    """

    def on_start(self, info: SweepInfo) -> None:
        """Show the trials to come and the folder of their results."""
        self._info = info
        self._began = self._clock()
        self._ended = [*info.ended]
        self._best = SweepResults.of(self._ended).best
        self._columns: Sequence[Column[Trial]] = ()
        self._running: dict[int, Trial] = {}
        self._progress: dict[int, Progress] = {}
        self._courses: dict[int, list[float | None]] = {}
        words = [counted(info.num_trials, "trial"), info.kind, f"{info.jobs} at a time"]
        if info.ended:
            words.insert(1, f"{len(info.ended)} of them ended before")
        width = max((len(key) for key, _ in info.space), default=0)
        space = [f"{key.ljust(width)}  {values}" for key, values in info.space]
        self._print_start(
            [
                ("sweep", DOT.join(words)),
                ("all", shown_overrides(info.shared)),
                *zip(["search", *[""] * len(space)], space, strict=False),
                ("folder", info.folder),
            ]
        )

    def on_trial(self, trial: Trial) -> None:
        """Add a trial to the live view."""
        self._running[trial.number] = trial
        self.refresh()

    def on_info(self, trial: Trial, info: RunInfo) -> None:
        """Take in the facts of a trial's run."""
        self._progress[trial.number] = Progress(info, self._clock)
        self._begin_table(info.metric)

    def on_step(self, trial: Trial, progress: StepProgress) -> None:
        """Take in a trial's step."""
        if trial.number in self._progress:
            self._progress[trial.number].note_step(progress)

    def on_epoch(self, trial: Trial, record: EpochRecord) -> None:
        """Take in a trial's epoch."""
        if trial.number in self._progress:
            self._progress[trial.number].note_epoch(record)

    def on_message(self, trial: Trial, text: str) -> None:
        """Show a trial's notice as one line."""
        self._print_note(f"trial {trial.number}: {text}")

    def on_trial_end(self, trial: Trial) -> None:
        """Add the trial's row."""
        self._running.pop(trial.number, None)
        progress = self._progress.pop(trial.number, None)
        self._courses[trial.number] = progress.values if progress is not None else []
        if trial.has_ended:
            self._ended.append(trial)
        self._best = SweepResults.of(self._ended).best
        is_best = self._best is trial
        self._begin_table(trial.metric or "metric")
        if self.is_live:
            style = "dim" if trial.status == "pruned" else ""
            best = trial if is_best else None
            self._print_block(
                to_table(self._columns, [trial], best=best, header=False, style=style)
            )
            if trial.error:
                error = Text(" ".join(trial.error.split()), "red")
                self._print_block(error, indent=INDENT)
        else:
            place = f"{len(self._ended)}/{self._info.num_trials}"
            self._print(trial_line(trial, place, is_best=is_best))
        del self._courses[trial.number]
        self.refresh()

    def refresh(self) -> None:
        """Draw the live view again, unless it was drawn just before; in a log, a line a minute."""
        if self.is_live:
            self._draw()
        elif self._running and self._is_quiet():
            running = [f"trial {n}: {self._position(n)}" for n in self._running]
            self._print(f"{self._overall()}  {'; '.join(running)}")

    def on_finish(self, results: SweepResults, status: str, seconds: float) -> None:
        """End the live view and show the ranking and the best trial."""
        self.close()
        statuses = ("completed", "pruned", "failed", "interrupted")
        counts = [f"{results.count(name)} {name}" for name in statuses if results.count(name)]
        num_ended = sum(trial.has_ended for trial in results.trials)
        words = f"after {num_ended} of {counted(self._info.num_trials, 'trial')}"
        self._print_status(status, ": ".join(filter(None, (words, ", ".join(counts)))))
        self._print_ranking(results)
        if results.repeated:
            over = " and ".join(results.repeated)
            self._print(" " * INDENT, f"mean ± standard deviation over {over}")
            groups = group_table(results.groups[:_MOST_RANKED], results.metric)
            self._print_block(groups, indent=INDENT)
            self._print()
        if results.unranked:
            self._print_note(results.unranked)
        self._print_pairs(self._end_pairs(results, seconds))

    def _begin_table(self, metric: str) -> None:
        if self._columns or not self.is_live:
            return
        self._columns = trial_columns(
            self._info.num_trials, self._info.examples, metric, self._rich.width, self._courses
        )
        self._print_block(to_table(self._columns))

    def __rich__(self) -> RenderableType:
        """The trials that are being trained, and the state of the sweep."""
        from rich.progress_bar import ProgressBar  # a log does without it

        trials = Table.grid(padding=(0, 2, 0, 0))
        for number, trial in self._running.items():
            progress = self._progress.get(number)
            known = progress.known_values if progress is not None else ()
            begin = self._begin(trial)
            room = self._rich.width - len(begin) - _POSITION
            share = progress.share() if progress is not None else 0.0
            trials.add_row(
                Text(begin, no_wrap=True, overflow="ellipsis"),
                ProgressBar(1.0, share, width=max(0, min(_BAR, room))),
                self._position(number),
                f"val {format_metric(known[-1])}" if known else "",
            )
        for column in trials.columns[1:]:
            column.no_wrap = True  # where the terminal is narrow, the first column is cut
        sweep = Table.grid(padding=(0, 2, 0, 0))
        sweep.add_column(max_width=3 * _BAR)
        sweep.add_column(no_wrap=True)
        sweep.add_row(ProgressBar(1.0, self._share()), self._overall())
        return Group("", *([trials] if self._running else []), sweep)

    def _begin(self, trial: Trial) -> str:
        """Number and values, under their titles once there is a table."""
        columns = list(takewhile(lambda column: not column.is_decisive, self._columns))
        cells = [column.cell(trial).rjust(column.width) for column in columns]
        return GAP.join(cells or [f"{trial.number:>5}", shown_overrides(trial.varied)])

    def _position(self, number: int) -> str:
        progress = self._progress.get(number)
        return (progress.epoch() if progress is not None else "") or "starting"

    def _overall(self) -> str:
        words = [f"{len(self._ended)}/{self._info.num_trials} trials", f"ETA {self._eta()}"]
        if self._best is not None:
            words.append(f"best {format_metric(self._best.val)} in trial {self._best.number}")
        return "  ".join(words)

    def _share(self) -> float:
        begun = sum(progress.share() for progress in self._progress.values())
        return min(1.0, (len(self._ended) + begun) / self._info.num_trials)

    def _eta(self) -> str:
        before = len(self._info.ended) / self._info.num_trials
        share = (self._share() - before) / (1 - before) if before < 1 else 0.0
        return format_eta(self._clock() - self._began, share)

    def _print_ranking(self, results: SweepResults) -> None:
        """Print the trials by their validation metric: the completed ones, then the pruned."""
        ended = (*results.ranked, *results.pruned)
        if len(ended) < 2:
            return
        width = self._rich.width - INDENT
        columns = trial_columns(self._info.num_trials, ended, results.metric, width)
        self._print_block(to_table(columns, ended[:_MOST_RANKED], best=results.best), indent=INDENT)
        rest = ended[_MOST_RANKED:]
        if rest:
            pruned = sum(trial.status == "pruned" for trial in rest)
            more = f"and {len(rest)} more in sweep.json" + (f", {pruned} pruned" * bool(pruned))
            self._print(" " * INDENT, (more, "dim"))
        self._print()

    def _end_pairs(self, results: SweepResults, seconds: float) -> list[tuple[str, str]]:
        folder = self._info.folder
        times = [format_seconds(seconds)]
        own = [trial.seconds for trial in results.trials if trial.seconds is not None]
        if own:
            times.append(f"{format_seconds(sum(own) / len(own))} a trial")
        ends = [("time", DOT.join(times)), ("folder", folder)]
        best = results.best
        if best is None:
            return ends
        val = f"val {shown_metric(results.metric)} {format_metric(best.val)}"
        return [
            ("best", DOT.join([f"trial {best.number}", val, f"test {format_metric(best.test)}"])),
            ("", shown_overrides(best.varied)),
            *ends,
            ("next", f"gnntrain {shlex.quote(f'{folder}/best.yaml')}"),
        ]
