"""The commands of the command line, a module each.

What each needs is imported when it runs: help must answer at once, and workers import this too.
"""

from __future__ import annotations

from importlib import import_module

from gnntrain.commands.base import Arguments, Command, say

__all__ = ["COMMANDS", "Arguments", "Command", "say"]

_NAMES = (
    *("train", "resume", "evaluate", "predict", "export", "plan", "report", "prepare"),
    *("partition", "ls", "clean", "cp", "doctor", "completion"),
)
COMMANDS: dict[str, Command] = {
    name: import_module(f"gnntrain.commands.{name}").COMMAND for name in _NAMES
}
