"""Training by Hydra's own main: its flags, keys, launchers, sweepers and callbacks work as in any
Hydra application."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import hydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gnntrain.app.overrides import translate
from gnntrain.app.sources import Sources, search_path, store_schema
from gnntrain.app.train_task import RUN_DIR_RESOLVER, TrainTask
from gnntrain.config.problems import ConfigError
from gnntrain.errors import GnntrainError, UserError
from gnntrain.reporting.run_lookup import planned_run, planned_sweep
from gnntrain.reporting.rundir import explained


class HydraRefused(UserError):
    """Hydra refused the command line before anything ran. There may be more mistakes in it."""


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
        ConfigError: With mistakes of the command line, or all in the configuration of a run.
        Exception: Whatever the run raises, with an attribute `run_dir`.
    """
    problems = [*sources.problems()]
    if problems:
        raise ConfigError(problems)
    store_schema()
    folders = sources.own_dirs  # Hydra's flag takes one
    arguments = [*flags, *(f"--config-dir={folder}" for folder in folders[:1])]
    arguments += translate(typed, sources.groups, forced=forced)
    arguments += [search_path(folders[1:])] if folders[1:] else []
    for name, place in ((RUN_DIR_RESOLVER, planned_run), ("gnntrain.sweep_dir", planned_sweep)):
        OmegaConf.register_new_resolver(name, place, replace=True, use_cache=True)
    task = TrainTask(tuple(typed), sources, tuple(sys.argv))
    main = hydra.main(
        version_base="1.3", config_path=str(sources.main), config_name=sources.config_name
    )(task)
    try:
        with _surroundings(arguments):
            main()
    except SystemExit as error:  # Hydra has said why
        return 2 if error.code else 0
    except Exception as error:
        ours = _as_ours(error)
        if ours is error:
            raise
        raise ours from error
    return 0


def _as_ours(error: Exception) -> BaseException:
    """The error to raise for one that came out of Hydra's main."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, GnntrainError) or hasattr(cause, "run_dir"):  # of a run
            return cause
        cause = cause.__cause__ or cause.__context__
    frames = {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}
    if isinstance(error, OSError) and frames & {"run_job", "sweep"}:
        try:
            with explained(Path(error.filename or ".")):
                raise error
        except GnntrainError as sentence:
            return sentence
    is_hydras = isinstance(error, HydraException | OmegaConfBaseException)
    if frames & {"run_job", "sweep"} and not is_hydras:
        return error
    texts = (" ".join(str(one or "").split()) for one in (error, error.__cause__))
    message = ": ".join(filter(None, texts)) or type(error).__name__
    kind = UserError if "sweep" in frames else HydraRefused
    return kind(message, "`gnntrain --hydra-help` tells of Hydra's flags and keys.")


@contextlib.contextmanager
def _surroundings(arguments: Sequence[str]) -> Iterator[None]:
    """Hydra's main reads `sys.argv`; it raises what failed, instead of printing it."""
    argv, stderr, full = sys.argv, sys.stderr, os.environ.get("HYDRA_FULL_ERROR", "")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = [argv[0], *arguments], "1"
    try:
        yield
    finally:
        sys.argv, sys.stderr, os.environ["HYDRA_FULL_ERROR"] = argv, stderr, full
