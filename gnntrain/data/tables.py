"""Tables of a user's graph, read once from front to back, a batch of rows at a time.

A `Table` has named columns, whatever file it is (`table_files`, `array_files`). `Columns` are those
that are read, with their uses; `Rows` are what was read; `BadRows` those that cannot be used.
"""

from __future__ import annotations

import csv
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from gnntrain.data.graph import AnyArray, BoolArray, Int64Array
from gnntrain.data.names import Role
from gnntrain.data.summary import first_names
from gnntrain.data.values import (
    TEXT,
    from_texts,
    missing_marks,
    to_matrix,
    to_plain,
    width_of,
    with_decimal_point,
)
from gnntrain.errors import UserError
from gnntrain.limits import available_memory

_LABEL_ROLES: tuple[Role, ...] = ("label", "split", "train", "val", "test")

MAX_COLUMNS = 100_000
_NUM_SHOWN = 10  # bad rows
_BAD = "bad, or only their label, split or key"

Record = Sequence[str]
"""One row's fields as text."""
Reason = str | Callable[[Record], str]
"""Why a row is bad; a function says it from the row's fields."""

Batch = tuple[Mapping[int, pa.Array], Int64Array, int]
"""Columns by their places in the table, the rows' numbers, and the number behind the last row."""

_logger = logging.getLogger("gnntrain")


class Table:
    """Rows with named columns: of a file, or of several with the same columns, one after the other.

    `stream` reads the columns with some names, batch by batch.
    """

    unit: Literal["line", "row"] = "row"  # in messages; lines count from 1, rows from 0
    decimal: str = "."
    heading: tuple[str, ...] = ()  # a text's first line that was not seen to be a header
    note: str = ""  # follows the file's name in messages
    files: Sequence[Table] = ()  # the tables of several files
    _held: Batch | None = None
    _ends: Sequence[int] = ()

    def __init__(
        self,
        path: Path,
        names: Sequence[str],
        stream: Callable[[list[str]], Iterable[pa.RecordBatch]],
        note: str = "",
    ) -> None:
        self.path, self.names, self.note = path, tuple(names), note
        self._stream = stream
        with readable(path):
            if len(names) > MAX_COLUMNS:
                raise ValueError(f"it has {len(names):,} columns, more than {MAX_COLUMNS:,}")
            if len(set(names)) < len(names):
                raise ValueError("two of its columns have the same name")

    @staticmethod
    def of_files(tables: Sequence[Table]) -> Table:
        """Tables of the same columns as one; the first one's path stands for all in messages."""
        first = tables[0]
        for table in tables:
            if table.names != first.names:
                raise UserError(
                    f"{table.path} has the columns {first_names(table.names)}; {first.path} has "
                    f"{first_names(first.names)}.",
                    "Files of one table need the same columns in the same order.",
                )
        if len(tables) == 1:
            return first
        whole = copy(first)
        whole.files, whole.note = tables, f" and {len(tables) - 1} more"
        return whole

    def part(self, columns: Mapping[int, pa.Array], rows: Int64Array) -> Table:
        """Some of its rows, whose columns are in memory, with the numbers that they have in it."""
        part = copy(self)
        part._held = columns, rows, int(rows[-1]) + 1 if len(rows) else 0
        return part

    @property
    def has_names(self) -> bool:
        """Whether its columns have names: without a header they are called by their places."""
        return not all(name.isdecimal() for name in self.names)

    def batches(self, places: Sequence[int]) -> Iterator[Batch]:
        """Read the columns at `places` from front to back: at least one batch.

        Columns of text files are texts.
        """
        if self._held is not None:
            yield self._held
            return
        ends: list[int] = []
        self._ends = ends
        first, end = 0, -1
        for file in self.files or (self,):
            with readable(file.path):
                for columns, rows, last in file.read(places):
                    end = first + last
                    yield columns, first + rows, end
            first = max(end, 0)
            ends.append(first)
        if end < 0:
            yield dict.fromkeys(places, pa.array([], TEXT)), np.arange(0), 0

    def read(self, places: Sequence[int]) -> Iterator[Batch]:
        """As `batches`, of one file."""
        start = 0
        for batch in self._stream([self.names[place] for place in places]):
            end = start + batch.num_rows
            # A dictionary's codes become its values.
            columns = [
                c.dictionary_decode() if pa.types.is_dictionary(c.type) else c
                for c in batch.columns
            ]
            yield dict(zip(places, columns, strict=True)), np.arange(start, end), end
            start = end

    def by_file(self, rows: Int64Array) -> Iterator[tuple[Table, Int64Array]]:
        """Rows that were read, in ascending order: each file, and their numbers in it."""
        if not self.files:
            yield self, rows
            return
        starts = [0, *self._ends]  # of the files that were read, and the one that is being read
        numbers = np.searchsorted(starts[: len(self.files)], rows, "right") - 1
        for i in np.unique(numbers).tolist():
            yield self.files[i], rows[numbers == i] - starts[i]

    def fields(self, rows: Int64Array) -> list[tuple[int, Record]]:
        """Number and all fields of some rows, given in ascending order, for messages; slow."""
        return [found for file, here in self.by_file(rows) for found in file.read_fields(here)]

    def read_fields(self, rows: Int64Array) -> list[tuple[int, Record]]:
        """As `fields`, of one file."""
        found: list[tuple[int, Record]] = []
        for columns, numbers, end in self.read(range(len(self.names))):
            here = rows[(rows >= end - len(numbers)) & (rows < end)]
            at = pa.array(here - (end - len(numbers)))
            lists = [column.take(at).to_pylist() for column in columns.values()]
            for number, row in zip(here.tolist(), zip(*lists, strict=True), strict=True):
                found.append((number, ["" if value is None else str(value) for value in row]))
            if end > rows[-1]:
                break
        return found

    def array(self, places: Sequence[int]) -> AnyArray | None:  # noqa: ARG002
        """Columns of numbers as an array that need not be read, if the file has them so."""
        return None

    def shown(self, place: int) -> str:
        """A column's name, or its number where the name is empty."""
        return self.names[place] or str(place)

    def to_plain(self, column: pa.Array, *, labels: bool) -> pa.Array:
        """A whole column as int64, text or, of `labels`, float64 (see `values.to_plain`)."""
        if self.unit == "line" and column.type == TEXT:
            return from_texts(column, labels=labels, decimal=self.decimal)
        return to_plain(column, labels=labels)


