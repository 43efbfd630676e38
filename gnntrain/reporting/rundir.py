"""The run directory: what was asked, on what it ran, what came out. Made once, found again.

Layout: ``config.yaml  overrides.txt  env.json  store.json  metrics.jsonl
checkpoints/{last,last.prev,best}.pt  logs/rank_N.log  summary.json``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from filelock import FileLock, Timeout

from gnntrain.atomic_io import atomic_write
from gnntrain.config.yaml_files import read_yaml
from gnntrain.errors import RunError, UserError
from gnntrain.paths import is_file
from gnntrain.reporting.environment import describe_environment
from gnntrain.reporting.run_lookup import (
    LATEST,
    RUNS,
    RunPlace,
    find_run,
    free_run,
    known_runs,
    wanted_run,
)
from gnntrain.reporting.text import shown_path
from gnntrain.training.records import Summary, json_safe

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class StoreRecord:
    """Which graph a run is about.

    Attributes:
        path: Directory of the graph store.
        digest: Digest of its content.
        learnt: What a model trained on it takes and gives, plain values; ``None`` where the run
            does not say.
    """

    path: str
    digest: str
    learnt: dict[str, Any] | None = None


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
        place: RunPlace | None = None,
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
            default_name: What to begin a made-up name with, ``<dataset>-<model>``; what a folder
                name should not hold becomes ``_``.
            config: The resolved configuration, plain values.
            overrides: What was typed after the command, a line each in ``overrides.txt``.
            seed: Seed of the run, for ``env.json``.
            command: The command line, for ``env.json``; this process's own where ``None``.
            root: Where named runs lie.
            place: Where Hydra has made the directory, whatever ``directory`` and ``name`` are.

        Raises:
            UserError: the directory holds something already, cannot be written, or is misnamed.
            RunError: the disk is full.
        """
        wanted = wanted_run(directory, name, root) if place is None else place.path
        besides = () if place is None else place.hydras
        with explained(wanted or root):
            try:
                path = wanted and _make_empty(wanted, besides)
                run = cls((path or _make_unique(root, default_name)).absolute())
                run._claim(config)
            except UserError:
                if place is None or not place.is_made_up:
                    raise
                run = cls(_make_unique(root, default_name).absolute())
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
        path = find_run(run, root)
        if not is_file(path / "config.yaml"):
            raise UserError(
                f"{path} is not a run directory: it has no config.yaml", known_runs(run, root)
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
        path = self.checkpoints / "best.pt"
        if not os.path.lexists(path):  # what else is in its place is told by who reads it
            raise UserError(
                f"the run {self.shown} has no best checkpoint yet: no epoch was evaluated",
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
            config = read_yaml(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
        if not isinstance(config, dict):
            raise UserError(f"{path} holds no configuration, but a {type(config).__name__}")
        return config

    def note_changes(self, config: Mapping[str, Any], overrides: Sequence[str]) -> None:
        """Replaces the configuration by that of a run that goes on with changed keys.

        Args:
            config: The resolved configuration, plain values.
            overrides: What was typed, added to ``overrides.txt``.

        Raises:
            RunError: a file cannot be written.
        """
        self._write(
            "config.yaml", yaml.safe_dump(_plain(config), sort_keys=False, allow_unicode=True)
        )
        path = self.path / "overrides.txt"
        typed = path.read_text(encoding="utf-8") if path.is_file() else ""
        self._write("overrides.txt", typed + "".join(f"{item}\n" for item in overrides))

    def write_store_record(self, record: StoreRecord) -> None:
        """Keeps which graph the run is about in ``store.json``.

        Raises:
            RunError: it cannot be written.
        """
        self._write("store.json", _to_json(asdict(record)))

    def store_record(self) -> StoreRecord | None:
        """Which graph the run is about; ``None`` where the run does not say.

        Raises:
            UserError: ``store.json`` cannot be read.
        """
        path = self.path / "store.json"
        if not path.is_file():
            return None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return StoreRecord(str(found["path"]), str(found["digest"]), found.get("learnt"))
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise UserError(f"{path} cannot be read: {type(error).__name__} {error}") from error

    def write_summary(self, summary: Summary) -> None:
        """Writes ``summary.json`` in one step: a reader sees the old one, none, or this one.

        Raises:
            RunError: it cannot be written.
        """
        self.rewrite_summary(summary.to_dict())

    def rewrite_summary(self, content: Mapping[str, Any]) -> None:
        """Writes ``summary.json`` from plain values, as :meth:`write_summary` does."""
        self._write("summary.json", _to_json(content))

    def forget_summary(self) -> None:
        """Removes ``summary.json``: the run goes on, and has not ended yet."""
        (self.path / "summary.json").unlink(missing_ok=True)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other processes from training in this directory meanwhile.

        Raises:
            UserError: another one does.
        """
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise UserError(
                f"the run {self.shown} is still going on in another process",
                "Wait for its end, or end it first.",
            ) from None
        except (OSError, NotImplementedError):
            yield  # a file system without locks
            return
        try:
            yield
        finally:
            lock.release()

    def _write(self, name: str, text: str) -> None:
        path = self.path / name
        try:
            write_atomically(path, text)
        except OSError as error:
            raise RunError(
                f"{path} cannot be written: {error.strerror or error}", _hint(error)
            ) from error

    def summary(self) -> dict[str, Any] | None:
        """What ``summary.json`` holds, or ``None`` where the run has none (yet)."""
        try:
            found = json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
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


def _make_empty(path: Path, besides: Sequence[str] = ()) -> Path:
    """Makes ``path``, or takes it as it is where it is empty, but for the names ``besides``."""
    path.mkdir(parents=True, exist_ok=True)
    if any(entry.name not in besides for entry in path.iterdir()):
        raise _occupied(path)
    return path


def _make_unique(root: Path, default_name: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    while True:
        path = free_run(root, default_name)
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path


def _occupied(path: Path) -> UserError:
    is_run = any((path / name).exists() for name in ("config.yaml", "summary.json"))
    what = "holds a run already" if is_run else "is not empty"
    return UserError(
        f"the run directory {path} {what}; nothing was overwritten",
        "Choose another with run.name=NAME or run.dir=DIR, or remove it first.",
    )


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns what the file system refuses into a sentence."""
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(
            f"the run directory {path} cannot be made: a part of its path is a file",
            "Choose another place with run.dir=DIR.",
        ) from error
    except OSError as error:
        # A disk that is full is no mistake in what was asked.
        kind = RunError if error.errno in _NO_SPACE else UserError
        raise kind(
            f"the run directory {path} cannot be written: {error.strerror or error}", _hint(error)
        ) from error


def _hint(error: OSError) -> str:
    if error.errno in _NO_SPACE:
        return "Free some space, or choose another disk with run.dir=DIR."
    return "Choose a place you may write to with run.dir=DIR."


def _plain(value: Any) -> Any:
    """The value in what YAML's safe writer knows: tuples as lists, paths as strings."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, os.PathLike) else value


def _to_json(value: Any) -> str:
    return json.dumps(json_safe(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_atomically(path: Path, text: str) -> None:
    """Puts ``text`` at ``path`` in one step; where the disk refuses, what was there stays.

    Raises:
        OSError: it refuses.
    """
    with atomic_write(path) as file:
        file.write(text.encode("utf-8"))
