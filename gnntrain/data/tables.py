"""Tables of a user's graph, read once from front to back, a batch of rows at a time.

A table has named columns, whatever file it is: Parquet, arrays (npy, npz, pt) or delimited text
(`gnntrain.data.text_table`).
"""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from gnntrain.data.bad_rows import BadRows, Record
from gnntrain.data.columns import (
    TEXT,
    BoolArray,
    missing_marks,
    to_matrix,
    to_plain,
    width_of,
    with_decimal_point,
)
from gnntrain.data.graph import AnyArray, Int64Array
from gnntrain.data.preprocessing import Exact
from gnntrain.errors import UserError
from gnntrain.limits import available_memory

Role = Literal["id", "source", "target", "label", "split", "train", "val", "test"]
_LABEL_ROLES: tuple[Role, ...] = ("label", "split", "train", "val", "test")

PARQUET_SUFFIXES = (".parquet", ".pq")
MAX_COLUMNS = 100_000
_BATCH_ROWS = 1 << 18
_BATCH_VALUES = 1 << 22


@dataclass(frozen=True)
class Columns:
    """Columns of a table and their roles.

    Attributes:
        table: The table.
        places: The columns of ids, labels, split names and masks: their places in the table by
            role.
        numbers: Places of the columns of numbers.
        others: Places of columns that are kept as they are written.
    """

    table: Table
    places: Mapping[Role, int]
    numbers: Sequence[int]
    others: Sequence[int] = ()

    @property
    def names_of_numbers(self) -> dict[int, str]:
        """Names of the columns of numbers by their places."""
        return {place: self.table.shown(place) for place in self.numbers}

    @property
    def all_places(self) -> list[int]:
        """Places of all columns that are read, each once."""
        return list(dict.fromkeys((*self.places.values(), *self.numbers, *self.others)))

    def batches(self, num_rows: int = 0) -> Iterator[Rows]:
        """Read the columns in batches of `num_rows` rows or more, but for the last one.

        Raises:
            UserError: The file cannot be read.
        """
        group: list[Rows] = []
        for batch in self.table.batches(self):
            group.append(batch)
            if sum(map(len, group)) >= num_rows:
                yield _concatenate(group)
                group = []
        if group:
            yield _concatenate(group)

    def read(self) -> Rows:
        """Read the columns as a whole, those with a role as `to_plain` makes them.

        Raises:
            UserError: The file cannot be read.
        """
        table = self.table
        array = table.array(self.numbers)
        to_read = self if array is None else replace(self, numbers=())
        whole = _concatenate(list(table.batches(to_read)))
        return self._finished(whole if array is None else replace(whole, matrix=array))

    def select(self, rows: Rows) -> Rows:
        """As `read`, of rows that have these columns among their `others`."""
        numbers = [with_decimal_point(rows.others[at], self.table.decimal) for at in self.numbers]
        matrix, widths, exact = to_matrix(numbers, len(rows), [None] * len(numbers))
        roles = {role: rows.others[place] for role, place in self.places.items()}
        found = replace(rows, columns=roles, matrix=matrix, exact=exact, widths=widths, others={})
        return self._finished(found)

    def _finished(self, rows: Rows) -> Rows:
        """The columns with a role as `to_plain` makes them."""
        with readable(self.table.path):
            plain = {
                role: self.table.to_plain(column, labels=role in _LABEL_ROLES)
                for role, column in rows.columns.items()
            }
            marks = missing_marks(rows.columns["label"]) if "label" in plain else {}
        return replace(rows, source=self, columns=plain, missing_marks=marks)


