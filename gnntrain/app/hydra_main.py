"""Training by Hydra's own main: its flags, keys, launchers, sweepers and callbacks work as in any
Hydra application."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from gnntrain.app.composing import Sources, checked
from gnntrain.app.node import remove_strings, resolved
from gnntrain.app.refusals import as_ours
from gnntrain.app.translation import translate
from gnntrain.config import Config
from gnntrain.errors import Interrupted, RunError
from gnntrain.groups import GROUPS
from gnntrain.reporting.run_lookup import RunPlace, planned_run, planned_sweep

_RUN_DIR = "gnntrain.run_dir"
_SWEEP_DIR = "gnntrain.sweep_dir"
_HYDRAS_LINE = "Error executing job with overrides:"


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
    OmegaConf.register_new_resolver(_RUN_DIR, planned_run, replace=True, use_cache=True)
    OmegaConf.register_new_resolver(_SWEEP_DIR, planned_sweep, replace=True, use_cache=True)
    task = TrainTask(tuple(typed), sources, tuple(sys.argv))
    main = hydra.main(
        version_base="1.3", config_path=str(sources.primary), config_name=sources.config_name
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
    return [f"--config-dir={folder}" for folder in sources.config_dirs[:1]]


@dataclass(frozen=True)
class TrainTask:
    """What Hydra calls for each job; launchers send it to other processes.

    Attributes:
        typed: The command line's overrides, before their translation.
        sources: Where the YAML files are.
        command: The command line.
    """

    typed: tuple[str, ...]
    sources: Sources
    command: tuple[str, ...]

    def __call__(self, cfg: DictConfig) -> float | None:
        """Train as `cfg` says.

        Returns:
            The validation metric at the best epoch; None where there is none.
        """
        sys.argv = list(self.command)  # Hydra's main has read its own
        run_dir = Path(HydraConfig.get().runtime.output_dir)
        is_single = HydraConfig.get().mode == RunMode.RUN
        _show_log()
        try:
            OmegaConf.set_struct(cfg, False)
            problems = [*remove_strings(cfg, GROUPS)]
            config = checked(resolved(cfg, problems), problems)
            overrides = self.typed if is_single else HydraConfig.get().overrides.task
            place = _place(config, is_single=is_single)
            return _train(config, [str(text) for text in overrides], place)
        except BaseException as error:
            if not hasattr(error, "run_dir"):
                error.run_dir = run_dir  # type: ignore[attr-defined]  # where the command says it is
            _remove_empty(run_dir)
            if is_single:
                sys.stderr = _Stderr(sys.stderr)
            raise


def _train(config: Config, overrides: Sequence[str], place: RunPlace) -> float | None:
    if config.distributed.num_processes > 1:
        from gnntrain.distributed.processes import start_server

        start_server()  # it imports on a core of its own, while this process does
    from gnntrain.run import train

    summary = train(config, overrides, place=place)
    if summary["status"] == "interrupted":
        raise Interrupted()
    if summary["status"] == "failed":
        raise RunError(summary.get("error", "the run failed"))
    metric = summary.get("val", {}).get(summary.get("metric"))
    return None if metric is None else float(metric)


def _place(config: Config, *, is_single: bool) -> RunPlace:
    own = HydraConfig.get()
    plain: Any = OmegaConf.to_container(own.run, resolve=False)
    is_named = config.run.dir is not None or config.run.name is not None
    return RunPlace(
        Path(own.runtime.output_dir),
        is_single and not is_named and _RUN_DIR in plain["dir"],
        tuple(filter(None, [own.output_subdir, f"{own.job.name}.log"])),
    )


def _show_log() -> None:
    """With `hydra.verbose`, show the log; without, only warnings are shown."""
    if HydraConfig.get().verbose:
        logging.basicConfig(format="[%(asctime)s][%(name)s][%(levelname)s] - %(message)s")


def _remove_empty(folder: Path) -> None:
    """Remove the run directory that Hydra made, if nothing was written; below the current directory
    those around it too."""
    here = Path.cwd()
    for path in (folder, *folder.parents):
        if path != folder and here not in path.parents:
            return
        try:
            path.rmdir()
        except OSError:
            return


class _Stderr:
    """Standard error without Hydra's line about a job that failed: the command line says more."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return 0 if text.startswith(_HYDRAS_LINE) else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


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
