"""The command `gnntrain`: verbs, their help, and exit codes.

Workers import this module too, and help must answer at once: what a verb needs is imported when
the verb runs.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from gnntrain import __version__, lazy_imports
from gnntrain.commands import COMMANDS, Arguments, Command, command_help, general_help, say
from gnntrain.distributed.signals import install_handlers
from gnntrain.errors import GnntrainError, UserError, signal_of
from gnntrain.failures import keep_traceback, sentence, way_on
from gnntrain.groups import config_groups
from gnntrain.paths import expanded, is_folder

_ENDED = {signal.SIGTERM: "terminated (SIGTERM)", signal.SIGHUP: "the terminal was closed (SIGHUP)"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: done. 2: the user's mistake. 1: something failed at run time. 128 + the signal's number:
    interrupted (130 by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP).
    """
    _accept_any_locale()
    lazy_imports.install()
    try:
        with install_handlers():
            return _main(sys.argv[1:] if argv is None else list(argv))
    except KeyboardInterrupt as error:
        number = signal_of(error)
        _complain(_ENDED.get(number, "interrupted"))
        _tell_way_on(error)
        return 128 + number
    except Exception as error:
        return _fail(error)


def _main(argv: Sequence[str]) -> int:
    arguments = parse(argv)
    if arguments.version:
        say(f"gnntrain {__version__}")
        return 0
    if arguments.help:
        name = arguments.verb
        say(general_help(COMMANDS) if name is None else command_help(name, COMMANDS[name]))
        return 0
    _check_surroundings(argv)
    name = arguments.verb or "train"
    verb = COMMANDS[name]
    if not verb.words:
        # A bare word among the overrides is judged with them.
        arguments.overrides[:0] = arguments.words
    else:
        _check_words(name, verb, arguments)
    if name != "train":
        _refuse_training_flags(name, arguments)
    if arguments.show_config and not verb.words and not _is_hydras_config(arguments):
        return _show_config(arguments)
    return verb.run(arguments)


def _check_surroundings(argv: Sequence[str]) -> None:
    """Whether what was typed is text, and the current directory there: all else builds on both."""
    for given in argv:
        try:
            given.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"{given!a} is no text in this locale ({sys.getfilesystemencoding()})",
                "Set LC_ALL=C.UTF-8 or PYTHONUTF8=1, or choose a name without such characters.",
            ) from None
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UserError(
            "the current directory does not exist any more",
            "Change to one that does; run directories and relative paths start there.",
        ) from None


def _check_words(name: str, verb: Command, arguments: Arguments) -> None:
    """Whether the verb is told what it is about, and nothing else."""
    given = [*arguments.words, *([] if verb.changes_keys else arguments.overrides)]
    hint = f"As in `{verb.examples[0]}`."
    if len(arguments.words) < len(verb.words) - verb.num_optional:
        noun = verb.words[len(arguments.words)]
        raise UserError(f"{name} needs {'an' if noun[0] in 'aeio' else 'a'} {noun}", hint)
    if len(given) > len(verb.words) and not (verb.repeats and given == arguments.words):
        takes = " and ".join(f"one {noun}" for noun in verb.words)
        raise UserError(f"{name} takes {takes}, not {' '.join(given)}", hint)


def _refuse_training_flags(name: str, arguments: Arguments) -> None:
    """Flags that say how Hydra is to run training."""
    flags = [*arguments.hydra, *(["-m"] if arguments.multirun else [])]
    flags += ["--config-path"] if arguments.config_path is not None else []
    flags += ["--config-name"] if arguments.config_name != "config" else []
    if flags:
        raise UserError(
            f"{' '.join(flags)} goes with training, not with {name}",
            "Leave it out, or use `gnntrain` without a verb.",
        )


def _is_hydras_config(arguments: Arguments) -> bool:
    """Whether Hydra prints the configuration, a part of it or unresolved, or refuses to."""
    return arguments.multirun or any(
        flag.partition("=")[0] in ("--resolve", "--package") for flag in arguments.hydra
    )


def _show_config(arguments: Arguments) -> int:
    from gnntrain.app import compose_config

    composed = compose_config(
        arguments.overrides,
        arguments.config_dirs,
        config_path=arguments.config_path,
        config_name=arguments.config_name,
    )
    say(composed.yaml.rstrip())
    return 0


