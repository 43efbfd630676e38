"""Training by Hydra's own main: its flags, keys, launchers, sweepers and callbacks work as in any
Hydra application. It calls `TrainTask` for each job."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from gnntrain.app.composing import HYDRAS_ERRORS, Sources, resolved, search_path, store_schema
from gnntrain.app.overrides import translate
from gnntrain.config import ConfigError, Problem, RunConfig, from_dict
from gnntrain.errors import GnntrainError, UserError
from gnntrain.reporting import rundir

_RUN_DIR = "gnntrain.run_dir"


def run_hydra(typed: Sequence[str], flags: Sequence[str], sources: Sources) -> int:
    """Run Hydra's main, which trains, sweeps, or shows what one of its flags asks for; the exit
    code. `typed` as for `compose_config`.

    Raises:
        ConfigError: With mistakes of the command line, or all in the configuration of a run.
        UserError: Hydra refused the command line; there may be more mistakes in it.
        Exception: Whatever the run raises, with an attribute `run_dir`.
    """
    problems = [*sources.problems()]
    if problems:
        raise ConfigError(problems)
    store_schema()
    first, *others = sources.folders
    arguments = [*flags, *(f"--config-dir={folder}" for folder in others[:1])]  # it takes one
    arguments += [*translate(typed, sources.groups), *search_path(others[1:])]
    register = partial(OmegaConf.register_new_resolver, replace=True, use_cache=True)
    register(_RUN_DIR, rundir.planned_run)
    register("gnntrain.sweep_dir", rundir.planned_sweep)
    task = TrainTask(tuple(typed), sources, tuple(sys.argv))
    main = hydra.main(str(first.absolute()), sources.config_name, "1.3")(task)
    # Hydra's main reads `sys.argv`; it raises what failed, instead of printing it.
    argv, stderr, full = sys.argv, sys.stderr, os.environ.get("HYDRA_FULL_ERROR", "")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = [argv[0], *arguments], "1"
    try:
        main()
    except SystemExit as error:  # Hydra has said why
        return 2 if error.code else 0
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, GnntrainError) or hasattr(cause, "run_dir"):  # of a run
                raise cause from cause.__cause__
            cause = cause.__cause__ or cause.__context__
        calls = {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}
        if calls & {"run_job", "sweep"} and not isinstance(error, HYDRAS_ERRORS):
            with rundir.explained(Path(getattr(error, "filename", None) or ".")):
                raise
        texts = (" ".join(str(one or "").split()) for one in (error, error.__cause__))
        message = ": ".join(filter(None, texts)) or type(error).__name__
        hint = "`gnntrain --hydra-help` tells of Hydra's flags and keys."
        raise UserError(message, hint) from error
    finally:
        sys.argv, sys.stderr, os.environ["HYDRA_FULL_ERROR"] = argv, stderr, full
    return 0


@dataclass(frozen=True)
class TrainTask:
    """What Hydra calls for each job; launchers send it to other processes."""

    typed: tuple[str, ...]  # the command line's overrides, before their translation
    sources: Sources
    command: tuple[str, ...]

    def __call__(self, cfg: DictConfig, typed: Sequence[str] | None = None) -> float | None:
        """Train as Hydra has composed, and return the validation metric at the best epoch (None
        where there is none); the record has the overrides `typed`, or else Hydra's.

        Raises:
            ConfigError: With every mistake in `cfg`.
            Exception: Whatever the run raises. All have an attribute `run_dir`.
        """
        sys.argv = list(self.command)  # Hydra's main has read its own
        own = HydraConfig.get()
        is_single, run_dir = own.mode == RunMode.RUN, Path(own.runtime.output_dir)
        if own.verbose:
            logging.basicConfig(format="[%(asctime)s][%(name)s][%(levelname)s] - %(message)s")
        try:
            # Relative paths start where the command was typed; hydra.job.chdir=true has left it.
            with contextlib.chdir(own.runtime.cwd):
                OmegaConf.set_struct(cfg, False)
                problems: list[Problem] = []
                config = from_dict(resolved(cfg, problems), found=problems, for_here=True)
            overrides = typed or (self.typed if is_single else own.overrides.task)
            if not is_single:  # `run` names the folder of the sweep
                sweep = Path(own.runtime.cwd, own.sweep.dir)
                if rundir.is_run(sweep):  # another sweeper than ours does not look
                    raise rundir.occupied(sweep)
                config = config.model_copy(update={"run": RunConfig(dir=str(run_dir))})
            is_made_up = config.run == RunConfig() and _RUN_DIR in OmegaConf.to_yaml(own.run)
            besides = filter(None, [own.output_subdir, f"{own.job.name}.log"])
            place = rundir.RunPlace(run_dir, is_made_up, tuple(besides))
            if config.distributed.num_processes > 1:
                from gnntrain.distributed.processes import start_server

                start_server()  # it imports on a core of its own, while this process does
            from gnntrain.run import train

            summary = train(config, overrides=[str(text) for text in overrides], place=place)
            if place.is_made_up:  # a job that was started again goes on where its run lies
                _remove_unused(run_dir)
            metric = summary.get("val", {}).get(summary.get("metric"))
            return None if metric is None else float(metric)
        except BaseException as error:
            if not hasattr(error, "run_dir"):  # where the command says it is
                error.run_dir = run_dir  # type: ignore[attr-defined]
            _remove_unused(run_dir)
            if is_single:  # the command line says more than Hydra's line about a job that failed
                sys.stderr = _Stderr(sys.stderr)
            raise


@dataclass
class _Stderr:
    """Standard error without Hydra's line about a job that failed."""

    stream: Any

    def write(self, text: str) -> int:
        is_hydras = text.startswith("Error executing job with overrides:")
        return 0 if is_hydras else int(self.stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _remove_unused(folder: Path) -> None:
    """Remove the run directory that Hydra made, if nothing was written into it; below the current
    directory those around it too."""
    here = Path(HydraConfig.get().runtime.cwd)
    with contextlib.suppress(OSError):  # until one is not empty
        folder.rmdir()
        for path in folder.parents:
            if here in path.parents:
                path.rmdir()
