from __future__ import annotations

import csv
import io
import math
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.data import text_table
from gnntrain.data.bad_rows import BadRows
from gnntrain.data.columns import MISSING_MARKS, TEXT, from_texts, number_of, to_matrix
from gnntrain.data.tables import Columns
from gnntrain.data.text_table import TextTable
from gnntrain.errors import UserError
from tests.examples import examples

Row = tuple[int, str, str]
"""First line, id and number of a row."""


def rows_of(path: Path, block_bytes: int, encoding: str = "auto") -> tuple[list[Row], str]:
    """The rows of two fields, and what is told of the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_table, "_BLOCK_BYTES", block_bytes)
        bad = BadRows("error")
        table = TextTable(path, True, (), bad, encoding=encoding)
        rows = Columns(table, {"id": 0}, (1,)).read()
        fields = table.fields(rows.rows) if len(rows) else []
        numbers = [str(number) for number in rows.matrix[:, 0]]
        found = [
            (line, row[0], number) for (line, row), number in zip(fields, numbers, strict=True)
        ]
        assert [text for _, text, _ in found] == rows.columns["id"].to_pylist()
        told = ""
        try:
            bad.report()
        except UserError as error:
            told = str(error)
    return found, told


texts = st.text('ab"\n é', max_size=5).map(lambda text: f"x{text}y")
lines = st.one_of(
    st.tuples(texts, st.integers(-9, 9).map(str)),
    st.tuples(texts),
    st.tuples(texts, texts),
    st.just(()),
)


@given(
    rows=st.lists(lines, max_size=30),
    ending=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    block_bytes=st.sampled_from([150, 199, 1 << 24]),
)
@examples(150)
def test_rows_and_their_lines_do_not_depend_on_where_blocks_end(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, ...]],
    ending: str,
    quoting: int,
    block_bytes: int,
) -> None:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator=ending, quoting=quoting)  # type: ignore[arg-type]
    expected, wrong = [], []
    for row in [("id", "number"), *rows]:
        text = file.getvalue()
        line = 1 + text.count("\n")
        if row:
            writer.writerow(row)
        else:
            file.write(ending)
        if len(row) == 1:
            wrong.append(line)
        elif len(row) == 2 and line > 1:
            number = row[1] if row[1].lstrip("-").isdigit() else "inf"
            expected.append((line, row[0], str(np.float32(number))))
    path = tmp_path_factory.mktemp("text") / "rows.csv"
    path.write_bytes(file.getvalue().encode())
    found, told = rows_of(path, block_bytes)
    assert found == expected
    assert all(f"line {line}: 1 field" in told for line in wrong[:5])
    assert (f"(rows.csv: {len(wrong)})" in told) == bool(wrong)


def test_a_quotation_mark_that_never_closes_is_told_with_the_line_where_it_opens(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('id,number\na,1\n"b,2\n' + "c,3\n" * 100)
    found, told = rows_of(path, 1 << 24)
    assert found == [(2, "a", "1.0")]
    assert "line 3: 1 field" in told
    assert "quotation mark" in told
    with pytest.raises(UserError, match=r"rows\.csv.*line 3.*quotation mark"):
        rows_of(path, 160)


def test_a_quotation_mark_in_the_last_column_does_not_swallow_the_rows_behind_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.csv"
    for end in ("", "\nc,3\nd,4\n"):
        path.write_text('id,number\n"a\nb",1\nb,"2' + end)
        found, told = rows_of(path, 1 << 24)
        assert found == [(2, "a\nb", "1.0")]
        assert "line 4: a quotation mark opens here" in told


def test_a_quotation_mark_within_a_field_is_a_character(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,number\n" + '5" disk,1\nplain,2\n' * 50)
    for block_bytes in (150, 1 << 24):
        found, told = rows_of(path, block_bytes)
        assert [row[0] for row in found] == list(range(2, 102))
        assert told == ""


def test_a_line_that_does_not_fit_in_a_block_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,number\na,1\n" + "b" * 500 + ",2\n")
    with pytest.raises(UserError, match=r"rows\.csv.*line 3"):
        rows_of(path, 150)


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_line_endings_and_a_byte_order_mark_are_no_data(
    tmp_path: Path, bom: bytes, ending: bytes
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(bom + ending.join([b"# note", b"id,number", b"a,1", b"", b"b,2", b""]))
    found, told = rows_of(path, 1 << 24)
    assert found == [(3, "a", "1.0"), (5, "b", "2.0")]
    assert told == ""


def test_bytes_that_are_not_utf_8_are_found_in_the_header_and_in_columns_not_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.csv"
    for content, line in (
        (b"id,n\xe9\xc3\xa9\na,1\n", 1),
        (b"id,number,note\na,1,\xc3\xa9\nb,2,\xe9\n", 3),
        (b"id,number,note\na,1,\nb,2,\x81\n", 3),  # no character of Windows' Latin-1
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=f"line {line} is not UTF-8"):
            rows_of(path, 1 << 24)


@pytest.mark.parametrize("block_bytes", [150, 1 << 24])
def test_latin_1_is_seen_where_nothing_is_utf_8_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, block_bytes: int
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(("id,größe\n" + "a,1\n" * 100 + "é€,2\n" * 100).encode("cp1252"))
    found, told = rows_of(path, block_bytes)
    assert [row[1] for row in found] == ["a"] * 100 + ["é€"] * 100
    assert told == ""
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "line 1 is not UTF-8" in caplog.text
    path.write_bytes(b"id,number\n" + b"a\xe9,1\n" * 100 + "é,2\n".encode())
    with pytest.raises(UserError, match="line 2 is not UTF-8"):
        rows_of(path, block_bytes)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("utf-16", "auto"),
        ("utf-16-le", "auto"),
        ("utf-16-be", "auto"),
        ("utf-32", "auto"),
        ("utf-8-sig", "auto"),
        ("utf-8-sig", "utf-8"),
        ("cp1250", "cp1250"),
        ("utf-16-le", "utf-16-le"),
    ],
)
@pytest.mark.parametrize("block_bytes", [150, 1 << 24])
def test_other_encodings_are_seen_or_said(
    tmp_path: Path, written: str, said: str, block_bytes: int
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(("id,number\r\n" + "é,1\r\n" * 100).encode(written))
    found, told = rows_of(path, block_bytes, encoding=said)
    assert found == [(line, "é", "1.0") for line in range(2, 102)]
    assert told == ""


@pytest.mark.parametrize("encoding", ["nope", "rot13", "a\0b"])
def test_an_unknown_encoding_is_refused(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"id,number\na,1\n")
    with pytest.raises(UserError, match=r"dataset\.encoding="):
        rows_of(path, 1 << 24, encoding=encoding)


def test_bytes_that_do_not_fit_the_encoding_that_is_said_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"id,number\na\xe9,1\n")
    for encoding in ("utf-8", "ascii"):
        with pytest.raises(UserError, match=r"rows\.csv"):
            rows_of(path, 1 << 24, encoding=encoding)


@pytest.mark.parametrize("header", ["id;number\n", ""])
def test_numbers_may_have_a_decimal_comma(tmp_path: Path, header: str) -> None:
    path = tmp_path / "rows.csv"
    lines = ["0,5;1,25", "0,75;-2", "1,5;x", "2,5;1.5"]
    path.write_text(header + "\n".join(lines))
    table = TextTable(path, "auto", ("id",), BadRows("error"), decimal=",")
    assert table.names == (("id", "number") if header else ("0", "1"))
    matrix = Columns(table, {}, (0, 1)).read().matrix
    np.testing.assert_array_equal(
        matrix, np.array([[0.5, 1.25], [0.75, -2], [1.5, np.inf], [2.5, np.inf]], np.float32)
    )
    labels = Columns(table, {"label": 0}, ()).read().columns["label"]
    assert labels.to_pylist() == [0.5, 0.75, 1.5, 2.5]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("id;income, EUR;label\n1;5;0\n", ["id", "income, EUR", "label"]),
        ("id;income, EUR;label\n1;5,3;0\n", ["id", "income, EUR", "label"]),
        ("name\tpopulation; 2020, 2021\nx\t5\n", ["name", "population; 2020, 2021"]),
        ("id,size; EUR\n1,5;3\n", ["id", "size; EUR"]),
        ("7,0.1;0.2;0.3,A;B\n", ["0", "1", "2"]),
        ("id, a\n1\n", ["id", "a"]),
    ],
)
def test_a_name_or_field_may_have_the_sign_that_elsewhere_stands_between_fields(
    tmp_path: Path, text: str, names: list[str]
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    assert list(TextTable(path, "auto", ("id",), BadRows("error")).names) == names


def test_rows_that_are_read_twice_are_told_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,number\na\nb,2\n")
    bad = BadRows("error")
    columns = Columns(TextTable(path, True, (), bad), {"id": 0}, (1,))
    assert columns.read().columns["id"].to_pylist() == ["b"]
    assert columns.read().columns["id"].to_pylist() == ["b"]
    with pytest.raises(UserError, match="1 bad row "):
        bad.report()


@given(
    st.lists(
        st.integers(-(2**65), 2**65).map(str)
        | st.integers(-20, 20).map(str)
        | st.text("0123456789.+-eExX_a \t", min_size=1, max_size=4),
        min_size=1,
        max_size=4,
    )
)
def test_texts_become_numbers_only_if_the_numbers_say_how_they_were_written(
    texts: list[str],
) -> None:
    column = from_texts(pa.array(texts, TEXT))
    assert column.cast(TEXT).to_pylist() == [text.strip() or None for text in texts]
    if all(re.fullmatch("0|-?[1-9][0-9]{0,17}", text) for text in texts):
        assert column.type == pa.int64()


@given(
    st.one_of(
        st.text("0123456789.+-eE_x ", max_size=6),
        st.floats().map(str),
        st.sampled_from([*MISSING_MARKS, " True", "FALSE", "1_000", "0x1F", "1e99", "two"]),
    )
)
def test_a_field_alone_is_read_as_in_a_column(field: str) -> None:
    number = number_of(field)
    read = float(to_matrix([pa.array([field], TEXT)], 1, [None])[0][0, 0])
    if number is None or abs(number) > float(np.finfo(np.float32).max):
        assert math.isinf(read)
    else:
        np.testing.assert_allclose(read, number, rtol=1e-6, atol=1e-40)
