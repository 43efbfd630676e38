"""Run directories that no run has made."""

from __future__ import annotations

import json
from pathlib import Path

SUMMARY = {
    "status": "completed",
    "metric": "roc_auc",
    "val": {"roc_auc": 0.75},
    "test": {"roc_auc": 0.5},
    "epochs": 20,
    "best_epoch": 12,
    "seconds_total": 61.0,
}


def make_run(folder: Path, summary: object = None) -> Path:
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text("model: {}\n")
    if summary is not None:
        text = summary if isinstance(summary, str) else json.dumps(summary)
        (folder / "summary.json").write_text(text)
    return folder
