"""The runs of a folder: how they ended, what they reached, how long they took."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gnntrain.limits import why_killed
from gnntrain.reporting.run_lookup import is_running, run_directories
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
    name = str(folder.relative_to(root))
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return [name, "running" if is_running(folder) else "killed", "-", *_so_far(folder), "-"]
    except (OSError, ValueError):
        summary = None
    if not isinstance(summary, dict):
        return [name, "unreadable", "-", "-", "-", "-", "-"]
    metric = summary.get("metric")
    epochs, best = summary.get("epochs"), summary.get("best_epoch")
    return [
        name,
        str(summary.get("status", "unreadable")),
        "-" if metric is None else shown_metric(str(metric)),
        *(_figure(summary, split, metric) for split in ("val", "test")),
        f"{_number(best)}/{_number(epochs)}",
        format_seconds(_float(summary.get("seconds_total"))),
    ]


def _figure(summary: Mapping[str, Any], split: str, metric: object) -> str:
    metrics = summary.get(split)
    return format_metric(_float(metrics.get(metric)) if isinstance(metrics, dict) else None)


def _so_far(folder: Path) -> list[str]:
    """Validation and test of a run without a summary are not known; its epochs are."""
    try:
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    return ["-", "-", f"-/{len(lines)}"]


def _number(value: object) -> str:
    return str(value) if isinstance(value, int) else "-"


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
