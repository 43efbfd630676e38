from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.data.columns import TEXT, to_plain
from gnntrain.data.read.nodes import NodeIndex

whole = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5)
words = st.text("ab01 .-+", min_size=1).filter(lambda text: text.strip() != "")


def find(index: NodeIndex, values: list[Any], kind: pa.DataType) -> list[int]:
    found: list[int] = index.find(pa.array(values, kind)).tolist()
    return found


@given(ids=st.lists(whole, min_size=1, unique=True), asked=st.lists(whole | st.none()))
def test_numbers_are_found_as_numbers_and_as_texts(ids: list[int], asked: list[int | None]) -> None:
    index = NodeIndex(pa.array(ids, pa.int64()), len(ids))
    expected = [ids.index(value) if value in ids else -1 for value in asked]
    assert find(index, asked, pa.int64()) == expected
    texts = [None if value is None else str(value) for value in asked]
    # A text column that has other texts, too, holds numbers a little less large.
    small = [v is not None and abs(v) < 2**62 for v in asked]
    found = find(index, [*texts, "x"], TEXT)
    for text, node, number, is_small in zip(texts, expected, found, small, strict=False):
        assert number == node or not is_small
        assert index.knows(f" {text} ") == (node >= 0) or text is None
    assert find(index, texts, TEXT) == expected


@given(
    ids=st.lists(words, min_size=1, unique_by=str.strip),
    asked=st.lists(words | st.just("") | st.none()),
)
def test_texts_are_found_as_they_are_written_but_for_blanks_around_them(
    ids: list[str], asked: list[str | None]
) -> None:
    stripped = [text.strip() for text in ids]
    index = NodeIndex(to_plain(pa.array(ids, TEXT)), len(ids))
    expected = [
        stripped.index(text.strip()) if text and text.strip() in stripped else -1 for text in asked
    ]
    assert find(index, asked, TEXT) == expected
    assert [index.knows(text or "") for text in asked] == [node >= 0 for node in expected]


@pytest.mark.parametrize("ids", [None, [0, 1, 2], [7, 1, 16], ["7", "1.0", "16"]])
def test_a_whole_number_is_the_same_node_in_any_file_unless_written_otherwise(
    ids: list[Any] | None,
) -> None:
    index = NodeIndex(None if ids is None else pa.array(ids).cast(kind_of(ids)), 3)
    assert find(index, ["1", "1.0", " 1 "], TEXT) == [1] * 3
    assert find(index, ["001", "+1", "1e0", "0x1", "01.0"], TEXT) == [-1] * 5
    assert find(index, ["1.5", "x", "", "-1", "99", "9" * 30, "nan"], TEXT) == [-1] * 7
    assert find(index, [1.0, 1.5, None, float("nan"), 1e300], pa.float64()) == [1, -1, -1, -1, -1]
    assert find(index, [1, 2**64 - 1], pa.uint64()) == [1, -1]
    assert find(index, [], pa.null()) == []
    # One value that is no number does not change how the others are read.
    assert find(index, ["1", "x"], TEXT) == [1, -1]


def kind_of(ids: list[Any]) -> pa.DataType:
    return TEXT if isinstance(ids[0], str) else pa.int64()


@pytest.mark.parametrize(
    ("ids", "asked", "meant"),
    [
        (["07", "x"], "7", "07"),
        (["+7", "8"], "7", "+7"),
        (["1E1", "2E1"], "10", "1E1"),
        (["9" * 30, "9" * 29 + "8"], "+" + "9" * 29 + "8", "9" * 29 + "8"),
        ([7, 8], "07", "7"),
        ([7, 8], "7e0", "7"),
        (["07", "x"], "nan", None),
        ([7, 8], "1E999999999", None),
        (["07", "x"], "y", None),
    ],
)
def test_an_unknown_id_is_told_with_the_one_that_is_the_same_number(
    ids: list[Any], asked: str, meant: str | None
) -> None:
    index = NodeIndex(pa.array(ids, kind_of(ids)), 2, home="nodes.csv")
    assert find(index, [asked], TEXT) == [-1]
    told = f", which has {meant!r}: write it alike in both" if meant else ""
    assert index.unknown(asked) == f"node {asked!r} is not in nodes.csv{told}"


def test_ids_0_1_2_take_no_memory_and_are_not_kept() -> None:
    index = NodeIndex(pa.array([0, 1, 2]), 3)
    assert index.node_ids() is None
    assert index.num_hashed == 0
    assert NodeIndex(pa.array([0, 2, 1]), 3).num_hashed == 3
