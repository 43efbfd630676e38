"""The folder of a sweep by another sweeper: it becomes a folder of ours, to go on with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gnntrain.app import Sources
from gnntrain.config import ConfigError, Problem
from gnntrain.config.yaml_files import read_yaml
from gnntrain.errors import UserError
from gnntrain.groups import conf_dir, config_groups
from gnntrain.paths import expanded
from gnntrain.reporting.run_lookup import RUNS, SWEEPS, is_run, run_directories
from gnntrain.reporting.trials import Trial
from gnntrain.sweep.folder import SweepCommand, SweepFolder
from gnntrain.sweep.overrides import SweepOverrides, grid
from gnntrain.sweep.process import Outcome, summary_of
from gnntrain.sweep.trial_runner import take_over

_BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
_LAUNCHER = ("hydra/launcher", "hydra.launcher")


def find_sweep(name: str | Path) -> SweepFolder | None:
    """The sweep that a path, or a name under `runs/multirun/`, means; None: there is none.

    A folder of runs without `sweep.json` gets one. Its trials are the runs below it, and those of a
    grid by Hydra's basic sweeper that never began.

    Raises:
        UserError: The folder cannot be written.
    """
    several = (RUNS.absolute(), SWEEPS.absolute())
    for path in (expanded(name).absolute(), (SWEEPS / name).absolute()):
        if (path / "sweep.json").is_file():
            return SweepFolder(path)
        if path.is_dir() and not is_run(path) and path not in several:
            folder = _adopt(path)
            if folder is not None:
                return folder
    return None


def _adopt(path: Path) -> SweepFolder | None:
    runs = run_directories(path)
    hydra = _hydra_config(path)
    command = _command(hydra)
    trials = _trials_of_grid(path, runs, command) or _trials_of_runs(runs)
    if not trials:
        return None
    folder = SweepFolder.create(path, command)
    folder.write_trials(trials)
    return folder


def _hydra_config(path: Path) -> Mapping[str, Any]:
    """Hydra's part of `multirun.yaml`, where the basic sweeper has written one."""
    try:
        content = read_yaml((path / "multirun.yaml").read_text(encoding="utf-8"))
        hydra: Mapping[str, Any] = content["hydra"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return hydra if hydra["sweeper"]["_target_"] == _BASIC_SWEEPER else {}


def _command(hydra: Mapping[str, Any]) -> SweepCommand:
    if not hydra:
        return SweepCommand([])
    paths: dict[str, list[Path]] = {}
    for source in hydra["runtime"]["config_sources"]:
        paths.setdefault(source["provider"], []).append(Path(source["path"]))
    main = [path for path in paths.get("main", ()) if path != conf_dir()]
    folders = paths.get("command-line", [])
    sources = Sources(folders, main[0] if main else None, hydra["job"]["config_name"])
    launcher = [
        text for text in hydra["overrides"]["hydra"] if text.lstrip("+").startswith(_LAUNCHER)
    ]
    return SweepCommand(hydra["overrides"]["task"], sources, launcher)


def _trials_of_grid(path: Path, runs: Sequence[Path], command: SweepCommand) -> list[Trial]:
    """All trials that were asked for, those without a run too; none where it was no grid."""
    if not command.overrides:
        return []
    problems: list[Problem] = []
    try:
        sweep = SweepOverrides.parse(
            command.overrides,
            config_groups(command.sources.config_dirs, command.sources.config_path),
            problems,
        )
        trials = [
            Trial(number, [*sweep.fixed, *varied], str(path / str(number)), varied=varied)
            for number, varied in enumerate(grid(sweep, problems))
        ]
    except ConfigError as error:
        raise UserError(f"{path / 'multirun.yaml'} cannot be gone on with: {error}") from error
    by_values = {frozenset(trial.varied): trial for trial in trials}
    for run in runs:
        own = frozenset(text for text in _typed(run) if text.partition("=")[0] in sweep.swept)
        if own in by_values:
            _read(by_values[own], run)
    return trials


def _trials_of_runs(runs: Sequence[Path]) -> list[Trial]:
    typed = [_typed(run) for run in runs]
    shared = set.intersection(*map(set, typed)) if len(runs) > 1 else set()
    trials = []
    for number, (run, overrides) in enumerate(zip(runs, typed, strict=True)):
        varied = [text for text in overrides if text not in shared]
        trials.append(Trial(number, overrides, str(run), varied=varied))
        _read(trials[-1], run)
    return trials


def _typed(run: Path) -> list[str]:
    try:
        return (run / "overrides.txt").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []


def _read(trial: Trial, run: Path) -> None:
    """How far the run of a trial came."""
    summary = summary_of(run)
    trial.run_dir = str(run)
    take_over(trial, Outcome(str(summary.get("status", "interrupted")), summary))
    trial.seconds = summary.get("seconds_total")
