"""What a report says, before it is a page, a table or a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Key:
    """A key figure: what it is called, its value, and a line beneath."""

    label: str
    value: str
    more: str = ""


@dataclass(frozen=True)
class Figure:
    """A picture.

    Attributes:
        title, caption: What it shows.
        spec: As Plotly takes it: `data` and `layout`.
        wide: Whether it takes the page's whole width.
        height: "", "low" or "tall".
    """

    kind: ClassVar = "figure"
    title: str
    caption: str
    spec: Mapping[str, Any]
    wide: bool = False
    height: str = ""


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows.

    Attributes:
        title, caption: What it shows.
        heads: Of the columns.
        rows: Cells as they are shown.
        texts: Columns that are no numbers.
        best: The row that stands out.
        colors: A colour a row, where rows are curves elsewhere.
        wide: Whether it takes the page's whole width.
    """

    kind: ClassVar = "table"
    title: str
    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: frozenset[int] = frozenset({0})
    best: int | None = None
    colors: Sequence[str] | None = None
    wide: bool = False


@dataclass(frozen=True)
class Confusion:
    """How many nodes of each class (a row) are taken for each (a column), and their shares."""

    kind: ClassVar = "confusion"
    title: str
    caption: str
    names: Sequence[str]
    counts: Sequence[Sequence[int]]
    shares: Sequence[Sequence[float]]


@dataclass(frozen=True)
class Settings:
    """Keys and values in groups; each with whether somebody typed it."""

    kind: ClassVar = "settings"
    groups: Mapping[str, Sequence[tuple[str, str, bool]]]


@dataclass(frozen=True)
class Code:
    """What was typed, as it was."""

    kind: ClassVar = "code"
    text: str


Block = Figure | Table | Confusion | Settings | Code


@dataclass(frozen=True)
class Section:
    """A part of a report."""

    title: str
    blocks: Sequence[Block]
    text: str = ""


@dataclass(frozen=True)
class Report:
    """All of it.

    Attributes:
        title, lead: What it is about.
        status: How the run ended; "" for several.
        error: What ended a run that failed.
        notes: What is missing and why.
        keys: Key figures, the most important first.
        sections: The rest.
    """

    title: str
    lead: str
    status: str
    error: str
    notes: Sequence[str]
    keys: Sequence[Key]
    sections: Sequence[Section] = field(default_factory=tuple)
