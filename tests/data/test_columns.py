from __future__ import annotations

import math
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.data.columns import (
    MISSING_MARKS,
    TEXT,
    from_texts,
    missing_marks,
    number_of,
    to_matrix,
    to_plain,
)


@pytest.mark.parametrize("word", MISSING_MARKS)
@pytest.mark.parametrize("spelling", [str, str.upper, str.title, " {} ".format])
def test_words_for_missing_are_missing_in_labels_and_in_numbers(word: str, spelling: type) -> None:
    written = spelling(word)
    assert to_plain(pa.array(["a", written], TEXT), labels=True).to_pylist() == ["a", None]
    assert from_texts(pa.array(["7", written], TEXT)).to_pylist() == [7, None]
    numbers = to_matrix([pa.array(["1.5", written], TEXT)], 2, [None])[0]
    assert numbers[0, 0] == 1.5
    assert math.isnan(numbers[1, 0])


def test_an_id_may_be_called_as_a_missing_value() -> None:
    ids = pa.array(["NA", "DE", " "], TEXT)
    assert from_texts(ids).to_pylist() == ["NA", "DE", None]


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


def test_what_is_no_number_is_infinite_not_missing() -> None:
    columns = [pa.array(["1", "x", None], TEXT), pa.array([1, None, 2])]
    matrix = to_matrix(columns, 3, [None, None])[0]
    np.testing.assert_array_equal(matrix, np.array([[1, 1], [np.inf, np.nan], [np.nan, 2]]))
    lists = to_matrix([pa.array([[1.0, 2.0], None, [3.0]])], 3, [None])[0]
    np.testing.assert_array_equal(lists, np.array([[1, 2], [np.nan] * 2, [np.inf] * 2]))


def test_words_for_missing_are_counted_as_they_are_written() -> None:
    column = pa.array(["a", "None", "none ", "", None, "None"], TEXT)
    assert missing_marks(column) == {"None": 2, "none": 1}
    assert missing_marks(pa.array([1.5, None])) == {}


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [(["1,5", "-2"], [1.5, -2]), (["1.5", "2"], ["1.5", "2"]), (["1.234,5"], ["1.234,5"])],
)
def test_numbers_have_the_decimal_mark_that_is_said(
    texts: list[str], numbers: list[object]
) -> None:
    column = from_texts(pa.array(texts, TEXT), labels=True, decimal=",")
    assert column.to_pylist() == numbers


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


def test_of_another_decimal_mark_a_point_is_none() -> None:
    assert (number_of("1,5", ","), number_of("1.5", ","), number_of("1,5")) == (1.5, None, None)
