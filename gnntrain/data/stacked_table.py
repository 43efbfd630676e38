"""Several files as one table, and the rows of one type out of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from gnntrain.data import columns as arrow_columns
from gnntrain.data.bad_rows import Record
from gnntrain.data.columns import TEXT, with_decimal_point
from gnntrain.data.graph import Int64Array
from gnntrain.data.tables import ColumnBatch, Columns, Table


class StackedTable(Table):
    """The rows of several tables with the same columns, one table after the other.

    Args:
        tables: The tables; the first one's path stands for all in messages about columns.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        first = tables[0]
        self.path, self.names, self.unit = first.path, first.names, first.unit
        self.decimal, self.heading = first.decimal, first.heading
        self.null_width = None
        self.note = f" and {len(tables) - 1} more"
        self._tables = tables
        self._starts = [0]

    def read_columns(self, columns: Columns) -> Iterator[ColumnBatch]:
        self._starts = [0]
        for table in self._tables:
            first = end = self._starts[-1]
            for found, rows, last in table.read_columns(replace(columns, table=table)):
                end = first + last
                yield found, first + rows, end
            self._starts.append(end)

    def by_file(self, rows: Int64Array) -> Iterator[tuple[Table, Int64Array]]:
        ends = [*self._starts[1 : len(self._tables)], np.iinfo(np.int64).max]
        for table, start, end in zip(self._tables, self._starts, ends, strict=False):
            here = rows[(rows >= start) & (rows < end)]
            if len(here):
                yield table, here - start

    def records(self, rows: Int64Array) -> list[tuple[int, Record]]:
        return [record for table, here in self.by_file(rows) for record in table.records(here)]

    def to_plain(self, column: pa.Array, *, labels: bool) -> pa.Array:
        return self._tables[0].to_plain(column, labels=labels)


class TablePart(Table):
    """Some rows of a table, in memory.

    Args:
        table: The table.
        columns: Its columns at these rows, by their places.
        rows: int64, the rows' numbers in the table.
    """

    def __init__(self, table: Table, columns: Mapping[int, pa.Array], rows: Int64Array) -> None:
        self.path, self.names, self.unit = table.path, table.names, table.unit
        self.decimal, self.note = table.decimal, table.note
        self._table, self._columns, self._rows = table, columns, rows

    def read_columns(self, columns: Columns) -> Iterator[ColumnBatch]:
        found = {place: self._columns[place] for place in columns.all_places}
        for place in columns.numbers:
            if found[place].type == TEXT:
                found[place] = with_decimal_point(found[place], self.decimal)
        yield found, self._rows, int(self._rows[-1]) + 1 if len(self._rows) else 0

    def by_file(self, rows: Int64Array) -> Iterator[tuple[Table, Int64Array]]:
        return self._table.by_file(rows)

    def records(self, rows: Int64Array) -> list[tuple[int, Record]]:
        return self._table.records(rows)

    def to_plain(self, column: pa.Array, *, labels: bool) -> pa.Array:
        if column.type == TEXT:
            return self._table.to_plain(column, labels=labels)
        return arrow_columns.to_plain(column, labels=labels)
