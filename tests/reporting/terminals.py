"""A terminal of tests: what it shows after an output, and a clock that is set by hand."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


class Terminal(io.StringIO):
    """A terminal of so many columns; a fixture of this folder forgets them after the test."""

    def __init__(self, width: int = 80) -> None:
        super().__init__()
        os.environ["COLUMNS"] = str(width)

    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def final_lines(text: str) -> list[str]:
    """The lines of the terminal at the end, for output that erases whole lines only."""
    lines, at = [""], 0
    for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)", text):
        if part == "\n":
            at += 1
            lines += [""] * (at + 1 - len(lines))
        elif part == "\x1b[1A":
            at -= 1
        elif part == "\x1b[2K":
            lines[at] = ""
        elif not ESCAPES.fullmatch(part):
            lines[at] += part.replace("\r", "")
    return [line.rstrip() for line in lines]


def drawn_lines(text: str) -> list[str]:
    """All lines that were ever drawn, also those of the live view."""
    return [ESCAPES.sub("", line) for line in re.split(r"[\r\n]", text)]


def golden(name: str) -> list[str]:
    """The lines of a golden screen."""
    text = (Path(__file__).parent / "golden" / f"{name}.txt").read_text(encoding="utf-8")
    return text.splitlines()
