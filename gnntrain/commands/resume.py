"""Go on with a run."""

from __future__ import annotations

from gnntrain.commands.base import Arguments, Command, exit_code


def _resume(arguments: Arguments) -> int:
    from gnntrain.app import recompose_config
    from gnntrain.run import resume, saved_config
    from gnntrain.sweep import resume_sweep
    from gnntrain.sweep.adoption import find_sweep

    run = arguments.words[0]
    folder = find_sweep(run)
    if folder is not None:
        resume_sweep(folder, arguments.overrides)
        return 0
    config = recompose_config(saved_config(run), arguments.overrides)
    return exit_code(resume(run, config, arguments.overrides))


COMMAND = Command(
    "RUN [group.key=value] ...",
    "go on with a run from its last checkpoint, exactly",
    "RUN is a run directory, a name under runs/, or `latest`; or the folder of a sweep, whose "
    "trials that are left are trained (only keys such as sweep.trials may be changed). A run "
    "goes on in the same directory, or with run.name=NAME or run.dir=DIR in a new one. Keys that "
    "say how long, how fast and where may be changed (trainer.epochs, logger, distributed, ...), "
    "on another number of ranks with the same seeds a step over all of them; those that would "
    "make another run of it are refused.",
    ["gnntrain resume latest", "gnntrain resume latest trainer.epochs=50"],
    _resume,
    words=["run directory"],
    changes_keys=True,
)
