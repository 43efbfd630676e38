"""Sections of tables, printed by rich: what `plan`, `doctor`, `ls` and `clean` show."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Literal, TextIO, cast

from rich.console import Console, ConsoleDimensions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gnntrain.reporting.text import TolerantStream

WHOLE = 10_000
"""The width of an output that has none, where lines stay whole."""

Judgement = Literal["ok", "note", "problem"]

_STYLES: dict[Judgement, str] = {"ok": "green", "note": "yellow", "problem": "bold red"}


@dataclass(frozen=True)
class Check:
    """The result of looking at one thing."""

    judgement: Judgement  # note: it works, but; problem: something needed fails
    name: str  # the thing, in a word or two
    text: str  # its state
    hint: str = ""  # what to do about it; empty where nothing need be done


@dataclass(frozen=True)
class Section:
    """A title, with tables and sentences below it."""

    title: str
    body: Sequence[RenderableType]


def plain_console(output: TolerantStream) -> Console:
    """A console of rich that prints text as it is: brackets are no markup. `NO_COLOR` is honoured,
    and in a notebook a print is no output of its own. Lines are broken on a terminal alone."""
    file = cast(IO[str], output)
    console = Console(file=file, force_jupyter=False, markup=False, emoji=False, highlight=False)
    if not output.isatty() or console.is_dumb_terminal:
        # Rich ignores a width without a height on a terminal that is TERM=dumb.
        console.size = ConsoleDimensions(WHOLE, 25)
    return console


def restore_terminal() -> None:
    """Show the cursor again, for a parent whose rank 0 was killed while its live view was on."""
    plain_console(TolerantStream(sys.stdout)).show_cursor()


def print_sections(sections: Iterable[Section], stream: TextIO | None = None) -> None:
    """Print sections as they come, with a blank line between two."""
    output = TolerantStream(stream if stream is not None else sys.stdout)
    console = plain_console(output)
    for number, section in enumerate(sections):
        with console.capture() as captured:
            console.print(Text(section.title, style="bold"))
            for part in section.body:
                console.print(Padding.indent(part, 2))
        lines = [line.rstrip() for line in captured.get().splitlines()]
        output.write("\n".join(["", *lines] if number else lines) + "\n")
        output.flush()


def pairs(cells: Iterable[tuple[str, str]]) -> Table:
    """Labels and their values."""
    table = rows(("", ""), cells, left=2)
    table.columns[0].style = "dim"
    return table


def checks(found: Iterable[Check]) -> Table:
    """Results, each with its hint below it."""
    table = rows(("", "", ""), (), left=3)
    table.columns[0].min_width = len("problem")
    for check in found:
        table.add_row(Text(check.judgement, _STYLES[check.judgement]), check.name, check.text)
        if check.hint:
            table.add_row("", "", f"→ {check.hint}")
    return table


def rows(header: Sequence[str], cells: Iterable[Sequence[str]], *, left: int = 1) -> Table:
    """Rows of cells; the first `left` columns stand to the left, the others to the right."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.show_header = any(header)
    for number, title in enumerate(header):
        justify: Literal["left", "right"] = "left" if number < left else "right"
        table.add_column(title, justify=justify, overflow="fold", no_wrap=number >= left)
    for row in cells:
        table.add_row(*row)
    return table
