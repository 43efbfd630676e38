"""The command line's arguments, sorted, and what is wrong with them before anything is composed."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from gnntrain.commands import COMMANDS, Arguments, Command
from gnntrain.errors import UserError
from gnntrain.groups import config_groups
from gnntrain.paths import expanded, is_folder

_SHORT = {
    "-m": "--multirun",
    "-h": "--help",
    "-c": "--cfg",
    "-r": "--run",
    "-p": "--package",
    "-i": "--info",
    "-cp": "--config-path",
    "-cn": "--config-name",
    "-cd": "--config-dir",
    "-sc": "--shell-completion",
}
_SWITCHES = {"--multirun": "multirun", "--help": "help", "--version": "version"}
_HYDRAS_SWITCHES = ("--run", "--resolve", "--hydra-help", "--shell-completion")
_VALUED = {
    "--cfg": "--cfg job",
    "--config-dir": "--config-dir my_conf model=my_model",
    "--config-path": "--config-path my_conf",
    "--config-name": "--config-dir my_conf --config-name my_config",
    "--package": "--cfg job --package trainer",
    "--experimental-rerun": "--experimental-rerun runs/mine/.hydra/config.pickle",
}
_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


def parse(argv: Sequence[str]) -> Arguments:
    """Sort the command line's arguments.

    Raises:
        UserError: For an unknown command or option, or an option without its value.
    """
    arguments = Arguments()
    rest = list(argv)
    while rest:
        given = rest.pop(0)
        option, equals, _ = given.partition("=")
        option = _SHORT.get(option, option)
        command = COMMANDS[arguments.command or "train"]
        if not given.startswith("-"):
            _add(arguments, given)
        elif option in command.options:
            arguments.options[option] = _value_of(option, given, rest, command.examples[0])
        elif option in command.switches and not equals:
            arguments.options[option] = ""
        elif option in _SWITCHES and not equals:
            setattr(arguments, _SWITCHES[option], True)
        elif option in _HYDRAS_SWITCHES and not equals:
            arguments.hydra.append(option)
        elif option == "--info":
            _add_info(arguments, given, rest)
        elif option in _VALUED:
            example = f"gnntrain {_VALUED[option]}"
            _set_option(arguments, option, _value_of(option, given, rest, example))
        else:
            raise _unknown_option(given, option, command)
    return arguments


def _value_of(option: str, given: str, rest: list[str], example: str) -> str:
    """What follows an option: `--out=FILE`, or the next argument, which is taken from `rest`."""
    _, equals, value = given.partition("=")
    if not equals and not rest:
        raise UserError(f"{option} needs a value", f"As in `{example}`.")
    return value if equals else rest.pop(0)


def _add(arguments: Arguments, given: str) -> None:
    is_first = not (arguments.command or arguments.positionals or arguments.overrides)
    if ("=" in given or given.startswith("~")) and not _is_positional(arguments.command, given):
        arguments.overrides.append(given)
    elif is_first and given in COMMANDS:
        arguments.command = given
    elif is_first and not _is_known_to_conf(given):
        error = _unknown(f"command {given!r}", given, [*COMMANDS, "--help"])
        if given == "serve":  # one would guess it
            error.hint = "It is not supported yet: docs/faq.md says what is."
        raise error
    else:
        arguments.positionals.append(given)


def _is_positional(command: str | None, given: str) -> bool:
    """Whether what looks like a key is a positional argument: a sweep's folders hold `=` too."""
    if command is None or not COMMANDS[command].positionals:
        return False
    return not COMMANDS[command].changes_keys or is_folder(expanded(given))


def _is_known_to_conf(word: str) -> bool:
    """Whether a word is a group, an option, or a key whose value was forgotten."""
    groups = config_groups()
    return "." in word or any(word in (group, *options) for group, options in groups.items())


def _add_info(arguments: Arguments, given: str, rest: list[str]) -> None:
    """`--info`, whose value may be left out."""
    _, _, topic = given.partition("=")
    if not topic:
        is_given = bool(rest) and not rest[0].startswith(("-", "+", "~")) and "=" not in rest[0]
        topic = rest.pop(0) if is_given and rest[0] not in COMMANDS else "all"
    if topic not in _INFO:
        raise _unknown(f"--info {topic}", topic, _INFO)
    arguments.hydra.append(f"--info={topic}")


def _set_option(arguments: Arguments, option: str, value: str) -> None:
    if option == "--config-dir":
        arguments.config_dirs.append(expanded(value))
    elif option == "--config-path":
        arguments.config_path = expanded(value).absolute()
    elif option == "--config-name":
        arguments.config_name = value
    elif option == "--cfg" and value == "job":
        arguments.show_config = True
    elif option == "--cfg" and value not in ("hydra", "all"):
        raise _unknown(f"--cfg {value}", value, ("job", "hydra", "all"))
    else:
        arguments.hydra.append(f"{option}={value}")


def _unknown_option(given: str, option: str, command: Command) -> UserError:
    known = [*command.options, *command.switches, *_SWITCHES, *_HYDRAS_SWITCHES, "--info", *_VALUED]
    error = _unknown(f"option {given}", option, known)
    error.hint = f"{error.hint} Keys are set without dashes: group.key=value."
    return error


def _unknown(what: str, given: str, choices: Sequence[str]) -> UserError:
    near = difflib.get_close_matches(given, choices, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    return UserError(f"unknown {what}", f"{hint}There are {', '.join(choices)}.")


def check_positionals(name: str, command: Command, arguments: Arguments) -> None:
    """Whether the command is told what it is about, and nothing else."""
    given = [*arguments.positionals, *([] if command.changes_keys else arguments.overrides)]
    hint = f"As in `{command.examples[0]}`."
    if len(arguments.positionals) < len(command.positionals) - command.num_optional:
        noun = command.positionals[len(arguments.positionals)]
        raise UserError(f"{name} needs {'an' if noun[0] in 'aeio' else 'a'} {noun}", hint)
    if len(given) > len(command.positionals) and not (
        command.repeats and given == arguments.positionals
    ):
        takes = " and ".join(f"one {noun}" for noun in command.positionals)
        raise UserError(f"{name} takes {takes}, not {' '.join(given)}", hint)


def refuse_training_flags(name: str, arguments: Arguments) -> None:
    """Flags that say how Hydra is to run training or, with a run, what to compose."""
    flags = [*arguments.hydra, *(["-m"] if arguments.multirun else [])]
    flags += ["--config-path"] if arguments.config_path is not None else []
    flags += ["--config-name"] if arguments.config_name != "config" else []
    if COMMANDS[name].positionals:
        flags += ["--cfg"] if arguments.show_config else []
        flags += ["--config-dir"] if arguments.config_dirs else []
    if flags:
        raise UserError(
            f"{' '.join(flags)} goes with training, not with {name}",
            "Leave it out, or use `gnntrain` without a command.",
        )
