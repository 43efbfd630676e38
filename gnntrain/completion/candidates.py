"""The words that a half-typed command line may go on with."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from gnntrain.completion.keys import known_keys
from gnntrain.groups import config_groups

_RUNS = Path("runs")
_COMMON_OPTIONS = {"--help": "more about it", "--version": ""}
_CONFIG_OPTIONS = {
    "--cfg": "print the whole configuration",
    "--config-dir": "choose from your own YAML files too",
    "--config-name": "begin with your own composition",
    "--config-path": "compose from your own folder alone",
    "--hydra-help": "Hydra's own keys and flags",
    "--info": "how Hydra composes",
    "--multirun": "sweep",
    "--package": "with --cfg: a part of it",
    "--resolve": "with --cfg: without interpolations",
}
_TOPICS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
_CHOICES = {"--cfg": ("job", "hydra", "all"), "--info": _TOPICS}
_TAKE_FILES = ("--config-dir", "--config-name", "--config-path", "--package")


class CommandInfo(NamedTuple):
    """What completion has to know of a command.

    Attributes:
        summary: What it does.
        positionals: Names of its positional arguments.
        takes_keys: Whether it takes keys.
        options: Its own options with a value, and what they mean.
        switches: Those without a value.
    """

    summary: str
    positionals: Sequence[str] = ()
    takes_keys: bool = True
    options: Mapping[str, str] = {}
    switches: Mapping[str, str] = {}


def candidates(
    line: str, commands: Mapping[str, CommandInfo], choices: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """The words that the last word of `line` may become, and what they mean.

    There is none where a file may stand.

    Args:
        line: What was typed up to the cursor, the command first.
        commands: The commands by name.
        choices: Values of a positional argument, by its name; run directories and experiments
            are found here.
    """
    *before, current = _split(line)[1:] or [""]
    has_command = bool(before) and before[0] in commands
    command, previous = (
        commands[before[0] if has_command else "train"],
        before[-1] if before else "",
    )
    found: dict[str, str] = {}
    if previous in _CHOICES and not command.positionals:
        found = dict.fromkeys(_CHOICES[previous], "")
    elif previous in command.options:
        found = _option_values(command.options[previous])
    elif previous in _TAKE_FILES:
        pass
    elif current.startswith("-"):
        found = _options(command)
    elif "=" in current:
        found = _values(current, _config_dirs(before))
    else:
        given = [word for word in before if "=" not in word and not word.startswith("-")]
        left = command.positionals[len(given) - has_command :]
        found = _positionals(left[0], choices) if left else {}
        found |= {name: one.summary for name, one in commands.items() if not before}
        if command.takes_keys and not left:
            found |= _keys(current, _config_dirs(before))
    return {word: meaning for word, meaning in found.items() if word.startswith(current)}


def _split(line: str) -> list[str]:
    """The words so far; the last is empty after a blank."""
    try:
        words = shlex.split(line)
    except ValueError:  # an open quotation mark
        words = line.replace("'", "").replace('"', "").split()
    return [*words, ""] if not line or line[-1].isspace() else words


def _config_dirs(before: Sequence[str]) -> list[Path]:
    following = [after for word, after in pairwise(before) if word == "--config-dir"]
    joined = [word.partition("=")[2] for word in before if word.startswith("--config-dir=")]
    return [Path(folder).expanduser() for folder in (*following, *joined)]


def _options(command: CommandInfo) -> dict[str, str]:
    own = {name: " ".join(text.split()[1:]) for name, text in command.options.items()}
    switches = {name: text.strip() for name, text in command.switches.items()}
    return own | switches | ({} if command.positionals else _CONFIG_OPTIONS) | _COMMON_OPTIONS


def _option_values(text: str) -> dict[str, str]:
    """The values of an option whose help begins with them: `class|logits  what it is`."""
    first = text.split()[0]
    return dict.fromkeys(first.split("|"), "") if "|" in first else {}


def _positionals(name: str, choices: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The values of a positional argument of this name."""
    words = choices.get(name, ())
    if name.startswith("run"):
        runs = sorted(file.parent.name for file in _RUNS.glob("*/config.yaml"))
        words = ["latest"] * bool(runs) + runs
    elif name == "experiment":
        words = [option for option in config_groups()["experiment"] if option != "none"]
    return dict.fromkeys(words, "")


def _keys(current: str, config_dirs: Sequence[Path]) -> dict[str, str]:
    """Groups and sections, or, once a section is typed, its keys."""
    keys = known_keys()
    if "." in current:
        return {f"{name}=": key.meaning for name, key in keys.items()}
    groups = config_groups(config_dirs).items()
    found = {f"{group}=": ", ".join(options) for group, options in groups if len(options) > 1}
    return found | dict.fromkeys((f"{name.partition('.')[0]}." for name in keys), "")


def _values(current: str, config_dirs: Sequence[Path]) -> dict[str, str]:
    """Values of a key or a group; of a list, or of a sweep, those of the next one."""
    key, _, value = current.partition("=")
    options: Sequence[str] | None = config_groups(config_dirs).get(key)
    if options is None:
        known = known_keys().get(key)
        options = () if known is None else known.choices
    typed = f"{key}={value[: max(value.rfind(','), value.rfind('[')) + 1]}"
    return dict.fromkeys((f"{typed}{option}" for option in options), "")
