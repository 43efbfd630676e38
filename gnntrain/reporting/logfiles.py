"""The metrics files of a run: ``metrics.jsonl`` and ``metrics.csv``, a row an epoch."""

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
    EpochRecord,
    FitResult,
    RunInfo,
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

    def on_epoch(self, record: EpochRecord) -> None:
        """Record one epoch."""

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


class CsvLogger(Logger):
    """``metrics.csv``: one row an epoch. A record with a new column widens the table, once."""

    catches_up = True

    def on_epoch(self, record: EpochRecord) -> None:
        """Append one row, or write the file anew with more columns."""
        path, row = self.run.path / "metrics.csv", json_safe(record.flat())
        rows: list[dict[str, Any]] = []
        if path.is_file():
            with path.open(encoding="utf-8", newline="") as file:
                reader = csv.DictReader(file)
                columns = reader.fieldnames or ()
                if row.keys() <= {*columns}:
                    append_whole(path, _to_csv([row], columns).encode())
                    return
                rows = [*reader]
        write_atomically(path, _to_csv([*rows, row]))


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
            write_atomically(path, _to_csv([json_safe(record.flat()) for record in records]))
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from error


def _json_line(record: EpochRecord) -> str:
    return json.dumps(json_safe(record.to_dict()), ensure_ascii=False, allow_nan=False) + "\n"


def _to_csv(rows: Sequence[Mapping[str, Any]], columns: Iterable[str] | None = None) -> str:
    """The rows under the columns of a file that has them; else a whole file, whose header has the
    columns of the longest row first."""
    text = io.StringIO()
    if columns is None:
        longest_first = sorted(rows, key=len, reverse=True)
        writer = csv.DictWriter(text, [*dict.fromkeys(key for row in longest_first for key in row)])
        if rows:
            writer.writeheader()
    else:
        writer = csv.DictWriter(text, [*columns])
    writer.writerows(rows)
    return text.getvalue()


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
