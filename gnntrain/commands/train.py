"""Train: one run, or a sweep of many, by Hydra's main."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gnntrain.commands.base import Arguments, Command, in_meeting
from gnntrain.errors import UserError
from gnntrain.startup import collection_paused

if TYPE_CHECKING:
    from gnntrain.app import Sources
    from gnntrain.config import Config

_FOREIGN = re.compile(r"[+~]*hydra/sweeper=(?!gnntrain$)")


def _train(arguments: Arguments) -> int:
    shows = arguments.cfg or arguments.hydra
    if shows or arguments.is_sweep:
        return _run(arguments)
    with collection_paused():
        return in_meeting(lambda: _run(arguments), lambda: _configured(arguments))


def _configured(arguments: Arguments) -> Config:
    from gnntrain.app import compose_config

    dirs, path, name = arguments.config_dirs, arguments.config_path, arguments.config_name
    return compose_config(arguments.overrides, dirs, config_path=path, config_name=name).config


def _run(arguments: Arguments) -> int:
    from gnntrain.app import Sources
    from gnntrain.app.hydra_main import HydraRefused, run_hydra
    from gnntrain.app.sources import with_search_path
    from gnntrain.config import ConfigError

    sources = Sources(arguments.config_dirs, arguments.config_path, arguments.config_name)
    typed, sources = with_search_path(arguments.overrides, sources)
    sweeps = arguments.is_sweep
    flags = [*arguments.hydra, *(["--multirun"] if arguments.multirun else [])]
    flags += ["--cfg=job"] if arguments.cfg == "job" else []
    if not sweeps:
        _refuse_sweep_keys(typed)
    elif sources != Sources([]) or any(map(_FOREIGN.match, typed)):
        _judge(typed, sources, is_sweep=True)  # a sweeper that is not ours may not
    try:
        return run_hydra(typed, flags, sources)
    except (HydraRefused, ConfigError) as error:
        _judge(typed, sources, is_sweep=sweeps)  # tells all, and the places in the user's file
        if isinstance(error, ConfigError):
            raise
    return run_hydra(typed, flags, sources, forced=True)


def _refuse_sweep_keys(overrides: Sequence[str]) -> None:
    asked = [text for text in overrides if text.startswith(("sweep=", "sweep."))]
    if asked:
        raise UserError(
            f"{' '.join(asked)} says what a sweep does, and this is one run",
            "For a sweep add -m, as in `gnntrain -m model=sage,gcn`.",
        )


def _judge(typed: Sequence[str], sources: Sources, *, is_sweep: bool) -> None:
    """Raise a ConfigError with every mistake, if there are any."""
    from gnntrain.app import Composer

    if is_sweep:
        from gnntrain.sweep.plan import check_examples

        check_examples(typed, Composer(sources))
    else:
        Composer(sources).compose(typed)


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
