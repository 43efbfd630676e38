"""Where runs lie, and which one a path, a name or `latest` means."""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import itertools
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gnntrain.errors import UserError
from gnntrain.paths import expanded, is_file, is_folder

RUNS = Path("runs")
SWEEPS = RUNS / "multirun"
LATEST = "latest"
LOCK_FILE = ".lock"  # of a run directory
_DEEPEST = 4  # runs/multirun/<sweep>/<group of trials>/<trial>
_LONGEST_NAME = 100


@dataclass(frozen=True)
class RunPlace:
    """Where Hydra has made the directory of a run."""

    path: Path
    is_made_up: bool = False  # nobody has named it: where another run takes it, there is a free one
    hydras: Sequence[str] = ()  # names of what Hydra may have written into it already


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
    """The folder of a new sweep: `run.dir`, or one under `runs/multirun` by `run.name` or a free
    name with the time."""
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
        UserError: there is none, with the names nearest to it; or it is something else.
    """
    if not isinstance(run, str | Path):  # a notebook's mistake
        hint = 'Give its directory, as in infer(summary["run"]).'
        raise UserError(f"a {type(run).__name__} is no run", hint)
    if str(run) == LATEST:
        # a file system may know no symbolic links
        runs = [root / LATEST] if (root / LATEST).is_dir() else newest_runs(root)
        if not runs:
            raise UserError(f"there is no run under {root.absolute()} yet", known_runs(run, root))
        return runs[0]
    places = [path for path in (expanded(run), root / run) if is_folder(path)]
    # A folder that is neither run nor sweep hides none; alone, its caller says what it lacks.
    known = [path for path in places if is_run(path) or is_file(path / "sweep.json")]
    if places:
        return (known or places)[0]
    raise UserError(f"there is no run {str(run)!r}", known_runs(run, root))


def is_run(folder: Path) -> bool:
    """Whether a folder is a run directory: many programs have a `config.yaml`."""
    names = ("summary.json", "overrides.txt", "checkpoints", "env.json")
    return is_file(folder / "config.yaml") and any((folder / name).exists() for name in names)


def has_checkpoint(folder: str | Path) -> bool:
    """Whether the run in a directory can go on."""
    return any(is_file(Path(folder, "checkpoints", name)) for name in ("last.pt", "last.prev.pt"))


def is_running(folder: Path) -> bool:
    """Whether a process trains in a run directory.

    Readers share the lock for a moment; a run that begins then tries again (`RunDirectory.held`).
    """
    try:
        with (folder / LOCK_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock, or a file system without
        return False
    return False


def run_directories(folder: Path, deepest: int = _DEEPEST) -> list[Path]:
    """The run directories below a folder, as a sweep by any sweeper leaves them.

    In the order of their names, numbers by their size. Links such as `latest` are not followed.
    """
    found: list[Path] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        folders = [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False)]
        folders = [path for path in folders if not path.name.startswith(".")]
        folders.sort(key=lambda p: (int(p.name) if p.name.isdecimal() else math.inf, p.name))
        for path in folders:
            if is_run(path):
                found.append(path)
            elif deepest > 1:
                found += run_directories(path, deepest - 1)
    return found


def newest_runs(root: Path) -> list[Path]:
    """The run directories directly under ``root``, the newest first."""
    configs = (path for path in root.glob("*/config.yaml") if path.parent.name != LATEST)
    return [path.parent for path in sorted(configs, key=lambda p: p.stat().st_mtime, reverse=True)]


def known_runs(run: str | Path, root: Path = RUNS) -> str:
    """A hint at the runs there are, the nearest names first."""
    names = [path.name for path in newest_runs(root)]
    if not names:
        return "Train one with `gnntrain`, or give the path of a run directory."
    near = difflib.get_close_matches(Path(run).name, names, n=3, cutoff=0.7)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    return f"The newest run under {root} is {names[0]}. `gnntrain ls runs` lists all."
