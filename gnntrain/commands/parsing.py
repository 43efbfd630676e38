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
from gnntrain.commands.base import Option, option, switch
from gnntrain.errors import UserError
from gnntrain.groups import config_groups
from gnntrain.paths import expanded, is_folder


def _folder(text: str) -> Path:
    return expanded(text).absolute()  # a job may run elsewhere


_SHOWN = ("job", "hydra", "all")
_TOPICS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
_DIRS = {"dest": "config_dirs", "action": "append", "type": expanded}
_GENERAL = (
    switch("--help -h", "print this; after a command, more about it"),
    switch("--version", "print the version"),
)
_CONFIG = (
    option("--config-dir -cd", "DIR", "your own YAML files too: DIR/model/mine.yaml", **_DIRS),
    option("--cfg -c", "job", "print the whole configuration and stop", choices=_SHOWN),
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
_PASSED_ON = [flags[0] for flags, _ in (_CONFIG[1], *_HYDRA[3:])]


def options_of(name: str) -> list[Option]:
    """The options that a command takes."""
    command = COMMANDS[name]
    shared = () if command.most else _CONFIG
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
        command.help,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    for flags, settings in options_of(name):
        parser.add_argument(*flags, **settings)
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Sort the command line's arguments.

    Returns:
        The command's own options by their names, and `command`, what to do (None: not said, so
        train); `words`, what the command is about; `overrides`, arguments with `=`, or that remove
        a key with `~`; `config_dirs`, `config_path`, `config_name`: see `gnntrain.app.Sources`;
        `multirun`, whether Hydra is asked for many runs; `hydra`, its other flags, as it reads
        them: `--info=all`.

    Raises:
        UserError: For an unknown command or option, an option without its value, or other words
            than the command takes.
    """
    rest, typed = list(argv), _parser("train").parse_known_args(argv)[1]
    name = typed[0] if typed and typed[0] in COMMANDS else None
    if name is not None:
        rest.remove(name)
    arguments = argparse.Namespace(command=name, version=False, multirun=False)
    arguments.config_dirs, arguments.config_path, arguments.config_name = [], None, "config"
    arguments.help = not {"-h", "--help"}.isdisjoint(rest)
    name, command = name or "train", COMMANDS[name or "train"]
    words: list[str] = []
    keys: list[str] = []
    others = [] if arguments.help else _parser(name).parse_known_args(rest, arguments)[1]
    for word in others:
        flag = word.partition("=")[0]
        if word.startswith("-") and any(flag in flags for flags, _ in options_of("train")):
            hint = "Leave it out, or use `gnntrain` without a command."
            raise UserError(f"{flag} goes with training, not with {name}", hint)
        if word.startswith("-"):
            error = _unknown(f"option {word}", flag, [flags[0] for flags, _ in options_of(name)])
            error.hint = f"{error.hint} Keys are set without dashes: group.key=value."
            raise error
        # A sweep's folders hold `=` too.
        may_be_key = command.takes_keys and not (command.most and is_folder(expanded(word)))
        is_key = may_be_key and ("=" in word or word.startswith("~"))
        is_first = arguments.command is None and not (words or keys)
        # A group, an option, or a key whose value was forgotten, is judged with the keys.
        known = "." in word or any(
            word in (group, *names) for group, names in config_groups().items()
        )
        if is_first and not is_key and not known:
            raise _unknown(f"command {word!r}", word, [*COMMANDS, "--help"])
        (keys if is_key else words).append(word)
    if not (arguments.help or arguments.version) and command.most:
        if not command.least <= len(words) <= command.most:
            told = f", not {' '.join(words)}" if words else ""
            hint = f"As in `{command.examples[0]}`."
            raise UserError(f"`gnntrain {name}` takes {command.usage}{told}", hint)
        arguments.words, arguments.overrides = words, keys
    else:  # bare words among the keys are judged with them
        arguments.overrides = words + keys
    arguments.multirun |= "hydra.mode=MULTIRUN" in keys
    values = {flag: getattr(arguments, flag[2:].replace("-", "_"), None) for flag in _PASSED_ON}
    arguments.hydra = [f if v is True else f"{f}={v}" for f, v in values.items() if v]
    return arguments


def _unknown(what: str, given: str, choices: Sequence[str]) -> UserError:
    near = difflib.get_close_matches(given, choices, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    return UserError(f"unknown {what}", f"{hint}There are {', '.join(choices)}.")


def help_text(name: str | None) -> str:
    """What `gnntrain --help` prints, or `gnntrain NAME --help`."""
    parser = _parser(name or "train")
    if name is None:
        width = max(map(len, COMMANDS))
        parts = ["Train graph neural networks on graphs of any size, on any number of GPUs."]
        parts.append("\ncommands:")
        for one, command in COMMANDS.items():
            parts.append(f"  {one:{width}}  {command.summary}")
        parser.usage = "gnntrain [command] [options] [group=option] [group.key=value] ..."
        parser.description = "\n".join(parts)
        parts = ["examples:"]
        parts += [f"  {line}" for command in COMMANDS.values() for line in command.examples]
        parts.append("\ngroups and their options:")
        for group, options in config_groups().items():
            text, later = f"  {group:12}{', '.join(options)}", " " * 14
            wrapped = textwrap.wrap(text, 98, subsequent_indent=later, break_on_hyphens=False)
            parts.append("\n".join(wrapped))
        parts.append("\n`gnntrain --cfg job` prints every key with its value.")
        parser.epilog = "\n".join(parts)
    return parser.format_help().rstrip()
