"""What a person sees of a run: a live view on a terminal, plain lines anywhere else.

The only part of gnntrain that knows rich.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from rich.text import Text

from gnntrain import __version__
from gnntrain.reporting.blocks import end_block, end_sentence, start_block
from gnntrain.reporting.progress import Progress
from gnntrain.reporting.stream import TolerantStream
from gnntrain.reporting.table import EpochTable
from gnntrain.reporting.terminal import INDENT, LABEL, Terminal
from gnntrain.reporting.text import format_metrics
from gnntrain.training.records import EpochRecord, RunInfo, StepProgress, Summary

__all__ = ["Console", "format_metrics", "restore_terminal"]

_QUIET_SECONDS = 60.0
_MANY_EPOCHS = 100
_MANY_LINES = 50
_STATUS_STYLE = {
    "completed": "bold green",
    "pruned": "bold yellow",
    "interrupted": "bold yellow",
    "failed": "bold red",
}


class Console:
    """Shows a run. Use it as a context manager, so that the terminal is restored in any case.

    On a terminal, a live view of the epoch under one line an epoch that stays; a run of more than
    100 epochs keeps only every 5th, 10th, 20th … of them. Elsewhere one plain line an epoch, and
    one a minute inside a longer epoch. ``NO_COLOR`` is honoured; an output that knows no Unicode
    gets ASCII; one that breaks (a closed pipe) is given up silently, and the run goes on.

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
        self._info: RunInfo | None = None
        self._progress: Progress | None = None
        self._table: EpochTable | None = None
        self._unshown: Text | None = None

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

    def on_start(self, info: RunInfo) -> None:
        """Shows what is trained, on what, and where it goes."""
        self._info = info
        self._progress = Progress(info, self._clock)
        self._print(Text(f"gnntrain {__version__}", style="bold"))
        self._print()
        self._pairs(start_block(info, self._symbols))
        self._print()

    def on_step(self, progress: StepProgress) -> None:
        """Refreshes the live view, ten times a second at most."""
        if self._progress is None:
            return
        self._progress.note_step(progress)
        if self._terminal.is_live:
            self._terminal.refresh()
        elif self._terminal.quiet_seconds >= _QUIET_SECONDS:
            left, right = self._progress.position()
            self._print(f"{left}  {right}  {self._progress.facts(sys.maxsize)}")

    def on_epoch(self, record: EpochRecord) -> None:
        """Adds the epoch's line."""
        if self._progress is None or self._info is None:
            return
        is_best = self._progress.note_epoch(record)
        if self._table is None:
            self._table = self._new_table(self._info, record)
        line = self._epoch_line(self._table, record, is_best=is_best)
        is_due = self._is_due(record.epoch, self._info.epochs)
        self._unshown = None if is_due else line
        if is_due:
            self._print(line)
        if self._terminal.is_live:
            self._terminal.refresh(at_once=is_due)

    def on_message(self, text: str) -> None:
        """Shows a notice as one line."""
        line = Text().append("note", style="yellow")
        self._print(line.append("  " + " ".join(text.split())))

    def on_finish(self, summary: Summary) -> None:
        """Ends the live view and shows what came out."""
        self.close()
        if self._unshown is not None:
            self._print(self._unshown)
        status = Text().append(summary.status, style=_STATUS_STYLE[summary.status])
        self._print()
        self._terminal.print_words(status.append(" " + end_sentence(summary, self._info)))
        self._print()
        if summary.metrics:
            for line in format_metrics(summary.metrics).splitlines():
                self._print(" " * INDENT + line)
            self._print()
        values = self._progress.values if self._progress is not None else []
        room = self._terminal.width - INDENT - LABEL
        self._pairs(end_block(summary, self._info, values, room, self._symbols))

    def _new_table(self, info: RunInfo, first: EpochRecord) -> EpochTable:
        table = EpochTable(info.epochs, info.metric, first, self._terminal.limit)
        if self._terminal.is_live:
            self._print(Text(table.header(), style="dim"))
        return table

    def _epoch_line(self, table: EpochTable, record: EpochRecord, *, is_best: bool) -> Text:
        if not self._terminal.is_live:
            return Text(table.sentence(record, is_best=is_best))
        line = Text()
        cells = table.cells(record, is_best=is_best)
        for column, cell in zip(table.columns, cells, strict=True):
            line.append(table.gap if line else "")
            line.append(cell, style="bold green" if column.is_decisive and is_best else None)
        return line

    def _is_due(self, epoch: int, epochs: int) -> bool:
        interval = _line_interval(epochs) if self._terminal.is_live else 1
        is_first = self._progress is None or epoch == self._progress.first_epoch
        return is_first or epoch % interval == 0 or epoch == epochs

    def _view(self) -> Text:
        """The live view: where the epoch stands, and how it goes."""
        view = Text("\n")
        if self._progress is None:
            return view
        left, right = self._progress.position()
        room = self._terminal.width - len(left) - len(right) - 5
        full, empty = self._progress.bar(room, self._symbols)
        view.append(left + "  ")
        if full or empty:
            view.append(full, style="cyan").append(empty, style="dim").append("  ")
        view.append(right + "\n")
        view.append(self._progress.facts(self._terminal.width), style="dim")
        course = self._progress.course(self._terminal.width, self._symbols)
        return view.append("\n" + course, style="dim") if course else view


def restore_terminal(stream: TextIO | None = None) -> None:
    """Shows the cursor again, for a parent whose rank 0 was killed in the middle of its view."""
    output = TolerantStream(stream if stream is not None else sys.stdout)
    if output.isatty():
        output.write("\x1b[?25h")
        output.flush()


def _line_interval(epochs: int) -> int:
    """Of how many epochs one keeps its line: 1, else 5, 10, 20 … so that some 50 lines stay."""
    power = 1
    while epochs > _MANY_EPOCHS:
        for digit in (2, 5, 10):
            if epochs <= _MANY_LINES * digit * power:
                return digit * power
        power *= 10
    return 1
