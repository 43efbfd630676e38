"""Files as tables: delimited text, Parquet, Feather and Arrow, JSON lines, GraphML.

Text may be packed with gzip, bzip2 or zstandard. Feather and Arrow files are mapped; JSON lines and
GraphML are read as a whole.

**Is a text's first line a header?** With `header="auto"`, comment lines (`#`, `%`) are passed over;
then the first line holds column names if one of its fields is a name that the configuration gives
or a usual one (`id`, `source`, …), or its first field is empty, as pandas writes an index; else not
if a field is a number; else exactly if the second line has a number where the first has none.

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
from array import array
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Literal
from xml.parsers import expat

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import ipc, parquet
from pyarrow import json as arrow_json

from gnntrain.config import FilesConfig
from gnntrain.data.array_files import ARRAY_SUFFIXES
from gnntrain.data.graph import Int64Array
from gnntrain.data.names import USUAL_NAMES
from gnntrain.data.tables import (
    MAX_COLUMNS,
    BadRows,
    Batch,
    Record,
    Table,
    readable,
    refuse_beyond_memory,
)
from gnntrain.data.values import TEXT, from_texts, is_number
from gnntrain.errors import UserError

_logger = logging.getLogger("gnntrain")

GRAPHML_SUFFIX = ".graphml"
_TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".edges", ".edgelist")
_PACKED_SUFFIXES = (".gz", ".bz2", ".zst")
_PARQUET_SUFFIXES = (".parquet", ".pq")
_JSON_SUFFIXES = (".jsonl", ".ndjson")
_COLUMN_SUFFIXES = (*_PARQUET_SUFFIXES, ".feather", ".arrow", *_JSON_SUFFIXES)

_BATCH_ROWS = 1 << 18
_BATCH_VALUES = 1 << 22
_BLOCK_BYTES = 1 << 22  # Arrow reads up to 32 blocks ahead
_MAX_LINE_BYTES = 1 << 23
# Bytes of memory that a byte of the file takes while it is read.
_MEMORY_OF_XML = 20
_MEMORY_OF_JSON = 4
_BYTE_ORDER_MARK = "\ufeff"
_CODECS_OF_MARKS = (  # UTF-32's mark begins with UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def open_table(
    paths: Sequence[Path],
    names: Iterable[str],
    options: FilesConfig,
    bad: BadRows,
    usual: Collection[str] = USUAL_NAMES,
) -> Table:
    """A table of one file, or of several; `names` and the usual ones mark a text's header."""
    known = {*usual, *(name.lower() for name in names if not name.isdecimal())}
    return Table.of_files([_open(path, bad, known, options) for path in paths])


def _open(path: Path, bad: BadRows, known_names: Collection[str], options: FilesConfig) -> Table:
    text_suffix, suffix = _text_suffix(path), path.suffix.lower()
    if text_suffix in _TEXT_SUFFIXES:
        return TextTable(path, bad, known_names, options)
    if text_suffix == GRAPHML_SUFFIX:
        return open_graphml(path, "nodes")
    if suffix not in _COLUMN_SUFFIXES:
        known = ", ".join((*_TEXT_SUFFIXES, *_COLUMN_SUFFIXES, *ARRAY_SUFFIXES))
        raise UserError(
            f"{path}: the suffix {path.suffix!r} does not say what the file is.",
            conversion_hint(path)
            or f"Name it with one of {known} (text also with .gz, .bz2 or .zst).",
        )
    with readable(path):
        if suffix in _PARQUET_SUFFIXES:
            metadata = parquet.read_metadata(path)
            names = metadata.schema.to_arrow_schema().names
            return Table(path, names, partial(_parquet_batches, path, metadata.num_rows))
        if suffix in _JSON_SUFFIXES:
            refuse_beyond_memory(path, _MEMORY_OF_JSON * path.stat().st_size)
            return table_in_memory(path, arrow_json.read_json(path))
        # Feather (version 2) is Arrow's file format; other tools also save its stream format.
        source = pa.memory_map(str(path))
        try:
            table = ipc.open_file(source).read_all()
        except pa.ArrowInvalid:
            source.seek(0)
            table = ipc.open_stream(source).read_all()
        table.validate(full=True)  # offsets beyond a buffer would be read
        return table_in_memory(path, table)


