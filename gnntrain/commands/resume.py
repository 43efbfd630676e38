"""Go on with a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gnntrain.commands.base import Arguments, Command, exit_code, in_meeting, refuse_several

if TYPE_CHECKING:
    from gnntrain.sweep import SweepFolder


def _resume(arguments: Arguments) -> int:
    return in_meeting(lambda: _lead(arguments))


def _lead(arguments: Arguments) -> int:
    from gnntrain.sweep.adoption import find_sweep

    folder = find_sweep(arguments.positionals[0])
    if folder is not None:
        arguments.multirun = True
        refuse_several("resume", arguments)
        return _resume_sweep(folder, arguments.overrides)
    from gnntrain.app import recompose_config
    from gnntrain.run import resume, saved_config

    run = arguments.positionals[0]
    config = recompose_config(saved_config(run), arguments.overrides)
    return exit_code(resume(run, config, arguments.overrides))


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
    "RUN is a run directory, a name under runs/, or `latest`; or the folder of a sweep by any of "
    "Hydra's sweepers: trials that never began, were interrupted or failed are trained (only keys "
    "such as sweep.trials may be changed). A run goes on in the same directory, or with "
    "run.name=NAME or run.dir=DIR in a new one. Keys that say how long, how fast and where may be "
    "changed (trainer.epochs, logger, distributed, ...), on another number of ranks with the same "
    "seeds a step over all of them; those that would make another run of it are refused.",
    ["gnntrain resume latest", "gnntrain resume latest trainer.epochs=50"],
    _resume,
    positionals=["run directory"],
    changes_keys=True,
)
