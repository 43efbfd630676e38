"""Printing with rich: a terminal with a live view, or a log of plain lines."""

from __future__ import annotations

import io
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self, TextIO, cast

from rich.console import Console, ConsoleDimensions, RenderableType
from rich.padding import Padding
from rich.text import Text

from gnntrain import __version__
from gnntrain.reporting.stream import TolerantStream

if TYPE_CHECKING:
    from IPython.display import DisplayHandle
    from rich.live import Live

DOT = " · "
UNBROKEN = 10_000
"""The width of an output that has none, where lines stay whole."""
INDENT = 2
LABEL = 10
_QUIET_SECONDS = 60.0
_STATUS_STYLES = {
    "completed": "bold green",
    "pruned": "bold yellow",
    "interrupted": "bold yellow",
    "failed": "bold red",
}
_REFRESH_SECONDS = 0.2
_NOTEBOOK_WIDTH = 100

Part = str | tuple[str, str]
"""A piece of a line: plain text, or text with a style of rich."""


class Screen:
    """Lines that stay, above a live view on a terminal. A context manager that restores it.

    In a notebook, all of it is one output of the cell, which is replaced when there is news.

    The live view is drawn when there is news, five times a second at most; no thread draws it.
    ``NO_COLOR`` is honoured. An output without Unicode gets ASCII. An output that breaks (a closed
    pipe) is dropped silently.

    Args:
        stream: The output; standard output where ``None``.
        width: Characters a line; the terminal's where ``None``.
        live: Whether to show the live view; where ``None``, on a terminal only.
        clock: A monotonic clock, seconds.

    Attributes:
        is_live: Whether there is a live view.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        width: int | None = None,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._in_notebook = stream is None and _is_notebook()
        if self._in_notebook:
            stream, live, width = io.StringIO(), True, width or _NOTEBOOK_WIDTH
        output = TolerantStream(stream if stream is not None else sys.stdout)
        self._rich = plain_console(
            output, width=width, force_terminal=live or None, record=self._in_notebook
        )
        on_terminal = output.isatty() and not self._rich.is_dumb_terminal
        self.is_live = on_terminal if live is None else live
        if not self.is_live:  # a log keeps its lines whole
            self._rich.size = ConsoleDimensions(UNBROKEN, 25)
        self._clock = clock
        self._printed = self._drawn = clock()
        self._live: Live | None = None
        self._cell: DisplayHandle | None = None

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
        """End the live view and restore the terminal; may be called again."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def __rich__(self) -> RenderableType:
        """The live view. rich asks for it whenever it draws: also below each line that stays."""
        raise NotImplementedError

    def _draw(self) -> None:
        """Draw the live view again, unless it was drawn just before."""
        if self._in_notebook:
            if self._clock() - self._drawn >= _REFRESH_SECONDS:
                self._show(self)
                self._drawn = self._clock()
            return
        if self._live is None:
            from rich.live import Live  # a log does without it

            self._live = Live(self, console=self._rich, auto_refresh=False, transient=True)
            self._live.start()
        elif self._clock() - self._drawn < _REFRESH_SECONDS:
            return
        self._live.refresh()
        self._drawn = self._clock()

    def _is_quiet(self) -> bool:
        """Whether a log has had no line for a minute."""
        return not self.is_live and self._clock() - self._printed >= _QUIET_SECONDS

    def _print(self, *parts: Part) -> None:
        """Print one line, which only the terminal itself breaks: a path can be copied."""
        self._put(Text.assemble(*parts), soft_wrap=True)

    def _print_block(self, block: RenderableType, *, indent: int = 0) -> None:
        """Print a table or a paragraph."""
        self._put(Padding.indent(block, indent) if indent else block)

    def _put(self, block: RenderableType, *, soft_wrap: bool = False) -> None:
        self._rich.print(block, soft_wrap=soft_wrap)
        if self._in_notebook:
            self._show("")
        self._printed = self._drawn = self._clock()

    def _show(self, view: RenderableType) -> None:
        """Show all lines so far, and a view below them, in place of the cell's output."""
        from IPython.display import display

        below = plain_console(
            TolerantStream(io.StringIO()),
            width=self._rich.width,
            force_terminal=True,
            record=True,
        )
        below.print(view, end="")
        html, text = "", ""
        for console in (self._rich, below):
            html += console.export_html(clear=False, inline_styles=True, code_format="{code}")
            text += console.export_text(clear=False)
        bundle = {"text/plain": text, "text/html": f"<pre>{html}</pre>"}
        if self._cell is None:
            self._cell = display(bundle, raw=True, display_id=True)
        else:
            self._cell.update(bundle, raw=True)

    def _print_note(self, text: str) -> None:
        """Print a notice as one line."""
        self._print(("note", "yellow"), "  " + " ".join(text.split()))

    def _print_pairs(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Print labels with their values, broken between words; pairs without a value are left out.

        A command and a long word, such as a path, stay whole.
        """
        room = max(20, self._rich.width - INDENT - LABEL)
        for label, value in pairs:
            lines = [value]
            if value and not value.startswith("gnntrain "):
                lines = textwrap.wrap(value, room, break_long_words=False, break_on_hyphens=False)
            for number, line in enumerate(filter(None, lines)):
                head = ("" if number else label).ljust(LABEL)
                self._print(" " * INDENT, (head, "dim"), line)

    def _print_start(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Print the version and the facts at the start."""
        self._print((f"gnntrain {__version__}", "bold"))
        self._print()
        self._print_pairs(pairs)
        self._print()

    def _print_status(self, status: str, words: str) -> None:
        """Print how it ended."""
        self._print()
        self._print_block(Text.assemble((status, _STATUS_STYLES[status]), f" {words}"))
        self._print()


def plain_console(output: TolerantStream, **options: Any) -> Console:
    """A console of rich that prints text as it is: brackets are no markup."""
    file = cast(IO[str], output)
    # In a notebook, each print by rich would be an output of its own.
    options = {"markup": False, "emoji": False, "highlight": False, **options}
    return Console(file=file, force_jupyter=False, **options)


def _is_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return hasattr(ipython and ipython.get_ipython(), "kernel")
