"""Tables of a user's graph, read once from front to back, a batch of rows at a time.

A table has named columns, whatever file it is: Parquet, arrays (npy, npz, pt) or delimited text
(`gnntrain.data.text_table`).
"""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import psutil
import pyarrow as pa
from pyarrow import parquet

from gnntrain.data.bad_rows import Record
from gnntrain.data.columns import to_matrix, to_plain
from gnntrain.data.graph import AnyArray, Float32Array, Int64Array
from gnntrain.errors import UserError

PARQUET_SUFFIXES = (".parquet", ".pq")
MAX_COLUMNS = 100_000
_BATCH_ROWS = 1 << 18
_BATCH_VALUES = 1 << 22


@dataclass(frozen=True)
class Batch:
    """Consecutive rows of a table.

    Attributes:
        columns: The columns that were asked for, as they are written.
        matrix: The columns of numbers: float32 `[num_rows, n]`, NaN if missing or not a number.
        rows: int64 `[num_rows]`: each row's number in the file.
        end: Number of the first row behind the batch; rows that cannot be read are counted, too.
    """

    columns: list[pa.Array]
    matrix: Float32Array
    rows: Int64Array
    end: int


@dataclass(frozen=True)
class Rows:
    """A whole table.

    Attributes:
        columns: The columns of ids, labels and split names: int64, float64 or text.
        matrix: The columns of numbers: `[num_rows, n]`, NaN if missing or not a number.
        rows: int64 `[num_rows]`: each row's number in the file.
        num_in_file: Number of rows in the file, those that cannot be read included.
    """

    columns: list[pa.Array]
    matrix: AnyArray
    rows: Int64Array
    num_in_file: int


class Table(ABC):
    """A file of rows with named columns.

    Attributes:
        path: The file.
        names: Names of the columns.
        unit: What a row is called in messages: "line" (from 1) or "row" (from 0).
    """

    path: Path
    names: tuple[str, ...]
    unit: Literal["line", "row"] = "row"

    @abstractmethod
    def batches(self, columns: Sequence[int], numbers: Sequence[int]) -> Iterator[Batch]:
        """Read some columns, by their places: ids, labels and the like, and numbers.

        Raises:
            UserError: The file cannot be read.
        """

    @abstractmethod
    def records(self, rows: Int64Array) -> list[tuple[int, Record]]:
        """Number and all fields of some rows, given in ascending order, for messages; slow."""

    def read(
        self, columns: Sequence[int], numbers: Sequence[int], fractions: Sequence[int] = ()
    ) -> Rows:
        """All rows at once; of `columns`, those in `fractions` may hold fractions, too.

        Raises:
            UserError: The file cannot be read.
        """
        chunks: list[list[pa.Array]] = [[] for _ in columns]
        matrix, rows = GrowingArray(np.float32, len(numbers)), GrowingArray(np.int64)
        end = 0
        for batch in self.batches(columns, numbers):
            for chunk, column in zip(chunks, batch.columns, strict=True):
                chunk.append(column)
            matrix.append(batch.matrix)
            rows.append(batch.rows)
            end = batch.end
        with readable(self.path):
            whole = [
                self._typed(pa.chunked_array(chunk, None if chunk else pa.null()), p in fractions)
                for p, chunk in zip(columns, chunks, strict=True)
            ]
        return Rows(whole, matrix.values, rows.values, end)

    def _typed(self, column: pa.ChunkedArray, fractions: bool) -> pa.Array:
        return to_plain(column.combine_chunks(), fractions=fractions)


def merge(batches: Iterable[Batch], num_rows: int) -> Iterator[Batch]:
    """The same rows in batches of `num_rows` or more, but for the last one."""
    group: list[Batch] = []
    for batch in batches:
        group.append(batch)
        if sum(len(some.rows) for some in group) >= num_rows:
            yield _concatenated(group)
            group = []
    if group:
        yield _concatenated(group)


def _concatenated(group: Sequence[Batch]) -> Batch:
    if len(group) == 1:
        return group[0]
    columns = zip(*(batch.columns for batch in group), strict=True)
    return Batch(
        [pa.concat_arrays(parts) for parts in columns],
        np.concatenate([batch.matrix for batch in group]),
        np.concatenate([batch.rows for batch in group]),
        group[-1].end,
    )