def _parquet_batches(path: Path, num_rows: int, names: list[str]) -> Iterator[pa.RecordBatch]:
    # Equal values are written once: a small file may hold any number of rows.
    refuse_beyond_memory(path, 4 * num_rows * len(names))
    size = max(1, min(_BATCH_ROWS, _BATCH_VALUES // max(1, len(names))))
    with parquet.ParquetFile(path) as file:
        yield from file.iter_batches(size, columns=names)


def table_in_memory(path: Path, table: pa.Table, note: str = "") -> Table:
    """Columns in memory, or mapped, as a table; `path` and `note` are for messages."""
    return Table(
        path, table.column_names, lambda names: table.select(names).to_batches(_BATCH_ROWS), note
    )


def open_graphml(path: Path, part: Literal["nodes", "edges"]) -> Table:
    """The nodes of a GraphML file with their attributes, or its edges.

    Columns are `id`, or `source` and `target`, then the attributes. An edge without direction is
    there in both.
    """
    import networkx as nx  # type: ignore[import-untyped]  # its stubs are a package of their own

    with readable(path):
        refuse_beyond_memory(path, _MEMORY_OF_XML * path.stat().st_size)
        try:
            parser = expat.ParserCreate()
            parser.StartDoctypeDeclHandler = partial(_refuse_doctype, path)
            with path.open("rb") as stream:
                parser.ParseFile(stream)
            graph = nx.read_graphml(path)
        except (
            *(nx.NetworkXException, expat.ExpatError, SyntaxError),
            *(KeyError, AttributeError, TypeError),
        ) as error:
            raise ValueError(f"it is no GraphML: {error}") from error
    note = ""
    if part == "nodes":
        named = dict(graph.nodes(data=True))
        ends: Mapping[str, Iterable[str]] = {"id": named}
        rows = list(named.values())
    else:
        edges = list(graph.edges(data=True))
        if not graph.is_directed():
            edges += [(v, u, attributes) for u, v, attributes in edges if u != v]
            note = " (without direction there, stored in both)"
        ends = {"source": [edge[0] for edge in edges], "target": [edge[1] for edge in edges]}
        rows = [edge[2] for edge in edges]
    # Names of nodes are whole numbers if all are.
    columns = {name: from_texts(pa.array(texts, TEXT)) for name, texts in ends.items()}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        try:
            column = pa.array(values, from_pandas=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):  # of several types: as texts
            column = pa.array([None if v != v else str(v) for v in values], TEXT)
        columns[f"{name}.1" if name in ends else name] = column
    return table_in_memory(path, pa.table(columns), note)


def _refuse_doctype(path: Path, *_: Any) -> None:
    raise UserError(
        f"{path} declares a document type (<!DOCTYPE …>), which may unpack to any length.",
        "Remove the declaration, or save the graph again.",
    )


def _text_suffix(path: Path) -> str:
    """The suffix that says what a file is: `.csv` for `edges.csv.gz`."""
    packed = path.suffix.lower() in _PACKED_SUFFIXES
    return (path.with_suffix("") if packed else path).suffix.lower()


class TextTable(Table):
    """Delimited text. Rows are numbered from 0 over all lines that are neither header nor blank."""

    unit = "line"

    def __init__(
        self, path: Path, bad: BadRows, known_names: Collection[str], options: FilesConfig
    ) -> None:
        header, encoding, self.decimal = options.header, options.encoding, options.decimal
        self.path, self._bad = path, bad
        self._is_reported = False
        self._has_utf8 = False  # beyond ASCII
        self._not_utf8 = ""
        self._may_be_latin = encoding == "auto"
        # Within quotation marks that never close; Arrow reads rows of up to two blocks.
        csv.field_size_limit(2 * _BLOCK_BYTES)
        with readable(path):
            self._codec = _codec_of(path, encoding)
            with io.TextIOWrapper(self._open(), "utf-8", newline="") as file:
                line = file.readline(_MAX_LINE_BYTES)
                skipped = _BYTE_ORDER_MARK if line.startswith(_BYTE_ORDER_MARK) else ""
                line = line.removeprefix(skipped)
                self._first_line = 1
                while line and (not line.strip() or line.startswith(("#", "%"))):
                    skipped += line
                    self._first_line += 1
                    line = file.readline(_MAX_LINE_BYTES)
                second = file.readline(_MAX_LINE_BYTES)
            if not line:
                raise ValueError("it is empty")
            self._delimiter = _delimiter(path, line, second, known_names, self.decimal)
            names, second_row = (
                next(csv.reader([text], delimiter=self._delimiter), []) for text in (line, second)
            )
            if len(line) >= _MAX_LINE_BYTES or len(names) > MAX_COLUMNS:
                raise ValueError(
                    f"its first line has more than {MAX_COLUMNS:,} columns or is endless"
                )
        names = [name.strip() for name in names]
        if header == "auto":
            header = names[0] == "" or any(name.lower() in known_names for name in names)
            if not header and not any(is_number(name, self.decimal) for name in names):
                header = any(is_number(field, self.decimal) for field in second_row)
        self.names = tuple(names) if header else tuple(map(str, range(len(names))))
        self.heading = () if header else tuple(names)
        self._first_line += header
        self._num_bytes_skipped = len((skipped + line * header).encode())

    def _open(self, end: bytes = b"", stop: Event | None = None) -> pa.NativeFile:
        """The file, unpacked and in UTF-8, with `end` behind it. Latin-1 is noticed on the way."""
        line, left = 1, b""

        def to_utf8(chunk: pa.Buffer) -> bytes:
            nonlocal line, left, end
            if stop is not None and stop.is_set():
                raise ValueError("nothing more is read")
            raw: bytes = left + chunk.to_pybytes()
            block, left = raw, b""
            if not raw.isascii():
                try:
                    _, length = codecs.utf_8_decode(raw, "strict", not chunk.size)
                    block, left = raw[:length], raw[length:]
                    self._has_utf8 |= not block.isascii()
                except UnicodeDecodeError as error:
                    text = raw.decode("cp1252", "replace")
                    block = text.encode()
                    self._has_utf8 |= "\ufffd" in text
                    self._has_utf8 |= not raw.decode(errors="ignore").isascii()
                    where = line + raw.count(b"\n", 0, error.start)
                    if not self._not_utf8:
                        self._not_utf8 = f"line {where} is not UTF-8: byte 0x{raw[error.start]:02x}"
                        if self._may_be_latin and not self._has_utf8:
                            told = "%s %s. It is read as Latin-1; dataset.encoding names another."
                            _logger.warning(told, self.path, self._not_utf8)
                if self._not_utf8 and (self._has_utf8 or not self._may_be_latin):
                    raise UserError(
                        f"{self.path} {self._not_utf8}.",
                        "Save the file as UTF-8, or name its encoding, for example "
                        "dataset.encoding=latin1.",
                    )
            line += block.count(b"\n")
            if not chunk.size:
                block, end = block + end, b""
            return block

        stream = pa.input_stream(str(self.path), compression="detect")
        if self._codec is not None:
            stream = pa.transcoding_input_stream(stream, self._codec, "utf-8")
        return pa.TransformInputStream(stream, to_utf8)

    def read(self, places: Sequence[int]) -> Iterator[Batch]:
        # A row of too many fields follows the file: a quotation mark that never closes swallows it.
        last_row = self._delimiter * len(self.names) + "end"
        stop = Event()
        wrong = array("q")  # numbers of the rows with another number of fields
        is_closed = False

        def leave_out(row: Any) -> str:
            nonlocal is_closed
            if row.text == last_row:
                is_closed = True
            wrong.append(row.number - 1)
            return "skip"

        names, end = [str(place) for place in places], 0
        nothing = pa.record_batch([pa.array([], TEXT)] * len(places), names)
        batches: Iterator[pa.RecordBatch] = iter(())
        try:
            file = self._open(f"\n{last_row}\n".encode(), stop)
            file.read(self._num_bytes_skipped)
            batches = arrow_csv.open_csv(
                file,
                # Rows are numbered only where one thread reads them.
                arrow_csv.ReadOptions(
                    column_names=[str(place) for place in range(len(self.names))],
                    block_size=_BLOCK_BYTES,
                    use_threads=False,
                ),
                arrow_csv.ParseOptions(
                    delimiter=self._delimiter,
                    newlines_in_values=True,
                    invalid_row_handler=leave_out,
                ),
                arrow_csv.ConvertOptions(
                    include_columns=names or ["0"],  # no names: all columns
                    column_types=dict.fromkeys(names, TEXT),
                    strings_can_be_null=True,
                    null_values=[""],
                    check_utf8=False,
                ),
            )
            following = next(batches, nothing)
            while following is not None:
                batch, following = following, next(batches, None)
                if following is None and is_closed:
                    wrong.pop()
                left_out = np.array(wrong, np.int64)
                left_out = left_out[np.searchsorted(left_out, end) :]
                rows = np.arange(end, end + batch.num_rows + len(left_out))
                rows = np.setdiff1d(rows, left_out, assume_unique=True)[: batch.num_rows]
                end = int(rows[-1]) + 1 if len(rows) else end
                if following is None:
                    end += int((left_out >= end).sum())
                    if not is_closed and len(rows) and rows[-1] == end - 1:
                        batch, rows = batch[:-1], rows[:-1]
                        wrong.append(end - 1)
                    if not self._is_reported:
                        self._is_reported = True
                        self._bad.add(self, np.array(wrong, np.int64), self._wrong_fields)
                # Without places, all columns are there.
                yield dict(zip(places, batch.columns, strict=False)), rows, end
        except pa.ArrowInvalid as error:
            if "straddling" not in str(error):
                raise
            deque(self._records(), maxlen=0)  # raises the error of the line
            raise ValueError(f"a line has more than {_BLOCK_BYTES >> 20} MiB") from error
        finally:
            # Arrow's thread reads ahead; at the interpreter's end it would abort the process.
            stop.set()
            with suppress(Exception):
                deque(batches, maxlen=0)

    def _records(self) -> Iterator[tuple[int, Record]]:
        """Line and fields of every row, by the csv module: slow."""
        line, most = self._first_line, 2 * _BLOCK_BYTES
        with io.TextIOWrapper(self._open(), "utf-8", newline="") as file:
            file.buffer.read(self._num_bytes_skipped)
            lines = iter(partial(file.readline, most + 1), "")
            reader = csv.reader(lines, delimiter=self._delimiter)
            try:
                for fields in reader:
                    if fields:
                        yield line, fields
                    line = self._first_line + reader.line_num
            except csv.Error as error:
                raise ValueError(
                    f"line {line}: {error}; perhaps a quotation mark opens there and does not close"
                ) from error

    def read_fields(self, rows: Int64Array) -> list[tuple[int, Record]]:
        wanted = set(rows.tolist())
        found: list[tuple[int, Record]] = []
        with readable(self.path):
            for row, record in enumerate(self._records()):
                if row in wanted:
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


def _codec_of(path: Path, encoding: str) -> str | None:
    """The codec of an encoding, or the one that the first bytes tell; None: UTF-8."""
    if encoding != "auto":
        try:
            "".encode(encoding)
            codec = codecs.lookup(encoding)
        except (LookupError, ValueError) as error:
            raise UserError(
                f"dataset.encoding={encoding}: Python knows no such encoding.",
                "Set it to utf-8, utf-16, latin1, …, or leave dataset.encoding=auto.",
            ) from error
        return None if codec.name in ("utf-8", "utf-8-sig") else encoding
    with pa.input_stream(str(path), compression="detect") as stream:
        start = stream.read(4096)
    for mark, found in _CODECS_OF_MARKS:
        if start.startswith(mark):
            return found
    zeros = np.flatnonzero(np.frombuffer(start, np.uint8) == 0)
    if 4 * len(zeros) < len(start) or len(set(zeros % 2)) != 1:
        return None
    return "utf-16-le" if zeros[0] % 2 else "utf-16-be"


def _delimiter(
    path: Path, first: str, second: str, known_names: Collection[str], decimal: str
) -> str:
    """The sign between the fields of the first line.

    Of several, the one that the second line has as often; of those, the one around a known name: a
    column's name may have a comma, and a field semicolons.
    """
    suffix = _text_suffix(path)
    if suffix == ".tsv":
        return "\t"
    choices = [",", "\t", ";", "|"] + [" "] * (suffix != ".csv")
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


# How files of other tools become files that are read here, for messages.

_WRITE_GRAPHML = "networkx.write_graphml(graph, 'graph.graphml')"
_GIVE_GRAPHML = "Then give dataset.data=graph.graphml."
_WRITE_NPZ = (
    "edge_index = numpy.stack([end.numpy() for end in graph.edges()])",
    "arrays = {name: array.numpy() for name, array in graph.ndata.items()}",
    "numpy.savez('graph.npz', edge_index=edge_index, **arrays)",
)
_GIVE_NPZ = "Then give dataset.data=graph.npz."


def _hint(*lines: str, then: str, intro: str = "Convert it in Python:") -> str:
    return "\n".join([intro, *(f"  {line}" for line in lines), then])


def conversion_hint(path: Path) -> str | None:
    """The lines that convert a file of another tool; None for a suffix that is not known."""
    suffix, shown = path.suffix.lower(), repr(str(path))
    if suffix in (".pkl", ".pickle", ".gpickle", ".p"):
        load = f"graph = pickle.load(open({shown}, 'rb'))"
        intro = "A pickle runs code when it is read. If you trust it, convert it in Python:"
        lines = ("import networkx, pickle", load, _WRITE_GRAPHML)
        return _hint(*lines, then=_GIVE_GRAPHML, intro=intro)
    if suffix in (".bin", ".dgl"):
        load = f"graph = dgl.load_graphs({shown})[0][0]"
        return _hint("import dgl, numpy", load, *_WRITE_NPZ, then=_GIVE_NPZ)
    if suffix in (".gml", ".gexf"):
        load = f"graph = networkx.read_{suffix[1:]}({shown})"
        return _hint("import networkx", load, _WRITE_GRAPHML, then=_GIVE_GRAPHML)
    if suffix in (".xlsx", ".xls", ".xlsb", ".ods"):
        convert = f"pandas.read_excel({shown}).to_csv('table.csv', index=False)"
        return _hint("import pandas", convert, then="Then give table.csv.")
    return None
