"""Training, and going on with it."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable

from gnntrain.commands.parsing import command, composed
from gnntrain.distributed.launchers import launched
from gnntrain.errors import GnntrainError, UserError
from gnntrain.paths import expanded, is_folder
from gnntrain.startup import collection_paused

_FOREIGN = re.compile(r"[+~]*hydra/sweeper=(?!gnntrain$)")


def refuse_several(name: str, arguments: Namespace, *, is_sweep: bool) -> None:
    """Refuse what several processes that a launcher has started cannot do together.

    Raises:
        UserError: They do not train one run.
    """
    started = launched()
    trains = name in ("train", "resume") and not arguments.hydra and not is_sweep
    if started is None or started.num_processes == 1 or trains:
        return
    what = "A sweep" if is_sweep else f"`gnntrain {name}`"
    found = f"{started.launcher} has started {started.num_processes}"
    error = UserError(f"{what} needs one process, and {found}.", "Start it alone.")
    error.is_told = not started.is_main  # type: ignore[attr-defined]
    raise error


def _in_meeting(arguments: Namespace, lead: Callable[[Namespace], int]) -> int:
    """Train; of several processes that a launcher has started the first leads, others follow."""
    if (found := launched()) is None:
        return lead(arguments)
    if found.local_rank is None:  # one process a machine, which starts a rank for each GPU
        from gnntrain.app import recompose_config
        from gnntrain.config import training_device
        from gnntrain.devices import gpus_here
        from gnntrain.distributed.processes import run_ranks
        from gnntrain.reporting.rundir import RunDirectory

        try:
            if arguments.command == "resume":
                saved = RunDirectory.open(arguments.words[0]).config()
                config = recompose_config(saved, arguments.overrides)
            else:
                config = composed(arguments)
        except GnntrainError:
            if not found.is_main:  # such as for a file that is on another machine alone
                raise
            return lead(arguments)  # which tells it with all others
        num_gpus = training_device(config.trainer, gpus_here())[1]
        num_ranks = found.num_ranks or num_gpus or config.distributed.num_processes
        if num_ranks > 1:
            return run_ranks(found, num_ranks)
    # torch would warn, on every rank, of each address that has no name. It reads this when loaded.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from gnntrain.distributed.rendezvous import meeting

    with meeting(sys.argv[1:]) as rendezvous:
        if rendezvous is None or rendezvous.is_main:
            return lead(arguments)
        from gnntrain.run import follow

        follow(rendezvous)
        return 0


@command("[FILE.yaml] [group=option] [group.key=value] ...")
def train(arguments: Namespace) -> int:
    """train a model (the default: the word may be left out)

    Results go to runs/<name>, or to run.dir. FILE.yaml is a configuration to begin with: a whole
    one, as a run directory's config.yaml or a sweep's best.yaml, or your own, with choices such as
    `dataset: cora` and the keys that change. With -m, values separated by commas, range(1,4) and
    glob(*) make a sweep of all combinations, and sweep=optuna a search that takes
    interval(1e-4,1e-1) too; each trial has its own folder under runs/multirun/<time>.

    examples:
      gnntrain
      gnntrain model=gat trainer.epochs=5
      gnntrain experiment=cora_gcn trainer.seed=1
      gnntrain distributed.num_processes=2 trainer.gpus=0
      gnntrain -m model=sage,gcn trainer.lr=0.01,0.003
      gnntrain -m sweep=optuna sweep.trials=4 'trainer.lr=tag(log,interval(1e-4,1e-1))'
      gnntrain model=gat --cfg job
    """
    if arguments.hydra or arguments.multirun:
        return _run_hydra(arguments)
    with collection_paused():
        return _in_meeting(arguments, _run_hydra)


def _run_hydra(arguments: Namespace) -> int:
    """Hydra's main trains. Where it refuses, all mistakes are told at once."""
    from gnntrain.app import Sources
    from gnntrain.app.hydra_main import run_hydra
    from gnntrain.config import ConfigError

    sources = Sources(arguments.config_dirs, arguments.config_path, arguments.config_name)
    typed, is_sweep = arguments.overrides, arguments.multirun
    flags = [*arguments.hydra, *["--multirun"] * is_sweep]

    def judge() -> None:
        if is_sweep:
            from gnntrain.sweep.plan import check_sweep

            check_sweep(typed, sources, is_ours=False)
        else:
            sources.compose(typed)

    of_sweep = [text for text in typed if text.startswith(("sweep=", "sweep."))]
    if of_sweep and not is_sweep:
        raise UserError(
            f"{' '.join(of_sweep)} says what a sweep does, and this is one run",
            "For a sweep add -m, as in `gnntrain -m model=sage,gcn`.",
        )
    if is_sweep and (sources != Sources([]) or any(map(_FOREIGN.match, typed))):
        judge()  # a sweeper that is not ours may not
    try:
        return run_hydra(typed, flags, sources)
    except UserError as error:
        if isinstance(error, ConfigError) or not hasattr(error, "run_dir"):  # not of a run
            judge()  # tells all, and the places in the user's file
        raise


@command("RUN [group.key=value] ...", least=1)
def resume(arguments: Namespace) -> int:
    """go on with a run from its last checkpoint, exactly

    RUN is a run directory, a name under runs/, or `latest`; or the folder of a sweep, whose trials
    that never began, were interrupted or failed are trained. A run goes on in its directory, or
    in a copy of it. Keys that say how long, how fast and where may be changed (trainer.epochs,
    logger, distributed, ...).

    examples:
      gnntrain resume latest
      gnntrain resume latest trainer.epochs=50
    """
    return _in_meeting(arguments, _resume)


def _resume(arguments: Namespace) -> int:
    from gnntrain.reporting.rundir import refuse_links
    from gnntrain.sweep.folder import SweepFolder

    name, changes = arguments.words[0], arguments.overrides
    folder = SweepFolder.find(name)
    if folder is not None:
        refuse_several("resume", arguments, is_sweep=True)
        refuse_links(folder.path)
        from gnntrain.sweep import changed_command, resume_sweep

        begun = changed_command(folder.command(), changes)
        if not begun.hydra:
            resume_sweep(folder, changes)
            return 0
        from gnntrain.app.hydra_main import run_hydra  # the launcher is Hydra's

        path = json.dumps(str(folder.path), ensure_ascii=False)
        hydras = [*begun.hydra, f"hydra.sweep.dir={path}", "hydra.sweeper.resume=true"]
        return run_hydra([*begun.overrides, *hydras], ["--multirun"], begun.sources)

    from gnntrain.app import recompose_config
    from gnntrain.reporting.rundir import RUNS, RunDirectory, is_run, run_directories
    from gnntrain.reporting.text import shown_path

    # A folder that is neither a run nor a sweep of ours, but has runs below it.
    place = next((one for one in (expanded(name), RUNS / name) if is_folder(one)), None)
    if place is not None and not is_run(place) and (runs := run_directories(place)):
        lines = [f"gnntrain resume {shlex.quote(shown_path(run))}" for run in runs]
        what = f"{name} is neither a run nor the folder of a sweep by gnntrain"
        raise UserError(what, "\n  ".join(["Go on with a run below it:", *lines]))
    from gnntrain.run import resume

    config = recompose_config(RunDirectory.open(name).config(), changes)
    resume(name, config, overrides=changes)
    return 0