@dataclass(frozen=True)
class Rows:
    """Rows of a table.

    Attributes:
        source: What was read.
        columns: Columns by role; null if missing.
        matrix: The columns of numbers: float32 `[num_rows, n]`, NaN if missing, infinite if not a
            number. (Arrays have their own type.)
        rows: int64 `[num_rows]`: each row's number in the file.
        end: Number of the first row behind them; rows that cannot be read are counted, too.
        nodes: int64 `[num_rows]`: which node each row speaks of; empty until that is known.
        others: Other columns by their places.
        exact: The columns of the matrix that float32 is too coarse for, in float64, by their places
            in it.
        widths: Columns of the matrix for each column of numbers, more than one for lists; empty:
            one each.
        missing_marks: Words that stand for a missing label, and how many times.
    """

    source: Columns
    columns: Mapping[Role, pa.Array]
    matrix: AnyArray
    rows: Int64Array
    end: int
    nodes: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    others: Mapping[int, pa.Array] = field(default_factory=dict)
    exact: Exact = field(default_factory=dict)
    widths: Sequence[int] = ()
    missing_marks: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def path(self) -> Path:
        """The file."""
        return self.source.table.path

    def is_missing(self, role: Role) -> BoolArray:
        """Which rows have no value in a role's column."""
        return np.asarray(self.columns[role].is_null().to_numpy(zero_copy_only=False), bool)

    def drop(
        self, mask: BoolArray, bad: BadRows, reason: Callable[[Record], str], hint: str = ""
    ) -> Rows:
        """The rows outside `mask`; those inside are bad, for this reason."""
        if not mask.any():
            return self
        bad.add(self.source.table, self.rows[mask], reason, hint)
        return self.keep(~mask)

    def keep(self, mask: BoolArray) -> Rows:
        """The rows inside `mask`."""
        return replace(
            self,
            columns={role: column.filter(mask) for role, column in self.columns.items()},
            matrix=self.matrix[mask],
            rows=self.rows[mask],
            nodes=self.nodes[mask] if len(self.nodes) else self.nodes,
            others={place: column.filter(mask) for place, column in self.others.items()},
            exact={place: column[mask] for place, column in self.exact.items()},
        )

    def drop_by_field(
        self, mask: BoolArray, bad: BadRows, role: Role, reason: str, hint: str = ""
    ) -> Rows:
        """As `drop`; `{}` in the reason stands for the row's field in a role."""
        place = self.source.places[role]
        return self.drop(mask, bad, lambda row: reason.format(repr(row[place])), hint)

    def drop_missing(self, role: Role, bad: BadRows, reason: str, hint: str = "") -> Rows:
        """The rows that have a value in a role's column."""
        return self.drop(self.is_missing(role), bad, lambda _: reason, hint)


def _concatenate(group: Sequence[Rows]) -> Rows:
    if len(group) == 1:
        return group[0]
    roles, others = group[0].columns, group[0].others
    return replace(
        group[-1],
        columns={role: pa.concat_arrays([some.columns[role] for some in group]) for role in roles},
        others={
            place: pa.concat_arrays([some.others[place] for some in group]) for place in others
        },
        matrix=np.concatenate([some.matrix for some in group]),
        rows=np.concatenate([some.rows for some in group]),
        exact={
            place: np.concatenate([some.exact.get(place, some.matrix[:, place]) for some in group])
            for place in {place for some in group for place in some.exact}
        },
    )


ColumnBatch = tuple[Mapping[int, pa.Array], Int64Array, int]
"""Columns by their places in the table, `Rows.rows` and `Rows.end`."""


