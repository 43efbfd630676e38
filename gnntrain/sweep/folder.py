"""The folder of a sweep: the command, the trials, and their results.

Layout: `command.yaml  sweep.json  summary.json  best.yaml  optuna.journal  workers.log`, and a run
directory a trial.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from pydantic import TypeAdapter

from gnntrain.app import Sources
from gnntrain.errors import UserError
from gnntrain.paths import expanded, is_file
from gnntrain.reporting.rundir import SWEEPS, is_run, occupied, write_atomically
from gnntrain.reporting.text import short_number, shown_path
from gnntrain.reporting.trials import SweepResults, Trial

_LONGEST_NAME = 100

TrialName = Callable[[int, Sequence[str]], str]
"""The folder name of a trial by its number and its overrides."""


@dataclass(frozen=True)
class SweepCommand:
    """What was typed to begin a sweep."""

    overrides: Sequence[str]  # of all trials, Hydra's own not among them
    sources: Sources = field(default_factory=Sources)
    hydra: Sequence[str] = ()  # of Hydra's own keys to go on with: launcher and names


@dataclass(frozen=True)
class SweepFolder:
    """The folder of one sweep."""

    path: Path  # absolute
    trial_name: TrialName | None = None  # the user's own; None: number and varied overrides

    @classmethod
    def create(
        cls, path: Path, command: SweepCommand, trial_name: TrialName | None = None
    ) -> SweepFolder:
        """The folder of a new sweep.

        Raises:
            UserError: It holds a run or a sweep already, or cannot be written.
        """
        if is_run(path):
            raise occupied(path)
        folder = cls(path.absolute(), trial_name)
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / "sweep.json").touch(exist_ok=False)
            folder.write_command(command)
        except OSError as error:
            hint = "Choose another with run.dir=DIR"
            why = f"cannot be written: {error.strerror or error}"
            if isinstance(error, FileExistsError):
                why = "holds a sweep already, or is a file; nothing was overwritten"
                hint += f", or go on with that sweep by `gnntrain resume {shown_path(folder.path)}`"
            raise UserError(f"the folder {path} {why}", f"{hint}.") from error
        return folder

    @classmethod
    def find(cls, name: str | Path) -> SweepFolder | None:
        """The sweep that a path, or a name under `runs/multirun/`, means; None: there is none."""
        paths = (expanded(name), SWEEPS / name)
        found = (path for path in paths if is_file(path / "sweep.json"))
        return next((cls(path.absolute()) for path in found), None)

    def trial_dir(
        self,
        number: int,
        num_trials: int,
        overrides: Sequence[str],
        varied: Sequence[str],
        others: Sequence[Trial],
    ) -> Path:
        """The run directory of a trial; no other trial has it, whatever the user's names are. By
        default its number and its varied overrides with short numbers."""
        if self.trial_name is None:
            pairs = (text.partition("=") for text in varied)
            short = ",".join(f"{key}={short_number(value)}" for key, _, value in pairs)
            plain = re.sub(r"[^\w=.,+-]+", "_", short, flags=re.ASCII)[:_LONGEST_NAME]
            return self.path / f"{number:0{len(str(num_trials - 1))}}_{plain}".rstrip("_")
        path = self.path / self.trial_name(number, overrides)
        is_taken = any(trial.run_dir == str(path) for trial in others)
        return path.with_name(f"{path.name}-{number}") if is_taken else path

    def command(self) -> SweepCommand:
        """The command that the sweep was begun with.

        Raises:
            UserError: It cannot be read.
        """
        path = self.path / "command.yaml"
        try:
            raw = yaml.safe_load(path.read_text(encoding="utf-8"))
            dirs, instead = map(Path, raw["config_dirs"]), raw.get("config_path")
            instead = None if instead is None else Path(instead)
            sources = Sources([*dirs], instead, raw.get("config_name", "config"))
            return SweepCommand(list(raw["overrides"]), sources, raw.get("hydra", []))
        except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{path} cannot be read: {type(error).__name__} {error}") from error

    def write_command(self, command: SweepCommand) -> None:
        """Write the command to go on with."""
        sources = command.sources
        content = {
            "overrides": [*command.overrides],
            "config_dirs": [str(folder.absolute()) for folder in sources.config_dirs],
            "config_path": None if sources.config_path is None else str(sources.config_path),
            "config_name": sources.config_name,
            "hydra": [*command.hydra],
        }
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        write_atomically(self.path / "command.yaml", text)

    def trials(self) -> list[Trial]:
        """The trials as they were last written.

        Raises:
            UserError: They cannot be read.
        """
        path = self.path / "sweep.json"
        try:
            trials = TypeAdapter(list[Trial]).validate_json(path.read_bytes() or b"[]")
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {type(error).__name__} {error}") from error
        for trial in trials:
            trial.run_dir = str(self.path / trial.run_dir)
        return trials

    def write_trials(self, trials: Iterable[Trial]) -> None:
        """Write a JSON list with a line a trial; a reader sees the old one or this one."""
        lines = ",\n".join(json.dumps(self._plain(trial)) for trial in trials)
        write_atomically(self.path / "sweep.json", f"[\n{lines}\n]\n")

    def relative(self, run_dir: str) -> str:
        """A run directory as this folder's files name it: the folder may be moved or copied."""
        path = Path(run_dir)
        return str(path.relative_to(self.path)) if path.is_relative_to(self.path) else run_dir

    def _plain(self, trial: Trial) -> dict[str, Any]:
        return asdict(trial) | {"run_dir": self.relative(trial.run_dir)}

    def write_summary(self, results: SweepResults, status: str, seconds: float) -> None:
        """Write the results: `summary.json`."""
        best, groups = results.best, list[dict[str, Any]]()
        for group in results.groups:
            numbers = [trial.number for trial in group.counted]
            pruned = [trial.number for trial in group.runs if trial not in group.counted]
            about = {"varied": [*group.varied], "trials": numbers, "pruned": pruned}
            groups.append({**about, "splits": [*group.data]})
            for split in ("val", "test"):
                spread = group.spread(split)
                groups[-1][split] = None if spread.mean is None else asdict(spread)
        content = {
            "status": status,
            "metric": results.metric,
            "trials": len(results.trials),
            **{name: results.count(name) for name in ("completed", "pruned", "failed")},
            "best": None if best is None else self._plain(best),
            "groups": groups,
            "seconds": seconds,
        }
        write_atomically(self.path / "summary.json", json.dumps(content, indent=2) + "\n")

    def write_best(self, config: Mapping[str, Any], trial: Trial) -> None:
        """Write the best trial's configuration, to train it again: `gnntrain best.yaml`."""
        note = f"# The best trial of the sweep: {Path(trial.run_dir).name}, val {trial.val}.\n"
        text = note + yaml.safe_dump(dict(config), sort_keys=False)
        write_atomically(self.path / "best.yaml", text)
