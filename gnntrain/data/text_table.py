"""Delimited text: CSV, TSV and the like, also packed with gzip, bzip2 or zstandard.

**Is the first line a header?** With `header="auto"`, comment lines (`#`, `%`) are passed over;
then the first line holds column names if

1. one of its fields is a column name the configuration gives, or a usual one (`id`, `source`,
   `label`, …), or its first field is empty, as pandas writes an index; else not if
2. one of its fields is a number; else exactly if
3. the second line has a number where the first has none.

So a list of text ids without a known name at its top has no header; `header=true` says otherwise.

**In which encoding is it?** With `encoding="auto"`, a byte order mark or the zero bytes of ASCII
tell UTF-16 and UTF-32; else it is UTF-8 or, where it has bytes that are not UTF-8 and no character
beyond ASCII that is, Latin-1 in Windows' variant, with a warning.
"""

from __future__ import annotations

import codecs
import csv
import io
import logging
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from gnntrain.data.bad_rows import BadRows, Record
from gnntrain.data.columns import MISSING_MARKS, TEXT, from_texts, with_decimal_point
from gnntrain.data.graph import Int64Array
from gnntrain.data.tables import MAX_COLUMNS, ColumnBatch, Columns, Table, readable
from gnntrain.errors import UserError

_logger = logging.getLogger("gnntrain")

TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".edges", ".edgelist")
_PACKED_SUFFIXES = (".gz", ".bz2", ".zst")

