"""Preprocessing against a slow oracle made of pandas, column by column."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.data.preprocessing import FeatureColumn, PreparedFeatures, Preprocessing, RawFeatures
from gnntrain.errors import UserError
from tests.examples import examples

AnyArray = npt.NDArray[Any]
# Numbers of a size, or 0: a deviation of 1e-40 would take a number of 1e4 beyond float32.
SIZED = st.floats(-1e4, 1e4, width=32).map(lambda x: x if abs(x) > 1e-30 else 0.0)
NUMBERS = SIZED | st.sampled_from([0.0, 1.0, 0.1])
TEXTS = st.sampled_from(["a", "b", "c", "10", "9", "é"])


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Any]:
    """Columns of numbers (NaN: missing) and of texts (None: missing), and how they are fitted."""
    num_rows = draw(st.integers(2, 20))
    missing = draw(st.sampled_from(["refuse", "zero", "mean", "indicator"]))
    numbers = NUMBERS if missing == "refuse" else NUMBERS | st.just(math.nan)
    texts = TEXTS if missing == "refuse" else TEXTS | st.none()
    kinds = draw(st.lists(st.booleans(), min_size=1))
    column = {
        kind: st.lists(values, min_size=num_rows, max_size=num_rows)
        for kind, values in ((True, numbers), (False, texts))
    }
    return {
        "columns": {f"c{i}": draw(column[kind]) for i, kind in enumerate(kinds)},
        "is_number": {f"c{i}": kind for i, kind in enumerate(kinds)},
        "train": np.array(sorted(draw(st.sets(st.integers(0, num_rows - 1), min_size=1)))),
        "missing": missing,
        "standardize": draw(st.booleans()),
    }


def raw_of(columns: dict[str, list[Any]], is_number: dict[str, bool]) -> RawFeatures:
    numbers = [values for name, values in columns.items() if is_number[name]]
    num_rows = len(next(iter(columns.values())))
    matrix = np.array(numbers, np.float32).T if numbers else np.empty((num_rows, 0), np.float32)
    texts = [pa.array(v, pa.large_string()) for name, v in columns.items() if not is_number[name]]
    return RawFeatures(matrix, [column.dictionary_encode() for column in texts])


def described(is_number: dict[str, bool]) -> list[FeatureColumn]:
    return [
        FeatureColumn(name=name) if number else FeatureColumn(name=name, width=0, categories=())
        for name, number in is_number.items()
    ]


def oracle(table: dict[str, Any], new: dict[str, list[Any]]) -> pd.DataFrame:
    """The features of `new` as they are described in words, one column after the other."""
    features: dict[str, Any] = {}
    train = table["train"].tolist()
    for name, values in table["columns"].items():
        given = new[name]
        if not table["is_number"][name]:
            known = {value for value in values if value is not None}
            is_numeric = all(value.isdecimal() for value in known)
            for value in sorted(known, key=int if is_numeric else str):
                features[f"{name}={value}"] = [float(other == value) for other in given]
            lacks = [value is None for value in given]
            indicated = any(value is None for value in values)
        else:
            seen, shown = (pd.Series(v).astype("float32").astype(float) for v in (values, given))
            lacks, indicated = shown.isna(), seen.isna().any()
            fill = 0.0 if table["missing"] == "zero" else seen[train].mean()
            if table["missing"] != "refuse":
                seen, shown = seen.fillna(fill), shown.fillna(fill)
            if table["standardize"]:
                std = seen[train].std(ddof=0)
                is_constant = seen[train].nunique() == 1 or std < 1e-12 * abs(seen[train].mean())
                shown = (shown - seen[train].mean()) / (1.0 if is_constant else std)
            features[name] = shown
        if table["missing"] == "indicator" and indicated:
            features[f"{name}_missing"] = np.asarray(lacks, float)
    return pd.DataFrame(features, index=range(len(next(iter(new.values())))))


def has_means(table: dict[str, Any]) -> bool:
    """Whether each column of numbers has a value in the training split."""
    rows = table["train"].tolist()
    numbers = [v for name, v in table["columns"].items() if table["is_number"][name]]
    return all(any(not math.isnan(values[row]) for row in rows) for values in numbers)


@given(table=tables(), data=st.data())
@examples(300)
def test_features_are_what_the_oracle_says(table: dict[str, Any], data: st.DataObject) -> None:
    columns, is_number = table["columns"], table["is_number"]
    raw = raw_of(columns, is_number)
    options = {name: table[name] for name in ("missing", "standardize")}
    if table["missing"] in ("mean", "indicator") and not has_means(table):
        with pytest.raises(UserError, match="training split"):
            Preprocessing.fit(described(is_number), raw, table["train"], **options)
        return
    fitted = Preprocessing.fit(described(is_number), raw, table["train"], **options)
    expected = oracle(table, columns)
    assert list(fitted.feature_names) == list(expected)
    found = fitted.apply(raw)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected.to_numpy(np.float64), rtol=1e-5, atol=1e-4)
    again = Preprocessing.model_validate_json(json.dumps(fitted.model_dump(mode="json")))
    assert again == fitted
    order = data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=9))
    new = {name: [values[row] for row in order] for name, values in columns.items()}
    np.testing.assert_array_equal(again.apply(raw_of(new, is_number)), found[order])
    cut = data.draw(st.integers(0, len(raw)))
    rows = PreparedFeatures(raw, fitted)
    parts = np.concatenate([rows.rows(0, cut), rows.rows(cut, len(raw))])
    np.testing.assert_array_equal(parts, found)


@pytest.mark.parametrize(
    "values",
    [[0.1] * 997 + [5] * 3, [1e30] * 997 + [0] * 3, [0.0, 1e-45] * 498 + [0.0, 1e-45, 1.0, 2.0]],
    ids=["equal", "huge", "subnormal"],
)
def test_a_column_that_does_not_vary_is_not_divided_by_noise(values: list[float]) -> None:
    raw = raw_of({"c": values}, {"c": True})
    fitted = Preprocessing.fit(described({"c": True}), raw, np.arange(997), standardize=True)
    assert fitted.stds == (1.0,)
    expected = raw.numbers.astype(np.float64) - (fitted.means or ())
    np.testing.assert_allclose(fitted.apply(raw), expected, atol=1e-40)


@pytest.mark.parametrize(("num_values", "num_rows"), [(1001, 5000), (51, 100), (11, 12)])
def test_too_many_categories_are_refused(num_values: int, num_rows: int) -> None:
    kinds = [str(row % num_values) for row in range(num_rows)]
    columns, train = described({"county": False}), np.arange(num_rows)
    with pytest.raises(UserError, match=f"county has {num_values:,} different values"):
        Preprocessing.fit(columns, raw_of({"county": kinds}, {"county": False}), train)
    fewer = [str(row % num_values // 2) for row in range(num_rows)]
    fitted = Preprocessing.fit(columns, raw_of({"county": fewer}, {"county": False}), train)
    assert fitted.num_features > 1
