"""Tables of a user's graph: CSV, TSV and other delimited text, and Parquet.

**Is the first line a header?** With `header="auto"`, comment lines (`#`, `%`) are passed over;
then the first line holds column names if

1. one of its fields is a column name the configuration gives, or a usual one (`id`, `source`,
   `label`, …), or its first field is empty, as pandas writes an index; else not if
2. one of its fields is a number; else exactly if
3. the second line has a number where the first has none.

So a list of text ids without a known name at its top has no header; `header=true` says otherwise.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil

from gnntrain.data.bad_rows import BadRows, Record
from gnntrain.data.columns import Rows, column_of_arrow, is_plain, matrix_of_arrow
from gnntrain.data.graph import Int64Array
from gnntrain.errors import UserError

TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".edges", ".edgelist")
PARQUET_SUFFIXES = (".parquet", ".pq")
_PACKED_SUFFIXES = (".gz", ".bz2", ".zst")

MAX_COLUMNS = 100_000
_MAX_LINE_BYTES = 1 << 23


def table_suffix(path: Path) -> str:
    """The suffix that says what a file is: `.csv` for `edges.csv.gz`."""
    packed = path.suffix.lower() in _PACKED_SUFFIXES
    return (path.with_suffix("") if packed else path).suffix.lower()


def open_table(
    path: Path, header: Literal["auto"] | bool, known_names: Collection[str], bad: BadRows
) -> Table:
    """Look at a table's columns.

    Args:
        path: A file whose suffix is one of `TEXT_SUFFIXES` or `PARQUET_SUFFIXES`.
        header: Whether delimited text starts with column names.
        known_names: Names that mark a first line as a header, in lower case.
        bad: Takes the rows that have a wrong number of fields.

    Raises:
        UserError: The file cannot be read or is empty.
    """
    try:
        if table_suffix(path) in PARQUET_SUFFIXES:
            return ParquetTable(path)
        return _inspect(path, header, known_names, bad)
    except (OSError, ValueError, csv.Error) as error:
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


def _fields(row: Record) -> str:
    return "1 field" if len(row) == 1 else f"{len(row)} fields"


def _inspect(
    path: Path, header: Literal["auto"] | bool, known_names: Collection[str], bad: BadRows
) -> TextTable:
    num_skipped = 0
    with _open_text(path) as file:
        line = file.readline(_MAX_LINE_BYTES)
        while line and (not line.strip() or line.startswith(("#", "%"))):
            num_skipped += 1
            line = file.readline(_MAX_LINE_BYTES)
        second = file.readline(_MAX_LINE_BYTES)
    if not line:
        raise ValueError("it is empty")
    delimiter = _delimiter(path, line)
    first_row, second_row = (
        next(csv.reader([text], delimiter=delimiter), []) for text in (line, second)
    )
    if len(line) >= _MAX_LINE_BYTES or len(first_row) > MAX_COLUMNS:
        raise ValueError(f"its first line has more than {MAX_COLUMNS:,} columns or is endless")
    names = tuple(field.strip() for field in first_row)
    has_header = _is_header(names, second_row, known_names) if header == "auto" else header
    if not has_header:
        names = tuple(str(position) for position in range(len(names)))
    return TextTable(path, delimiter, names, num_skipped + has_header, bad)


def _open_bytes(path: Path) -> BufferedReader:
    """The file, unpacked on the way."""
    import pyarrow as pa

    return BufferedReader(pa.input_stream(str(path), compression="detect"))


def _open_text(path: Path) -> TextIOWrapper:
    return TextIOWrapper(_open_bytes(path), encoding="utf-8-sig", errors="replace", newline="")


def _delimiter(path: Path, line: str) -> str:
    if table_suffix(path) == ".tsv":
        return "\t"
    choices = (",", "\t", ";") if table_suffix(path) == ".csv" else (",", "\t", ";", " ")
    return next((choice for choice in choices if choice in line), ",")


def _is_header(first: Sequence[str], second: Record, known_names: Collection[str]) -> bool:
    if first[0] == "" or any(field.lower() in known_names for field in first):
        return True
    if any(_is_number(field) for field in first):
        return False
    return any(_is_number(field) for field in second)


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class TextTable:
    """Delimited text. Rows are numbered from 0 over all lines that are neither header nor blank.

    Attributes:
        path: The file.
        delimiter: Character between two fields.
        names: Names of the columns; "0", "1", … without a header.
        num_skipped: Lines before the first row.
        bad: Takes the rows that have a wrong number of fields.
    """

    path: Path
    delimiter: str
    names: tuple[str, ...]
    num_skipped: int
    bad: BadRows
    unit: str = "line"

    def read(self, texts: Sequence[int], numbers: Sequence[int], label: int | None = None) -> Rows:
        """Read some columns; see `ParquetTable.read`."""
        import pyarrow as pa

        types: dict[int, Any] = dict.fromkeys(numbers, pa.float32())
        wanted = [*texts, *numbers]
        try:
            table, num_wrong = self._load_kindly(wanted, types, numbers)
            unclear = [p for p in texts if not is_plain(table[str(p)], fractions=p == label)]
            if unclear:  # dates, truth values, fractions: as they are written
                types |= dict.fromkeys(unclear, pa.string())
                table, num_wrong = self._load(wanted, types)
            origin = self._note_wrong(table.num_rows) if num_wrong else None
        except (pa.ArrowInvalid, OSError) as error:
            self._refuse_other_encodings()
            raise unreadable(self.path, error) from error
        columns = tuple(column_of_arrow(table[str(p)]) for p in texts)
        matrix = matrix_of_arrow([table[str(p)] for p in numbers], table.num_rows)
        return Rows(self, columns, matrix, origin)

    def _load_kindly(
        self, wanted: Sequence[int], types: dict[int, Any], numbers: Sequence[int]
    ) -> tuple[Any, int]:
        """As `_load`; where something in `numbers` is no number, they become texts in `types`."""
        import pyarrow as pa

        try:
            return self._load(wanted, types, strict=True)
        except pa.ArrowInvalid:  # find out later which row is wrong
            self._refuse_other_encodings()
        try:
            return self._load(wanted, types)
        except pa.ArrowInvalid:
            types |= dict.fromkeys(numbers, pa.string())
            return self._load(wanted, types)

    def _refuse_other_encodings(self) -> None:
        """Raise a UserError at the first line that is not UTF-8 (Arrow would print a traceback)."""
        with _open_bytes(self.path) as file:
            for number, line in enumerate(file, start=1):
                try:
                    line.decode()
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"{self.path} line {number} is not UTF-8: "
                        f"byte 0x{line[error.start]:02x} at position {error.start}.",
                        "Save the file as UTF-8, for example with `iconv -f latin1 -t utf-8`.",
                    ) from error

    def _load(
        self,
        wanted: Sequence[int],
        types: dict[int, Any],
        *,
        strict: bool = False,
        wrong: list[int] | None = None,
    ) -> tuple[Any, int]:
        """The wanted columns as an Arrow table, without rows of a wrong number of fields.

        With `strict` such a row is an error. Arrow counts rows (skipped ones included, blank ones
        not) only when it uses one thread: it does if `wrong` is given to hold the numbers of those
        rows. Returns the table and how many rows were left out.
        """
        from pyarrow import csv as arrow_csv

        num_wrong = 0

        def leave_out(row: Any) -> str:
            nonlocal num_wrong
            num_wrong += 1
            if wrong is not None:
                wrong.append(row.number - 1 - self.num_skipped)
            return "skip"

        names = [str(position) for position in range(len(self.names))]
        read = arrow_csv.ReadOptions(
            column_names=names,
            skip_rows=self.num_skipped,
            block_size=2 * _MAX_LINE_BYTES,
            use_threads=wrong is None,
        )
        parse = arrow_csv.ParseOptions(
            delimiter=self.delimiter,
            invalid_row_handler=None if strict else leave_out,
            newlines_in_values=False,
        )
        convert = arrow_csv.ConvertOptions(
            include_columns=[str(position) for position in dict.fromkeys(wanted)],
            column_types={str(position): type_ for position, type_ in types.items()},
        )
        return arrow_csv.read_csv(self.path, read, parse, convert), num_wrong

    def _note_wrong(self, num_right: int) -> Int64Array:
        """Report rows of a wrong number of fields; returns the numbers of the others."""
        import pyarrow as pa

        wrong: list[int] = []
        self._load([0], {0: pa.string()}, wrong=wrong)
        rows, expected = np.array(wrong, np.int64), len(self.names)
        self.bad.add(self, rows, lambda row: f"{_fields(row)} instead of {expected}")
        right = np.ones(num_right + len(rows), bool)
        right[rows] = False
        return np.flatnonzero(right)

    def records(self, rows: Int64Array) -> list[tuple[int, Record]]:
        """Line number and fields of some rows; reads the file up to the last of them."""
        wanted = iter(rows.tolist())
        row = next(wanted)
        found: list[tuple[int, Record]] = []
        for number, (line, fields) in enumerate(self._all_records()):
            if number == row:
                found.append((line, fields))
                row = next(wanted, -1)
                if row < 0:
                    break
        return found

    def _all_records(self) -> Iterator[tuple[int, Record]]:
        with _open_text(self.path) as file:
            for _ in range(self.num_skipped):
                file.readline()
            reader = csv.reader(file, delimiter=self.delimiter)
            for fields in reader:
                if fields:
                    yield self.num_skipped + reader.line_num, fields


class ParquetTable:
    """A Parquet file. Rows are numbered from 0.

    Attributes:
        path: The file.
        names: Names of the columns.
    """

    unit = "row"

    def __init__(self, path: Path) -> None:
        from pyarrow import parquet

        self.path = path
        metadata = parquet.read_metadata(path)
        self.names: tuple[str, ...] = tuple(metadata.schema.to_arrow_schema().names)
        self._num_rows = metadata.num_rows
        if len(self.names) > MAX_COLUMNS:
            raise ValueError(f"it has {len(self.names):,} columns, more than {MAX_COLUMNS:,}")

    def read(self, texts: Sequence[int], numbers: Sequence[int], label: int | None = None) -> Rows:
        """Read some columns.

        Args:
            texts: Positions of columns of ids, labels or split names: integers or texts.
            numbers: Positions of columns of numbers.
            label: The one of `texts` that may hold fractions, too; elsewhere they are texts.

        Returns:
            The rows: `texts` as columns, `numbers` as a float32 matrix in which what is missing
            or not a number is NaN.

        Raises:
            UserError: The file cannot be read.
        """
        import pyarrow as pa

        try:
            table = self._load([*texts, *numbers])
            for p in texts:
                array = table.column(self.names[p])
                if not is_plain(array, fractions=p == label):
                    position = table.column_names.index(self.names[p])
                    table = table.set_column(position, self.names[p], array.cast(pa.string()))
            columns = tuple(column_of_arrow(table[self.names[p]]) for p in texts)
            matrix = matrix_of_arrow([table[self.names[p]] for p in numbers], table.num_rows)
        except (pa.ArrowException, OSError) as error:
            raise unreadable(self.path, error) from error
        return Rows(self, columns, matrix)

    def _load(self, positions: Sequence[int]) -> Any:
        from pyarrow import parquet

        names = [self.names[position] for position in dict.fromkeys(positions)]
        # Equal values are written once: a small file may hold any number of rows.
        refuse_beyond_memory(self.path, 4 * self._num_rows * len(names))
        return parquet.read_table(self.path, columns=names)

    def records(self, rows: Int64Array) -> list[tuple[int, Record]]:
        """Number and fields of some rows."""
        table = self._load(range(len(self.names))).take(rows)
        fields = zip(*(column.to_pylist() for column in table.columns), strict=True)
        return [
            (number, ["" if field is None else str(field) for field in row])
            for number, row in zip(rows.tolist(), fields, strict=True)
        ]


Table = TextTable | ParquetTable
