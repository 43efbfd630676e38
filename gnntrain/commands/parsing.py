"""What a command is, and the command line's arguments, sorted and judged by form.

argparse, as in Hydra itself: its flags are read alike, and it is imported in a hundredth of a
second.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gnntrain.errors import UserError
from gnntrain.groups import config_groups
from gnntrain.paths import expanded, is_folder

if TYPE_CHECKING:
    from gnntrain.config import Config

Option = tuple[tuple[str, ...], dict[str, Any]]
"""The arguments of `ArgumentParser.add_argument`."""

Run = Callable[[argparse.Namespace], int]
"""Does what a command is for, and returns the exit code."""


def option(flags: str, metavar: str, meaning: str, **settings: Any) -> Option:
    """An option, `--cfg -c`; without a `metavar` it takes no value."""
    kind = {"metavar": metavar} if metavar else {"action": "store_true"}
    return tuple(flags.split()), {"help": meaning, **kind, **settings}


def _folder(text: str) -> Path:
    return expanded(text).absolute()  # a job may run elsewhere


_TOPICS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
_DIRS = {"dest": "config_dirs", "action": "append", "type": expanded}
_SHOWN = ("job", "hydra", "all")
_CFG = option("--cfg -c", "job", "print the whole configuration and stop", choices=_SHOWN)
_OWN = "your own YAML files too: DIR/model/mine.yaml"
_CONFIGURED = [option("--config-dir -cd", "DIR", _OWN, **_DIRS), _CFG]
_PASSED_ON = (
    option("--info -i", "TOPIC", "how Hydra composes", nargs="?", const="all", choices=_TOPICS),
    option("--package -p", "PACKAGE", "with --cfg: a part of it"),
    option("--resolve", "", "with --cfg: without interpolations"),
    option("--run -r", "", "one run (the default)"),
    option("--hydra-help", "", "Hydra's own keys and flags"),
    option("--shell-completion -sc", "", "Hydra's own completion"),
    option("--experimental-rerun", "FILE", "run a pickled configuration of Hydra's again"),
)
_HYDRA = (
    option("--multirun -m", "", "sweep: key=a,b  key=range(1,4)  group=glob(*)  sweep=optuna"),
    option("--config-name -cn", "NAME", "begin with your own composition"),
    option("--config-path -cp", "DIR", "compose from your own folder alone", type=_folder),
    *_PASSED_ON,
)


@dataclass(frozen=True)
class Command:
    """A command."""

    run: Run
    usage: str  # what follows its name
    help: str  # what it does in a line, more about it, and examples
    examples: Sequence[str]  # command lines that run as they are
    options: Sequence[Option]
    least: int  # how many words it takes that are no keys
    most: int  # 0: it is about a configuration

    @property
    def summary(self) -> str:
        """What it does, in a line."""
        return self.help.partition("\n")[0]

    def parser(self) -> _Parser:
        """Its parser, which raises what is wrong, with an example."""
        name = self.run.__name__
        parser = _Parser(
            self.examples[-1 if name == "train" else 0],
            f"gnntrain {name} {self.usage}",
            self.help,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            add_help=False,
            allow_abbrev=False,
        )
        for flags, settings in self.options:
            parser.add_argument(*flags, **settings)
        return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(message.removeprefix("argument "), f"As in `{self.prog}`.")


COMMANDS: dict[str, Command] = {}


def command(usage: str, *own: Option, least: int = 0, most: int = 0) -> Callable[[Run], Run]:
    """Makes a function a command, whose docstring is its help; see `Command`. `most` is `least`
    where it is not given."""

    def register(run: Run) -> Run:
        name, text = run.__name__, cleandoc(run.__doc__ or "")
        lines = map(str.strip, text.splitlines())
        examples = [line for line in lines if line.startswith("gnntrain ")]
        options = [*own, *([] if most or least else _CONFIGURED), *(_HYDRA * (name == "train"))]
        options.append(option("--help -h", "", "print this; after a command, more about it"))
        options.append(option("--version", "", "print the version"))
        examples = examples or [f"gnntrain {name} {usage}"]  # by `python -OO`
        COMMANDS[name] = Command(run, usage, text, examples, options, least, most or least)
        return run

    return register


def say(text: str) -> None:
    """Print; a reader that has gone away (`gnntrain --help | head -1`) is no failure."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python flushes once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Sort the command line's arguments.

    Returns:
        The command's own options by their names, and `command` (None: not said, so train); `words`,
        what it is about; `overrides`; `config_dirs`, `config_path`, `config_name` for
        `gnntrain.app.Sources`; `multirun`; `hydra`, other flags as Hydra reads them: `--info=all`.

    Raises:
        UserError: An unknown command or option, an option without its value, or other words than
            the command takes.
    """
    rest, typed = list(argv), COMMANDS["train"].parser().parse_known_args(argv)[1]
    arguments = argparse.Namespace(command=None, version=False, multirun=False, config_dirs=[])
    arguments.config_path, arguments.config_name = None, "config"
    if typed and typed[0] in COMMANDS:
        arguments.command = typed[0]
        rest.remove(typed[0])
    arguments.help = not {"-h", "--help"}.isdisjoint(rest)
    name = arguments.command or "train"
    command = COMMANDS[name]
    takes_keys = "group.key=value" in command.usage
    words: list[str] = []
    keys: list[str] = []
    for word in [] if arguments.help else command.parser().parse_known_args(rest, arguments)[1]:
        if word.startswith("-"):
            known = [flags[0] for flags, _ in command.options]
            error = _unknown(f"option {word} of {name}", word.partition("=")[0], known)
            error.hint = f"{error.hint} Keys are set without dashes: group.key=value."
            raise error
        # A sweep's folders hold `=` too.
        is_key = takes_keys and not (command.most and is_folder(expanded(word)))
        if is_key and ("=" in word or word.startswith("~")):
            keys.append(word)
            continue
        # A group, an option, or a key whose value was forgotten, is judged with the keys.
        is_first = arguments.command is None and not (words or keys)
        groups = config_groups() if is_first else {}
        if is_first and "." not in word and not any(word in (g, *groups[g]) for g in groups):
            raise _unknown(f"command {word!r}", word, [*COMMANDS, "--help"])
        words.append(word)
    if not (arguments.help or arguments.version) and command.most:
        if not command.least <= len(words) <= command.most:
            told = f", not {' '.join(words)}" if words else ""
            hint = f"As in `{command.examples[0]}`."
            raise UserError(f"`gnntrain {name}` takes {command.usage}{told}", hint)
        arguments.words, arguments.overrides = words, keys
    else:  # bare words among the keys are judged with them
        arguments.overrides = words + keys
    arguments.multirun |= "hydra.mode=MULTIRUN" in keys
    arguments.hydra = []
    for (flag, *_), _ in (_CFG, *_PASSED_ON):
        if value := getattr(arguments, flag[2:].replace("-", "_"), None):
            arguments.hydra.append(flag if value is True else f"{flag}={value}")
    return arguments


def _unknown(what: str, given: str, choices: Sequence[str]) -> UserError:
    near = difflib.get_close_matches(given, choices, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    return UserError(f"unknown {what}", f"{hint}There are {', '.join(choices)}.")


def composed(arguments: argparse.Namespace, *, for_here: bool = True) -> Config:
    """The configuration that the command line asks for; see `gnntrain.app.Sources`."""
    from gnntrain.app import Sources

    sources = Sources(arguments.config_dirs, arguments.config_path, arguments.config_name)
    return sources.compose(arguments.overrides, for_here=for_here)


def help_text(name: str | None) -> str:
    """What `gnntrain --help` prints, or `gnntrain NAME --help`."""
    parser = COMMANDS[name or "train"].parser()
    if name is None:
        parser.usage = "gnntrain [command] [options] [group=option] [group.key=value] ..."
        width, commands = max(map(len, COMMANDS)), COMMANDS.values()
        parts = ["Train graph neural networks on graphs of any size, on any number of GPUs."]
        parts.append("\ncommands:")
        parts += [f"  {one:{width}}  {COMMANDS[one].summary}" for one in COMMANDS]
        parser.description = "\n".join(parts)
        parts = ["examples:", *(f"  {line}" for one in commands for line in one.examples)]
        parts.append("\ngroups and their options:")
        for group, options in config_groups().items():
            text, later = f"  {group:12}{', '.join(options)}", " " * 14
            parts += textwrap.wrap(text, 98, subsequent_indent=later, break_on_hyphens=False)
        parts.append("\n`gnntrain --cfg job` prints every key with its value.")
        parser.epilog = "\n".join(parts)
    return parser.format_help().rstrip()
