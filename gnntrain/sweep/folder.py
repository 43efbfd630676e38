"""A sweep's folder: the command, the trials, and what came of them.

Layout: `command.yaml  sweep.json  summary.json  best.yaml  optuna.db  workers.log`, and a run
directory a trial.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own

from gnntrain.config import RunConfig
from gnntrain.errors import UserError
from gnntrain.reporting.rundir import write_atomically
from gnntrain.reporting.text import shown_path
from gnntrain.reporting.trials import Group, Spread, SweepResults, Trial

SWEEPS = Path("runs") / "multirun"
_LONGEST_NAME = 100


@dataclass(frozen=True)
class SweepFolder:
    """The folder of one sweep.

    Attributes:
        path: Absolute.
    """

    path: Path

    @classmethod
    def create(
        cls, run: RunConfig, overrides: Sequence[str], config_dirs: Sequence[Path]
    ) -> SweepFolder:
        """The folder of a new sweep: `run.dir`, or a new one named by `run.name` or the time.

        Raises:
            UserError: It holds a sweep already, or cannot be written.
        """
        name = run.name if run.name is not None else f"{datetime.now():%Y%m%d-%H%M%S}"
        path = Path(run.dir) if run.dir is not None else (SWEEPS / name).absolute()
        folder = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / "sweep.json").touch(exist_ok=False)
            folder._write_yaml(
                "command.yaml",
                {
                    "overrides": [*overrides],
                    "config_dirs": [str(d.absolute()) for d in config_dirs],
                },
            )
        except FileExistsError as error:
            raise UserError(
                f"the folder {path} holds a sweep already, or is a file; nothing was overwritten",
                f"Go on with that sweep by `gnntrain resume {folder.shown}`, or choose another "
                "folder with run.dir=DIR.",
            ) from error
        except OSError as error:
            raise UserError(
                f"the folder {path} cannot be written: {error.strerror or error}",
                "Choose another with run.dir=DIR.",
            ) from error
        return folder

    @classmethod
    def find(cls, name: str | Path) -> SweepFolder | None:
        """The sweep that a path, or a name under `runs/multirun/`, means; None: there is none."""
        for path in (Path(name).expanduser(), SWEEPS / name):
            if (path / "sweep.json").is_file():
                return cls(path.absolute())
        return None

    @property
    def shown(self) -> str:
        """The path as a person would type it."""
        return shown_path(self.path)

    def command(self) -> tuple[list[str], list[Path]]:
        """The overrides and the configuration folders that the sweep was begun with.

        Raises:
            UserError: They cannot be read.
        """
        path = self.path / "command.yaml"
        try:
            raw = yaml.safe_load(path.read_text(encoding="utf-8"))
            return list(raw["overrides"]), [Path(folder) for folder in raw["config_dirs"]]
        except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError) as error:
            raise UserError(f"{path} cannot be read: {type(error).__name__} {error}") from error

    def note_command(self, overrides: Sequence[str], config_dirs: Sequence[Path]) -> None:
        """Keep other overrides to go on with."""
        folders = [str(folder) for folder in config_dirs]
        self._write_yaml("command.yaml", {"overrides": [*overrides], "config_dirs": folders})

    def trials(self) -> list[Trial]:
        """The trials as they were last written.

        Raises:
            UserError: They cannot be read.
        """
        path = self.path / "sweep.json"
        known = {item.name for item in dataclasses.fields(Trial)}
        try:
            rows = json.loads(path.read_text(encoding="utf-8") or "[]")
            return [Trial(**{k: row[k] for k in row if k in known}) for row in rows]
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise UserError(f"{path} cannot be read: {type(error).__name__} {error}") from error

    def write_trials(self, trials: Iterable[Trial]) -> None:
        """A JSON list with a line a trial; a reader sees the old one or this one."""
        lines = ",\n".join(json.dumps(asdict(trial)) for trial in trials)
        self._write("sweep.json", f"[\n{lines}\n]\n")

    def write_summary(self, standings: SweepResults, status: str, seconds: float) -> None:
        """What the sweep came to: `summary.json`."""
        best = standings.best
        content = {
            "status": status,
            "metric": standings.metric,
            "trials": len(standings.trials),
            **{name: standings.count(name) for name in ("completed", "pruned", "failed")},
            "best": None if best is None else asdict(best),
            "repeated": list(standings.repeated),
            "groups": [_plain_group(group) for group in standings.groups],
            "seconds": seconds,
        }
        self._write("summary.json", json.dumps(content, indent=2) + "\n")

    def write_best(self, config: Mapping[str, Any], trial: Trial) -> Path:
        """The best trial's configuration, to train it again: `gnntrain best.yaml`."""
        note = f"# The best trial of the sweep: {Path(trial.run_dir).name}, val {trial.val}.\n"
        self._write("best.yaml", note + yaml.safe_dump(dict(config), sort_keys=False))
        return self.path / "best.yaml"

    def _write_yaml(self, name: str, content: Mapping[str, Any]) -> None:
        self._write(name, yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True))

    def _write(self, name: str, text: str) -> None:
        write_atomically(self.path / name, text)


def run_name(number: int, num_trials: int, varied: Sequence[str]) -> str:
    """A folder name for a trial: its number, and what it does not share with all others."""
    width = len(str(num_trials - 1))
    plain = re.sub(r"[^\w=.,+-]+", "_", ",".join(varied), flags=re.ASCII)[:_LONGEST_NAME]
    return f"{number:0{width}}_{plain}".rstrip("_")


def _plain_group(group: Group) -> dict[str, Any]:
    return {
        "varied": list(group.varied),
        "trials": [trial.number for trial in group.trials],
        "val": _plain_spread(group.val),
        "test": _plain_spread(group.test),
    }


def _plain_spread(spread: Spread | None) -> dict[str, float | None] | None:
    return None if spread is None else asdict(spread)
