"""Settings in Markdown, which has no colours."""

from __future__ import annotations

from gnntrain.report.content import Report, Section, Settings
from gnntrain.report.markdown import to_markdown


def test_what_was_typed_is_bold_and_stays_text() -> None:
    pairs = [("lr", "0.1", True), ("epochs", "20", False), ("name", "a*b|c", True), ("x", "", True)]
    sections = [Section("Configuration", [Settings({"trainer": pairs})])]
    report = Report("t", "l", "", "", [], [], sections)
    lines = to_markdown(report).splitlines()
    start = lines.index("| trainer |  |")
    assert lines[start + 1 : start + 6] == [
        "|-|-|",
        "| **lr** | **0.1** |",
        "| epochs | 20 |",
        r"| **name** | **a\*b\|c** |",
        "| x |  |",
    ]
