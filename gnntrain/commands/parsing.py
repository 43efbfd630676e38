"""The command line's arguments, sorted, and what is wrong with them before anything is composed.

argparse, as in Hydra itself: its flags are read alike, and it is imported in a hundredth of a
second.
"""

from __future__ import annotations

import argparse
import difflib
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from gnntrain.commands import COMMANDS
from gnntrain.commands.base import Arguments, Option, option, switch
from gnntrain.errors import UserError
from gnntrain.groups import config_groups
from gnntrain.paths import expanded, is_folder


def _folder(text: str) -> Path:
    return expanded(text).absolute()  # a job may run elsewhere


_GENERAL = (
    switch("--help -h", "print this; after a command, more about it"),
    switch("--version", "print the version"),
)
_SHOWN = ("job", "hydra", "all")
_TOPICS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
_DIRS = {"dest": "config_dirs", "action": "append", "type": expanded}
_CONFIG = (
    option("--cfg -c", "job", "print the whole configuration and stop", choices=_SHOWN),
    option("--config-dir -cd", "DIR", "your own YAML files too: DIR/model/mine.yaml", **_DIRS),
)
_HYDRA = (
    switch("--multirun -m", "sweep: key=a,b  key=range(1,4)  group=glob(*)  sweep=optuna"),
    option("--config-name -cn", "NAME", "begin with your own composition"),
    option("--config-path -cp", "DIR", "compose from your own folder alone", type=_folder),
    option("--info -i", "TOPIC", "how Hydra composes", nargs="?", const="all", choices=_TOPICS),
    option("--package -p", "PACKAGE", "with --cfg: a part of it"),
    switch("--resolve", "with --cfg: without interpolations"),
    switch("--run -r", "one run (the default)"),
    switch("--hydra-help", "Hydra's own keys and flags"),
    switch("--shell-completion -sc", "Hydra's own completion"),
    option("--experimental-rerun", "FILE", "run a pickled configuration of Hydra's again"),
)
_HYDRAS = (
    *("info", "package", "resolve", "run", "hydra_help", "shell_completion"),
    "experimental_rerun",
)


def options_of(name: str) -> list[Option]:
    """The options that a command takes."""
    command = COMMANDS[name]
    shared = () if command.positionals else _CONFIG
    return [*command.options, *shared, *(_HYDRA if name == "train" else ()), *_GENERAL]


class _Parser(argparse.ArgumentParser):
    """Raises what is wrong, with an example of the command."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message.removeprefix("argument "), f"As in `{self.prog}`.")


def _parser(name: str) -> _Parser:
    command = COMMANDS[name]
    parser = _Parser(
        command.examples[-1 if name == "train" else 0],
        f"gnntrain {name} {command.usage}",
        f"{command.summary}\n\n{textwrap.fill(command.details, width=98)}",
        "\n  ".join(["examples:", *command.examples]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    for flags, settings in options_of(name):
        parser.add_argument(*flags, **settings)
    return parser


def parse(argv: Sequence[str]) -> Arguments:
    """Sort the command line's arguments.

    Raises:
        UserError: For an unknown command or option, or an option without its value.
    """
    words, rest = _parser("train").parse_known_args(argv)[1], list(argv)
    name = words[0] if words and words[0] in COMMANDS else None
    if name is not None:
        rest.remove(name)
    arguments = Arguments(command=name)
    command = COMMANDS[name or "train"]
    arguments.help = not {"-h", "--help"}.isdisjoint(rest)
    for word in (
        () if arguments.help else _parser(name or "train").parse_known_args(rest, arguments)[1]
    ):
        if word.startswith("-"):
            raise _unknown_option(name or "train", word)
        is_key = "=" in word or word.startswith("~")
        if command.positionals and (not command.changes_keys or is_folder(expanded(word))):
            is_key = False  # a sweep's folders hold `=` too
        is_first = name is None and not (arguments.positionals or arguments.overrides)
        if is_first and not is_key and not _is_known_to_conf(word):
            error = _unknown(f"command {word!r}", word, [*COMMANDS, "--help"])
            if word == "serve":  # one would guess it
                error.hint = "It is not supported yet: docs/faq.md says what is."
            raise error
        (arguments.overrides if is_key else arguments.positionals).append(word)
    given = {key: getattr(arguments, key, None) for key in _HYDRAS}
    given["cfg"] = arguments.cfg if arguments.cfg != "job" else None
    flags = {f"--{key.replace('_', '-')}": value for key, value in given.items() if value}
    arguments.hydra += [f if value is True else f"{f}={value}" for f, value in flags.items()]
    return arguments


def _is_known_to_conf(word: str) -> bool:
    """Whether a word is a group, an option, or a key whose value was forgotten."""
    groups = config_groups()
    return "." in word or any(word in (group, *options) for group, options in groups.items())


def _unknown_option(name: str, word: str) -> UserError:
    flag = word.partition("=")[0]
    known = [flags[0] for flags, _ in options_of(name)]
    if any(flag in flags for flags, _ in options_of("train")):
        return UserError(
            f"{flag} goes with training, not with {name}",
            "Leave it out, or use `gnntrain` without a command.",
        )
    error = _unknown(f"option {word}", flag, known)
    error.hint = f"{error.hint} Keys are set without dashes: group.key=value."
    return error


def _unknown(what: str, given: str, choices: Sequence[str]) -> UserError:
    near = difflib.get_close_matches(given, choices, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    return UserError(f"unknown {what}", f"{hint}There are {', '.join(choices)}.")


def check_positionals(name: str, arguments: Arguments) -> None:
    """Whether the command is told what it is about, and nothing else."""
    command = COMMANDS[name]
    given = [*arguments.positionals, *([] if command.changes_keys else arguments.overrides)]
    hint = f"As in `{command.examples[0]}`."
    if len(arguments.positionals) < len(command.positionals) - command.num_optional:
        noun = command.positionals[len(arguments.positionals)]
        raise UserError(f"{name} needs {'an' if noun[0] in 'aeio' else 'a'} {noun}", hint)
    if len(arguments.positionals) > len(command.positionals) and not command.repeats:
        takes = " and ".join(f"one {noun}" for noun in command.positionals)
        raise UserError(f"{name} takes {takes}, not {' '.join(given)}", hint)


def help_text(name: str | None) -> str:
    """What `gnntrain --help` prints, or `gnntrain NAME --help`."""
    parser = _parser(name or "train")
    if name is None:
        width = max(map(len, COMMANDS))
        lines = [f"  {one:{width}}  {command.summary}" for one, command in COMMANDS.items()]
        parser.usage = "gnntrain [command] [options] [group=option] [group.key=value] ..."
        parser.description = "\n".join(
            [
                "Train graph neural networks on graphs of any size, on any number of GPUs.",
                "\ncommands:",
                *lines,
            ]
        )
        examples = [f"  {line}" for command in COMMANDS.values() for line in command.examples]
        groups = [
            textwrap.fill(
                ", ".join(options),
                width=98,
                initial_indent=f"  {group:12}",
                subsequent_indent=" " * 14,
                break_on_hyphens=False,
            )
            for group, options in config_groups().items()
        ]
        end = "\n`gnntrain --cfg job` prints every key with its value; conf/ explains each."
        parts = ["examples:", *examples, "\ngroups and their options:", *groups, end]
        parser.epilog = "\n".join(parts)
    return parser.format_help().rstrip()
