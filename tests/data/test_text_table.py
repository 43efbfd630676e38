"""Delimited text: which line holds which row, quotation marks, encodings, delimiters, numbers."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.errors import UserError
from tests.data.files import build, features_of, ids_of, refusal, save, small_blocks
from tests.examples import examples

SIZES = (150, 1 << 24)
"""Bytes of a block: of a few lines, or of a whole file."""


def keys_of(folder: Path, content: str | bytes, **keys: Any) -> dict[str, Any]:
    """Keys of a graph whose nodes are the rows of a text."""
    features = save(folder / "rows.csv", content)
    edges = save(folder / "edges.npy", np.empty((2, 0), np.int64))
    return {"features": features, "edges": edges, "id_column": "0", **keys}


def rows_of(keys: dict[str, Any], num_bytes: int) -> tuple[list[Any], str]:
    """Ids and first numbers of the rows that are read, and the report of the others."""
    with pytest.MonkeyPatch.context() as patch:
        small_blocks(patch, num_bytes)
        report = ""
        try:
            build(keys, labelled=False)
        except UserError as error:
            report = str(error)
        (nodes,) = build({**keys, "bad_rows": "skip"}, labelled=False).nodes.values()
    return list(zip(ids_of(nodes), features_of(nodes)[:, 0].tolist(), strict=True)), report


texts = st.text('ab"\n é', max_size=5)
lines = st.one_of(
    st.tuples(texts, st.integers(-9, 9).map(str)),
    st.tuples(texts, st.just("inf")),
    st.tuples(texts),
    st.tuples(texts, texts, texts),
    st.just(()),
)


@given(
    rows=st.lists(lines, max_size=30),
    ending=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    num_bytes=st.sampled_from([150, 199, 1 << 24]),
)
@examples(150)
def test_rows_and_their_lines_do_not_depend_on_where_blocks_end(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, ...]],
    ending: str,
    quoting: int,
    num_bytes: int,
) -> None:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator=ending, quoting=quoting)  # type: ignore[arg-type]
    expected, bad = [], {}
    for place, row in enumerate([("id", "number"), ("", "1"), *rows]):
        line = 1 + file.getvalue().count("\n")
        if not row:
            file.write(ending)
            continue
        name = f"x{row[0]}{place}" if place else "id"
        writer.writerow([name, *row[1:]])
        if len(row) != 2:
            bad[line] = f"{len(row)} field"
        elif row[1] == "inf":
            bad[line] = "column number is 'inf'"
        elif place:
            expected.append((name, float(row[1])))
    keys = keys_of(tmp_path_factory.mktemp("text"), file.getvalue().encode())
    found, report = rows_of(keys, num_bytes)
    assert found == expected
    told = dict(re.findall(r"^  \S*rows\.csv line (\d+): (.*)$", report, re.MULTILINE))
    assert len(told) == min(10, len(bad))
    assert all(bad[int(line)] in reason for line, reason in told.items())
    assert (f"(rows.csv: {len(bad)})" in report) == bool(bad)


@pytest.mark.parametrize(
    ("content", "rows", "reason"),
    [
        ('id,number\na,1\n"b,2\n' + "c,3\n" * 9, [("a", 1)], "line 3: 1 field"),
        ('id,number\n"a\nb",1\nb,"2\nc,3\n', [("a\nb", 1)], "line 4: a quotation mark opens here"),
        ('id,number\n5" disk,1\nplain,2\n', [('5" disk', 1), ("plain", 2)], ""),
    ],
)
def test_a_quotation_mark_that_never_closes_is_a_bad_row(
    tmp_path: Path, content: str, rows: list[Any], reason: str
) -> None:
    found, report = rows_of(keys_of(tmp_path, content), SIZES[1])
    assert found == rows
    assert reason in report
    assert bool(reason) == ("quotation mark" in report)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('id,number\na,1\n"b,2\n' + "c,3\n" * 100, ["line 3", "quotation mark"]),
        ("id,number\na,1\n" + "b" * 500 + ",2\n", ["line 3"]),  # it fits into no block
    ],
)
def test_a_row_that_never_ends_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, words: list[str]
) -> None:
    small_blocks(monkeypatch, 160)
    message = refusal(keys_of(tmp_path, content), labelled=False)
    assert all(word in message for word in ["rows.csv", *words])


@pytest.mark.parametrize(
    ("written", "said"),
    [
        *((name, "auto") for name in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig")),
        *((name, name) for name in ("utf-8", "cp1250", "utf-16-le")),
    ],
)
@pytest.mark.parametrize("num_bytes", SIZES)
def test_encodings_are_seen_or_said(
    tmp_path: Path, written: str, said: str, num_bytes: int
) -> None:
    content = "id,number\r\n" + "".join(f"é{number},1\r\n" for number in range(60))
    keys = keys_of(tmp_path, content.encode(written), encoding=said)
    assert rows_of(keys, num_bytes) == ([(f"é{number}", 1) for number in range(60)], "")


@pytest.mark.parametrize("num_bytes", SIZES)
def test_latin_1_is_seen_where_nothing_is_utf_8_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, num_bytes: int
) -> None:
    content = "id,größe\n" + "".join(f"é€{number},2\n" for number in range(60))
    found, report = rows_of(keys_of(tmp_path, content.encode("cp1252")), num_bytes)
    assert found == [(f"é€{number}", 2) for number in range(60)]
    assert report == ""
    assert "line 1 is not UTF-8" in caplog.text


@pytest.mark.parametrize(
    ("content", "encoding", "word"),
    [
        (b"id,n\xe9\xc3\xa9\na,1\n", "auto", "line 1 is not UTF-8"),
        (b"id,number,note\na,1,\xc3\xa9\nb\xe9\n", "auto", "line 3 is not UTF-8"),  # a bad row
        # No character of Windows' Latin-1.
        (b"id,number,note\na,1,\nb,2,\x81\n", "auto", "line 3 is not UTF-8"),
        (b"id,number\n" + b"a\xe9,1\n" * 99 + "é,2\n".encode(), "auto", "line 2 is not UTF-8"),
        (b"id,number\na\xe9,1\n", "utf-8", "rows.csv"),
        (b"id,number\na\xe9,1\n", "ascii", "rows.csv"),
        *((b"id,number\na,1\n", name, "dataset.encoding=") for name in ("rot13", "a\0b")),
    ],
)
def test_bytes_of_no_or_another_encoding_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: bytes, encoding: str, word: str
) -> None:
    assert word in refusal(keys_of(tmp_path, content, encoding=encoding, ignore="note"))
    assert capfd.readouterr().err == ""  # Arrow prints a traceback where a handler cannot be called


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("id;income, EUR;size\n1;5,3;0\n2;5;0\n3;5;0\n", ("income, EUR", "size")),
        ("name\tpopulation; 2020, 2021\nx\t5\n", ("population; 2020, 2021",)),
        ("id,size; EUR\n1,5\n", ("size; EUR",)),
        ("id, a\n1,2\n", ("a",)),
    ],
)
def test_a_name_may_have_the_sign_that_elsewhere_stands_between_fields(
    tmp_path: Path, text: str, names: tuple[str, ...]
) -> None:
    keys = keys_of(tmp_path, text, bad_rows="skip")
    (nodes,) = build(keys, labelled=False).nodes.values()
    assert nodes.feature_names == names


@given(
    st.lists(
        st.integers(-(2**65), 2**65).map(str)
        | st.integers(-20, 20).map(str)
        | st.text("0123456789.+-eExX_a \t", min_size=1, max_size=4),
        min_size=1,
        max_size=4,
        unique_by=str.strip,
    ).filter(lambda found: not {"", "-1"}.intersection(map(str.strip, found)))
)
@examples(100)
def test_ids_are_numbers_only_where_the_numbers_say_how_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, found: list[str]
) -> None:
    text = "id,number\n" + "".join(f"{name},1\n" for name in found)
    keys = keys_of(tmp_path_factory.mktemp("ids"), text)
    (nodes,) = build(keys, labelled=False).nodes.values()
    assert list(map(str, ids_of(nodes))) == [name.strip() for name in found]
    if all(re.fullmatch("0|-?[1-9][0-9]{0,17}", name) for name in found):
        assert nodes.ids is None or nodes.ids.dtype == "int64"
