"""Sections of tables, in a log and on a narrow terminal."""

from __future__ import annotations

import io

import pytest

from gnntrain.reporting.tables import Check, Section, checks, pairs, print_sections
from tests.reporting.terminals import Terminal


def printed(*sections: Section) -> str:
    stream = io.StringIO()
    print_sections(sections, stream)
    return stream.getvalue()


def test_sections_are_parted_by_a_blank_line() -> None:
    first = Section("one", [pairs([("a", "1"), ("long", "2")]), "A note."])
    assert printed(first, Section("two", [])) == "one\n  a     1\n  long  2\n  A note.\n\ntwo\n"


def test_a_log_keeps_its_lines_whole() -> None:
    path = "/a" * 300
    assert path in printed(Section("t", [checks([Check("ok", "x", f"in {path}", "hint " * 60)])]))


def test_a_terminal_breaks_long_texts_within_their_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal(40)
    found = checks([Check("note", "x", "word " * 60, "hint " * 60)])
    print_sections([Section("t", [found])], stream)
    lines = stream.getvalue().splitlines()
    assert all(len(line) <= 40 for line in lines)
    assert stream.getvalue().count("word") == stream.getvalue().count("hint") == 60


def test_markup_of_rich_is_text() -> None:
    assert "[bold]a[/]" in printed(Section("[red]t", [pairs([("k", "[bold]a[/]")]), "[x]"]))
