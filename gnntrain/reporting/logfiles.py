"""The metrics files of a run: ``metrics.jsonl`` and ``metrics.csv``, a row an epoch."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
from collections.abc import Mapping, Sequence
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
    """A listener that records epochs. Subclasses override the events that they need.

    Attributes:
        catches_up: Whether an event that failed with an OSError may be sent again.

    Args:
        run: The run directory.
        config: The resolved configuration, plain values.
        options: The logger's own options.
    """

    catches_up: ClassVar[bool] = False

    def __init__(self, run: RunDirectory, config: Mapping[str, Any], **options: Any) -> None:
        self.run = run
        self.config = config
        self.options = options

    def on_start(self, info: RunInfo) -> None:
        """Open files or connections."""

    def on_step(self, progress: StepProgress) -> None:
        """Ignored."""

    def on_epoch(self, record: EpochRecord) -> None:
        """Record one epoch."""

    def on_message(self, text: str) -> None:
        """Ignored."""

    def on_finish(self, summary: Summary) -> None:
        """Close files or connections."""


def append_whole(path: Path, piece: bytes) -> None:
    """Append ``piece`` to the file at ``path``, all of it or nothing.

    Raises:
        OSError: the disk refuses.
    """
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        if file.write(piece) != len(piece):
            file.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


class JsonlLogger(Logger):
    """``metrics.jsonl``: one JSON object an epoch, written at once."""

    catches_up = True

    def on_epoch(self, record: EpochRecord) -> None:
        """Append one line."""
        append_whole(self.run.path / "metrics.jsonl", _json_line(record).encode())


def restore_tables(run: RunDirectory, records: Sequence[EpochRecord]) -> None:
    """Rewrite the metrics files of a resumed run so that they hold exactly ``records``.

    A run that was killed may have written epochs after its last checkpoint, or half a line.

    Raises:
        RunError: a file cannot be written.
    """
    path = run.path / "metrics.jsonl"
    try:
        if records or path.is_file():
            write_atomically(path, "".join(map(_json_line, records)))
        path = run.path / "metrics.csv"
        if path.is_file():
            rows = [json_safe(record.flat()) for record in records]
            columns = dict.fromkeys(
                key for row in sorted(rows, key=len, reverse=True) for key in row
            )
            write_atomically(path, _to_csv(list(columns), rows, header=True) if rows else "")
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from error


def _json_line(record: EpochRecord) -> str:
    return json.dumps(json_safe(record.to_dict()), ensure_ascii=False, allow_nan=False) + "\n"


def reached(run: RunDirectory, metric: str) -> FitResult:
    """The epochs in ``metrics.jsonl``, for a run without a summary.

    Args:
        run: The run directory.
        metric: The metric that decides which epoch is the best.
    """
    result = FitResult()
    try:
        text = (run.path / "metrics.jsonl").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return result
    for line in text.splitlines():
        try:
            record = EpochRecord.from_dict(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            break  # the run was killed in the middle of a line
        result.add(record, metric)
    return result


class CsvLogger(Logger):
    """``metrics.csv``: one row an epoch.

    The columns are those of an evaluated epoch, also where the first epoch is not evaluated. A
    record with a new column widens the table, once.
    """

    catches_up = True

    def __init__(self, run: RunDirectory, config: Mapping[str, Any]) -> None:
        super().__init__(run, config)
        self._path = run.path / "metrics.csv"
        self._columns: list[str] = []

    def on_start(self, info: RunInfo) -> None:
        """Write the header, or take over that of a file with rows."""
        rows = self._rows()
        self._rewrite(list(rows[0]) if rows else _evaluated_columns(info.metric), rows)

    def on_epoch(self, record: EpochRecord) -> None:
        """Append one row."""
        row = json_safe(record.flat())
        unknown = [name for name in row if name not in self._columns]
        if unknown:
            self._rewrite([*self._columns, *unknown], self._rows())
        append_whole(self._path, _to_csv(self._columns, [row]).encode())

    def _rows(self) -> list[dict[str, Any]]:
        if not self._path.is_file():
            return []
        with self._path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def _rewrite(self, columns: list[str], rows: list[dict[str, Any]]) -> None:
        write_atomically(self._path, _to_csv(columns, rows, header=True))
        self._columns = columns


def _to_csv(
    columns: Sequence[str], rows: Sequence[Mapping[str, Any]], *, header: bool = False
) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns)
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _evaluated_columns(metric: str) -> list[str]:
    """The columns of a record with all splits evaluated."""
    metrics = {split: {metric: 0.0} for split in SPLIT_ORDER}
    return list(EpochRecord(0, 0, 0.0, metrics, 0.0, 0.0, 0.0, 0.0, 0.0, 0).flat())
