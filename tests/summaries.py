"""What a run's files tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def summary_of(run: Path | str = "run") -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(Path(run, "summary.json").read_text())
    return summary


def epochs_of(run: Path | str = "run") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]
