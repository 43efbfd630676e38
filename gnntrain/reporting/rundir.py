"""The run directory: where it lies, and the configuration, environment, metrics, checkpoints and
summary in it.

Layout: ``config.yaml  overrides.txt  env.json  store.json  metrics.jsonl
checkpoints/{last,last.prev,best}.pt  logs/rank_N.log  summary.json``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from gnntrain.atomic_io import atomic_write
from gnntrain.config.problems import did_you_mean
from gnntrain.config.yaml_files import read_yaml
from gnntrain.errors import GnntrainError, RunError, UserError
from gnntrain.paths import expanded, is_file, is_folder
from gnntrain.reporting.environment import describe_environment
from gnntrain.reporting.text import shown_path
from gnntrain.training.records import json_safe

RUNS = Path("runs")
SWEEPS = RUNS / "multirun"
LATEST = "latest"
_LOCK_FILE = ".lock"
_LOOK_SECONDS = 1.0  # more than `ls` and `report` take to see whether a run goes on
_DEEPEST = 4  # runs/multirun/<sweep>/<group of trials>/<trial>
_LONGEST_NAME = 100


@dataclass(frozen=True)
class RunPlace:
    """Where Hydra has made the directory of a run."""

    path: Path
    is_made_up: bool = False  # nobody has named it: where another run takes it, there is a free one
    hydras: Sequence[str] = ()  # names of what Hydra may have written into it already


@dataclass(frozen=True)
class StoreRecord:
    """The graph of a run."""

    path: str  # of the graph store
    digest: str  # of the store's content
    learnt: dict[str, Any] | None = None  # the `ModelSignature` of models; None: of an older run


@dataclass(frozen=True)
class RunDirectory:
    """One run's directory: a path with methods, cheap to send to a worker.

    Where a file cannot be written, a method raises a `RunError`; where one cannot be read, a
    `UserError`, but for `read` and `overrides`, which are empty then.
    """

    path: Path  # absolute

    @classmethod
    def create(
        cls,
        place: RunPlace,
        config: Mapping[str, Any],
        *,
        overrides: Sequence[str] = (),
        jobs: Mapping[str, str] | None = None,
    ) -> RunDirectory:
        """Make the directory of a new run and write its configuration and environment.

        A run claims its directory by creating ``config.yaml`` exclusively: of two runs that start
        at once on one directory, one gets an error, or ``-2``, ``-3`` … behind a name that is made
        up. ``runs/latest`` points to the new run, where there is a folder ``runs``.

        Args:
            place: The directory; must be empty where it exists.
            config: The resolved configuration, plain values.
            overrides: The overrides as typed, for ``overrides.txt``.
            jobs: The names of its job by launcher, for ``env.json``.

        Raises:
            UserError: the directory is not empty, or cannot be written.
            RunError: the disk is full.
        """
        path, text = place.path.absolute(), _to_yaml(config)
        with explained(place.path):
            while not _claimed(path, text, place.hydras):
                if not place.is_made_up:
                    raise occupied(path)
                path = free(place.path.absolute())
            (path / "overrides.txt").write_text("".join(f"{o}\n" for o in overrides), "utf-8")
            environment = describe_environment(seed=config["trainer"]["seed"])
            cls(path).write("env.json", environment | ({"jobs": dict(jobs)} if jobs else {}))
        with contextlib.suppress(OSError):  # a file system without links
            link = RUNS / f".{LATEST}-{os.getpid()}"
            link.symlink_to(os.path.relpath(path, RUNS.absolute()))
            link.replace(RUNS / LATEST)  # in one step: other runs begin, too
        return cls(path)

    @classmethod
    def open(cls, run: str | Path, root: Path = RUNS) -> RunDirectory:
        """Find a run by its path, its name under ``root``, or ``latest``.

        Raises:
            UserError: there is no such run; the hint has the nearest name.
        """
        path = find_run(run, root)
        if not is_file(path / "config.yaml"):
            words = f"{path} is not a run directory: it has no config.yaml"
            raise UserError(words, known_runs(run, root))
        return cls(path.resolve())

    @property
    def shown(self) -> str:
        """The path as a person would type it: relative where it lies below here."""
        return shown_path(self.path)

    @property
    def checkpoints(self) -> Path:
        """Directory of ``last.pt`` and ``best.pt``."""
        return self.path / "checkpoints"

    def best_checkpoint(self) -> Path:
        """The checkpoint of the best epoch.

        Raises:
            UserError: there is none yet.
        """
        path = self.checkpoints / "best.pt"
        if not os.path.lexists(path):  # the reader reports a broken link or a folder
            raise UserError(
                f"the run {self.shown} has no best checkpoint yet: no epoch was evaluated",
                f"Train it first; {self.shown}/logs/rank_0.log tells how far it came.",
            )
        return path

    def config(self) -> dict[str, Any]:
        """The resolved configuration of the run."""
        path = self.path / "config.yaml"
        try:
            config = read_yaml(path.read_text("utf-8"))
            if isinstance(config, dict):
                return config
            raise ValueError(f"it holds no configuration, but a {type(config).__name__}")
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from error

    def overrides(self) -> list[str]:
        """The overrides as typed."""
        with contextlib.suppress(OSError):
            return (self.path / "overrides.txt").read_text("utf-8", "replace").splitlines()
        return []

    def note_changes(self, config: Mapping[str, Any], overrides: Sequence[str]) -> None:
        """Replace the configuration of a run that is resumed with changed keys, and add the
        overrides as typed."""
        self._write("config.yaml", _to_yaml(config))
        self._write("overrides.txt", "".join(f"{o}\n" for o in [*self.overrides(), *overrides]))

    def store_record(self) -> StoreRecord | None:
        """The graph of the run; ``None`` where there is no ``store.json``."""
        path = self.path / "store.json"
        try:
            return TypeAdapter(StoreRecord).validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {type(error).__name__} {error}") from error

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a file of JSON, such as ``summary.json``."""
        text = json.dumps(json_safe(content), indent=2, ensure_ascii=False, allow_nan=False)
        self._write(name, text + "\n")

    def summary(self) -> dict[str, Any] | None:
        """The content of ``summary.json``; see `read`."""
        return self.read("summary.json")

    def read(self, name: str) -> dict[str, Any] | None:
        """The content of a file of JSON; ``None`` where there is none, or no valid one."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            found = json.loads((self.path / name).read_text("utf-8"))
            return found if isinstance(found, dict) else None
        return None

    def _write(self, name: str, text: str) -> None:
        with explained(self.path / name, RunError):
            write_atomically(self.path / name, text)


def _claimed(path: Path, config: str, besides: Sequence[str]) -> bool:
    """Make a run directory with its ``config.yaml``; False where it has more than the names
    ``besides`` and the empty folders of a run that was killed as it began."""
    folders = ("checkpoints", "logs")
    path.mkdir(parents=True, exist_ok=True)
    for entry in path.iterdir():
        is_left = entry.name in folders and is_folder(entry) and not any(entry.iterdir())
        if entry.name not in besides and not is_left:
            return False
    for name in folders:  # first: a run that is killed at any moment can be begun anew
        (path / name).mkdir(exist_ok=True)
    target = path / "config.yaml"
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(config)
    except FileExistsError:
        return False
    except OSError:
        target.unlink(missing_ok=True)  # the next try would take it for a run
        raise
    return True


def planned_run(directory: str | None, name: str | None, dataset: str, model: str) -> str:
    """The directory of a new run: `run.dir`, `runs/<run.name>`, or a free name with the time.

    Raises:
        UserError: The name cannot be that of a run.
    """
    if directory is not None:
        return str(expanded(directory))
    if name is None:
        plain = re.sub(r"[^\w.+=,-]+", "_", f"{dataset}-{model}").strip("._-")[:_LONGEST_NAME]
        return str(free(RUNS / f"{plain}-{datetime.now():%Y%m%d-%H%M%S}"))
    if not name.strip() or name == LATEST or Path(name).is_absolute() or ".." in Path(name).parts:
        raise UserError(
            f"run.name={name!r} cannot name a run",
            f"Give a plain name: the run goes to {RUNS}/<name> ('{LATEST}' is taken). "
            "For a directory elsewhere use run.dir=DIR.",
        )
    return str(RUNS / name)


def planned_sweep(directory: str | None, name: str | None) -> str:
    """The folder of a new sweep: `run.dir`, or one under `runs/multirun` by `run.name` or time."""
    if directory is not None:
        return str(expanded(directory))
    return str(free(SWEEPS / f"{datetime.now():%Y%m%d-%H%M%S}") if name is None else SWEEPS / name)


def free(path: Path) -> Path:
    """The path, or with ``-2``, ``-3`` … the first that is not there yet."""
    names = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(one for one in itertools.chain([path], names) if not one.exists())


def find_run(run: str | Path, root: Path = RUNS) -> Path:
    """The directory that a path, a name under ``root`` or ``latest`` means.

    Raises:
        UserError: there is none, with the name nearest to it.
    """
    if not isinstance(run, str | Path):  # a notebook's mistake
        hint = 'Give its directory, as in infer(summary["run"]).'
        raise UserError(f"a {type(run).__name__} is no run", hint)
    places = [path for path in (expanded(run), root / run) if is_folder(path)]
    if str(run) == LATEST:  # a file system may know no symbolic links
        places = [root / LATEST] if (root / LATEST).is_dir() else newest_runs(root)[:1]
    if not places:
        words = f"there is no run {str(run)!r}, nor is one under {root.absolute()}"
        raise UserError(words, known_runs(run, root))
    # A folder that is neither run nor sweep hides none; alone, its caller says what it lacks.
    return next((one for one in places if is_run(one) or is_file(one / "sweep.json")), places[0])


def known_runs(run: str | Path, root: Path = RUNS) -> str | None:
    """A hint at the run with the nearest name, or at the newest."""
    names = [path.name for path in newest_runs(root)]
    if not names:
        return "Train one with `gnntrain`, or give the path of a run directory."
    newest = f"The newest run under {root} is {names[0]}. `gnntrain ls runs` lists all."
    return did_you_mean(Path(run).name, names, newest)


def is_run(folder: Path) -> bool:
    """Whether a folder is a run directory: many programs have a `config.yaml`."""
    names = ("summary.json", "overrides.txt", "checkpoints", "env.json")
    return is_file(folder / "config.yaml") and any((folder / name).exists() for name in names)


def has_checkpoint(folder: str | Path) -> bool:
    """Whether a run has written a checkpoint to go on from, damaged or not."""
    return any(is_file(Path(folder, "checkpoints", name)) for name in ("last.pt", "last.prev.pt"))


@contextlib.contextmanager
def held(folder: Path, what: str = "run") -> Iterator[None]:
    """Lock the folder of a run or a sweep against other processes that train.

    Raises:
        UserError: another process has locked it; or see `refuse_links`.
    """
    refuse_links(folder)
    lock = FileLock(folder / _LOCK_FILE)
    try:
        lock.acquire(timeout=_LOOK_SECONDS)
    except Timeout:
        words = f"the {what} {shown_path(folder)} is still going on in another process"
        raise UserError(words, "Wait for its end, or end it first.") from None
    except (OSError, NotImplementedError):
        pass  # a file system without locks
    try:
        yield
    finally:
        lock.release()


def is_running(folder: Path) -> bool:
    """Whether a process trains in a run directory.

    Readers share the lock for a moment; a run that begins then tries again (`held`).
    """
    try:
        with (folder / _LOCK_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock, or a file system without
        pass
    return False


def run_directories(root: Path) -> list[Path]:
    """The run directories below a folder, as a sweep by any sweeper leaves them, at most four
    levels deep. In the order of their names, numbers by their size; links are not followed."""
    found: list[Path] = []
    for folder, names, _ in os.walk(root):
        path = Path(folder)
        depth = len(path.relative_to(root).parts)
        if is_found := depth > 0 and is_run(path):
            found.append(path)
        if is_found or depth == _DEEPEST:
            names.clear()  # no look below
        names[:] = [name for name in names if not name.startswith(".")]
        names.sort(key=lambda name: (int(name) if name.isdecimal() else math.inf, name))
    return found


def newest_runs(root: Path) -> list[Path]:
    """The run directories directly under ``root``, the newest first."""
    configs = (path for path in root.glob("*/config.yaml") if path.parent.name != LATEST)
    return [path.parent for path in sorted(configs, key=lambda p: p.stat().st_mtime, reverse=True)]


def link_out(folder: Path) -> Path | None:
    """A link in the folder of a run or a sweep that leads out of it."""
    home = os.path.realpath(folder)
    for place in ("", "checkpoints", "logs", "tensorboard"):
        with contextlib.suppress(OSError):
            for entry in Path(home, place).iterdir():
                if entry.is_symlink() and not Path(os.path.realpath(entry)).is_relative_to(home):
                    return entry
    return None


def refuse_links(folder: Path) -> None:
    """Refuse to write where a stranger may have put links to files of the user's.

    Raises:
        UserError: There is a link that leads out of the folder.
    """
    if (link := link_out(folder)) is not None:
        raise UserError(
            f"{shown_path(link)} is a link to {os.path.realpath(link)}, out of the folder: what is "
            "written would go there",
            "Remove the link, or copy the folder without links: `cp -rL`.",
        )


def occupied(path: Path) -> UserError:
    """The error for a run or a sweep in a folder that holds another."""
    what, hint = "is not empty", "Choose another with run.name=NAME or run.dir=DIR."
    if is_file(path / "config.yaml"):
        what = "holds a run already"
        hint += " A run goes on by its own command with run.if_exists=resume."
    return UserError(f"the folder {shown_path(path)} {what}; nothing was overwritten", hint)


@contextlib.contextmanager
def explained(path: Path, kind: type[GnntrainError] = UserError) -> Iterator[None]:
    """Turn an error of the file system into a sentence; a full disk is no mistake of the user."""
    try:
        yield
    except OSError as error:
        kind = RunError if error.errno in (errno.ENOSPC, errno.EDQUOT) else kind
        hint = "Free some space, or choose another place with run.dir=DIR."
        raise kind(f"{path} cannot be written: {error.strerror or error}", hint) from error


def _to_yaml(config: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` to ``path``; after a failure the old file is still there.

    Raises:
        OSError: the disk refuses.
    """
    with atomic_write(path) as file:
        file.write(text.encode("utf-8"))
