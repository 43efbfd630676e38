"""Columns of a user's tables as Arrow arrays: ids, labels, numbers; null is a missing value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from gnntrain.data.graph import AnyArray, BoolArray
from gnntrain.data.preprocessing import without_loss

TEXT = pa.large_string()  # 64-bit offsets: a column may hold more than 2 GiB of text

_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_WHOLE = r"^(0|-?[1-9][0-9]{0,18})$"
_WHOLE_FLOAT = r"^(0|-?[1-9][0-9]*)\.0+$"
_CODE = r"^[+-]?0[0-9]"
_EXACT_FLOATS = 2.0**53
_NULL = pa.scalar(None, TEXT)

TRUTH_WORDS = ("false", "true")
"""How truth values are written, in lower case; as numbers they are 0 and 1."""

MISSING_MARKS = (
    *("", "nan", "na", "n/a", "none", "null", "?", "-nan", "<na>", "#n/a"),
    *("nat", "#na", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"),
)
"""Fields that mean "no value", in lower case."""

# Seen at once; a mark in another case makes all texts be folded, which is slower.
_NULL_VALUES = pa.array(
    ["NaN", *(word for m in MISSING_MARKS for word in (m, m.upper(), m.capitalize()))], TEXT
)


def number_of(field: str, decimal: str = ".") -> float:
    """A field as `to_matrix` reads it: NaN where it is missing, infinite where it is no number."""
    return float(_numbers(with_decimal_point(pa.array([field], TEXT), decimal))[0])


def is_number(field: str, decimal: str = ".") -> bool:
    """Whether a field reads as a number, `nan` and `inf` included."""
    try:
        float(field.replace(decimal, "."))
    except ValueError:
        return False
    return True


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
    """A column as int64 if its values are whole numbers, else as texts; blanks and NaN are null.

    Of `labels`, fractions stay float64, and the `MISSING_MARKS` and the text -1 are null, too.
    """
    if pa.types.is_floating(column.type):
        column = column.cast(pa.float64())
        column = pc.if_else(pc.is_nan(column), None, column)
        is_whole = pc.and_(
            pc.less(pc.abs(column), _EXACT_FLOATS), pc.equal(column, pc.round(column))
        )
        if pc.all(is_whole, min_count=0).as_py():
            return column.cast(pa.int64())
        return column if labels else column.cast(TEXT)
    if pa.types.is_integer(column.type):
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid:  # beyond 64 bits
            return column.cast(TEXT)
    texts = pc.utf8_trim_whitespace(column.cast(TEXT))
    return pc.if_else(_is_no_label(texts) if labels else pc.equal(texts, ""), _NULL, texts)


def from_texts(texts: pa.Array, *, labels: bool = False, decimal: str = ".") -> pa.Array:
    """As `to_plain`, but texts that are all whole numbers (or `MISSING_MARKS`) become int64.

    Only if the number says how it was written, else 007 would come back as 7. Labels are also
    whole where pandas wrote them so (7.0), and become float64 if all are numbers and some are
    fractions.
    """
    numbers = whole_numbers(texts)
    if numbers is not None:
        return numbers
    trimmed = pc.if_else(is_missing_mark(texts), _NULL, pc.utf8_trim_whitespace(texts))
    numbers = whole_numbers(without_zero_fractions(trimmed, decimal) if labels else trimmed)
    if numbers is not None or not labels:
        return to_plain(texts) if numbers is None else numbers
    # Quantities: some are fractions, and none is a code such as 01.1.
    trimmed = with_decimal_point(trimmed, decimal)
    try:
        numbers = trimmed.cast(pa.float64())
    except pa.ArrowInvalid:
        return to_plain(texts, labels=True)
    is_whole = pc.and_(pc.equal(numbers, pc.round(numbers)), pc.is_finite(numbers))
    are_codes = pc.any(pc.match_substring_regex(trimmed, _CODE)).as_py()
    is_plain = are_codes or pc.all(is_whole, min_count=0).as_py()
    return to_plain(texts, labels=True) if is_plain else numbers


def whole_numbers(texts: pa.Array) -> pa.Array | None:
    """Texts as int64 if they are what int64 is written as, not 007, +7, 7.0 or 1E1.

    None if they are not, or all missing.
    """
    if texts.null_count == len(texts):
        return None
    try:
        texts[:100].cast(pa.int64())  # Arrow notes every text that is no number, which is slow
        numbers = texts.cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    # Of what Arrow reads, only 0 itself may begin with 0: not 007, -0 or 0x1F.
    padded = pc.and_(pc.starts_with(texts, "0"), pc.not_equal(texts, "0"))
    padded = pc.or_(padded, pc.starts_with(texts, "-0"))
    return None if pc.any(padded).as_py() else numbers


def without_zero_fractions(texts: pa.Array, decimal: str = ".") -> pa.Array:
    """Texts with 7 for 7.0, as pandas writes whole numbers of a column with gaps."""
    return pc.replace_substring_regex(with_decimal_point(texts, decimal), _WHOLE_FLOAT, r"\1")


def with_decimal_point(texts: pa.Array, decimal: str) -> pa.Array:
    """Texts of numbers with a point for their decimal mark; one that has points is no number."""
    if decimal == "." or texts.type != TEXT:
        return texts
    return pc.replace_substring(pc.replace_substring(texts, ".", "_"), decimal, ".")


def missing_marks(column: pa.Array, *, labels: bool = False) -> dict[str, int]:
    """How often each mark of a missing value stands in a column of texts, blanks left out."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return {}
    texts = pc.utf8_trim_whitespace(column.cast(TEXT))
    is_mark = _is_no_label(texts) if labels else is_missing_mark(texts)
    marks = texts.filter(pc.and_(is_mark, pc.not_equal(texts, "")))
    return {found["values"]: found["counts"] for found in pc.value_counts(marks).to_pylist()}


