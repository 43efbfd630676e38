"""Columns and rows of a user's tables, whatever file they came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gnntrain.data.bad_rows import BadRows, Record, RowSource
from gnntrain.data.graph import AnyArray, Float32Array, Int64Array

BoolArray = npt.NDArray[np.bool_]

_EXACT_FLOATS = 2**53


@dataclass(frozen=True)
class Column:
    """Ids, labels or split names.

    Attributes:
        values: int64 or float64 `[num_rows]`, or object (str): texts that `codes` point to.
        codes: `[num_rows]` integers into `values`; None for numbers.
        missing: bool `[num_rows]`: the field is empty (its value is then arbitrary).
    """

    values: AnyArray
    codes: AnyArray | None
    missing: BoolArray

    @property
    def is_text(self) -> bool:
        return self.codes is not None

    def keep(self, mask: BoolArray) -> Column:
        if self.codes is None:
            return replace(self, values=self.values[mask], missing=self.missing[mask])
        return replace(self, codes=self.codes[mask], missing=self.missing[mask])

    def texts(self) -> AnyArray:
        """All values as an object array of str."""
        values = self.values if self.is_text else self.values.astype(str).astype(object)
        return values if self.codes is None else values[self.codes]


@dataclass(frozen=True)
class Rows:
    """Rows read from a file.

    Attributes:
        source: The file, which can look its rows up again.
        columns: The columns of ids, labels and split names that were asked for.
        matrix: The columns of numbers: float32 `[num_rows, num_numbers]`.
        origin: int64 `[num_rows]`: each row's number in the file; None: 0, 1, ….
    """

    source: RowSource
    columns: tuple[Column, ...]
    matrix: Float32Array
    origin: Int64Array | None = None

    def __len__(self) -> int:
        return len(self.matrix)

    def drop(
        self, mask: BoolArray, bad: BadRows, reason: Callable[[Record], str], hint: str = ""
    ) -> Rows:
        """The rows outside `mask`; those inside are bad, for this reason."""
        if not mask.any():
            return self
        rows = np.flatnonzero(mask) if self.origin is None else self.origin[mask]
        bad.add(self.source, rows, reason, hint)
        origin = np.arange(len(self)) if self.origin is None else self.origin
        return replace(
            self,
            columns=tuple(column.keep(~mask) for column in self.columns),
            matrix=self.matrix[~mask],
            origin=origin[~mask],
        )


def finite_rows(matrix: AnyArray) -> BoolArray:
    """Which rows of `[num_rows, n]` have finite numbers only; looks at a few MB at a time."""
    finite = np.empty(len(matrix), bool)
    step = max(1, (1 << 22) // max(1, matrix.shape[1]))
    for start in range(0, len(matrix), step):
        finite[start : start + step] = np.isfinite(matrix[start : start + step]).all(axis=1)
    return finite


def column_of_array(array: AnyArray) -> Column:
    """A one-dimensional array of numbers or texts as a column; NaN is a missing value.

    Where a whole number does not fit in int64, all become texts.
    """
    if array.dtype.kind in "US":
        import pandas as pd

        texts = array if array.dtype.kind == "U" else np.char.decode(array, "utf-8", "replace")
        codes, values = pd.factorize(texts.astype(object))
        return Column(np.asarray(values, object), codes, np.zeros(len(array), bool))
    if array.dtype.kind == "f":
        return _column_of_floats(array.astype(np.float64))
    if array.dtype.kind == "u" and array.max(initial=0) > np.iinfo(np.int64).max:
        return column_of_array(array.astype(str))
    return Column(array.astype(np.int64), None, np.zeros(len(array), bool))


def _column_of_floats(values: AnyArray) -> Column:
    """Whole numbers become integers."""
    missing = np.isnan(values)
    filled = np.where(missing, 0.0, values)
    if ((np.abs(filled) < _EXACT_FLOATS) & (filled == np.round(filled))).all():
        return Column(filled.astype(np.int64), None, missing)
    return Column(values, None, missing)


def is_plain(array: Any, *, fractions: bool) -> bool:
    """Whether an Arrow column is one of whole numbers or texts (or, if so wished, of fractions)."""
    import pyarrow.types as pt

    kind = array.type
    if pt.is_floating(kind):
        return fractions or column_of_arrow(array).values.dtype == np.int64
    return bool(pt.is_integer(kind) or pt.is_string(kind) or pt.is_large_string(kind))


def column_of_arrow(array: Any) -> Column:
    """An Arrow column of integers, floats or strings; empty strings are missing values.

    Where a whole number does not fit in int64, all become texts.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(array.type):
        return _column_of_floats(array.to_numpy().astype(np.float64))
    missing = array.is_null().to_numpy()
    if pa.types.is_integer(array.type) and _fits_int64(array):
        return Column(pc.fill_null(array, 0).to_numpy().astype(np.int64), None, missing)
    if pa.types.is_integer(array.type):
        array = array.cast(pa.string())
    texts = pc.fill_null(array, "").dictionary_encode().unify_dictionaries()
    if not texts.num_chunks:
        return Column(np.empty(0, object), np.empty(0, np.int32), missing)
    values = pc.utf8_trim_whitespace(texts.chunk(0).dictionary).to_numpy(zero_copy_only=False)
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in texts.chunks])
    return Column(values, codes, (values == "")[codes])


def _fits_int64(array: Any) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if array.type != pa.uint64():
        return True
    return (pc.max(array).as_py() or 0) <= np.iinfo(np.int64).max


def matrix_of_arrow(arrays: list[Any], num_rows: int) -> Float32Array:
    """Arrow columns side by side: float32 `[num_rows, num_columns]`, NaN where not a number.

    Texts are read as numbers; a single column of lists is taken as the matrix's rows.
    """
    import pyarrow as pa

    if len(arrays) == 1 and _is_list(arrays[0].type):
        return _matrix_of_lists(arrays[0])
    matrix = np.empty((num_rows, len(arrays)), np.float32)
    for index, array in enumerate(arrays):
        if pa.types.is_boolean(array.type):
            array = array.cast(pa.int8())
        matrix[:, index] = _numbers(array)
    return matrix


def _numbers(array: Any) -> AnyArray:
    import pandas as pd
    import pyarrow as pa

    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        values: AnyArray = array.to_numpy()
    else:
        texts = array.cast(pa.string()).to_pandas().astype(object)
        values = pd.to_numeric(texts, errors="coerce").to_numpy(np.float64)
    with np.errstate(over="ignore"):  # too large for float32: infinite, hence reported
        return values.astype(np.float32)


def _is_list(kind: Any) -> bool:
    import pyarrow.types as pt

    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _matrix_of_lists(array: Any) -> Float32Array:
    """Lists that are shorter or longer than the first one, or null, become rows of NaN."""
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(array), -1).to_numpy()
    width = max(0, int(lengths[0])) if len(lengths) else 0
    matrix = np.full((len(lengths), width), np.nan, np.float32)
    fits = lengths == width
    kept = array.filter(fits) if not fits.all() else array
    flat = pc.list_flatten(kept)
    matrix[fits] = _numbers(flat).reshape(-1, width)
    return matrix
