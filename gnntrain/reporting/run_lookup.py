"""Where runs lie, and which one a path, a name or `latest` means."""

from __future__ import annotations

import contextlib
import difflib
import math
import os
from collections.abc import Iterator
from pathlib import Path

from gnntrain.errors import UserError
from gnntrain.paths import expanded, is_file, is_folder

RUNS = Path("runs")
LATEST = "latest"
_DEEPEST = 4  # runs/multirun/<sweep>/<group of trials>/<trial>


def find_run(run: str | Path, root: Path) -> Path:
    """The directory that a path, a name under ``root`` or ``latest`` means.

    Raises:
        UserError: there is none, with the names nearest to it.
    """
    return _latest(root) if str(run) == LATEST else _existing(Path(run), root)


def _existing(run: Path, root: Path) -> Path:
    for path in (expanded(run), root / run):
        if is_folder(path):
            return path
    raise UserError(f"there is no run {str(run)!r}", known_runs(run, root))


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


def is_run(folder: Path) -> bool:
    """Whether a folder is a run directory: it has more of one than a file that many programs
    have."""
    names = ("summary.json", "overrides.txt", "checkpoints", "env.json")
    return is_file(folder / "config.yaml") and any((folder / name).exists() for name in names)


def run_directories(folder: Path) -> list[Path]:
    """The run directories below a folder, as a sweep by any sweeper leaves them.

    In the order of their names, numbers by their size. Links such as `latest` are not followed.
    """
    return list(_run_directories(folder, _DEEPEST))


def _run_directories(folder: Path, deepest: int) -> Iterator[Path]:
    for path in sorted(_folders(folder), key=_by_number):
        if is_run(path):
            yield path
        elif deepest > 1:
            yield from _run_directories(path, deepest - 1)


def _folders(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield Path(entry.path)


def _by_number(path: Path) -> tuple[float, str]:
    return (int(path.name) if path.name.isdecimal() else math.inf, path.name)


def _runs(root: Path) -> list[Path]:
    return [path.parent for path in root.glob("*/config.yaml") if path.parent.name != LATEST]


def known_runs(run: str | Path, root: Path) -> str:
    """A hint at the runs there are, the nearest names first."""
    names = sorted(path.name for path in _runs(root))
    if not names:
        return f"There are no runs under {root.absolute()}; give the path of a run directory."
    near = difflib.get_close_matches(Path(run).name, names, n=3, cutoff=0.7)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    return f"Runs under {root}: {', '.join(names[-5:])}; or give the path of a run directory."
