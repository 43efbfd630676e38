"""Training by Hydra's own main: its flags, keys, launchers, sweepers and callbacks work as in any
Hydra application."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence

import hydra
from omegaconf import OmegaConf

from gnntrain.app.refusals import as_ours
from gnntrain.app.sources import Sources
from gnntrain.app.train_task import RUN_DIR_RESOLVER, TrainTask
from gnntrain.app.translation import translate
from gnntrain.reporting.run_lookup import planned_run, planned_sweep

__all__ = ["TrainTask", "run_hydra"]


def run_hydra(
    typed: Sequence[str], flags: Sequence[str], sources: Sources, *, forced: bool = False
) -> int:
    """Run Hydra's main, which trains, sweeps, or shows what a flag asks for; the exit code.

    Args:
        typed: The overrides, and a YAML file to begin with, as for `compose_config`.
        flags: Hydra's own, as in `--multirun` and `--info=all`.
        sources: Where the YAML files are.
        forced: As for `translate`.

    Raises:
        HydraRefused: The command line has mistakes; nothing ran.
        ConfigError: With all mistakes in the configuration of a run.
        Exception: Whatever the run raises, with an attribute `run_dir`.
    """
    arguments = [*flags, *_places(sources), *translate(typed, sources, forced=forced)]
    OmegaConf.register_new_resolver(RUN_DIR_RESOLVER, planned_run, replace=True, use_cache=True)
    OmegaConf.register_new_resolver(
        "gnntrain.sweep_dir", planned_sweep, replace=True, use_cache=True
    )
    task = TrainTask(tuple(typed), sources, tuple(sys.argv))
    main = hydra.main(
        version_base="1.3", config_path=str(sources.main), config_name=sources.config_name
    )(task)
    try:
        with _command_line(arguments), _whole_errors():
            main()
    except SystemExit as error:  # Hydra has said why
        return 2 if error.code else 0
    except Exception as error:
        ours = as_ours(error)
        if ours is error:
            raise
        raise ours from error
    return 0


def _places(sources: Sources) -> list[str]:
    """Hydra's option for a folder of the user's; `translate` adds the others."""
    return [f"--config-dir={folder}" for folder in sources.own_dirs[:1]]


@contextlib.contextmanager
def _command_line(arguments: Sequence[str]) -> Iterator[None]:
    """Hydra's main reads `sys.argv`."""
    argv, stderr = sys.argv, sys.stderr
    sys.argv = [argv[0], *arguments]
    try:
        yield
    finally:
        sys.argv, sys.stderr = argv, stderr


@contextlib.contextmanager
def _whole_errors() -> Iterator[None]:
    """Hydra raises what failed, instead of printing it."""
    name = "HYDRA_FULL_ERROR"
    previous = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if previous is None:
            del os.environ[name]
        else:
            os.environ[name] = previous