@dataclass(frozen=True)
class Columns:
    """Columns of a table, by their places in it, and their uses."""

    table: Table
    places: Mapping[Role, int]
    numbers: Sequence[int] = ()
    others: Sequence[int] = ()  # kept as they are written

    @property
    def all_places(self) -> list[int]:
        """Places of all columns that are read, each once."""
        return list(dict.fromkeys((*self.places.values(), *self.numbers, *self.others)))

    def unread(self) -> list[str]:
        """Names of the table's other columns."""
        places = {*range(len(self.table.names))}.difference(self.all_places)
        return [self.table.shown(place) for place in sorted(places)]

    def batches(self, num_rows: int = 0) -> Iterator[Rows]:
        """Read the columns in batches of `num_rows` rows or more, but for the last: at least one.

        Those with a role are as they are written.
        """
        widths: list[int | None] = [None] * len(self.numbers)
        held: list[Batch] = []  # also until a list is there that tells a column's width
        for batch in self.table.batches(self.all_places):
            held.append(batch)
            widths = [
                width_of(batch[0][place]) if width is None else width
                for place, width in zip(self.numbers, widths, strict=True)
            ]
            if None not in widths and sum(len(rows) for _, rows, _ in held) >= num_rows:
                yield _concatenate([self._rows(one, widths) for one in held])
                held = []
        if held:
            yield _concatenate([self._rows(one, widths) for one in held])

    def read(self) -> Rows:
        """Read the columns as a whole, those with a role as `to_plain` makes them."""
        array = self.table.array(self.numbers)
        if array is None:
            return self._finished(_concatenate(list(self.batches())))
        rows = _concatenate(list(replace(self, numbers=()).batches()))
        widths = dict.fromkeys(self.numbers, 1)
        return self._finished(replace(rows, source=self, matrix=array, widths=widths))

    def read_of(self, nodes: Rows) -> Rows:
        """As `read`, of the rows that are nodes; columns that were read with them are not again."""
        places = self.all_places
        if nodes.columns.keys() >= {*places}:
            batch = {place: nodes.columns[place] for place in places}, nodes.rows, nodes.end
            rows = self._finished(self._rows(batch, [None] * len(self.numbers)))
        else:
            rows = self.read()
            rows = rows.keep(np.isin(rows.rows, nodes.rows, assume_unique=True))
        return replace(rows, nodes=np.arange(len(rows)))

    def _rows(self, batch: Batch, widths: Sequence[int | None]) -> Rows:
        columns, rows, end = batch
        numbers = [with_decimal_point(columns[at], self.table.decimal) for at in self.numbers]
        with readable(self.table.path):
            matrix, known = to_matrix(numbers, len(rows), widths)
        by_key: dict[Role | int, pa.Array] = {r: columns[at] for r, at in self.places.items()}
        by_key |= {place: columns[place] for place in self.others}
        widths_by_place = dict(zip(self.numbers, known, strict=True))
        return Rows(self, by_key, matrix, rows, end, widths=widths_by_place)

    def _finished(self, rows: Rows) -> Rows:
        """The columns with a role as `to_plain` makes them."""
        with readable(self.table.path):
            plain: dict[Role | int, pa.Array] = {
                role: self.table.to_plain(rows.columns[role], labels=role in _LABEL_ROLES)
                for role in self.places
            }
            marks = missing_marks(rows.columns["label"], labels=True) if "label" in plain else {}
        return replace(rows, columns={**rows.columns, **plain}, missing_marks=marks)


