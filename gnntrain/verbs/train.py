"""Train: one run, or a sweep of many."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gnntrain.verbs.base import Arguments, Verb, exit_code, figure, say


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
            error.run_dir = composed.config.run.dir  # type: ignore[attr-defined]  # where the command says it is
        raise
    return exit_code(summary)


def _sweep(arguments: Arguments) -> int:
    from gnntrain.sweep import run_sweep

    def train(config: Any, overrides: Sequence[str]) -> dict[str, Any]:
        from gnntrain.run import train

        return train(config, overrides)

    jobs = run_sweep(arguments.overrides, arguments.config_dirs, train, say)
    for job in jobs:
        figures = f"{job.metric} val {figure(job.val)} test {figure(job.test)}"
        say(f"  {Path(job.run_dir).name}: {figures if job.metric else job.status}")
    return 0


VERB = Verb(
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
)
