"""What a person sees of a sweep: a table of trials that grows, and those that are being trained."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TextIO

from rich.text import Text

from gnntrain import __version__
from gnntrain.metrics import get_metric
from gnntrain.reporting.progress import Progress, format_eta
from gnntrain.reporting.terminal import INDENT, Terminal
from gnntrain.reporting.text import counted, format_metric, format_seconds, shown_metric
from gnntrain.reporting.trial_table import (
    GAP,
    STATUS,
    TrialTable,
    cut,
    group_lines,
    sentence,
    shown_overrides,
)
from gnntrain.reporting.trials import SweepResults, Trial
from gnntrain.training.records import EpochRecord, RunInfo, StepProgress

_QUIET_SECONDS = 60.0
_MOST_RANKED = 10
_BAR = 20
_STYLES = {
    "completed": "bold green",
    "pruned": "dim",
    "interrupted": "bold yellow",
    "failed": "bold red",
}


@dataclass(frozen=True)
class SweepInfo:
    """What is about to be trained.

    Attributes:
        num_trials: Trials in all.
        num_ended: Those of them that have ended before.
        best: The best of those, where there is one.
        kind: Which trials there are, in words.
        jobs: Trials at a time.
        shared: The overrides that all trials share.
        space: What a search draws from: key and values in words.
        examples: Trials with the values that there will be, for the widths.
        folder: Where the results go.
    """

    num_trials: int
    num_ended: int
    best: Sequence[Trial]
    kind: str
    jobs: int
    shared: Sequence[str]
    space: Sequence[tuple[str, str]]
    examples: Sequence[Trial]
    folder: str


class SweepConsole:
    """Shows a sweep. Use it as a context manager, so that the terminal is restored in any case.

    On a terminal, a line for each trial that ended stays, and under them a live view of those that
    are being trained; elsewhere one plain line a trial, and one a minute while none ends.
    Colours, encodings and broken outputs are dealt with as in :class:`Console`.

    Args:
        stream: Where to; standard output where ``None``.
        width: Characters a line; the terminal's where ``None``.
        live: Whether to show the live view; where ``None``, if the stream is a terminal.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        width: int | None = None,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._terminal = Terminal(self._view, stream, width=width, live=live, clock=clock)
        self._symbols = self._terminal.symbols
        self._print, self._pairs = self._terminal.print, self._terminal.print_pairs
        self._clock = clock
        self._began = clock()
        self._info: SweepInfo | None = None
        self._table: TrialTable | None = None
        self._running: dict[int, Trial] = {}
        self._progress: dict[int, Progress] = {}
        self._courses: dict[int, list[float | None]] = {}
        self._num_ended = 0
        self._best: tuple[float, int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the live view and gives the terminal back; may be called again."""
        self._terminal.close()

    def on_start(self, info: SweepInfo) -> None:
        """Shows what is trained, and where it goes."""
        self._info = info
        self._num_ended = info.num_ended
        for trial in info.best:
            self._is_best(trial)
        dot = f" {self._symbols.dot} "
        words = [counted(info.num_trials, "trial"), info.kind, f"{info.jobs} at a time"]
        if info.num_ended:
            words.insert(1, f"{info.num_ended} of them have ended before")
        self._print(Text(f"gnntrain {__version__}", style="bold"))
        self._print()
        self._pairs([("sweep", dot.join(words)), ("all", shown_overrides(info.shared))])
        width = max((len(key) for key, _ in info.space), default=0)
        for label, (key, values) in zip(_labels("search"), info.space, strict=False):
            self._pairs([(label, f"{key.ljust(width)}  {values}")])
        self._pairs([("folder", info.folder)])
        self._print()

    def on_trial(self, trial: Trial) -> None:
        """Adds a trial to the live view."""
        self._running[trial.number] = trial
        self.refresh()

    def on_info(self, trial: Trial, info: RunInfo) -> None:
        """Takes in how much there is to do in a trial."""
        self._progress[trial.number] = Progress(info, self._clock)
        self._begin_table(info.metric)

    def on_step(self, trial: Trial, progress: StepProgress) -> None:
        """Takes in where a trial stands."""
        if trial.number in self._progress:
            self._progress[trial.number].note_step(progress)

    def on_epoch(self, trial: Trial, record: EpochRecord) -> None:
        """Takes in what an epoch reached."""
        if trial.number in self._progress:
            self._progress[trial.number].note_epoch(record)

    def on_message(self, trial: Trial, text: str) -> None:
        """Shows a trial's notice as one line."""
        line = Text().append("note", style="yellow")
        self._print(line.append(f"  trial {trial.number}: {' '.join(text.split())}"))

    def on_trial_end(self, trial: Trial) -> None:
        """Adds the trial's line."""
        self._running.pop(trial.number, None)
        progress = self._progress.pop(trial.number, None)
        self._courses[trial.number] = progress.values if progress is not None else []
        self._num_ended += trial.has_ended
        is_best = self._is_best(trial)
        self._begin_table(trial.metric or "metric")
        if self._info is not None:
            place = f"{self._num_ended}/{self._info.num_trials}"
            self._print(self._trial_line(trial, place, is_best=is_best))
        del self._courses[trial.number]
        self.refresh(at_once=True)

    def refresh(self, *, at_once: bool = False) -> None:
        """Draws the live view anew, unless it was just drawn and may wait."""
        if not self._terminal.is_live:
            if self._terminal.quiet_seconds >= _QUIET_SECONDS and self._running:
                running = self._running.values()
                words = [f"trial {one.number}: {self._position(one)}" for one in running]
                self._print(self._overall() + "  " + "; ".join(words))
            return
        self._terminal.refresh(at_once=at_once)

    def on_finish(self, standings: SweepResults, status: str, seconds: float) -> None:
        """Ends the live view and shows what came out."""
        self.close()
        counts = [
            f"{standings.count(name)} {name}"
            for name in ("completed", "pruned", "failed", "interrupted")
            if standings.count(name)
        ]
        num_trials = self._info.num_trials if self._info is not None else len(standings.trials)
        num_ended = sum(trial.has_ended for trial in standings.trials)
        word = Text().append(status, style=_STYLES.get(status, "bold"))
        line = f" after {num_ended} of {counted(num_trials, 'trial')}"
        self._print()
        self._terminal.print_words(word.append(line + (f": {', '.join(counts)}" if counts else "")))
        self._print()
        self._ranking(standings)
        self._groups(standings)
        self._pairs(self._end_pairs(standings, seconds))

    def _begin_table(self, metric: str) -> None:
        if self._table is not None or self._info is None:
            return
        limit = self._terminal.limit
        self._table = TrialTable(
            self._info.num_trials,
            self._info.examples,
            metric,
            limit and limit - STATUS,
            self._symbols,
            self._courses,
        )
        if self._terminal.is_live:
            self._print(Text(self._table.header(), style="dim"))

    def _is_best(self, trial: Trial) -> bool:
        if trial.status != "completed" or trial.val is None:
            return False
        metric = get_metric(trial.metric or "")
        if self._best is not None and not metric.is_better(trial.val, than=self._best[0]):
            return False
        self._best = (trial.val, trial.number)
        return True

    def _trial_line(self, trial: Trial, place: str, *, is_best: bool) -> Text:
        if not self._terminal.is_live or self._table is None:
            return Text(sentence(trial, place, is_best=is_best))
        line = Text(style="dim" if trial.status == "pruned" else "")
        cells = self._table.cells(trial, is_best=is_best)
        for column, cell in zip(self._table.columns, cells, strict=True):
            line.append(GAP if line else "")
            line.append(cell, style="bold green" if column.is_decisive and is_best else None)
        if trial.status != "completed":
            line.append(GAP + trial.status, style=_STYLES.get(trial.status))
        if trial.error:
            room = self._terminal.width - 2 * INDENT
            line.append("\n" + " " * INDENT)
            line.append(cut(" ".join(trial.error.split()), room, self._symbols), style="red")
        return line

    def _view(self) -> Text:
        """The live view: the trials that are being trained, and how far the sweep is."""
        view = Text("\n")
        for trial in self._running.values():
            view.append(self._running_line(trial) + "\n")
        width = self._terminal.width
        words = self._overall()
        share = self._share()
        room = min(60, width - len(words) - 4)
        if room >= 10:
            full = round(room * share)
            view.append(self._symbols.full * full, style="cyan")
            view.append(self._symbols.empty * (room - full), style="dim").append(GAP)
        return view.append(cut(words, width - 1, self._symbols))

    def _running_line(self, trial: Trial) -> str:
        width = self._terminal.width - 1
        begin = f"{trial.number:>5}  {shown_overrides(trial.varied)}"
        if self._table is not None:
            begin = self._table.begin(trial)
        progress = self._progress.get(trial.number)
        left = self._position(trial)
        if progress is None or not progress.values:
            return cut(f"{begin}{GAP}{left}", width, self._symbols)
        known = [value for value in progress.values if value is not None]
        end = f"{left}{GAP}val {format_metric(known[-1])}" if known else left
        room = min(_BAR, width - len(begin) - len(end) - 2 * len(GAP))
        if room >= 6:
            full = round(room * progress.run_share())
            end = self._symbols.full * full + self._symbols.empty * (room - full) + GAP + end
        room = max(width // 3, width - len(end) - len(GAP))
        return cut(f"{cut(begin, room, self._symbols)}{GAP}{end}", width, self._symbols)

    def _position(self, trial: Trial) -> str:
        progress = self._progress.get(trial.number)
        return (progress.position()[0] if progress is not None else "") or "starting"

    def _overall(self) -> str:
        num_trials = self._info.num_trials if self._info is not None else 0
        words = [f"{self._num_ended}/{num_trials} trials", f"ETA {self._eta()}"]
        if self._best is not None:
            value, number = self._best
            words.append(f"best {format_metric(value)} in trial {number}")
        return GAP.join(words)

    def _share(self) -> float:
        if self._info is None:
            return 0.0
        begun = sum(progress.run_share() for progress in self._progress.values())
        return min(1.0, (self._num_ended + begun) / self._info.num_trials)

    def _eta(self) -> str:
        if self._info is None:
            return "-"
        before = self._info.num_ended / self._info.num_trials
        share = (self._share() - before) / (1 - before) if before < 1 else 0.0
        return format_eta(self._clock() - self._began, share)

    def _ranking(self, standings: SweepResults) -> None:
        """The trials by their validation metric: the completed ones, then the pruned."""
        ended = (*standings.ranked, *standings.pruned)
        if self._info is None or len(ended) < 2:
            return
        limit = self._terminal.limit
        room = INDENT + (STATUS if standings.pruned else 0)
        table = TrialTable(
            self._info.num_trials,
            ended,
            standings.metric,
            limit and limit - room,
            self._symbols,
        )
        self._print(Text(" " * INDENT + table.header().rstrip(), style="dim"))
        for trial in ended[:_MOST_RANKED]:
            is_best = trial in standings.ranked[:1]
            cells = GAP.join(table.cells(trial, is_best=is_best))
            status = GAP + trial.status if trial.status == "pruned" else ""
            self._print(" " * INDENT + (cells + status).rstrip())
        rest = ended[_MOST_RANKED:]
        if rest:
            pruned = sum(trial.status == "pruned" for trial in rest)
            more = f"and {len(rest)} more in sweep.json" + (f", {pruned} pruned" * bool(pruned))
            self._print(Text(" " * INDENT + more, style="dim"))
        self._print()

    def _groups(self, standings: SweepResults) -> None:
        if not standings.repeated:
            return
        over = " and ".join(standings.repeated)
        head = f"mean {self._symbols.plus_minus} standard deviation over {over}"
        self._print(" " * INDENT + head)
        width = (self._terminal.limit or sys.maxsize) - INDENT
        lines = group_lines(
            standings.groups, standings.metric, width, self._symbols, most=_MOST_RANKED
        )
        for number, line in enumerate(lines):
            style = "dim" if number == 0 else "bold" if number == 1 else ""
            self._print(Text(" " * INDENT + line, style=style))
        self._print()

    def _end_pairs(self, standings: SweepResults, seconds: float) -> list[tuple[str, str]]:
        dot = f" {self._symbols.dot} "
        folder = self._info.folder if self._info is not None else ""
        times = [format_seconds(seconds)]
        own = [trial.seconds for trial in standings.trials if trial.seconds is not None]
        if own:
            times.append(f"{format_seconds(sum(own) / len(own))} a trial")
        best = standings.best
        if best is None:
            return [("time", dot.join(times)), ("folder", folder)]
        name = shown_metric(standings.metric)
        reached = [f"val {name} {format_metric(best.val)}", f"test {format_metric(best.test)}"]
        return [
            ("best", f"trial {best.number}{dot}{dot.join(reached)}"),
            ("", shown_overrides(best.varied)),
            ("time", dot.join(times)),
            ("folder", folder),
            ("next", f"gnntrain {shlex.quote(f'{folder}/best.yaml')}"),
        ]


def _labels(first: str) -> Sequence[str]:
    return [first, *[""] * 1000]
