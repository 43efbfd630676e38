"""Plain answers on a terminal or in a file: sections of aligned rows, readable at 80 columns."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Literal, TextIO, cast

import rich.console
from rich.text import Text

from gnntrain.reporting.stream import TolerantStream

Judgement = Literal["ok", "note", "problem"]

_INDENT = "  "
_GAP = "  "
_NARROWEST = 24
_STYLES: dict[Judgement, str] = {"ok": "green", "note": "yellow", "problem": "bold red"}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        judgement: `ok`, `note` (it works, but) or `problem` (something needed fails).
        name: What was looked at, in a word or two.
        text: What was found.
        hint: What to do about it; empty where nothing need be done.
    """

    judgement: Judgement
    name: str
    text: str
    hint: str = ""


class TextReport:
    """Prints sections of rows. ``NO_COLOR`` is honoured, and an output without Unicode.

    Args:
        stream: Where to; standard output where ``None``.
        width: Characters a line; where ``None`` the terminal's, or 80 where there is none.
    """

    def __init__(self, stream: TextIO | None = None, *, width: int | None = None) -> None:
        output = TolerantStream(stream if stream is not None else sys.stdout)
        self._rich = rich.console.Console(
            file=cast(IO[str], output), width=width, markup=False, emoji=False, highlight=False
        )
        self._has_printed = False

    def section(self, title: str) -> None:
        """Begin a section, with a blank line before all but the first."""
        if self._has_printed:
            self._print(Text())
        self._print(Text(title, style="bold"))

    def line(self, text: str = "", *, style: str = "") -> None:
        """Print one line as it is."""
        self._print(Text(text, style=style))

    def pairs(self, rows: Sequence[tuple[str, str]]) -> None:
        """Labels, and what there is to say of each."""
        width = max((len(label) for label, _ in rows), default=0)
        for label, value in rows:
            head = Text(_INDENT).append(label.ljust(width), style="dim")
            self._wrapped(head.append(_GAP), value)

    def checks(self, rows: Sequence[Check]) -> None:
        """What was found, judged, each with its hint below it."""
        width = max((len(row.name) for row in rows), default=0)
        for row in rows:
            head = Text(_INDENT).append(row.judgement.ljust(7), style=_STYLES[row.judgement])
            self._wrapped(head.append(f"{_GAP}{row.name.ljust(width)}{_GAP}"), row.text)
            if row.hint:
                indent = " " * (len(_INDENT) + 7 + len(_GAP) + width + len(_GAP))
                self._wrapped(Text(indent).append("→ ", style="dim"), row.hint)

    def note(self, text: str) -> None:
        """A sentence below a table."""
        self._wrapped(Text(_INDENT), text)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
        """A table whose first ``left`` columns stand to the left, the others to the right.

        On a terminal that is too narrow, the widest of the left ones is cut.
        """
        cells = [list(header), *map(list, rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        excess = len(_INDENT) + sum(widths) + len(_GAP) * (len(widths) - 1) - self._rich.width
        if excess > 0 and self._rich.is_terminal:
            widest = max(range(left), key=lambda place: widths[place])
            widths[widest] = max(_NARROWEST, widths[widest] - excess)
        for number, row in enumerate(cells):
            padded = [
                self._cut(cell, width).ljust(width) if place < left else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            style = "dim" if number == 0 else ""
            self._print(Text(f"{_INDENT}{_GAP.join(padded)}".rstrip(), style=style))

    def _cut(self, cell: str, width: int) -> str:
        return cell if len(cell) <= width else cell[: width - 2] + ".."

    def _wrapped(self, head: Text, value: str) -> None:
        """The head, and the value beside it in as many lines as it takes."""
        room = max(_NARROWEST, self._rich.width - len(head))
        lines = textwrap.wrap(value, room, break_long_words=False, break_on_hyphens=False) or [""]
        self._print(head + Text(lines[0]))
        for line in lines[1:]:
            self._print(Text(" " * len(head) + line))

    def _print(self, line: Text) -> None:
        line.rstrip()
        self._rich.print(line, soft_wrap=True)
        self._has_printed = True
