"""The tables a run keeps: ``metrics.jsonl`` and ``metrics.csv``, a row an epoch."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from gnntrain.errors import RunError
from gnntrain.reporting.rundir import RunDirectory, write_atomically
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

    Attributes:
        catches_up: Whether what failed with an OSError may be told again, and is then kept once.

    Args:
        run: The run directory.
        config: The resolved configuration, plain values.
    """

    catches_up: ClassVar[bool] = False

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


def append_whole(path: Path, piece: bytes) -> None:
    """Adds ``piece`` to the file at ``path``, all of it or, where the disk refuses, nothing.

    Raises:
        OSError: it refuses.
    """
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        if file.write(piece) != len(piece):
            file.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


class JsonlLogger(Logger):
    """``metrics.jsonl``: one JSON object an epoch, readable at once by whoever follows the file."""

    catches_up = True

    def on_epoch(self, record: EpochRecord) -> None:
        """Appends one line."""
        append_whole(self.run.path / "metrics.jsonl", _json_line(record).encode())


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
            write_atomically(path, "".join(map(_json_line, records)))
        path = run.path / "metrics.csv"
        if path.is_file():
            write_atomically(path, _csv_text(records))
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from error


def _json_line(record: EpochRecord) -> str:
    return json.dumps(json_safe(record.to_dict()), ensure_ascii=False, allow_nan=False) + "\n"


def _csv_text(records: Sequence[EpochRecord]) -> str:
    """The table of ``records``; nothing for none, so that the logger begins it."""
    rows = [json_safe(record.flat()) for record in records]
    columns = dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row)
    return _csv_rows(list(columns), [_header(columns), *rows]) if rows else ""


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
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            break  # killed in the middle of a line
        result.add(record, metric)
    return result


class CsvLogger(Logger):
    """``metrics.csv``: one row an epoch under columns that are known before the first one.

    The columns are those of an evaluated epoch, so that a run whose first epoch is not evaluated
    has them too. A record with a column of its own widens the table, once.
    """

    catches_up = True

    def __init__(self, run: RunDirectory, config: Mapping[str, Any]) -> None:
        super().__init__(run, config)
        self._path = run.path / "metrics.csv"
        self._columns: list[str] = []

    def on_start(self, info: RunInfo) -> None:
        """Writes the header, or takes over that of a file with rows."""
        rows = self._rows()
        self._rewrite(list(rows[0]) if rows else _evaluated_columns(info.metric), rows)

    def on_epoch(self, record: EpochRecord) -> None:
        """Appends one row."""
        row = json_safe(record.flat())
        unknown = [name for name in row if name not in self._columns]
        if unknown:
            self._rewrite([*self._columns, *unknown], self._rows())
        append_whole(self._path, _csv_rows(self._columns, [row]).encode())

    def _rows(self) -> list[dict[str, Any]]:
        if not self._path.is_file():
            return []
        with self._path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def _rewrite(self, columns: list[str], rows: list[dict[str, Any]]) -> None:
        write_atomically(self._path, _csv_rows(columns, [_header(columns), *rows]))
        self._columns = columns


def _csv_rows(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, columns).writerows(rows)
    return text.getvalue()


def _header(columns: Iterable[str]) -> dict[str, str]:
    return {name: name for name in columns}


def _evaluated_columns(metric: str) -> list[str]:
    """The columns of a record with all splits evaluated."""
    metrics = {split: {metric: 0.0} for split in SPLIT_ORDER}
    return list(EpochRecord(0, 0, 0.0, metrics, 0.0, 0.0, 0.0, 0.0, 0.0, 0).flat())