@dataclass(frozen=True)
class Rows:
    """Rows of a table: by role the columns that have one, null if missing; by place the `others`;
    and the columns of numbers as a matrix `[num_rows, n]`, NaN if missing, infinite if not a
    number: float32, or float64 if that is too coarse for one; arrays have their own type."""

    source: Columns
    columns: Mapping[Role | int, pa.Array]
    matrix: AnyArray
    rows: Int64Array  # each row's number in the file
    end: int  # number of the row behind them; those that cannot be read are counted, too
    nodes: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))  # if known
    widths: Mapping[int, int] = field(default_factory=dict)  # in the matrix: several for lists
    missing_marks: Mapping[str, int] = field(default_factory=dict)  # of labels, with their number

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def path(self) -> Path:
        """The file."""
        return self.source.table.path

    def is_missing(self, role: Role) -> BoolArray:
        """Which rows have no value in a role's column."""
        return np.asarray(self.columns[role].is_null().to_numpy(zero_copy_only=False), bool)

    def keep(self, mask: BoolArray) -> Rows:
        """The rows inside `mask`."""
        return replace(
            self,
            columns={key: column.filter(mask) for key, column in self.columns.items()},
            matrix=self.matrix[mask],
            rows=self.rows[mask],
            nodes=self.nodes[mask] if len(self.nodes) else self.nodes,
        )

    def drop(
        self,
        mask: BoolArray,
        bad: BadRows,
        reason: Reason,
        hint: str = "",
        role: Role | int | None = None,
    ) -> Rows:
        """The rows outside `mask`; those inside are bad.

        `{}` in the reason stands for the row's field in a column, by its role or place.
        """
        if not mask.any():
            return self
        why = reason
        if role is not None:
            place = role if isinstance(role, int) else self.source.places[role]
            text = str(reason)
            why = lambda record: text.replace("{}", repr(record[place]))  # noqa: E731
        bad.add(self.source.table, self.rows[mask], why, hint)
        return self.keep(~mask)


def _concatenate(group: Sequence[Rows]) -> Rows:
    if len(group) == 1:
        return group[0]
    return replace(
        group[-1],
        columns={
            key: pa.concat_arrays([some.columns[key] for some in group]) for key in group[0].columns
        },
        matrix=np.concatenate([some.matrix for some in group]),
        rows=np.concatenate([some.rows for some in group]),
    )


class BadRows:
    """Collects bad rows over several files; `source` is what they are of."""

    def __init__(self, policy: Literal["error", "skip"], source: str = "dataset=files") -> None:
        self._policy, self.source = policy, source
        self.left_out: dict[str, str] = {}  # the rows of each file, and why, for the summary
        self._total: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()  # since the last report, as are the others
        self._shown: list[tuple[Path, int, str]] = []
        self._hints: dict[str, None] = {}

    def add(self, table: Table, rows: Int64Array, reason: Reason, hint: str = "") -> None:
        """Note rows by their numbers in the table."""
        for file, here in table.by_file(np.sort(rows)) if len(rows) else ():
            self._counts[file.path.name] += len(here)
            shown = here[: _NUM_SHOWN - len(self._shown)]
            for number, record in file.read_fields(shown) if len(shown) else ():
                why = reason if isinstance(reason, str) else reason(record)
                report = f"  {file.path} {file.unit} {number}: {why}"
                self._shown.append((file.path, number, report))
                has_digit = any(field[:1].isdigit() for field in record)
                if file.unit == "line" and number == 1 and not has_digit:
                    self._hints["If line 1 holds column names, set dataset.header=true."] = None
        if hint and len(rows):
            self._hints[hint] = None

    def report(self) -> None:
        """Raise a UserError that lists the bad rows added so far, or warn with the same text."""
        if not self._counts:
            return
        total = self._counts.total()
        counts = ", ".join(f"{name}: {count}" for name, count in self._counts.items())
        rows = "1 bad row" if total == 1 else f"{total} bad rows"
        found = f"{self.source}: {rows} ({counts})."
        first = [f"The first {_NUM_SHOWN}:"] if total > _NUM_SHOWN else []
        files = [*self._counts]  # in the order in which they are read
        self._shown.sort(key=lambda shown: (files.index(shown[0].name), shown[1]))
        lines = first + [report for _, _, report in self._shown]
        hints = list(self._hints)
        self._total += self._counts
        self.left_out = {f"{n:,} rows of {name}": _BAD for name, n in self._total.items()}
        for noted in (self._counts, self._shown, self._hints):
            noted.clear()
        # The hint stands before the ten rows.
        if self._policy == "error":
            or_skip = ", or set dataset.bad_rows=skip to leave them out"
            hints.append(f"Correct them{or_skip * (self.source == 'dataset=files')}.")
            raise UserError(found, "\n".join([" ".join(hints), *lines]))
        said = " ".join([found, "They are left out, or only their label, split or key.", *hints])
        _logger.warning("%s", "\n".join([said, *lines]))


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