class GrowingArray:
    """An array that grows at its end, in place: memory never holds it twice.

    Args:
        dtype: Type of its values.
        width: Number of columns; None: it has one dimension.
    """

    def __init__(self, dtype: type[np.generic], width: int | None = None) -> None:
        self._array: AnyArray = np.empty((0,) if width is None else (0, width), dtype)
        self._length = 0

    def append(self, values: AnyArray) -> None:
        """Add rows; the first ones may be of another width than was told."""
        end = self._length + len(values)
        if end > len(self._array):
            self._resize((end + end // 8, *values.shape[1:]))
        self._array[self._length : end] = values
        self._length = end

    @property
    def values(self) -> AnyArray:
        """What was added; nothing may be added later."""
        self._resize((self._length, *self._array.shape[1:]))
        return self._array

    def _resize(self, shape: tuple[int, ...]) -> None:
        self._array.resize(shape, refcheck=False)  # nobody else holds it


class ParquetTable(Table):
    """A Parquet file.

    Raises:
        UserError: It cannot be read, or unpacks to more than the free memory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with readable(path):
            metadata = parquet.read_metadata(path)
            self.names = tuple(metadata.schema.to_arrow_schema().names)
            if len(self.names) > MAX_COLUMNS:
                raise ValueError(f"it has {len(self.names):,} columns, more than {MAX_COLUMNS:,}")
            if len(set(self.names)) < len(self.names):
                raise ValueError("two of its columns have the same name")
        self._num_rows = metadata.num_rows

    def batches(self, columns: Sequence[int], numbers: Sequence[int]) -> Iterator[Batch]:
        # Equal values are written once: a small file may hold any number of rows.
        refuse_beyond_memory(self.path, 4 * self._num_rows * (len(columns) + len(numbers)))
        start, width = 0, None
        with readable(self.path):
            for batch in self._record_batches([*columns, *numbers]):
                matrix = to_matrix(self._pick(batch, numbers), batch.num_rows, width)
                end, width = start + batch.num_rows, matrix.shape[1]
                yield Batch(self._pick(batch, columns), matrix, np.arange(start, end), end)
                start = end

    def _record_batches(self, places: Sequence[int]) -> Iterator[pa.RecordBatch]:
        num_rows = max(1, min(_BATCH_ROWS, _BATCH_VALUES // max(1, len(places))))
        with parquet.ParquetFile(self.path) as file:
            names = [self.names[place] for place in places]
            yield from file.iter_batches(num_rows, columns=names)

    def _pick(self, batch: pa.RecordBatch, places: Sequence[int]) -> list[pa.Array]:
        found = [batch.column(self.names[place]) for place in places]
        return [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in found]

    def records(self, rows: Int64Array) -> list[tuple[int, Record]]:
        found: list[tuple[int, Record]] = []
        start = 0
        for batch in self._record_batches(range(len(self.names))):
            here = rows[(rows >= start) & (rows < start + batch.num_rows)]
            fields = [column.to_pylist() for column in batch.take(here - start).columns]
            for number, row in zip(here.tolist(), zip(*fields, strict=True), strict=True):
                found.append((number, ["" if field is None else str(field) for field in row]))
            start += batch.num_rows
            if start > rows[-1]:
                break
        return found


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what readers of files raise into a UserError."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, csv.Error) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> UserError:
    """The error for a file that is not what its name says."""
    brief = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    return UserError(f"{path} cannot be read: {brief}", "Is it a file of the kind its name says?")


def refuse_beyond_memory(path: Path, num_bytes: int) -> None:
    """Raise a UserError where what a file says it unpacks to does not fit in the free memory."""
    available = psutil.virtual_memory().available
    if num_bytes > available:
        raise UserError(
            f"{path} unpacks to {num_bytes / 2**30:,.1f} GiB; "
            f"{available / 2**30:,.1f} GiB of memory are free.",
            "Give the array as an npy file, which is not read as a whole, or use a larger machine.",
        )
