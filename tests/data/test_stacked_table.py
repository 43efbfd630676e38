from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from gnntrain.data.bad_rows import BadRows
from gnntrain.data.stacked_table import StackedTable, TablePart
from gnntrain.data.tables import Columns, ParquetTable, Table
from gnntrain.data.text_table import TextTable
from gnntrain.errors import UserError

ROWS = [["a", "1"], ["b", "2"], ["c", "3"], ["d", "4"], ["e", "5"]]


def texts(folder: Path, *sizes: int) -> StackedTable:
    tables: list[Table] = []
    left = list(ROWS)
    for number, size in enumerate(sizes):
        path = folder / f"{number}.csv"
        rows, left = left[:size], left[size:]
        path.write_text("\n".join(["id,x", *map(",".join, rows)]) + "\n")
        tables.append(TextTable(path, True, (), BadRows("error")))
    return StackedTable(tables)


@pytest.mark.parametrize("sizes", [(5,), (2, 3), (1, 0, 4), (0, 5), (1, 1, 1, 1, 1)])
def test_rows_are_those_of_all_files(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    rows = Columns(texts(tmp_path, *sizes), {"id": 0}, [1]).read()
    assert rows.columns["id"].to_pylist() == [row[0] for row in ROWS]
    assert rows.matrix.ravel().tolist() == [1, 2, 3, 4, 5]
    assert rows.rows.tolist() == [0, 1, 2, 3, 4]
    assert rows.end == 5
    records = rows.source.table.records(np.array([0, 3, 4]))
    assert [record for _, record in records] == [ROWS[0], ROWS[3], ROWS[4]]


def test_bad_rows_are_told_by_their_file_and_its_line(tmp_path: Path) -> None:
    table = texts(tmp_path, 2, 3)
    rows = Columns(table, {"id": 0}, [1]).read()
    bad = BadRows("error")
    rows.drop(np.array([False, True, False, True, False]), bad, lambda row: f"{row[0]} is bad")
    with pytest.raises(UserError) as caught:
        bad.report()
    assert caught.value.hint is not None
    for line in ("0.csv line 3: b is bad", "1.csv line 3: d is bad"):
        assert line in caught.value.hint
    assert "0.csv: 1, 1.csv: 1" in caught.value.message


def test_files_of_other_types_of_numbers_are_joined(tmp_path: Path) -> None:
    tables = []
    for number, values in enumerate(([1, 2], [2.5, 3.5])):
        path = tmp_path / f"{number}.parquet"
        parquet.write_table(pa.table({"id": [f"n{number}0", f"n{number}1"], "x": values}), path)
        tables.append(ParquetTable(path))
    rows = Columns(StackedTable(tables), {"id": 0}, [1]).read()
    assert rows.matrix.ravel().tolist() == [1, 2, 2.5, 3.5]
    assert rows.columns["id"].to_pylist() == ["n00", "n01", "n10", "n11"]


def test_a_part_keeps_the_numbers_of_its_rows(tmp_path: Path) -> None:
    table = texts(tmp_path, 2, 3)
    rows = Columns(table, {}, (), [0, 1]).read().keep(np.array([0, 1, 0, 1, 1], bool))
    part = TablePart(table, rows.others, rows.rows)
    read = Columns(part, {"id": 0}, [1]).read()
    assert read.columns["id"].to_pylist() == ["b", "d", "e"]
    assert read.matrix.ravel().tolist() == [2, 4, 5]
    assert read.rows.tolist() == [1, 3, 4]
    files = [(file.path.name, at.tolist()) for file, at in part.by_file(read.rows)]
    assert files == [("0.csv", [1]), ("1.csv", [1, 2])]