class Table(ABC):
    """A file of rows with named columns.

    Attributes:
        path: The file.
        names: Names of the columns.
        unit: What a row is called in messages: "line" (from 1) or "row" (from 0).
        decimal: Decimal mark of the numbers.
        heading: The fields of a text's first line that was not seen to be a header.
        null_width: Numbers in a row of a column of Arrow's type null; None: another file may have
            lists there.
    """

    path: Path
    names: tuple[str, ...]
    unit: Literal["line", "row"] = "row"
    note: str = ""
    decimal: str = "."
    heading: tuple[str, ...] = ()
    null_width: int | None = 1

    def array(self, numbers: Sequence[int]) -> AnyArray | None:  # noqa: ARG002
        """Columns of numbers as an array that need not be read, if the file has them so."""
        return None

    def batches(self, columns: Columns) -> Iterator[Rows]:
        """Read some of the columns from front to back, as they are written: one batch at least.

        Raises:
            UserError: The file cannot be read.
        """
        widths: list[int | None] = [None] * len(columns.numbers)
        end: int | None = None
        held: list[ColumnBatch] = []  # until a list is there that tells a column's width
        with readable(self.path):
            for batch in self.read_columns(columns):
                held.append(batch)
                found, _, end = batch
                for i, place in enumerate(columns.numbers):
                    if widths[i] is None:
                        column = found[place]
                        is_null = pa.types.is_null(column.type)
                        widths[i] = self.null_width if is_null else width_of(column)
                if None not in widths:
                    yield from (self._rows_of(columns, batch, widths) for batch in held)
                    held.clear()
            yield from (self._rows_of(columns, batch, widths) for batch in held)
        if end is None:
            by_role = dict.fromkeys(columns.places, pa.array([], TEXT))
            others = dict.fromkeys(columns.others, pa.array([], TEXT))
            matrix = np.empty((0, len(columns.numbers)), np.float32)
            yield Rows(columns, by_role, matrix, np.arange(0), 0, others=others)

    def _rows_of(self, columns: Columns, batch: ColumnBatch, widths: Sequence[int | None]) -> Rows:
        found, rows, end = batch
        numbers = [found[place] for place in columns.numbers]
        matrix, known, exact = to_matrix(numbers, len(rows), widths)
        by_role = {role: found[place] for role, place in columns.places.items()}
        others = {place: found[place] for place in columns.others}
        return Rows(columns, by_role, matrix, rows, end, others=others, exact=exact, widths=known)

    def by_file(self, rows: Int64Array) -> Iterator[tuple[Table, Int64Array]]:
        """The rows of each file, numbered as in that file; `rows` are in ascending order."""
        yield self, rows

    @abstractmethod
    def read_columns(self, columns: Columns) -> Iterator[ColumnBatch]:
        """Batches of some of the columns, from front to back."""

    @abstractmethod
    def records(self, rows: Int64Array) -> list[tuple[int, Record]]:
        """Number and all fields of some rows, given in ascending order, for messages; slow."""

    def shown(self, place: int) -> str:
        """A column's name, or its number where the name is empty."""
        return self.names[place] or str(place)

    def to_plain(self, column: pa.Array, *, labels: bool) -> pa.Array:
        """A whole column as int64, text or, of `labels`, float64 (see `columns.to_plain`)."""
        return to_plain(column, labels=labels)


class ParquetTable(Table):
    """A Parquet file.

    Raises:
        UserError: It cannot be read, or unpacks to more than the free memory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with readable(path):
            metadata = parquet.read_metadata(path)
            self.names = checked_names(metadata.schema.to_arrow_schema().names)
        self._num_rows = metadata.num_rows

    def read_columns(self, columns: Columns) -> Iterator[ColumnBatch]:
        places = columns.all_places
        # Equal values are written once: a small file may hold any number of rows.
        refuse_beyond_memory(self.path, 4 * self._num_rows * len(places))
        start = 0
        for batch in self._record_batches(places):
            end = start + batch.num_rows
            found = {place: decoded(batch[self.names[place]]) for place in places}
            yield found, np.arange(start, end), end
            start = end

    def _record_batches(self, places: Sequence[int]) -> Iterator[pa.RecordBatch]:
        num_rows = max(1, min(_BATCH_ROWS, _BATCH_VALUES // max(1, len(places))))
        with parquet.ParquetFile(self.path) as file:
            names = [self.names[place] for place in places]
            yield from file.iter_batches(num_rows, columns=names)

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


def checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names of a table's columns.

    Raises:
        ValueError: They are too many, or one stands twice.
    """
    if len(names) > MAX_COLUMNS:
        raise ValueError(f"it has {len(names):,} columns, more than {MAX_COLUMNS:,}")
    if len(set(names)) < len(names):
        raise ValueError("two of its columns have the same name")
    return tuple(names)


def decoded(column: pa.Array) -> pa.Array:
    """A column of a dictionary's codes as its values; other columns as they are."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn exceptions of file readers into a UserError."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, csv.Error) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> UserError:
    """The error for a file whose content does not match its suffix."""
    brief = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    return UserError(f"{path} cannot be read: {brief}", "Is it a file of the kind its name says?")


def refuse_beyond_memory(path: Path | str, num_bytes: int) -> None:
    """Raise a UserError if a file's unpacked size exceeds the free memory."""
    available = available_memory()
    if num_bytes > available:
        raise UserError(
            f"{path} unpacks to {num_bytes / 2**30:,.1f} GiB; "
            f"{available / 2**30:,.1f} GiB of memory are free.",
            "Give the array as an npy file, which is not read as a whole, or use a larger machine.",
        )
