"""Sections of tables, printed by rich: what `plan`, `doctor`, `ls` and `clean` show."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gnntrain.reporting.display import WHOLE, plain_console
from gnntrain.reporting.stream import TolerantStream

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


def print_sections(sections: Iterable[Section], stream: TextIO | None = None) -> None:
    """Print sections as they come, with a blank line between two.

    Lines are broken at the width of a terminal, else not at all. `NO_COLOR` is honoured.
    """
    output = TolerantStream(stream if stream is not None else sys.stdout)
    console = plain_console(output, width=None if output.isatty() else WHOLE)
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
        is_left = number < left
        justify: Literal["left", "right"] = "left" if is_left else "right"
        table.add_column(title, justify=justify, overflow="fold", no_wrap=not is_left)
    for row in cells:
        table.add_row(*row)
    return table
