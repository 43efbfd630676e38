"""Sections of aligned rows."""

from __future__ import annotations

import io

import pytest

from gnntrain.reporting.text_report import Check, TextReport


def printed(width: int, *checks: Check) -> list[str]:
    stream = io.StringIO()
    TextReport(stream, width=width).checks(checks)
    return stream.getvalue().splitlines()


def test_rows_are_aligned_and_hints_stand_below_them() -> None:
    lines = printed(80, Check("ok", "a", "good"), Check("problem", "longer", "bad", "Do this."))
    assert lines == [
        "  ok       a       good",
        "  problem  longer  bad",
        "                   → Do this.",
    ]


@pytest.mark.parametrize("width", [60, 80, 160])
def test_long_texts_are_broken_under_their_column(width: int) -> None:
    lines = printed(width, Check("note", "x", "word " * 60, "hint " * 60))
    assert all(len(line) <= width for line in lines)
    assert all(line.startswith(" " * 14) for line in lines[1:])


def test_a_path_is_never_broken() -> None:
    path = "/a" * 60
    assert any(line.strip() == path for line in printed(60, Check("ok", "x", f"in {path}")))


def test_tables_stand_to_the_right_but_for_their_first_columns() -> None:
    stream = io.StringIO()
    TextReport(stream, width=80).table(["name", "size"], [["a", "1"], ["longer", "1,000"]])
    assert stream.getvalue().splitlines() == [
        "  name     size",
        "  a           1",
        "  longer  1,000",
    ]


def test_sections_are_parted_by_a_blank_line() -> None:
    stream = io.StringIO()
    report = TextReport(stream, width=80)
    report.section("one")
    report.pairs([("a", "1"), ("long", "2")])
    report.section("two")
    assert stream.getvalue() == "one\n  a     1\n  long  2\n\ntwo\n"
