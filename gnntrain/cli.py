"""The command `gnntrain`: verbs, their help, and exit codes.

Workers import this module too, and help must answer at once: what a verb needs is imported when
the verb runs.
"""

from __future__ import annotations

import difflib
import math
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnntrain import __version__
from gnntrain.errors import GnntrainError, Terminated, UserError
from gnntrain.failures import keep_traceback, sentence, sigterm_raised, way_on
from gnntrain.groups import config_groups
from gnntrain.verbs import Verb, general_help, verb_help

_INTERRUPTED = 130
_TERMINATED = 143


@dataclass
class Arguments:
    """The command line, sorted.

    Attributes:
        verb: What to do; None: not said, so train.
        words: Arguments without `=`: what the verb is about.
        overrides: Arguments with `=`, or that remove a key with `~`.
    """

    verb: str | None = None
    words: list[str] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)
    config_dirs: list[Path] = field(default_factory=list)
    multirun: bool = False
    show_config: bool = False
    help: bool = False
    version: bool = False


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: done. 2: the user's mistake. 1: something failed at run time. 130: interrupted, 143: by
    SIGTERM.
    """
    _accept_any_locale()
    try:
        with sigterm_raised():
            return _main(sys.argv[1:] if argv is None else list(argv))
    except Terminated as error:
        _complain("terminated")
        _tell_way_on(error)
        return _TERMINATED
    except KeyboardInterrupt as error:
        _complain("interrupted")
        _tell_way_on(error)
        return _INTERRUPTED
    except Exception as error:
        return _fail(error)


def _main(argv: Sequence[str]) -> int:
    arguments = parse(argv)
    if arguments.version:
        _print(f"gnntrain {__version__}")
        return 0
    if arguments.help:
        name = arguments.verb
        _print(general_help(VERBS) if name is None else verb_help(name, VERBS[name]))
        return 0
    name = arguments.verb or "train"
    verb = VERBS[name]
    if not verb.takes_run:
        # A bare word among the overrides is judged with them.
        arguments.overrides[:0] = arguments.words
    elif len(arguments.words) != 1 or (arguments.overrides and not verb.changes_keys):
        given = [*arguments.words, *([] if verb.changes_keys else arguments.overrides)]
        raise UserError(
            f"{name} takes one run directory, not {' '.join(given)}"
            if given
            else f"{name} needs a run directory",
            f"As in `gnntrain {name} latest`.",
        )
    if arguments.multirun and (name != "train" or arguments.show_config):
        raise UserError("-m sweeps training runs only", "Leave -m out, or use `gnntrain -m ...`.")
    if arguments.show_config and not verb.takes_run:
        return _show_config(arguments)
    return verb.run(arguments)


def parse(argv: Sequence[str]) -> Arguments:
    """Sort the command line's arguments.

    Raises:
        UserError: For an unknown verb or option, or an option without its value.
    """
    arguments = Arguments()
    rest = list(argv)
    while rest:
        given = rest.pop(0)
        option, equals, value = given.partition("=")
        if not given.startswith("-"):
            _add_word(arguments, given)
        elif option in _SWITCHES and not equals:
            setattr(arguments, _SWITCHES[option], True)
        elif option in _VALUED:
            if not equals and not rest:
                raise UserError(f"{option} needs a value", f"As in `gnntrain {_VALUED[option]}`.")
            _set_option(arguments, option, value if equals else rest.pop(0))
        else:
            error = _unknown(f"option {given}", option, [*_SWITCHES, *_VALUED])
            error.hint = f"{error.hint} Keys are set without dashes: group.key=value."
            raise error
    return arguments


_SWITCHES = {
    "-m": "multirun",
    "--multirun": "multirun",
    "-h": "help",
    "--help": "help",
    "--version": "version",
}
_VALUED = {"--cfg": "--cfg job", "--config-dir": "--config-dir my_conf model=my_model"}


def _add_word(arguments: Arguments, given: str) -> None:
    is_first = not (arguments.verb or arguments.words or arguments.overrides)
    if "=" in given or given.startswith("~"):
        arguments.overrides.append(given)
    elif is_first and given in VERBS:
        arguments.verb = given
    elif is_first and not _is_known_to_conf(given):
        raise _unknown(f"verb {given!r}", given, [*VERBS, "--help"])
    else:
        arguments.words.append(given)


def _is_known_to_conf(word: str) -> bool:
    """Whether a word is a group, an option, or a key whose value was forgotten."""
    groups = config_groups()
    return "." in word or any(word in (group, *options) for group, options in groups.items())


def _set_option(arguments: Arguments, option: str, value: str) -> None:
    if option == "--config-dir":
        arguments.config_dirs.append(Path(value).expanduser())
    elif value == "job":
        arguments.show_config = True
    else:
        raise UserError(f"--cfg {value} is not known", "Use `--cfg job`.")


def _unknown(what: str, given: str, choices: Sequence[str]) -> UserError:
    near = difflib.get_close_matches(given, choices, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    return UserError(f"unknown {what}", f"{hint}There are {', '.join(choices)}.")


def _train(arguments: Arguments) -> int:
    from gnntrain.app import compose_config

    if arguments.multirun:
        return _sweep(arguments)
    composed = compose_config(arguments.overrides, arguments.config_dirs)
    from gnntrain.run import train

    try:
        summary = train(composed.config, composed.overrides)
    except Exception as error:
        if not hasattr(error, "run_dir"):
            error.run_dir = composed.config.run.dir  # type: ignore[attr-defined]  # for _fail
        raise
    return _exit_code(summary)


def _exit_code(summary: Mapping[str, Any]) -> int:
    return {"interrupted": _INTERRUPTED, "failed": 1}.get(str(summary.get("status")), 0)


def _resume(arguments: Arguments) -> int:
    from gnntrain.app import recompose_config
    from gnntrain.run import resume, saved_config

    run = arguments.words[0]
    config = recompose_config(saved_config(run), arguments.overrides)
    return _exit_code(resume(run, config, arguments.overrides))


def _sweep(arguments: Arguments) -> int:
    from gnntrain.sweep import run_sweep

    def train(config: Any, overrides: Sequence[str]) -> dict[str, Any]:
        from gnntrain.run import train

        return train(config, overrides)

    jobs = run_sweep(arguments.overrides, arguments.config_dirs, train, _print)
    for job in jobs:
        figures = f"{job.metric} val {_figure(job.val)} test {_figure(job.test)}"
        _print(f"  {Path(job.run_dir).name}: {figures if job.metric else job.status}")
    return 0


def _show_config(arguments: Arguments) -> int:
    from gnntrain.app import compose_config

    _print(compose_config(arguments.overrides, arguments.config_dirs).yaml.rstrip())
    return 0


def _prepare(arguments: Arguments) -> int:
    from gnntrain.app import compose_config

    config = compose_config(arguments.overrides, arguments.config_dirs).config
    from gnntrain.run import prepare

    result = prepare(config)
    width = max(map(len, result))
    for key, value in result.items():
        _print(f"{key:{width}}  {_figure(value)}")
    return 0


def _evaluate(arguments: Arguments) -> int:
    from gnntrain.run import evaluate

    result = evaluate(arguments.words[0])
    _print(f"{result['run']}, best epoch {result['epoch']}, chosen by val {result['metric']}")
    for split, metrics in result["metrics"].items():
        figures = "  ".join(f"{name} {_figure(value)}" for name, value in metrics.items())
        _print(f"  {split:5}  {figures or 'no labelled node'}")
    return 0


def _figure(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_figure(item)}" for key, item in value.items())
    return str(value)


VERBS: dict[str, Verb] = {
    "train": Verb(
        "[group=option] [group.key=value] ...",
        "train a model (the default: the word may be left out)",
        "Results go to runs/<name>, or to run.dir. With -m, values separated by commas, "
        "range(1,4) and glob(*) make a sweep: one run after another, each in its own folder "
        "under runs/multirun/<time>; a run that fails does not stop the others.",
        [
            "gnntrain",
            "gnntrain model=gat trainer.epochs=5",
            "gnntrain experiment=cora_gcn trainer.seed=1",
            "gnntrain distributed.num_processes=2 trainer.gpus=0",
            "gnntrain -m model=sage,gcn trainer.lr=0.01,0.003",
            "gnntrain model=gat --cfg job",
        ],
        _train,
    ),
    "resume": Verb(
        "RUN [group.key=value] ...",
        "go on with a run from its last checkpoint, exactly",
        "RUN is a run directory, a name under runs/, or `latest`. It goes on in the same "
        "directory, or with run.name=NAME or run.dir=DIR in a new one. Keys that say how long, "
        "how fast and where may be changed (trainer.epochs, logger, distributed, ...), on another "
        "number of ranks with the same seeds a step over all of them; those that would make "
        "another run of it are refused.",
        ["gnntrain resume latest", "gnntrain resume latest trainer.epochs=50"],
        _resume,
        takes_run=True,
        changes_keys=True,
    ),
    "evaluate": Verb(
        "RUN",
        "exact metrics of a run's best checkpoint, on all splits",
        "RUN is a run directory, a name under runs/, or `latest`.",
        ["gnntrain evaluate latest"],
        _evaluate,
        takes_run=True,
    ),
    "prepare": Verb(
        "[group=option] [group.key=value] ...",
        "build the data set's graph store, or verify the one that is there",
        "Training does so by itself; this does nothing else.",
        ["gnntrain prepare", "gnntrain prepare dataset.num_nodes=100000"],
        _prepare,
    ),
}


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
    print(f"{prefix}{text}", file=sys.stderr, flush=True)


def _print(text: str) -> None:
    """Print; a reader that has gone away (`gnntrain --help | head -1`) is no failure."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python flushes once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _accept_any_locale() -> None:
    """Print a character that the terminal does not know as `?` rather than fail."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
