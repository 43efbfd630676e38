"""Train: one run, or a sweep of many."""

from __future__ import annotations

from collections.abc import Sequence

from gnntrain.commands.base import Arguments, Command, exit_code
from gnntrain.errors import UserError
from gnntrain.startup import collection_paused, load_torch_library


def _train(arguments: Arguments) -> int:
    if arguments.multirun:
        return _sweep(arguments)
    with collection_paused():
        return _run(arguments)


def _run(arguments: Arguments) -> int:
    from gnntrain.app import compose_config

    load_torch_library()  # after the last import of another library
    composed = compose_config(arguments.overrides, arguments.config_dirs)
    _refuse_sweep_keys(arguments.overrides)
    if composed.config.distributed.num_processes > 1:
        from gnntrain.distributed.processes import start_server

        start_server()  # it imports on a core of its own, while this process does
    from gnntrain.run import train

    try:
        summary = train(composed.config, composed.overrides)
    except Exception as error:
        if not hasattr(error, "run_dir"):
            error.run_dir = composed.config.run.dir  # type: ignore[attr-defined]  # where the command says it is
        raise
    return exit_code(summary)


def _refuse_sweep_keys(overrides: Sequence[str]) -> None:
    asked = [text for text in overrides if text.startswith(("sweep=", "sweep."))]
    if asked:
        raise UserError(
            f"{' '.join(asked)} says what a sweep does, and this is one run",
            "For a sweep add -m, as in `gnntrain -m model=sage,gcn`.",
        )


def _sweep(arguments: Arguments) -> int:
    from gnntrain.sweep import run_sweep

    run_sweep(arguments.overrides, arguments.config_dirs)
    return 0


COMMAND = Command(
    "[FILE.yaml] [group=option] [group.key=value] ...",
    "train a model (the default: the word may be left out)",
    "Results go to runs/<name>, or to run.dir. FILE.yaml is a configuration to begin with: a whole "
    "one, as a run directory's config.yaml or a sweep's best.yaml, or your own, with choices such "
    "as `dataset: cora` and the keys that change. With -m, values separated by commas, "
    "range(1,4) and glob(*) make a sweep of all combinations, and sweep=optuna a search that "
    "takes interval(1e-4,1e-1) and tag(log,interval(1e-4,1e-1)) too; sweep.jobs=2 trains two "
    "trials at a time. Each has its own folder under runs/multirun/<time>; one that fails does "
    "not stop the others.",
    [
        "gnntrain",
        "gnntrain model=gat trainer.epochs=5",
        "gnntrain experiment=cora_gcn trainer.seed=1",
        "gnntrain distributed.num_processes=2 trainer.gpus=0",
        "gnntrain -m model=sage,gcn trainer.lr=0.01,0.003",
        "gnntrain -m sweep=optuna sweep.trials=4 'trainer.lr=tag(log,interval(1e-4,1e-1))'",
        "gnntrain model=gat --cfg job",
    ],
    _train,
)
