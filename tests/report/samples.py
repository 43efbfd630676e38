"""Run directories to report, written without training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gnntrain.config import Config
from gnntrain.reporting.rundir import RunDirectory, RunPlace
from gnntrain.training.records import EpochRecord, json_safe
from tests.reporting.samples import SUMMARY, record

TIME = {"wait": 0.1, "forward": 0.2, "backward": 0.2, "optimizer": 0.05, "evaluation": 0.2}


def records_of(*values: float) -> list[EpochRecord]:
    """An epoch for each validation accuracy; the test accuracy is half of it."""
    return [
        record(
            epoch,
            train_loss=1 / epoch,
            metrics={"val": {"accuracy": value}, "test": {"accuracy": value / 2}},
            time=TIME,
        )
        for epoch, value in enumerate(values, start=1)
    ]


def write_run(
    path: Path,
    records: Sequence[EpochRecord] = (),
    summary: dict[str, Any] | None = None,
    overrides: Sequence[str] = (),
    **keys: Any,
) -> Path:
    """A run directory of a synthetic graph that nobody has made.

    Args:
        path: The directory.
        records: Its epochs.
        summary: What differs from a completed run's; None: there is no summary.
        overrides: What was typed.
        keys: Keys of the trainer that differ from the defaults.
    """
    plain = Config().to_dict()
    config = plain | {"trainer": plain["trainer"] | keys}
    # a data set whose files are nowhere: nothing can be built again
    config["dataset"] = {"name": "files", "edges": "gone.csv", "features": "gone.npy"}
    run = RunDirectory.create(RunPlace(path), config, overrides=overrides)
    lines = [json.dumps(json_safe(record.to_dict())) + "\n" for record in records]
    (path / "metrics.jsonl").write_text("".join(lines))
    if summary is not None:
        run.write("summary.json", SUMMARY.to_dict() | summary)
    return path