def listed_marks(marks: Mapping[str, int]) -> str:
    """The marks with their numbers, for a message."""
    return ", ".join(f"{mark}: {count:,}" for mark, count in marks.items())


def to_int64(column: pa.Array, decimal: str = ".") -> pa.Array:
    """Ids of any type as int64; what is no whole number of 64 bits, or written otherwise, is null.

    7.0 is 7, as a file has it whose column has gaps; 007, +7 and 1E1 are no numbers.
    """
    numbers = whole_numbers(column) if column.type == TEXT else None
    if numbers is None:
        column = to_plain(column)
        numbers = whole_numbers(column) if column.type == TEXT else column
    if numbers is not None:
        return numbers
    texts = without_zero_fractions(column, decimal)
    texts = pc.if_else(pc.match_substring_regex(texts, _WHOLE), texts, _NULL)
    fits = pc.less(pc.abs(texts.cast(pa.float64())), 2.0**63)
    return pc.if_else(fits, texts, _NULL).cast(pa.int64())


def is_missing_mark(texts: pa.Array) -> pa.Array:
    """Which texts are null or one of `MISSING_MARKS`, in any case, blanks around them."""
    folded = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
    return pc.or_(pc.is_in(folded, pa.array(MISSING_MARKS, TEXT)), texts.is_null())


def _is_no_label(texts: pa.Array) -> pa.Array:
    return pc.or_(is_missing_mark(texts), pc.fill_null(pc.equal(texts, "-1"), fill_value=False))


def to_categories(column: pa.Array) -> pa.DictionaryArray:
    """A column's values as texts, dictionary-encoded; those that are missing are null.

    A value is written alike whatever file it is from: 1.0 as 1, truth values as True and False.
    """
    if pa.types.is_boolean(column.type):
        texts = pc.if_else(column, pa.scalar("True", TEXT), pa.scalar("False", TEXT))
    else:
        texts = pc.utf8_trim_whitespace(column.cast(TEXT))
    texts = pc.if_else(is_missing_mark(texts), _NULL, texts)
    return pc.replace_substring_regex(texts, _WHOLE_FLOAT, r"\1").dictionary_encode()


def to_floats(texts: pa.Array) -> pa.Array:
    """Texts as float64; null where a text is no number."""
    try:
        return texts.cast(pa.float64())
    except pa.ArrowInvalid:
        trimmed = pc.utf8_trim_whitespace(texts)
        is_number = pc.match_substring_regex(trimmed, _NUMBER)
        return pc.if_else(is_number, trimmed, _NULL).cast(pa.float64())


def to_matrix(
    columns: Sequence[pa.Array], num_rows: int, widths: Sequence[int | None]
) -> tuple[AnyArray, list[int]]:
    """Columns of numbers, of texts that are read so, or of lists of one length, side by side.

    `widths` are the numbers in a row of each column; None: as its first list has, or 1.

    Returns:
        `[num_rows, num_numbers]`, NaN where a number is missing, infinite where a value is too
        large or no number: float32, or float64 if that is too coarse for a column. And the widths.
    """
    matrices: list[AnyArray] = [np.empty((num_rows, 0), np.float32)]
    known = []
    for column, given in zip(columns, widths, strict=True):
        width = width_of(column) if given is None else given
        known.append(1 if width is None else width)
        is_wide = is_list(column.type)
        values = _of_lists(column, known[-1]) if is_wide else _numbers(column)[:, None]
        matrices.append(without_loss(values))
    return np.concatenate(matrices, axis=1), known


def _numbers(column: pa.Array) -> AnyArray:
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    elif not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        texts = column.cast(TEXT)
        marks = pc.is_in(texts, _NULL_VALUES)
        if pc.any(marks).as_py():
            texts = pc.if_else(marks, _NULL, texts)
        try:
            column = texts.cast(pa.float64())
        except pa.ArrowInvalid:
            # Truth values, as pandas writes them, are 1 and 0.
            folded = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
            truth = pc.index_in(folded, pa.array(TRUTH_WORDS, TEXT)).cast(pa.float64())
            numbers = pc.coalesce(to_floats(texts), truth)
            is_wrong = pc.and_(pc.is_null(numbers), pc.invert(is_missing_mark(texts)))
            column = pc.if_else(is_wrong, pa.scalar(np.inf, pa.float64()), numbers)
    values: AnyArray = column.to_numpy(zero_copy_only=False)
    return values


def is_list(kind: pa.DataType) -> bool:
    """Whether a column's values are lists."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def width_of(column: pa.Array) -> int | None:
    """Numbers in a row of a column; None where all its lists, or all its values, are missing."""
    if not is_list(column.type):
        return None if pa.types.is_null(column.type) else 1
    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy()
    return next((int(length) for length in lengths[lengths >= 0]), None)


def _of_lists(column: pa.Array, width: int) -> AnyArray:
    """Null becomes a row of NaN; a list of another length becomes infinite."""
    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy()
    fits = lengths == width
    found = _numbers(pc.list_flatten(column.filter(fits))).reshape(-1, width)
    if fits.all():
        return found
    values = np.full((len(column), width), np.inf)
    values[lengths < 0] = np.nan
    values[fits] = found
    return values


def is_repeated(column: pa.Array) -> BoolArray:
    """Flags of values that occurred before."""
    codes = column.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    return np.asarray(pd.Series(codes).duplicated(), bool)


def is_finite(matrix: AnyArray) -> BoolArray:
    """Which rows of `[num_rows, n]` have finite numbers only."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.isfinite(matrix.sum(axis=1, dtype=np.float64)))
