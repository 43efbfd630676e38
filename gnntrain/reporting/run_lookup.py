"""Where runs lie, and which one a path, a name or `latest` means."""

from __future__ import annotations

import difflib
from pathlib import Path

from gnntrain.errors import UserError
from gnntrain.paths import expanded, is_folder

RUNS = Path("runs")
LATEST = "latest"


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
