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
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from gnntrain.data.graph import Int64Array
from gnntrain.data.tables import MAX_COLUMNS, BadRows, Batch, Record, Table, readable
from gnntrain.data.values import TEXT
from gnntrain.errors import UserError

_logger = logging.getLogger("gnntrain")

TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".edges", ".edgelist")
_PACKED_SUFFIXES = (".gz", ".bz2", ".zst")

_BLOCK_BYTES = 1 << 22  # Arrow reads up to 32 blocks ahead
_CHUNK_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 23
_BYTE_ORDER_MARK = "\ufeff"
_CODECS_OF_MARKS = (  # UTF-32's mark begins with UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


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
        self._is_told = False
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
        with io.TextIOWrapper(self._open(), "utf-8", newline="") as file:
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
        self._delimiter = _delimiter(self.path, line, second, known_names, self.decimal)
        names, second_row = (
            next(csv.reader([text], delimiter=self._delimiter), []) for text in (line, second)
        )
        if len(line) >= _MAX_LINE_BYTES or len(names) > MAX_COLUMNS:
            raise ValueError(f"its first line has more than {MAX_COLUMNS:,} columns or is endless")
        names = [name.strip() for name in names]
        if header == "auto":
            header = names[0] == "" or any(name.lower() in known_names for name in names)
            if not header and not any(is_number(name, self.decimal) for name in names):
                header = any(is_number(field, self.decimal) for field in second_row)
        self.names = tuple(names) if header else tuple(map(str, range(len(names))))
        self.heading = () if header else tuple(names)
        self._first_line = 1 + len(comments) + header
        skipped = "".join([mark, *comments, line if header else ""])
        self._num_bytes_skipped = len(skipped.encode())
        self._num_quotes_skipped = skipped.count('"')

    def _utf8(self) -> Iterator[bytes]:
        """The file, unpacked and in UTF-8. Latin-1 is noticed on the way.

        Raises:
            UserError: It is not UTF-8, and cannot be Latin-1.
        """
        num_lines, left, is_end = 1, b"", False
        with pa.input_stream(str(self.path), compression="detect") as stream:
            if self._codec is not None:
                stream = pa.transcoding_input_stream(stream, self._codec, "utf-8")
            while not is_end:
                read = stream.read(_CHUNK_BYTES)
                raw, is_end = left + read, not read
                block, left = raw, b""
                if not raw.isascii():
                    try:
                        _, end = codecs.utf_8_decode(raw, "strict", is_end)
                        block, left = raw[:end], raw[end:]
                        self._has_utf8 |= not block.isascii()
                    except UnicodeDecodeError as error:
                        text = raw.decode("cp1252", "replace")
                        block = text.encode()
                        has_utf8 = not raw.decode(errors="ignore").isascii()
                        self._has_utf8 |= has_utf8 or "\ufffd" in text
                        self._note_latin(error, num_lines)
                    if self._not_utf8 and (self._has_utf8 or not self._may_be_latin):
                        raise self._not_utf8
                num_lines += block.count(b"\n")
                yield block

    def _note_latin(self, error: UnicodeDecodeError, first_line: int) -> None:
        if self._not_utf8 is not None:
            return
        line = first_line + error.object.count(b"\n", 0, error.start)
        found = f"{self.path} line {line} is not UTF-8: byte 0x{error.object[error.start]:02x}."
        hint = "Save the file as UTF-8, or name its encoding, for example dataset.encoding=latin1."
        self._not_utf8 = UserError(found, hint)
        if self._may_be_latin and not self._has_utf8:
            _logger.warning("%s It is read as Latin-1; dataset.encoding names another.", found)

    def _open(self) -> io.BufferedReader:
        return io.BufferedReader(_Blocks(self._utf8()), _CHUNK_BYTES)

    def read(self, places: Sequence[int]) -> Iterator[Batch]:
        wrong = array("q")  # numbers of the rows with another number of fields

        def leave_out(row: Any) -> str:
            wrong.append(row.number - 1)
            return "skip"

        names = [str(place) for place in places]
        nothing = pa.record_batch([pa.array([], TEXT)] * len(names), names)
        end = 0
        blocks = _Blocks(self._utf8())
        with io.BufferedReader(blocks, _CHUNK_BYTES) as file:
            file.read(self._num_bytes_skipped)
            batches: Iterator[pa.RecordBatch] = iter(())
            try:
                if file.peek(1):
                    batches = self._parsed(file, names, leave_out)
                for batch, following in pairwise(chain([nothing], batches, [None])):
                    if batch is nothing and following is not None:
                        continue
                    left_out = np.array(wrong, np.int64)
                    left_out = left_out[np.searchsorted(left_out, end) :]
                    rows = np.arange(end, end + batch.num_rows + len(left_out))
                    if len(left_out):
                        rows = np.setdiff1d(rows, left_out, assume_unique=True)[: batch.num_rows]
                    end = int(rows[-1]) + 1 if len(rows) else end
                    if following is None:
                        end += int((left_out >= end).sum())
                        is_odd = (blocks.num_quotes - self._num_quotes_skipped) % 2
                        if is_odd and len(rows) and rows[-1] == end - 1 and self._is_open():
                            batch, rows = batch[:-1], rows[:-1]
                            wrong.append(end - 1)
                        if not self._is_told:
                            self._is_told = True
                            self._bad.add(self, np.array(wrong, np.int64), self._wrong_fields)
                    yield dict(zip(places, batch.columns, strict=False)), rows, end
            except pa.ArrowInvalid as error:
                if "straddling" not in str(error):
                    raise
                for _ in self._records(_BLOCK_BYTES):
                    pass
                raise ValueError(f"a line has more than {_BLOCK_BYTES >> 20} MiB") from error
            finally:
                # Arrow's thread reads ahead; at the interpreter's end it would abort the process.
                blocks.stop()
                with suppress(Exception):
                    deque(batches, maxlen=0)

    def _parsed(
        self, file: io.BufferedReader[Any], names: Sequence[str], leave_out: Callable[[Any], str]
    ) -> Iterator[pa.RecordBatch]:
        reader: Iterator[pa.RecordBatch] = arrow_csv.open_csv(
            pa.PythonFile(file, "r"),
            # Rows are numbered only where one thread reads them.
            arrow_csv.ReadOptions(
                column_names=[str(place) for place in range(len(self.names))],
                block_size=_BLOCK_BYTES,
                use_threads=False,
            ),
            arrow_csv.ParseOptions(
                delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=leave_out
            ),
            arrow_csv.ConvertOptions(
                include_columns=names or ["0"],  # no names: all columns
                column_types=dict.fromkeys(names, TEXT),
                strings_can_be_null=True,
                null_values=[""],
                check_utf8=False,
            ),
        )
        return reader

    def _records(
        self, most_chars: int = 1 << 62, end: Sequence[str] = ()
    ) -> Iterator[tuple[int, Record]]:
        """Line and fields of every row, by Python's reader: slow.

        Args:
            most_chars: Raise a ValueError with the line of a row that has more.
            end: Lines that follow the file's.
        """
        line, length = self._first_line, 0
        with io.TextIOWrapper(self._open(), "utf-8", newline="") as file:
            file.buffer.read(self._num_bytes_skipped)

            def lines() -> Iterator[str]:
                nonlocal length
                for text in chain(iter(partial(file.readline, most_chars + 1), ""), end):
                    length += len(text)
                    if length > most_chars:
                        raise ValueError(
                            f"line {line} has more than {_BLOCK_BYTES >> 20} MiB; perhaps a "
                            "quotation mark opens there and does not close"
                        )
                    yield text

            reader = csv.reader(lines(), delimiter=self._delimiter)
            for fields in reader:
                if fields:
                    yield line, fields
                line, length = self._first_line + reader.line_num, 0

    def _is_open(self) -> bool:
        """Whether a quotation mark opens in the last row and never closes."""
        ((_, fields),) = deque(self._records(end=("\n", "end\n")), maxlen=1)
        return list(fields) != ["end"]

    def read_fields(self, rows: Int64Array) -> list[tuple[int, Record]]:
        found: list[tuple[int, Record]] = []
        wanted = rows.tolist()
        with readable(self.path):
            for row, record in enumerate(self._records()):
                if row == wanted[len(found)]:
                    found.append(record)
                    if len(found) == len(wanted):
                        break
        return found

    def _wrong_fields(self, fields: Record) -> str:
        unclosed = "a quotation mark opens here and does not close in this line"
        if len(fields) == len(self.names):
            return unclosed
        found = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
        why = f"; {unclosed}" if any("\n" in field for field in fields) else ""
        return f"{found} instead of {len(self.names)}{why}"


class _Blocks(io.RawIOBase):
    """Blocks of bytes as a file, whose quotation marks are counted."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._left = b""
        self.num_quotes = 0

    def stop(self) -> None:
        """Let the file end here."""
        self._blocks, self._left = iter(()), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._left = block
            self.num_quotes += block.count(b'"')
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size


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


def is_number(field: str, decimal: str = ".") -> bool:
    """Whether a field reads as a number, `nan` and `inf` included."""
    try:
        float(field.replace(decimal, "."))
    except ValueError:
        return False
    return True
