"""A report as Markdown: its key figures, tables and notes, without the pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gnntrain.report.content import Block, Code, Confusion, Report, Settings, Table


def to_markdown(report: Report) -> str:
    """The report as GitHub's Markdown."""
    return "\n".join(_lines(report)).rstrip() + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield from (f"# {_plain(report.title)}", "", _plain(report.lead), "")
    if report.status:
        yield from (f"Status: **{_plain(report.status)}**", "")
    for note in [*([report.error] if report.error else []), *report.notes]:
        yield from (f"> {_plain(note)}", "")
    rows = [[key.label, key.value, key.more] for key in report.keys]
    yield from _table(["", "", ""], rows, {0, 2})
    for section in report.sections:
        blocks = [line for block in section.blocks for line in _block(block)]
        if blocks:
            yield from (f"## {_plain(section.title)}", "")
            yield from ([_plain(section.text), ""] if section.text else [])
            yield from blocks


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Table) and block.rows:
        yield from (f"### {_plain(block.title)}", "", _plain(block.caption), "")
        yield from _table(block.heads, block.rows, block.texts)
    elif isinstance(block, Confusion):
        yield from (f"### {_plain(block.title)}", "", _plain(block.caption), "")
        rows = [[name, *map(str, row)] for name, row in zip(block.names, block.counts, strict=True)]
        yield from _table(["true \\ predicted", *block.names], rows, {0})
    elif isinstance(block, Code):
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
        yield from (fence, block.text, fence, "")
    elif isinstance(block, Settings):
        for title, pairs in block.groups.items():
            yield from (_row([title, ""]), "|-|-|")
            yield from (_setting(*pair) for pair in pairs)
            yield ""


def _setting(key: str, value: str, is_typed: bool) -> str:
    """The row of a key; one that somebody typed is bold."""
    if not (is_typed and value.strip()):
        return _row([key, value])
    return f"| **{_plain(key)}** | **{_plain(value)}** |"


def _table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], texts: set[int] | frozenset[int]
) -> Iterator[str]:
    yield _row(heads)
    yield "|" + "|".join("-" if i in texts else "-:" for i in range(len(heads))) + "|"
    yield from map(_row, rows)
    yield ""


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_plain, cells)) + " |"


def _plain(text: str) -> str:
    """Text in which no character means anything but itself."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", " ".join(text.split()))
