"""The run directory: what was asked, on what it ran, what came out. Made once, found again.

Layout: ``config.yaml  overrides.txt  env.json  metrics.jsonl  checkpoints/{last,best}.pt
logs/rank_N.log  summary.json``.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own

from gnntrain.errors import RunError, UserError
from gnntrain.reporting.environment import describe_environment
from gnntrain.reporting.text import shown_path
from gnntrain.training.records import Summary, json_safe

RUNS = Path("runs")
LATEST = "latest"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class RunDirectory:
    """One run's directory. Cheap to make from a path and to send to a worker.

    Attributes:
        path: The directory, absolute.
    """

    path: Path

    @classmethod
    def create(
        cls,
        *,
        directory: str | Path | None,
        name: str | None,
        default_name: str,
        config: Mapping[str, Any],
        overrides: Sequence[str] = (),
        seed: int,
        command: Sequence[str] | None = None,
        root: Path = RUNS,
    ) -> RunDirectory:
        """Makes the directory of a new run and writes what was asked into it.

        It is ``directory`` where given, else ``root/name``, else
        ``root/<default_name>-<time>``, with ``-2``, ``-3`` … where two runs start in one second.
        A directory is claimed by creating its ``config.yaml`` exclusively: of two runs that start
        at once on one directory, one gets it and the other an error. ``root/latest`` then points
        to it (not where ``directory`` lies elsewhere and there is no ``root``).

        Args:
            directory: The run directory itself (``run.dir``); existing only if empty.
            name: Name of the run (``run.name``).
            default_name: What to begin a made-up name with, ``<dataset>-<model>``.
            config: The resolved configuration, plain values.
            overrides: What was typed after the command, a line each in ``overrides.txt``.
            seed: Seed of the run, for ``env.json``.
            command: The command line, for ``env.json``; this process's own where ``None``.
            root: Where named runs lie.

        Raises:
            UserError: the directory holds something already, cannot be written, or is misnamed.
        """
        wanted = _wanted_path(directory, name, root)
        with _explained(wanted or root):
            path = _make_unique(root, default_name) if wanted is None else _make_empty(wanted)
            run = cls(path.absolute())
            run._claim(config)
            run.checkpoints.mkdir()
            run.logs.mkdir()
            (run.path / "overrides.txt").write_text(
                "".join(f"{item}\n" for item in overrides), encoding="utf-8"
            )
            environment = describe_environment(seed=seed, command=command)
            (run.path / "env.json").write_text(_to_json(environment), encoding="utf-8")
        run._become_latest(root)
        return run

    @classmethod
    def open(cls, run: str | Path, root: Path = RUNS) -> RunDirectory:
        """Finds the run that a path, a name under ``root`` or ``latest`` means.

        Raises:
            UserError: there is none, with the names nearest to it; or it is not a run.
        """
        path = _latest(root) if str(run) == LATEST else _existing(Path(run), root)
        if not (path / "config.yaml").is_file():
            raise UserError(
                f"{path} is not a run directory: it has no config.yaml", _known_runs(run, root)
            )
        return cls(path.resolve())

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.name

    @property
    def shown(self) -> str:
        """The path as a person would type it: relative where it lies below here."""
        return shown_path(self.path)

    @property
    def checkpoints(self) -> Path:
        """Directory of ``last.pt`` and ``best.pt``."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """Directory of ``rank_N.log``."""
        return self.path / "logs"

    def best_checkpoint(self) -> Path:
        """The checkpoint of the best epoch.

        Raises:
            UserError: there is none yet.
        """
        return self._checkpoint("best", "no epoch was evaluated")

    def last_checkpoint(self) -> Path:
        """The checkpoint of the last epoch.

        Raises:
            UserError: there is none yet.
        """
        return self._checkpoint("last", "no epoch was finished")

    def _checkpoint(self, name: str, reason: str) -> Path:
        path = self.checkpoints / f"{name}.pt"
        if not path.is_file():
            raise UserError(
                f"the run {self.shown} has no {name} checkpoint yet: {reason}",
                f"Train it first; {self.shown}/logs/rank_0.log tells how far it came.",
            )
        return path

    def config(self) -> dict[str, Any]:
        """The resolved configuration of the run.

        Raises:
            UserError: ``config.yaml`` cannot be read.
        """
        path = self.path / "config.yaml"
        try:
            config = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
        if not isinstance(config, dict):
            raise UserError(f"{path} holds no configuration, but a {type(config).__name__}")
        return config

    def write_summary(self, summary: Summary) -> None:
        """Writes ``summary.json`` in one step: a reader sees the old one, none, or this one.

        Raises:
            RunError: it cannot be written.
        """
        path = self.path / "summary.json"
        try:
            _write_atomically(path, _to_json(summary.to_dict()))
        except OSError as error:
            raise RunError(
                f"{path} cannot be written: {error.strerror or error}", _hint(error)
            ) from error

    def summary(self) -> dict[str, Any] | None:
        """What ``summary.json`` holds, or ``None`` where the run has none (yet)."""
        try:
            found = json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def _claim(self, config: Mapping[str, Any]) -> None:
        text = yaml.safe_dump(_plain(config), sort_keys=False, allow_unicode=True)
        path = self.path / "config.yaml"
        try:
            file = path.open("x", encoding="utf-8")
        except FileExistsError:
            raise _occupied(self.path) from None
        try:
            with file:
                file.write(text)
        except OSError:
            path.unlink(missing_ok=True)  # or the next try would find a run here
            raise

    def _become_latest(self, root: Path) -> None:
        """Points ``root/latest`` to this run, if it can: it is a convenience, not a promise."""
        with contextlib.suppress(OSError):
            if not root.is_dir():
                return
            target = os.path.relpath(self.path, root.absolute())
            link = root / f".{LATEST}-{os.getpid()}-{self.name}"
            link.symlink_to(target, target_is_directory=True)
            try:
                link.replace(root / LATEST)
            except OSError:
                link.unlink()


def _wanted_path(directory: str | Path | None, name: str | None, root: Path) -> Path | None:
    if directory is not None:
        return Path(directory).expanduser()
    if name is None:
        return None
    if not name.strip() or name == LATEST or Path(name).is_absolute() or ".." in Path(name).parts:
        raise UserError(
            f"run.name={name!r} cannot name a run",
            f"Give a plain name: the run goes to {root}/<name> ('{LATEST}' is taken). "
            "For a directory elsewhere use run.dir=DIR.",
        )
    return root / name


def _make_empty(path: Path) -> Path:
    """Makes ``path``, or takes it as it is where it is an empty directory."""
    path.mkdir(parents=True, exist_ok=True)
    if any(path.iterdir()):
        raise _occupied(path)
    return path


def _make_unique(root: Path, default_name: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    stem = f"{default_name}-{datetime.now():%Y%m%d-%H%M%S}"
    number = 1
    while True:
        path = root / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def _occupied(path: Path) -> UserError:
    is_run = any((path / name).exists() for name in ("config.yaml", "summary.json"))
    what = "holds a run already" if is_run else "is not empty"
    return UserError(
        f"the run directory {path} {what}; nothing was overwritten",
        "Choose another with run.name=NAME or run.dir=DIR, or remove it first.",
    )


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turns what the file system refuses into a sentence."""
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(
            f"the run directory {path} cannot be made: a part of its path is a file",
            "Choose another place with run.dir=DIR.",
        ) from error
    except OSError as error:
        raise UserError(
            f"the run directory {path} cannot be written: {error.strerror or error}", _hint(error)
        ) from error


