"""The tables a run keeps: ``metrics.jsonl`` and ``metrics.csv``, a row an epoch."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from typing import Any

from gnntrain.reporting.rundir import RunDirectory
from gnntrain.training.records import (
    SPLIT_ORDER,
    EpochRecord,
    RunInfo,
    StepProgress,
    Summary,
    json_safe,
)


class Logger:
    """A listener that keeps the records of epochs and ignores what it does not override.

    Args:
        run: The run directory.
        config: The resolved configuration, plain values.
    """

    def __init__(self, run: RunDirectory, config: Mapping[str, Any]) -> None:
        self.run = run
        self.config = config

    def on_start(self, info: RunInfo) -> None:
        """Opens what is written to."""

    def on_step(self, progress: StepProgress) -> None:
        """Ignored: a step is news for a person, not for a curve."""

    def on_epoch(self, record: EpochRecord) -> None:
        """Keeps one epoch."""

    def on_message(self, text: str) -> None:
        """Ignored."""

    def on_finish(self, summary: Summary) -> None:
        """Closes what was opened."""


class JsonlLogger(Logger):
    """``metrics.jsonl``: one JSON object an epoch, readable at once by whoever follows the file."""

    def on_epoch(self, record: EpochRecord) -> None:
        """Appends one line."""
        line = json.dumps(json_safe(record.flat()), ensure_ascii=False, allow_nan=False)
        with (self.run.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")


class CsvLogger(Logger):
    """``metrics.csv``: one row an epoch under columns that are known before the first one.

    The columns are those of an evaluated epoch, so that a run whose first epoch is not evaluated
    has them too. A record with a column of its own widens the table, once.
    """

    def __init__(self, run: RunDirectory, config: Mapping[str, Any]) -> None:
        super().__init__(run, config)
        self._path = run.path / "metrics.csv"
        self._columns: list[str] = []

    def on_start(self, info: RunInfo) -> None:
        """Writes the header, or takes over that of a file with rows."""
        rows = self._rows()
        self._columns = list(rows[0]) if rows else _evaluated_columns(info.metric)
        self._rewrite(rows)

    def on_epoch(self, record: EpochRecord) -> None:
        """Appends one row."""
        row = json_safe(record.flat())
        unknown = [name for name in row if name not in self._columns]
        if unknown:
            rows = self._rows()
            self._columns += unknown
            self._rewrite(rows)
        with self._path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    def _rows(self) -> list[dict[str, Any]]:
        if not self._path.is_file():
            return []
        with self._path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def _rewrite(self, rows: list[dict[str, Any]]) -> None:
        draft = self._path.with_suffix(".csv.draft")
        with draft.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(rows)
        draft.replace(self._path)  # a full disk must not cost the rows there are


def _evaluated_columns(metric: str) -> list[str]:
    """The columns of a record with all splits evaluated."""
    metrics = {split: {metric: 0.0} for split in SPLIT_ORDER}
    return list(EpochRecord(0, 0, 0.0, metrics, 0.0, 0.0, 0.0, 0.0, 0.0, 0).flat())
