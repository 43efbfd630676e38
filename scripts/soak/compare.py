"""Whether two runs ended with the same numbers, bit for bit."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gnntrain.reporting.rundir import RunDirectory
from gnntrain.training.checkpoint import load_checkpoint

_TIMES = ("seconds", "eval_seconds", "seeds_per_s", "edges_per_s", "memory", "time")
_STATE = ("model", "optimizer", "schedule", "scaler", "loader", "step", "best_epoch", "best")
_SUMMARY = ("status", "epochs", "best_epoch", "train_loss", "train", "val", "test")


def differences(run: Path, undisturbed: Path) -> list[str]:
    """What differs: rows of the tables, states in the checkpoints, the summary; times aside."""
    found = []
    if _rows(run) != _rows(undisturbed):
        found.append("metrics.jsonl")
    if _told_in_csv(run) != _told_in_csv(undisturbed):
        found.append("metrics.csv")
    for name in ("last.pt", "best.pt"):
        states = [load_checkpoint(path / "checkpoints" / name) for path in (run, undisturbed)]
        found += [f"{name}: {key}" for key in _STATE if not _equal(*(s[key] for s in states))]
    summaries = [RunDirectory(path).summary() or {} for path in (run, undisturbed)]
    found += [
        f"summary.json: {key}" for key in _SUMMARY if not _equal(*(s.get(key) for s in summaries))
    ]
    return found


def _rows(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [_without_times(json.loads(line)) for line in lines]


def _told_in_csv(run: Path) -> list[dict[str, Any]]:
    with (run / "metrics.csv").open(newline="") as file:
        return [_without_times(row) for row in csv.DictReader(file)]


def _without_times(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k not in _TIMES and not k.startswith("time/")}


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)
