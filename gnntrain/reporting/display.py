"""Printing with rich: lines that stay, above progress bars on a terminal; in a log, lines alone."""

from __future__ import annotations

import io
import math
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Self, TextIO, cast

from rich.console import Console, ConsoleDimensions, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from gnntrain import __version__
from gnntrain.reporting.stream import TolerantStream

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

DOT = " · "
GAP = "  "
INDENT = 2
LABEL = 10
BEST = "*"
WHOLE = 10_000
"""The width of an output that has none, where lines stay whole."""
_NOTEBOOK_WIDTH = 100
_REFRESH_SECONDS = 0.2
_QUIET_SECONDS = 60.0
_BAR = 40
_NARROWEST = 8
_STYLES = {"completed": "bold green", "failed": "bold red"}

Pairs = Sequence[tuple[str, str]]
Cells = Mapping[str, str]
"""The cells of a row by the titles of their columns, the most important first."""


def widths_of(cells: Cells, limit: int) -> dict[str, int]:
    """The widths of the first columns of a table, as many as fit a line; from its first row.

    The first cell of all rows is as long as in this one.
    """
    widths: dict[str, int] = {}
    for title, text in cells.items():
        widths[title] = max(len(title), _NARROWEST if widths else len(text))
        if sum(widths.values()) + len(GAP) * (len(widths) - 1) > limit:
            del widths[title]
            break
    return widths


class _Bars(Progress):
    """rich's bars, a task a row, with a line of facts below them."""

    facts = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield ""
        yield self.make_tasks_table(self.tasks)
        if self.facts:
            yield Text(self.facts, "dim", no_wrap=True, overflow="ellipsis")


class Display:
    """Lines that stay, above progress bars. A context manager that restores the terminal.

    The bars are drawn when there is news, five times a second at most; no thread draws them. In a
    log they are a line a minute, where no other line was printed. In a notebook, all of it is one
    output of the cell, which is replaced. ``NO_COLOR`` is honoured. An output without Unicode gets
    ASCII. An output that breaks (a closed pipe) is dropped silently.

    Args:
        stream: The output; standard output where ``None``.
        width: Characters a line; the terminal's where ``None``.
        live: Whether to draw the bars; where ``None``, on a terminal only.
        clock: A monotonic clock, seconds.

    Attributes:
        is_live: Whether the bars are drawn.
        width: Characters a line.
        bars: The bars; each task has a field ``state``, shown behind its bar.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        width: int | None = None,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        ipython = sys.modules.get("IPython")
        self._page: io.StringIO | None = None  # what a notebook shows
        self._cell: DisplayHandle | None = None
        if stream is None and hasattr(ipython and ipython.get_ipython(), "kernel"):
            stream = self._page = io.StringIO()
            width = width or _NOTEBOOK_WIDTH
        output = TolerantStream(stream if stream is not None else sys.stdout)
        self._rich = plain_console(output, width=width, force_terminal=live or None)
        on_terminal = output.isatty() and not self._rich.is_dumb_terminal
        self.is_live = self._page is not None or (on_terminal if live is None else live)
        if not self.is_live:  # a log keeps its lines whole
            self._rich.size = ConsoleDimensions(WHOLE, 25)
        self.width = self._rich.width
        self._widths: dict[str, int] = {}  # of the table's columns
        self._clock = clock
        self._printed, self._drawn = clock(), -math.inf
        self._time_left = TimeRemainingColumn(compact=True)
        self.bars = _Bars(
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
        self.close()

    def close(self) -> None:
        """End the bars and restore the terminal; may be called again."""
        if self.bars.live.is_started:
            self.bars.stop()

    def refresh(self) -> None:
        """Draw the bars again, unless they were drawn just before; in a log, a line a minute."""
        now = self._clock()
        if self.is_live and now - self._drawn >= _REFRESH_SECONDS:
            self._drawn = now
            if self._page is not None:
                self._show(self.bars.get_renderable())
            else:
                self.bars.start()
                self.bars.refresh()
        elif not self.is_live and self.bars.tasks and now - self._printed >= _QUIET_SECONDS:
            tasks = [
                f"{task.description}{GAP}{task.fields['state']}{GAP}"
                f"ETA {self._time_left.render(task)}"
                for task in self.bars.tasks
            ]
            self.line(GAP.join(filter(None, ("; ".join(tasks), self.bars.facts))))

    def line(self, *parts: str | tuple[str, str]) -> None:
        """Print one line, of texts and texts with a style of rich. Only the terminal itself breaks
        it: a path can be copied."""
        self._put(Text.assemble(*parts), soft_wrap=True)

    def block(self, block: RenderableType) -> None:
        """Print a table, indented, and an empty line."""
        self._put(Padding.indent(block, INDENT))
        self.line()

    def row(self, cells: Cells, style: str = "") -> None:
        """Print a row; on a terminal below the titles of the first one, in a log with its own."""
        if not self.is_live:
            named = [(title.strip(), text.strip()) for title, text in cells.items()]
            self.line(GAP.join(f"{title} {text}" for title, text in named if text))
            return
        if not self._widths:
            self._widths = widths_of(cells, self.width)
            self.line((GAP.join(title.rjust(n) for title, n in self._widths.items()), "dim"))
        texts = [(cells.get(title, ""), width) for title, width in self._widths.items()]
        shown = [text.rjust(n) if len(text) <= n else f"{text[: n - 1]}…" for text, n in texts]
        self.line((GAP.join(shown), style))

    def note(self, text: str) -> None:
        """Print a notice as one line."""
        self.line(("note", "yellow"), "  " + " ".join(text.split()))

    def start(self, pairs: Pairs) -> None:
        """Print the version and the facts at the start."""
        self.line((f"gnntrain {__version__}", "bold"))
        self.line()
        self.pairs(pairs)
        self.line()

    def ending(self, status: str, words: str) -> None:
        """End the bars and print how it ended."""
        self.close()
        self.line()
        self._put(Text.assemble((status, _STYLES.get(status, "bold yellow")), f" {words}"))
        self.line()

    def pairs(self, pairs: Pairs) -> None:
        """Print labels with their values, broken between words; pairs without a value are left out.

        A command and a long word, such as a path, stay whole.
        """
        room = max(20, self.width - INDENT - LABEL)
        for label, value in pairs:
            lines = [value]
            if value and not value.startswith("gnntrain "):
                lines = textwrap.wrap(value, room, break_long_words=False, break_on_hyphens=False)
            for number, line in enumerate(filter(None, lines)):
                head = ("" if number else label).ljust(LABEL)
                self.line(" " * INDENT, (head, "dim"), line)

    def _put(self, block: RenderableType, *, soft_wrap: bool = False) -> None:
        self._rich.print(block, soft_wrap=soft_wrap)
        self._printed = self._clock()
        if self._page is not None:
            self._show("")

    def _show(self, below: RenderableType) -> None:
        """Show all lines so far, and what stands below them, in place of the cell's output."""
        from IPython.display import display

        assert self._page is not None
        with self._rich.capture() as captured:
            self._rich.print(below, end="")
        bundle = {"text/plain": self._page.getvalue() + captured.get()}
        if self._cell is None:
            self._cell = display(bundle, raw=True, display_id=True)
        else:
            self._cell.update(bundle, raw=True)


def plain_console(output: TolerantStream, **options: Any) -> Console:
    """A console of rich that prints text as it is: brackets are no markup."""
    # In a notebook, each print by rich would be an output of its own.
    options = {"markup": False, "emoji": False, "highlight": False, **options}
    return Console(file=cast(IO[str], output), force_jupyter=False, **options)
