"""Opening tables, whatever their files are: text, Parquet, Feather and Arrow, JSON lines, GraphML.

Feather and Arrow files are mapped; JSON lines and GraphML are read as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal
from xml.parsers import expat

import pyarrow as pa
from pyarrow import ipc, parquet
from pyarrow import json as arrow_json

from gnntrain.data.conversions import conversion_hint
from gnntrain.data.tables import BadRows, Table, readable, refuse_beyond_memory
from gnntrain.data.text_table import TEXT_SUFFIXES, TextTable, table_suffix
from gnntrain.data.values import TEXT, from_texts
from gnntrain.errors import UserError

GRAPHML_SUFFIX = ".graphml"
_PARQUET_SUFFIXES = (".parquet", ".pq")
_ARROW_SUFFIXES = (".feather", ".arrow")
_JSON_SUFFIXES = (".jsonl", ".ndjson")
TABLE_SUFFIXES = (*TEXT_SUFFIXES, *_PARQUET_SUFFIXES, *_ARROW_SUFFIXES, *_JSON_SUFFIXES)

_BATCH_ROWS = 1 << 18
_BATCH_VALUES = 1 << 22
_MEMORY_OF_XML = 20
"""Bytes of memory that a byte of XML takes while it is read."""
_MEMORY_OF_JSON = 4


def open_table(
    paths: Sequence[Path],
    bad: BadRows,
    known_names: Collection[str] = (),
    *,
    header: Literal["auto"] | bool = "auto",
    decimal: str = ".",
    encoding: str = "auto",
    other_suffixes: Sequence[str] = (),
) -> Table:
    """Open a table of one file, or of several with the same columns.

    Args:
        paths: The files.
        bad: Takes the rows of texts with a wrong number of fields.
        known_names: Names that mark a text's first line as a header, in lower case.
        header: Whether texts start with column names.
        decimal: Decimal mark of numbers in texts.
        encoding: A codec of Python's for texts, or "auto".
        other_suffixes: More suffixes for the message about a suffix that is not known.

    Raises:
        UserError: A file cannot be read, takes more than the free memory, or has other columns
            than the first.
    """
    tables: list[Table] = []
    for path in paths:
        suffix = table_suffix(path)
        if suffix in TEXT_SUFFIXES:
            tables.append(
                TextTable(path, header, known_names, bad, decimal=decimal, encoding=encoding)
            )
        elif suffix == GRAPHML_SUFFIX:
            tables.append(open_graphml(path, "nodes"))
        elif path.suffix.lower() in TABLE_SUFFIXES:
            tables.append(_open_columns(path))
        else:
            known = ", ".join((*TABLE_SUFFIXES, *other_suffixes))
            raise UserError(
                f"{path}: the suffix {path.suffix!r} does not say what the file is.",
                conversion_hint(path)
                or f"Name it with one of {known} (text also with .gz, .bz2 or .zst).",
            )
    return Table.of_files(tables)


def _open_columns(path: Path) -> Table:
    suffix = path.suffix.lower()
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
    """Columns in memory, or mapped, as a table; `path` and `note` are for messages.

    Raises:
        UserError: There are too many columns, or two have one name.
    """

    def batches(names: list[str]) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = table.select(names).to_batches(_BATCH_ROWS)
        return found

    return Table(path, table.column_names, batches, note)


def open_graphml(path: Path, part: Literal["nodes", "edges"]) -> Table:
    """The nodes of a GraphML file with their attributes, or its edges.

    Columns are `id`, or `source` and `target`, then the attributes. An edge without direction is
    there in both.

    Raises:
        UserError: The file cannot be read, or takes more than the free memory.
    """
    import networkx as nx  # type: ignore[import-untyped]  # its stubs are a package of their own

    with readable(path):
        refuse_beyond_memory(path, _MEMORY_OF_XML * path.stat().st_size)
        _refuse_doctype(path)
        try:
            graph = nx.read_graphml(path)
        except (nx.NetworkXException, SyntaxError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(f"it is no GraphML: {error}") from error
    if part == "nodes":
        named = dict(graph.nodes(data=True))
        return table_in_memory(path, _with_ends({"id": named}, named.values()))
    edges = list(graph.edges(data=True))
    if not graph.is_directed():
        edges += [(v, u, attributes) for u, v, attributes in edges if u != v]
    ends = {"source": [edge[0] for edge in edges], "target": [edge[1] for edge in edges]}
    note = "" if graph.is_directed() else " (without direction there, stored in both)"
    return table_in_memory(path, _with_ends(ends, [edge[2] for edge in edges]), note)


def _refuse_doctype(path: Path) -> None:
    """Refuse untrusted XML with a document type: its entities may expand to any length.

    Raises:
        UserError: It declares a document type.
        ValueError: It is no XML.
    """

    class RootReached(Exception):  # the first element begins: no document type may follow
        pass

    def stop(*_: Any) -> None:
        raise RootReached

    def refuse(*_: Any) -> None:
        raise UserError(
            f"{path} declares a document type (<!DOCTYPE …>), which may unpack to any length.",
            "Remove the declaration, or save the graph again.",
        )

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = stop
    try:
        with path.open("rb") as stream:
            parser.ParseFile(stream)
    except RootReached:
        return
    except expat.ExpatError as error:
        raise ValueError(f"it is no XML: {error}") from error


def _with_ends(
    ends: Mapping[str, Iterable[str]], attributes: Collection[Mapping[str, Any]]
) -> pa.Table:
    """Node names, which are whole numbers if all are, then the attributes by their names."""
    columns = {name: from_texts(pa.array(texts, TEXT)) for name, texts in ends.items()}
    for name in dict.fromkeys(name for row in attributes for name in row):
        values = [row.get(name) for row in attributes]
        try:
            column = pa.array(values, from_pandas=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):  # of several types: as texts
            column = pa.array([None if v != v else str(v) for v in values], TEXT)
        columns[f"{name}.1" if name in ends else name] = column
    return pa.table(columns)