def _hint(error: OSError) -> str:
    if error.errno in _NO_SPACE:
        return "Free some space, or choose another disk with run.dir=DIR."
    return "Choose a place you may write to with run.dir=DIR."


def _existing(run: Path, root: Path) -> Path:
    for path in (run.expanduser(), root / run):
        if path.is_dir():
            return path
    raise UserError(f"there is no run {str(run)!r}", _known_runs(run, root))


def _latest(root: Path) -> Path:
    """Where ``latest`` points; the newest run on a file system that knows no symbolic links."""
    link = root / LATEST
    if link.is_dir():
        return link
    runs = _runs(root)
    if not runs:
        raise UserError(
            f"there is no run under {root.absolute()} yet",
            "Train one with `gnntrain`, or give the path of a run directory.",
        )
    return max(runs, key=lambda path: (path / "config.yaml").stat().st_mtime)


def _runs(root: Path) -> list[Path]:
    return [path.parent for path in root.glob("*/config.yaml") if path.parent.name != LATEST]


def _known_runs(run: str | Path, root: Path) -> str:
    names = sorted(path.name for path in _runs(root))
    if not names:
        return f"There are no runs under {root.absolute()}; give the path of a run directory."
    near = difflib.get_close_matches(Path(run).name, names, n=3, cutoff=0.5)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    return f"Runs under {root}: {', '.join(names[-5:])}; or give the path of a run directory."


def _plain(value: Any) -> Any:
    """The value in what YAML's safe writer knows: tuples as lists, paths as strings."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, os.PathLike) else value


def _to_json(value: Any) -> str:
    return json.dumps(json_safe(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _write_atomically(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the new name must outlive a crash too
    finally:
        os.close(directory)
