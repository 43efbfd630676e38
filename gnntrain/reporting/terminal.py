"""A place to print to: a person's terminal with a live view, or anything else without one."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import IO, TextIO, cast

import rich.console
from rich.live import Live
from rich.text import Text

from gnntrain.reporting.stream import TolerantStream
from gnntrain.reporting.text import symbols_for

INDENT = 2
LABEL = 10
_REFRESH_SECONDS = 0.1


class Terminal:
    """Prints lines that stay, above a live view where a person watches.

    ``NO_COLOR`` is honoured; an output that knows no Unicode gets ASCII; one that breaks (a closed
    pipe) is given up silently.

    Args:
        view: Draws the live view.
        stream: Where to; standard output where ``None``.
        width: Characters a line; the terminal's where ``None``.
        live: Whether to show the live view; where ``None``, if the stream is a terminal.
        clock: Seconds that only grow.

    Attributes:
        is_live: Whether there is a live view.
        symbols: What to draw with.
    """

    def __init__(
        self,
        view: Callable[[], Text],
        stream: TextIO | None,
        *,
        width: int | None,
        live: bool | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        output = TolerantStream(stream if stream is not None else sys.stdout)
        self._rich = rich.console.Console(
            file=cast(IO[str], output),
            width=width,
            force_terminal=live or None,
            markup=False,
            emoji=False,
            highlight=False,
        )
        on_terminal = output.isatty() and not self._rich.is_dumb_terminal
        self.is_live = on_terminal if live is None else live
        self.symbols = symbols_for(output.encoding)
        self._view = view
        self._clock = clock
        self._written = self._drawn = clock()
        self._live: Live | None = None

    @property
    def width(self) -> int:
        """Characters a line has."""
        return self._rich.width

    @property
    def limit(self) -> int | None:
        """Characters that a row of a table may have; None in a log, which keeps it whole."""
        return self.width if self.is_live else None

    @property
    def quiet_seconds(self) -> float:
        """How long ago a line was printed."""
        return self._clock() - self._written

    def close(self) -> None:
        """Ends the live view and gives the terminal back; may be called again."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def print(self, line: Text | str = "") -> None:
        """A line that stays."""
        # Soft-wrapped: a terminal may break a long line, a log keeps it whole.
        self._rich.print(line, soft_wrap=True)
        self._written = self._clock()

    def print_words(self, words: Text) -> None:
        """A sentence, broken between words where the terminal is narrow."""
        if self.is_live:
            self._rich.print(words)
            self._written = self._clock()
        else:
            self.print(words)

    def print_pairs(self, rows: Sequence[tuple[str, str]]) -> None:
        """Labels and what they say, one under the other; not those that say nothing."""
        for label, value in rows:
            for number, part in enumerate(self._broken(value)):
                line = Text(" " * INDENT)
                line.append(("" if number else label).ljust(LABEL), style="dim")
                self.print(line.append(part))

    def refresh(self, *, at_once: bool = False) -> None:
        """Draws the live view anew, unless it was just drawn and may wait."""
        if self._live is None:
            self._live = Live(
                console=self._rich, auto_refresh=False, transient=True, get_renderable=self._view
            )
            self._live.start()
        elif not at_once and self._clock() - self._drawn < _REFRESH_SECONDS:
            return
        self._live.refresh()
        self._drawn = self._clock()

    def _broken(self, value: str) -> list[str]:
        """A value in parts that fit under each other; what is to be copied stays whole."""
        room = self.width - INDENT - LABEL
        if not self.is_live or len(value) <= room or value.startswith("gnntrain "):
            return [value] if value else []
        return textwrap.wrap(value, max(20, room), break_long_words=False, break_on_hyphens=False)
