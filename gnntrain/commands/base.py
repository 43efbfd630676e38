"""What a command of the command line is."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnntrain.atomic_io import atomic_write
from gnntrain.distributed.launchers import launched
from gnntrain.errors import GnntrainError, UserError
from gnntrain.paths import expanded

if TYPE_CHECKING:
    from gnntrain.config import Config

_INTERRUPTED = 130
_MOST_ENTRIES = 8

Option = tuple[tuple[str, ...], dict[str, Any]]
"""The arguments of `ArgumentParser.add_argument`."""


def option(flags: str, metavar: str, meaning: str, **settings: Any) -> Option:
    """An option with a value, `--cfg -c`; as for `ArgumentParser.add_argument`."""
    return tuple(flags.split()), {"metavar": metavar, "help": meaning, **settings}


def switch(flags: str, meaning: str) -> Option:
    """An option without a value."""
    return tuple(flags.split()), {"action": "store_true", "help": meaning}


class Arguments(argparse.Namespace):
    """The command line, sorted; a command's own options by their names.

    Attributes:
        command: What to do; None: not said, so train.
        positionals: Arguments without `=`: what the command is about.
        overrides: Arguments with `=`, or that remove a key with `~`.
        config_dirs: Folders of the user's own YAML files.
        config_path: A folder in place of `conf/`.
        config_name: The file to begin with.
        hydra: Hydra's other flags, as Hydra reads them: `--info=all`.
    """

    command: str | None = None
    positionals: list[str]
    overrides: list[str]
    config_dirs: list[Path]
    config_path: Path | None = None
    config_name: str = "config"
    hydra: list[str]
    cfg: str | None = None
    multirun: bool = False
    resolve: bool = False
    package: str | None = None
    help: bool = False
    version: bool = False

    def __init__(self, **values: Any) -> None:
        super().__init__(positionals=[], overrides=[], config_dirs=[], hydra=[], **values)

    @property
    def is_sweep(self) -> bool:
        """Whether Hydra is asked for many runs."""
        return self.multirun or "hydra.mode=MULTIRUN" in self.overrides


@dataclass(frozen=True)
class Command:
    """One command of the command line.

    Attributes:
        usage: What follows the command.
        summary: What it does, in a line.
        details: More about it.
        examples: Command lines that run as they are.
        run: Does it with the sorted command line, and returns the exit code.
        positionals: The names of its positional arguments, as in "run directory"; without any, it
            is about a configuration.
        num_optional: How many of the last ones may be left out.
        repeats: Whether the last may be repeated.
        changes_keys: Whether it takes keys besides.
        options: Its own options.
    """

    usage: str
    summary: str
    details: str
    examples: Sequence[str]
    run: Callable[[Arguments], int]
    positionals: Sequence[str] = ()
    num_optional: int = 0
    repeats: bool = False
    changes_keys: bool = False
    options: Sequence[Option] = ()


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


def figure(value: object) -> str:
    """A result as it is printed: four digits, `-` where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, Mapping):
        shown = [f"{key} {figure(item)}" for key, item in islice(value.items(), _MOST_ENTRIES)]
        hidden = len(value) - len(shown)
        return ", ".join([*shown, *([f"… ({hidden} more)"] if hidden else [])])
    return str(value)


def exit_code(summary: Mapping[str, Any]) -> int:
    """The exit code that tells how a run ended."""
    return {"interrupted": _INTERRUPTED, "failed": 1}.get(str(summary.get("status")), 0)


def in_meeting(lead: Callable[[], int], configure: Callable[[], Config]) -> int:
    """Train; of several processes that a launcher has started the first leads, others follow.

    Args:
        lead: Trains.
        configure: Returns the configuration.
    """
    if (found := launched()) is None:
        return lead()
    if found.local_rank is None:  # one process a machine, which starts a rank for each GPU
        from gnntrain.config import training_device
        from gnntrain.devices import gpus_here
        from gnntrain.distributed.processes import run_ranks

        with suppress(GnntrainError):  # `lead` tells it
            config = configure()
            num_gpus = training_device(config.trainer, gpus_here())[1]
            num_ranks = found.num_ranks or num_gpus or config.distributed.num_processes
            if num_ranks > 1:
                return run_ranks(found, num_ranks)
    # torch would warn, on every rank, of each address that has no name. It reads this when loaded.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from gnntrain.distributed.rendezvous import meeting

    with meeting(sys.argv[1:]) as rendezvous:
        if rendezvous is None or rendezvous.is_main:
            return lead()
        from gnntrain.run import follow

        return exit_code(follow(rendezvous))


def refuse_several(name: str, arguments: Arguments) -> None:
    """Refuse what several processes that a launcher has started cannot do together.

    Raises:
        UserError: They do not train one run.
    """
    started, is_sweep = launched(), arguments.is_sweep
    shows = arguments.cfg or arguments.hydra
    trains = name in ("train", "resume") and not shows and not is_sweep
    if started is None or started.num_processes == 1 or trains:
        return
    what = "A sweep" if is_sweep else f"`gnntrain {name}`{' with --cfg or --info' * bool(shows)}"
    slurm = "; `gnntrain -m hydra/launcher=submitit_slurm …` trains a sweep's runs on a cluster"
    error = UserError(
        f"{what} needs one process, and {started.launcher} has started {started.num_processes}.",
        f"Start it alone{slurm * is_sweep}.",
    )
    error.is_told = not started.is_main  # type: ignore[attr-defined]
    raise error
