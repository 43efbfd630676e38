"""Tables that are read as a whole: Feather and Arrow files, JSON lines, GraphML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyarrow import ipc
from pyarrow import json as arrow_json

from gnntrain.data.bad_rows import Record
from gnntrain.data.columns import TEXT, from_texts
from gnntrain.data.graph import Int64Array
from gnntrain.data.tables import (
    ColumnBatch,
    Columns,
    Table,
    checked_names,
    decoded,
    readable,
    refuse_beyond_memory,
)
from gnntrain.data.xml_files import refuse_doctype

GRAPHML_SUFFIX = ".graphml"
_BATCH_ROWS = 1 << 18
_MEMORY_OF_XML = 20
"""Bytes of memory that a byte of XML takes while it is read."""
_MEMORY_OF_JSON = 4


class ArrowTable(Table):
    """Columns in memory, or mapped.

    Args:
        path: Their file.
        table: The columns.
        note: See `Table.note`.

    Raises:
        UserError: There are too many columns, or two have one name.
    """

    def __init__(self, path: Path, table: pa.Table, note: str = "") -> None:
        self.path, self.note = path, note
        self._table = table
        with readable(path):
            self.names = checked_names(table.column_names)

    def read_columns(self, columns: Columns) -> Iterator[ColumnBatch]:
        places = columns.all_places
        start = 0
        for batch in self._table.select(places).to_batches(_BATCH_ROWS):
            end = start + batch.num_rows
            found = dict(zip(places, map(decoded, batch.columns), strict=True))
            yield found, np.arange(start, end), end
            start = end

    def records(self, rows: Int64Array) -> list[tuple[int, Record]]:
        there = rows[rows < self._table.num_rows]
        columns = [column.to_pylist() for column in self._table.take(there).columns]
        records = zip(*columns, strict=True)
        texts = [["" if field is None else str(field) for field in record] for record in records]
        return list(zip(there.tolist(), texts, strict=True))


def open_arrow_table(path: Path) -> ArrowTable:
    """A file of `READERS` as a table.

    Raises:
        UserError: It cannot be read, or takes more than the free memory.
    """
    with readable(path):
        return ArrowTable(path, READERS[path.suffix.lower()](path))


def _read_ipc(path: Path) -> pa.Table:
    """Feather (version 2) is Arrow's file format; other tools also save its stream format."""
    source = pa.memory_map(str(path))
    try:
        table = ipc.open_file(source).read_all()
    except pa.ArrowInvalid:
        source.seek(0)
        table = ipc.open_stream(source).read_all()
    table.validate(full=True)  # offsets beyond a buffer would be read
    return table


def _read_json_lines(path: Path) -> pa.Table:
    refuse_beyond_memory(path, _MEMORY_OF_JSON * path.stat().st_size)
    return arrow_json.read_json(path)


def table_of(columns: Mapping[str, Iterable[Any]]) -> pa.Table:
    """Columns of Python's values as a table; a column of several types becomes text."""
    return pa.table({name: _column(list(values)) for name, values in columns.items()})


def _column(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([None if value != value else str(value) for value in values], TEXT)


def open_graphml(path: Path, part: Literal["nodes", "edges"]) -> ArrowTable:
    """The nodes of a GraphML file with their attributes, or its edges.

    Columns are `id`, or `source` and `target`, then the attributes. An edge without direction is
    there in both.

    Raises:
        UserError: The file cannot be read, or takes more than the free memory.
    """
    import networkx as nx  # type: ignore[import-untyped]  # its stubs are a package of their own

    with readable(path):
        refuse_beyond_memory(path, _MEMORY_OF_XML * path.stat().st_size)
        with path.open("rb") as stream:
            refuse_doctype(path, stream)
        try:
            graph = nx.read_graphml(path)
        except (nx.NetworkXException, SyntaxError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(f"it is no GraphML: {error}") from error
    if part == "nodes":
        return ArrowTable(path, _nodes(graph))
    both_ways = "" if graph.is_directed() else " (without direction there, stored in both)"
    return ArrowTable(path, _edges(graph), both_ways)


def _nodes(graph: Any) -> pa.Table:
    named = dict(graph.nodes(data=True))
    return _with_ends({"id": list(named)}, list(named.values()))


def _edges(graph: Any) -> pa.Table:
    edges = list(graph.edges(data=True))
    if not graph.is_directed():
        edges += [(v, u, attributes) for u, v, attributes in edges if u != v]
    ends = {"source": [edge[0] for edge in edges], "target": [edge[1] for edge in edges]}
    return _with_ends(ends, [edge[2] for edge in edges])


def _with_ends(ends: Mapping[str, list[str]], attributes: list[Mapping[str, Any]]) -> pa.Table:
    """Node names, which are whole numbers if all are, then the attributes by their names."""
    names = dict.fromkeys(name for given in attributes for name in given)
    table = table_of({name: [given.get(name) for given in attributes] for name in names})
    shown = [f"{name}.1" if name in ends else name for name in table.column_names]
    columns = {name: from_texts(pa.array(texts, TEXT)) for name, texts in ends.items()}
    columns |= dict(zip(shown, table.columns, strict=True))
    return pa.table(columns)


READERS: Mapping[str, Callable[[Path], pa.Table]] = {
    ".feather": _read_ipc,
    ".arrow": _read_ipc,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
}
