"""What a command of the command line is, and what several of them need."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import cleandoc
from typing import Any

from gnntrain.atomic_io import atomic_write
from gnntrain.errors import UserError
from gnntrain.paths import expanded

Option = tuple[tuple[str, ...], dict[str, Any]]
"""The arguments of `ArgumentParser.add_argument`."""

Run = Callable[[Namespace], int]
"""Does what a command is for with the sorted command line, and returns the exit code."""


def option(flags: str, metavar: str, meaning: str, **settings: Any) -> Option:
    """An option with a value, `--cfg -c`; as for `ArgumentParser.add_argument`."""
    return tuple(flags.split()), {"metavar": metavar, "help": meaning, **settings}


def switch(flags: str, meaning: str) -> Option:
    """An option without a value."""
    return tuple(flags.split()), {"action": "store_true", "help": meaning}


@dataclass(frozen=True)
class Command:
    """One command of the command line.

    Attributes:
        run: The function; its docstring is the help: what the command does in a line, more about
            it, and command lines that run as they are.
        usage: What follows the command.
        options: Its own options.
        least: How many words it needs that are no keys.
        most: How many it may have; 0: it is about a configuration.
    """

    run: Run
    usage: str
    options: Sequence[Option] = ()
    least: int = 0
    most: int = 0

    @property
    def help(self) -> str:
        """Its whole help."""
        return cleandoc(self.run.__doc__ or "")

    @property
    def summary(self) -> str:
        """What it does, in a line."""
        return self.help.partition("\n")[0]

    @property
    def examples(self) -> list[str]:
        """Command lines that run as they are."""
        lines = (line.strip() for line in self.help.splitlines())
        found = [line for line in lines if line.startswith("gnntrain ")]
        return found or [f"gnntrain {self.run.__name__} {self.usage}"]  # by `python -OO`

    @property
    def takes_keys(self) -> bool:
        """Whether it takes keys of the configuration."""
        return "group.key=value" in self.usage


COMMANDS: dict[str, Command] = {}


def command(
    usage: str, *options: Option, least: int = 0, most: int | None = None
) -> Callable[[Run], Run]:
    """Makes a function a command; see `Command`. `most` is `least` where it is not given."""

    def register(run: Run) -> Run:
        COMMANDS[run.__name__] = Command(
            run, usage, options, least, least if most is None else most
        )
        return run

    return register


def say(text: str) -> None:
    """Print; a reader that has gone away (`gnntrain --help | head -1`) is no failure."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python flushes once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_json(out: str, content: object) -> None:
    """Write plain data as JSON to the file `out`, or to the standard output where it is `-`.

    Raises:
        UserError: The file cannot be written.
    """
    text = json.dumps(content, indent=2)
    if out == "-":
        say(text)
        return
    try:
        with atomic_write(expanded(out)) as file:
            file.write(f"{text}\n".encode())
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{out} cannot be written: {reason}", "Choose another file.") from error