def parse(argv: Sequence[str]) -> Arguments:
    """Sort the command line's arguments.

    Raises:
        UserError: For an unknown verb or option, or an option without its value.
    """
    arguments = Arguments()
    rest = list(argv)
    while rest:
        given = rest.pop(0)
        option, equals, _ = given.partition("=")
        option = _SHORT.get(option, option)
        if not given.startswith("-"):
            _add_word(arguments, given)
        elif option in _own_options(arguments):
            arguments.options[option] = _value_of(option, given, rest, _example(arguments))
        elif option in _own_switches(arguments) and not equals:
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
            raise _unknown_option(given, option, arguments)
    return arguments


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


def _own_options(arguments: Arguments) -> Mapping[str, str]:
    """The options of the verb that was named."""
    return COMMANDS[arguments.verb].options if arguments.verb else {}


def _own_switches(arguments: Arguments) -> Mapping[str, str]:
    """The options without a value of the verb that was named."""
    return COMMANDS[arguments.verb].switches if arguments.verb else {}


def _example(arguments: Arguments) -> str:
    return COMMANDS[arguments.verb or "train"].examples[0]


def _value_of(option: str, given: str, rest: list[str], example: str) -> str:
    """What follows an option: `--out=FILE`, or the next argument, which is taken from `rest`."""
    _, equals, value = given.partition("=")
    if not equals and not rest:
        raise UserError(f"{option} needs a value", f"As in `{example}`.")
    return value if equals else rest.pop(0)


def _add_word(arguments: Arguments, given: str) -> None:
    is_first = not (arguments.verb or arguments.words or arguments.overrides)
    if ("=" in given or given.startswith("~")) and not _is_word(arguments.verb, given):
        arguments.overrides.append(given)
    elif is_first and given in COMMANDS:
        arguments.verb = given
    elif is_first and not _is_known_to_conf(given):
        raise _unknown(f"verb {given!r}", given, [*COMMANDS, "--help"])
    else:
        arguments.words.append(given)


def _is_word(verb: str | None, given: str) -> bool:
    """Whether what looks like a key is what the verb is about: a sweep's folders hold `=` too."""
    if verb is None or not COMMANDS[verb].words:
        return False
    return not COMMANDS[verb].changes_keys or is_folder(expanded(given))


def _is_known_to_conf(word: str) -> bool:
    """Whether a word is a group, an option, or a key whose value was forgotten."""
    groups = config_groups()
    return "." in word or any(word in (group, *options) for group, options in groups.items())


def _add_info(arguments: Arguments, given: str, rest: list[str]) -> None:
    """`--info`, whose value may be left out."""
    _, _, topic = given.partition("=")
    if not topic:
        topic = rest.pop(0) if rest and rest[0] in _INFO else "all"
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


def _unknown_option(given: str, option: str, arguments: Arguments) -> UserError:
    known = [*_own_options(arguments), *_own_switches(arguments)]
    error = _unknown(
        f"option {given}", option, [*known, *_SWITCHES, *_HYDRAS_SWITCHES, "--info", *_VALUED]
    )
    error.hint = f"{error.hint} Keys are set without dashes: group.key=value."
    return error


def _unknown(what: str, given: str, choices: Sequence[str]) -> UserError:
    near = difflib.get_close_matches(given, choices, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    return UserError(f"unknown {what}", f"{hint}There are {', '.join(choices)}.")


def _fail(error: Exception) -> int:
    """Tell a failure on stderr and return its exit code."""
    debug = os.environ.get("GNNTRAIN_DEBUG") == "1"
    exit_code = error.exit_code if isinstance(error, GnntrainError) else 1
    _complain(sentence(error))
    if isinstance(error, GnntrainError) and error.hint:
        _complain(error.hint, prefix="")
    if debug:
        traceback.print_exception(error)
    elif exit_code == 1:
        kept = keep_traceback(error, getattr(error, "run_dir", None))
        if kept is not None:
            _complain(f"Traceback: in {kept}.", prefix="")
        elif not isinstance(error, GnntrainError):
            _complain("Traceback: GNNTRAIN_DEBUG=1 shows it.", prefix="")
    if exit_code == 1:
        _tell_way_on(error)
    return exit_code


def _tell_way_on(error: BaseException) -> None:
    command = way_on(error)
    if command is not None:
        _complain(f"Go on with `{command}`.", prefix="")


def _complain(text: str, prefix: str = "gnntrain: ") -> None:
    with contextlib.suppress(OSError):  # a terminal that was closed reads nothing any more
        print(f"{prefix}{text}", file=sys.stderr, flush=True)


def _accept_any_locale() -> None:
    """Print a character that the terminal does not know as `?` rather than fail."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