_BLOCK_BYTES = 1 << 24
_MAX_LINE_BYTES = 1 << 23
_BYTE_ORDER_MARK = "\ufeff"
_CODECS_OF_MARKS = (  # UTF-32's mark begins with UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Arrow is case-sensitive; a mark in another case makes the column text first, which is slower.
_NULL_VALUES = [
    word for mark in MISSING_MARKS for word in (mark, mark.upper(), mark.capitalize())
] + ["NaN"]


def table_suffix(path: Path) -> str:
    """The suffix that says what a file is: `.csv` for `edges.csv.gz`."""
    packed = path.suffix.lower() in _PACKED_SUFFIXES
    return (path.with_suffix("") if packed else path).suffix.lower()


class TextTable(Table):
    """Delimited text. Rows are numbered from 0 over all lines that are neither header nor blank.

    Args:
        path: The file.
        header: Whether it starts with column names.
        known_names: Names that mark a first line as a header, in lower case.
        bad: Takes the rows that have a wrong number of fields.
        decimal: Decimal mark of the numbers.
        encoding: A codec of Python's, or "auto".

    Raises:
        UserError: It cannot be read or is empty, or there is no such encoding.
    """

    unit = "line"

    def __init__(
        self,
        path: Path,
        header: Literal["auto"] | bool,
        known_names: Collection[str],
        bad: BadRows,
        *,
        decimal: str = ".",
        encoding: str = "auto",
    ) -> None:
        self.path = path
        self.decimal = decimal
        self._bad = bad
        self._block_ends: list[int] = []
        self._num_inspected = 0
        self._has_utf8 = False
        self._not_utf8: UserError | None = None
        self._may_be_latin = encoding == "auto"
        # A field within quotation marks that never close is long; Arrow has no limit either.
        csv.field_size_limit(sys.maxsize)
        with readable(path):
            self._codec = _seen_codec(path) if encoding == "auto" else _checked_codec(encoding)
            self._inspect(header, known_names)

    def _inspect(self, header: Literal["auto"] | bool, known_names: Collection[str]) -> None:
        """Find the delimiter, the names of the columns and where the rows begin."""
        with io.TextIOWrapper(self._open(), "utf-8", "surrogateescape", newline="") as file:
            line = file.readline(_MAX_LINE_BYTES)
            mark = _BYTE_ORDER_MARK if line.startswith(_BYTE_ORDER_MARK) else ""
            line = line.removeprefix(mark)
            comments: list[str] = []
            while line and (not line.strip() or line.startswith(("#", "%"))):
                comments.append(line)
                line = file.readline(_MAX_LINE_BYTES)
            second = file.readline(_MAX_LINE_BYTES)
        if not line:
            raise ValueError("it is empty")
        self._first_line = 1 + len(comments)
        self._delimiter = _delimiter(self.path, line, second, known_names, self.decimal)
        names = self._split(self._decoded(_to_bytes(line), self._first_line))
        second_row = self._split(second)
        if len(line) >= _MAX_LINE_BYTES or len(names) > MAX_COLUMNS:
            raise ValueError(f"its first line has more than {MAX_COLUMNS:,} columns or is endless")
        names = [name.strip() for name in names]
        is_seen = header == "auto" and _is_header(names, second_row, known_names, self.decimal)
        has_header = is_seen or header is True
        self.names = tuple(names) if has_header else tuple(map(str, range(len(names))))
        self.heading = () if has_header else tuple(names)
        self._first_line += has_header
        skipped = [mark, *comments, line if has_header else ""]
        self._num_bytes_skipped = len(_to_bytes("".join(skipped)))

    def _split(self, line: str) -> list[str]:
        return next(csv.reader([line], delimiter=self._delimiter), [])

    def _open(self) -> io.BufferedReader:
        """The file, unpacked and turned into UTF-8 on the way; Latin-1 is seen later."""
        stream = pa.input_stream(str(self.path), compression="detect")
        if self._codec is not None:
            stream = pa.transcoding_input_stream(stream, self._codec, "utf-8")
        return io.BufferedReader(stream)

    def _decoded(self, raw: bytes, first_line: int) -> str:
        """Text of some lines.

        Raises:
            UserError: They are not UTF-8, nor can the file be Latin-1.
        """
        try:
            text = raw.decode()
            self._has_utf8 |= not text.isascii()
        except UnicodeDecodeError as error:
            text = raw.decode("cp1252", "replace")
            self._has_utf8 |= not raw.decode(errors="ignore").isascii() or "\ufffd" in text
            self._note_latin(raw, error, first_line)
        if self._not_utf8 is not None and (self._has_utf8 or not self._may_be_latin):
            raise self._not_utf8
        return text

    def _note_latin(self, raw: bytes, error: UnicodeDecodeError, first_line: int) -> None:
        if self._not_utf8 is not None:
            return
        *lines, start = raw[: error.start].split(b"\n")
        found = (
            f"{self.path} line {first_line + len(lines)} is not UTF-8: "
            f"byte 0x{raw[error.start]:02x} at position {len(start)}."
        )
        hint = "Save the file as UTF-8, or name its encoding, for example dataset.encoding=latin1."
        self._not_utf8 = UserError(found, hint)
        if self._may_be_latin and not self._has_utf8:
            _logger.warning("%s It is read as Latin-1; dataset.encoding names another.", found)

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """The file behind the header, in blocks of whole rows, with each block's first line."""
        with self._open() as file:
            file.read(self._num_bytes_skipped)
            number, left = self._first_line, b""
            while read := file.read(_BLOCK_BYTES - len(left)):
                block = left + read
                end = _end_of_rows(block)
                if not end and len(block) == _BLOCK_BYTES:
                    end = _end_of_lines(block)  # within quotation marks that perhaps never close
                    if not end:
                        raise ValueError(f"line {number} has more than {_BLOCK_BYTES >> 20} MiB")
                if end:
                    yield number, block[:end]
                number += _num_lines(block[:end])
                left = block[end:]
            if left:
                yield number, left

    def read_columns(self, columns: Columns) -> Iterator[ColumnBatch]:
        self._block_ends.clear()
        start = 0
        for line, block in self._blocks():
            text = self._decoded(block, line)
            is_latin = self._not_utf8 is not None
            table, wrong = self._parse(text.encode() if is_latin else block, columns)
            end = start + table.num_rows + len(wrong)
            if text.count('"') % 2 and end - 1 - start not in wrong and self._is_open(text):
                table, wrong = table[:-1], np.append(wrong, end - 1 - start)
            self._block_ends.append(end)
            if end > self._num_inspected:  # else it was told when the file was read before
                self._bad.add(self, start + wrong, self._wrong_fields)
                self._num_inspected = end
            found = {int(name): table[name].combine_chunks() for name in table.column_names}
            for place in columns.numbers:
                if found[place].type == TEXT:
                    found[place] = with_decimal_point(found[place], self.decimal)
            yield found, np.delete(np.arange(start, end), wrong), end
            start = end

    def _parse(self, block: bytes, columns: Columns) -> tuple[pa.Table, Int64Array]:
        """The columns and, left out of them, the rows of a wrong number of fields."""
        texts = dict.fromkeys((*columns.places.values(), *columns.others), TEXT)
        try:
            return self._parse_as(block, dict.fromkeys(columns.numbers, pa.float64()) | texts)
        except pa.ArrowInvalid:  # some number is none: find out later which one
            return self._parse_as(block, dict.fromkeys(columns.numbers, TEXT) | texts)

    def _parse_as(self, block: bytes, types: dict[int, pa.DataType]) -> tuple[pa.Table, Int64Array]:
        wrong: list[int] = []

        def leave_out(row: Any) -> str:
            wrong.append(row.number - 1)
            return "skip"

        table = arrow_csv.read_csv(
            pa.BufferReader(block),
            # Rows are numbered only where one thread reads them.
            arrow_csv.ReadOptions(
                column_names=[str(place) for place in range(len(self.names))],
                block_size=len(block) + 1,
                use_threads=False,
            ),
            arrow_csv.ParseOptions(
                delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=leave_out
            ),
            arrow_csv.ConvertOptions(
                include_columns=[str(place) for place in types],
                column_types={str(place): kind for place, kind in types.items()},
                null_values=_NULL_VALUES,
                decimal_point=self.decimal,
                check_utf8=False,
            ),
        )
        return table, np.array(wrong, np.int64)

    def _is_open(self, text: str) -> bool:
        """Whether a quotation mark opens in the last row and never closes."""
        try:
            for _ in csv.reader(
                io.StringIO(text, newline=""), delimiter=self._delimiter, strict=True
            ):
                pass
        except csv.Error as error:
            return "unexpected end of data" in str(error)
        return False

    def _wrong_fields(self, fields: Record) -> str:
        unclosed = "a quotation mark opens here and does not close in this line"
        if len(fields) == len(self.names):
            return unclosed
        found = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
        why = f"; {unclosed}" if any("\n" in field for field in fields) else ""
        return f"{found} instead of {len(self.names)}{why}"

    def to_plain(self, column: pa.Array, *, labels: bool) -> pa.Array:
        return from_texts(column, labels=labels, decimal=self.decimal)

    def records(self, rows: Int64Array) -> list[tuple[int, Record]]:
        found: list[tuple[int, Record]] = []
        wanted, row = rows.tolist(), 0
        with readable(self.path):
            for block, end in zip_longest(self._blocks(), self._block_ends):
                if end is not None and wanted[len(found)] >= end:
                    row = end
                    continue
                for record in self._records_of_block(*block):
                    if row == wanted[len(found)]:
                        found.append(record)
                        if len(found) == len(wanted):
                            return found
                    row += 1
        return found

    def _records_of_block(self, first_line: int, block: bytes) -> Iterator[tuple[int, Record]]:
        text = io.StringIO(self._decoded(block, first_line), newline="")
        reader = csv.reader(text, delimiter=self._delimiter)
        line = first_line
        for fields in reader:
            if fields:
                yield line, fields
            line = first_line + reader.line_num


def _seen_codec(path: Path) -> str | None:
    """The codec that a file's first bytes tell; None: UTF-8, or what contains ASCII as it does."""
    with pa.input_stream(str(path), compression="detect") as stream:
        start = stream.read(4096)
    for mark, codec in _CODECS_OF_MARKS:
        if start.startswith(mark):
            return codec
    zeros = np.flatnonzero(np.frombuffer(start, np.uint8) == 0)
    if 4 * len(zeros) < len(start) or len(set(zeros % 2)) != 1:
        return None
    return "utf-16-le" if zeros[0] % 2 else "utf-16-be"


def _checked_codec(encoding: str) -> str | None:
    """The codec of a name; None: UTF-8.

    Raises:
        UserError: There is none of texts.
    """
    try:
        "".encode(encoding)
        codecs.getincrementaldecoder(encoding)
    except (LookupError, ValueError) as error:
        raise UserError(
            f"dataset.encoding={encoding}: Python knows no such encoding.",
            "Set it to utf-8, utf-16, latin1, …, or leave dataset.encoding=auto.",
        ) from error
    return None if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig") else encoding


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _end_of_rows(block: bytes) -> int:
    """Where the last whole row ends, behind a newline outside quotation marks; 0 if nowhere."""
    end = _end_of_lines(block)
    if block.count(b'"', 0, end) % 2 == 0:
        return end
    codes = np.frombuffer(block, np.uint8)
    newlines, quotes = np.flatnonzero(codes == ord("\n")), np.flatnonzero(codes == ord('"'))
    outside = newlines[np.searchsorted(quotes, newlines) % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0


def _end_of_lines(block: bytes) -> int:
    return (block.rfind(b"\n") + 1) or (block.rfind(b"\r") + 1)


def _num_lines(block: bytes) -> int:
    return block.count(b"\n") + block.count(b"\r") - block.count(b"\r\n")


def _delimiter(
    path: Path, first: str, second: str, known_names: Collection[str], decimal: str
) -> str:
    """The sign between the fields of the first line.

    Of several, the one that the second line has as often; of those, the one around a known name: a
    column's name may have a comma, and a field semicolons.
    """
    if table_suffix(path) == ".tsv":
        return "\t"
    choices = [",", "\t", ";", "|"] + ([] if table_suffix(path) == ".csv" else [" "])
    if decimal == ",":
        choices.append(choices.pop(0))
    line, below = (re.sub('"[^"]*"', "", text) for text in (first, second))
    there = [choice for choice in choices if choice in line]
    even = [sign for sign in there if sign != " " and line.count(sign) == below.count(sign)]
    named = [
        sign
        for sign in even
        if any(field.strip().lower() in known_names for field in line.split(sign))
    ]
    return next(iter((*named, *even, *there, choices[0])))


def _is_header(
    first: Sequence[str], second: Record, known_names: Collection[str], decimal: str
) -> bool:
    if first[0] == "" or any(field.lower() in known_names for field in first):
        return True
    if any(is_number(field, decimal) for field in first):
        return False
    return any(is_number(field, decimal) for field in second)


def is_number(field: str, decimal: str = ".") -> bool:
    """Whether a field reads as a number, `nan` and `inf` included."""
    try:
        float(field.replace(decimal, "."))
    except ValueError:
        return False
    return True
