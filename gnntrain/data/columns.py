"""Columns of a user's tables as Arrow arrays: ids, labels, numbers; null is a missing value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from gnntrain.data.graph import AnyArray, Float32Array

BoolArray = npt.NDArray[np.bool_]

TEXT = pa.large_string()  # 64-bit offsets: a column may hold more than 2 GiB of text

_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_DECIMAL = r"^[+-]?[0-9]+$"
_HEXADECIMAL = r"^0[xX][0-9a-fA-F]{1,15}$"
_EXACT_FLOATS = 2.0**53
_NULL = pa.scalar(None, TEXT)

MISSING_WORDS = (
    *("", "?", "na", "n/a", "nan", "-nan", "nat", "none", "null"),
    *("<na>", "#na", "#n/a", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"),
)
"""Texts that say that a label or a number is missing, in lower case; blanks around do not count."""
_MISSING_WORDS = pa.array(MISSING_WORDS, TEXT)


def from_numpy(array: AnyArray) -> pa.Array:
    """A one-dimensional array of numbers, truth values (as 0 and 1) or texts; NaN is null."""
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", "replace")
    if array.dtype.kind == "U":
        return pa.array(array.astype(object), TEXT)
    if array.dtype.kind == "f":
        array = array.astype(np.float64)
    elif array.dtype.kind == "b":
        array = array.astype(np.int8)
    return pa.array(array.astype(array.dtype.newbyteorder("="), copy=False), from_pandas=True)


def to_plain(column: pa.Array, *, labels: bool = False) -> pa.Array:
    """A column as int64 if its values are whole numbers, else as texts.

    Args:
        column: Of any type that Arrow can write as text. Blank texts are missing, and so is NaN.
        labels: Whether fractions stay float64 and the `MISSING_WORDS` are missing, too.

    Raises:
        pa.ArrowException: The type cannot be written as text (lists, for example).
    """
    if pa.types.is_floating(column.type):
        column = column.cast(pa.float64())
        column = pc.if_else(pc.is_nan(column), None, column)
        if _all(_is_whole(column)):
            return column.cast(pa.int64())
        return column if labels else column.cast(TEXT)
    if pa.types.is_integer(column.type):
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid:  # beyond 64 bits
            return column.cast(TEXT)
    texts = pc.utf8_trim_whitespace(column.cast(TEXT))
    return pc.if_else(_is_missing(texts) if labels else pc.equal(texts, ""), _NULL, texts)


def from_texts(texts: pa.Array, *, labels: bool = False, decimal: str = ".") -> pa.Array:
    """As `to_plain`, but texts that are all numbers (or `MISSING_WORDS`) become numbers."""
    words = pc.if_else(_is_missing(texts), _NULL, pc.utf8_trim_whitespace(texts))
    words = with_decimal_point(words, decimal)
    for kind in (pa.int64(), pa.float64()) if words.null_count < len(words) else ():
        try:
            numbers = to_plain(words.cast(kind), labels=labels)
        except pa.ArrowInvalid:
            continue
        if numbers.type != TEXT:
            return numbers
    return to_plain(texts, labels=labels)


def with_decimal_point(texts: pa.Array, decimal: str) -> pa.Array:
    """Texts of numbers with a point for their decimal mark; one that has points is no number."""
    if decimal == ".":
        return texts
    return pc.replace_substring(pc.replace_substring(texts, ".", "_"), decimal, ".")


def missing_words(column: pa.Array) -> dict[str, int]:
    """How often each word stands for a missing value in a column of texts; blanks are no word."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return {}
    texts = pc.utf8_trim_whitespace(column)
    is_word = pc.and_(_is_missing(texts), pc.not_equal(texts, ""))
    return {
        counted["values"]: counted["counts"]
        for counted in pc.value_counts(texts.filter(is_word)).to_pylist()
    }


def _is_missing(texts: pa.Array) -> pa.Array:
    lower = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
    return pc.or_(pc.is_null(lower), pc.is_in(lower, _MISSING_WORDS))


def to_int64(column: pa.Array) -> pa.Array:
    """A column of `to_plain` as int64: texts that are no whole numbers of 64 bits become null."""
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        value = _parse(column, pa.float64())
        is_decimal = pc.and_kleene(
            pc.match_substring_regex(column, _DECIMAL), pc.less(pc.abs(value), 2.0**63)
        )
        is_written_whole = pc.or_kleene(is_decimal, pc.match_substring_regex(column, _HEXADECIMAL))
        whole = pc.if_else(is_written_whole, pc.utf8_ltrim(column, "+"), _NULL).cast(pa.int64())
        return pc.coalesce(whole, pc.if_else(_is_whole(value), value, None).cast(pa.int64()))


def _is_whole(values: pa.Array) -> pa.Array:
    """Which float64 values are whole numbers that float64 holds exactly."""
    return pc.and_(pc.less(pc.abs(values), _EXACT_FLOATS), pc.equal(values, pc.round(values)))


def _all(flags: pa.Array) -> bool:
    """Whether all flags that are not null are true."""
    return bool(pc.all(flags, min_count=0).as_py())


def _parse(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Texts as floating-point numbers; null where a text is no number."""
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        trimmed = pc.utf8_trim_whitespace(texts)
        is_number = pc.match_substring_regex(trimmed, _NUMBER)
        return pc.if_else(is_number, trimmed, _NULL).cast(kind)


def to_matrix(columns: Sequence[pa.Array], num_rows: int, width: int | None) -> Float32Array:
    """Columns of numbers side by side: float32 `[num_rows, num_columns]`.

    NaN is a missing number, infinity a field that is none or is too large.

    Args:
        columns: Numbers, or texts, which are read as numbers. A single column of lists holds the
            matrix's rows.
        num_rows: Length of every column.
        width: Length of the lists; None: as the first one.
    """
    if len(columns) == 1 and _is_list(columns[0].type):
        return _matrix_of_lists(columns[0], width)
    matrix = np.empty((num_rows, len(columns)), np.float32)
    for place, column in enumerate(columns):
        matrix[:, place] = _float32(column)
    return matrix


def _float32(column: pa.Array) -> Float32Array:
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    elif not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        column = _numbers(column.cast(TEXT))
    values: AnyArray = column.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):  # too large for float32: infinite, hence reported
        return values.astype(np.float32, copy=False)


def _numbers(texts: pa.Array) -> pa.Array:
    """Texts as float32: null if missing, infinite if not a number."""
    numbers = _parse(pc.if_else(_is_missing(texts), _NULL, texts), pa.float32())
    return pc.if_else(_is_missing(texts), None, numbers.fill_null(np.inf))


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _matrix_of_lists(column: pa.Array, width: int | None) -> Float32Array:
    """Nulls become rows of NaN, lists of another length rows of infinity."""
    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy()
    if width is None:
        width = int(next(iter(lengths[lengths >= 0]), 0))
    matrix = np.full((len(lengths), width), np.inf, np.float32)
    matrix[lengths < 0] = np.nan
    fits = lengths == width
    matrix[fits] = _float32(pc.list_flatten(column.filter(fits))).reshape(-1, width)
    return matrix


def is_repeated(column: pa.Array) -> BoolArray:
    """Which values are there already, further up."""
    codes = column.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    return np.asarray(pd.Series(codes).duplicated(), bool)


def is_finite(matrix: AnyArray) -> BoolArray:
    """Which rows of `[num_rows, n]` have finite numbers only."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.isfinite(matrix.sum(axis=1, dtype=np.float64)))
