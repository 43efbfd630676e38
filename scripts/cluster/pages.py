"""The commands that a page of the documentation gives, to try them as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "machines.md"

_BLOCK = r"<!-- try: {name} -->\n```\w+\n(.*?)```"
_HEADING = re.compile(r"^# on (?:machine(\d+)|(every machine))\n", re.M)


def block(name: str) -> str:
    """The code block of the page that stands under `<!-- try: name -->`."""
    (text,) = re.findall(_BLOCK.format(name=re.escape(name)), PAGE.read_text("utf-8"), re.S)
    return str(text)


def commands(name: str, num_machines: int) -> dict[int, str]:
    """The shell commands of a block by machine, below `# on machine0` or `# on every machine`."""
    _, *parts = _HEADING.split(block(name))
    found: dict[int, str] = {}
    for number, every, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        found |= dict.fromkeys(range(num_machines) if every else [int(number)], text)
    return found
