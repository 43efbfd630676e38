"""Go on with a run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gnntrain.commands.base import Arguments, Command, exit_code, in_meeting, refuse_several
from gnntrain.errors import UserError
from gnntrain.paths import expanded, is_folder

if TYPE_CHECKING:
    from gnntrain.config import Config
    from gnntrain.sweep import SweepFolder

_MOST_RUNS = 20


def _resume(arguments: Arguments) -> int:
    return in_meeting(lambda: _lead(arguments), lambda: _configured(arguments))


def _configured(arguments: Arguments) -> Config:
    from gnntrain.app import recompose_config
    from gnntrain.run import saved_config

    return recompose_config(saved_config(arguments.positionals[0]), arguments.overrides)


def _lead(arguments: Arguments) -> int:
    from gnntrain.reporting.rundir import refuse_links
    from gnntrain.sweep.folder import SweepFolder

    run = arguments.positionals[0]
    folder = SweepFolder.find(run)
    if folder is not None:
        arguments.multirun = True
        refuse_several("resume", arguments)
        refuse_links(folder.path)
        return _resume_sweep(folder, arguments.overrides)
    from gnntrain.run import resume

    _refuse_folder_of_runs(run)
    config = _configured(arguments)
    return exit_code(resume(run, config, overrides=arguments.overrides))


def _refuse_folder_of_runs(name: str) -> None:
    """Refuse a folder that is neither a run nor a sweep of ours, but has runs below it."""
    from gnntrain.reporting.run_lookup import RUNS, is_run, run_directories
    from gnntrain.reporting.text import shown_path

    path = next((path for path in (expanded(name), RUNS / name) if is_folder(path)), None)
    runs = [] if path is None or is_run(path) else run_directories(path)
    if runs:
        lines = [f"  gnntrain resume {shlex.quote(shown_path(run))}" for run in runs[:_MOST_RUNS]]
        lines += [f"  and {len(runs) - _MOST_RUNS} more"] if len(runs) > _MOST_RUNS else []
        raise UserError(
            f"{name} is neither a run nor the folder of a sweep by gnntrain",
            "\n".join(["Go on with a run below it:", *lines]),
        )


def _resume_sweep(folder: SweepFolder, overrides: Sequence[str]) -> int:
    from gnntrain.sweep import changed_command, resume_sweep

    command = changed_command(folder.command(), overrides)
    if not command.hydra:
        resume_sweep(folder, overrides)
        return 0
    from gnntrain.app.hydra_main import run_hydra  # the launcher is Hydra's

    path = json.dumps(str(folder.path), ensure_ascii=False)
    hydras = [*command.hydra, f"hydra.sweep.dir={path}", "hydra.sweeper.resume=true"]
    return run_hydra([*command.overrides, *hydras], ["--multirun"], command.sources, forced=True)


COMMAND = Command(
    "RUN [group.key=value] ...",
    "go on with a run from its last checkpoint, exactly",
    "RUN is a run directory, a name under runs/, or `latest`; or the folder of a sweep by our "
    "sweeper: trials that never began, were interrupted or failed are trained (only keys such as "
    "sweep.trials may be changed). A run goes on in the same directory, or with "
    "run.name=NAME or run.dir=DIR in a new one. Keys that say how long, how fast and where may be "
    "changed (trainer.epochs, logger, distributed, ...), on another number of ranks with the same "
    "seeds a step over all of them; those that would make another run of it are refused.",
    ["gnntrain resume latest", "gnntrain resume latest trainer.epochs=50"],
    _resume,
    positionals=["run directory"],
    changes_keys=True,
)
