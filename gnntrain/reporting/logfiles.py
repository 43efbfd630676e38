"""The tables a run keeps: ``metrics.jsonl`` and ``metrics.csv``, a row an epoch."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gnntrain.errors import RunError
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.training.records import (
    SPLIT_ORDER,
    EpochRecord,
    FitResult,
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
        with (self.run.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(_json_line(record))


def restore_tables(run: RunDirectory, records: Sequence[EpochRecord]) -> None:
    """Makes the run's tables hold exactly ``records``, before its loggers go on with the next one.

    A run that was killed may have told epochs that its checkpoint does not know, or not told one
    that it does, or only half a line of it. A table that is not there is not made, but for
    ``metrics.jsonl`` where there are records.

    Raises:
        RunError: a file cannot be written.
    """
    path = run.path / "metrics.jsonl"
    try:
        if records or path.is_file():
            _replace(path, "".join(map(_json_line, records)))
        path = run.path / "metrics.csv"
        if path.is_file():
            _replace(path, _csv_text(records))
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from error


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f"{path.name}.draft")
    with draft.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
    draft.replace(path)  # a full disk must not cost the rows there are


def _json_line(record: EpochRecord) -> str:
    return json.dumps(json_safe(record.to_dict()), ensure_ascii=False, allow_nan=False) + "\n"


def _csv_text(records: Sequence[EpochRecord]) -> str:
    """The table of ``records``; nothing for none, so that the logger begins it."""
    rows = [json_safe(record.flat()) for record in records]
    columns = dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row)
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(columns))
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def reached(run: RunDirectory, metric: str) -> FitResult:
    """What ``metrics.jsonl`` tells of a run that could not tell it itself.

    Args:
        metric: The metric that decides which epoch is the best.
    """
    result = FitResult()
    try:
        text = (run.path / "metrics.jsonl").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return result
    for line in text.splitlines():
        try:
            record = EpochRecord.from_flat(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            break  # killed in the middle of a line
        result.add(record, metric)
    return result


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
