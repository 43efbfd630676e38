"""The runs of a folder: how they ended, what they reached, how long they took."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gnntrain.limits import why_killed
from gnntrain.reporting.rundir import RunDirectory, is_running, run_directories
from gnntrain.reporting.text import format_metric, format_seconds, shown_metric

HEADER = ("run", "status", "metric", "val", "test", "best", "time")
NONE_YET = "None yet: `gnntrain` trains one."
_GOES_ON = ("killed", "interrupted", "failed")


def run_rows(root: Path) -> list[list[str]]:
    """All runs in `root` and its sweeps' folders, the newest first; a row each, under `HEADER`."""
    found = sorted(run_directories(root), key=_begun, reverse=True)
    return [_row(folder, root) for folder in found]


def run_notes(rows: Sequence[Sequence[str]]) -> list[str]:
    """Sentences for below the rows."""
    if not rows:
        return [NONE_YET]
    found = {row[1] for row in rows}
    notes = [f"killed: the run ended without a word; {why_killed()}."] if "killed" in found else []
    if found.intersection(_GOES_ON):
        notes.append("`gnntrain resume RUN` goes on with a run that did not complete.")
    return notes


def _begun(folder: Path) -> float:
    try:
        return (folder / "config.yaml").stat().st_mtime
    except OSError:  # removed meanwhile
        return 0.0


def _row(folder: Path, root: Path) -> list[str]:
    name, summary = str(folder.relative_to(root)), RunDirectory(folder).summary()
    if summary is None and (folder / "summary.json").exists():
        return [name, "unreadable", *["-"] * 5]
    if summary is None:  # validation and test are not known; the epochs are
        summary = {"status": "running" if is_running(folder) else "killed", "epochs": 0}
        with suppress(OSError):
            summary["epochs"] = (folder / "metrics.jsonl").read_bytes().count(b"\n")
    metric = summary.get("metric")
    return [
        name,
        str(summary.get("status", "unreadable")),
        "-" if metric is None else shown_metric(str(metric)),
        *(format_metric(_number(summary.get(split), metric)) for split in ("val", "test")),
        f"{summary.get('best_epoch') or '-'}/{summary.get('epochs', '-')}",
        format_seconds(_number(summary, "seconds_total")),
    ]


def _number(values: object, name: object) -> float | None:
    """A number of a summary, which may hold anything."""
    value = values.get(name) if isinstance(values, dict) else None
    return float(value) if isinstance(value, int | float) else None
