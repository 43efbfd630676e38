"""Preprocessing against a slow oracle made of pandas, column by column."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.data.preprocessing import (
    Categories,
    FeatureColumn,
    PreparedFeatures,
    Preprocessing,
    RawFeatures,
)
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
    columns = {}
    for i, kind in enumerate(draw(st.lists(st.sampled_from(["number", "text"]), min_size=1))):
        values = numbers if kind == "number" else texts
        columns[f"c{i}"] = draw(st.lists(values, min_size=num_rows, max_size=num_rows))
    train = draw(st.sets(st.integers(0, num_rows - 1), min_size=1))
    kinds = {name: any(isinstance(v, float) for v in values) for name, values in columns.items()}
    return {
        "columns": columns,
        "is_number": kinds,
        "train": np.array(sorted(train)),
        "missing": missing,
        "standardize": draw(st.booleans()),
    }


def raw_of(columns: dict[str, list[Any]], is_number: dict[str, bool]) -> RawFeatures:
    numbers = [values for name, values in columns.items() if is_number[name]]
    num_rows = len(next(iter(columns.values())))
    matrix = np.array(numbers, np.float32).T if numbers else np.empty((num_rows, 0), np.float32)
    categories = []
    for name, values in columns.items():
        if not is_number[name]:
            codes, found = pd.factorize(pd.Series(values, dtype=object))
            categories.append(Categories(found.tolist(), codes))
    return RawFeatures(matrix, categories)


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


@given(table=tables())
@examples(100)
def test_only_training_rows_have_a_say_in_the_statistics(table: dict[str, Any]) -> None:
    if table["missing"] in ("mean", "indicator") and not has_means(table):
        return
    is_number, train = table["is_number"], set(table["train"].tolist())
    options = {name: table[name] for name in ("missing", "standardize")}
    fits = []
    for shift in (0.0, 1e6):
        moved = {
            name: [
                v + shift if is_number[name] and row not in train else v
                for row, v in enumerate(values)
            ]
            for name, values in table["columns"].items()
        }
        raw = raw_of(moved, is_number)
        fits.append(Preprocessing.fit(described(is_number), raw, table["train"], **options))
    assert fits[0] == fits[1]


def test_a_column_of_subnormal_deviation_counts_as_constant() -> None:
    raw = raw_of({"c": [0.0, 1e-45, 1.0]}, {"c": True})
    fitted = Preprocessing.fit(
        described({"c": True}), raw, np.array([0, 1]), missing="refuse", standardize=True
    )
    assert fitted.stds == (1.0,)
    np.testing.assert_allclose(fitted.apply(raw), [[0.0], [0.0], [1.0]], atol=1e-40)


def test_constant_columns_are_not_divided_by_noise() -> None:
    numbers = np.full((1000, 2), 0.1, np.float32)
    numbers[:, 1] = np.float32(1e30)
    fitted = Preprocessing.fit(
        [FeatureColumn(name="a"), FeatureColumn(name="b")],
        RawFeatures(numbers),
        np.arange(997),
        standardize=True,
    )
    assert fitted.stds == (1.0, 1.0)
    np.testing.assert_allclose(fitted.apply(RawFeatures(numbers))[:, 0], 0, atol=1e-12)


def test_statistics_are_summed_in_double_precision_over_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gnntrain.data.preprocessing._CHUNK_VALUES", 10)
    numbers = (1e6 + np.random.default_rng(0).normal(size=(5001, 3))).astype(np.float32)
    fitted = Preprocessing.fit(
        [FeatureColumn(name=name) for name in "abc"],
        RawFeatures(numbers),
        np.arange(5001),
        standardize=True,
    )
    np.testing.assert_allclose(fitted.means or (), numbers.astype(float).mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(fitted.stds or (), numbers.astype(float).std(axis=0), rtol=1e-10)


def test_a_column_of_lists_has_a_feature_a_number_and_one_indicator() -> None:
    numbers = np.array([[1, 2, 3], [np.nan, np.nan, 5]], np.float32)
    fitted = Preprocessing.fit(
        [FeatureColumn(name="emb", width=2), FeatureColumn(name="a")],
        RawFeatures(numbers),
        np.array([0]),
        missing="indicator",
    )
    assert fitted.feature_names == ("emb_0", "emb_1", "emb_missing", "a")
    expected = [[1, 2, 0, 3], [1, 2, 1, 5]]
    assert fitted.apply(RawFeatures(numbers)).tolist() == expected


@pytest.mark.parametrize(("num_values", "num_rows"), [(1001, 5000), (51, 100), (11, 12)])
def test_too_many_categories_are_refused(num_values: int, num_rows: int) -> None:
    codes = np.arange(num_rows) % num_values
    raw = RawFeatures(
        np.empty((num_rows, 0), np.float32),
        [Categories([str(i) for i in range(num_values)], codes)],
    )
    column = FeatureColumn(name="county", width=0, categories=())
    with pytest.raises(UserError, match=f"county has {num_values:,} different values"):
        Preprocessing.fit([column], raw, np.arange(num_rows))
    fewer = RawFeatures(raw.numbers, [Categories(raw.categories[0].values, codes // 2)])
    assert Preprocessing.fit([column], fewer, np.arange(num_rows)).num_features > 1


def test_a_category_that_was_not_there_is_zero_in_all_features() -> None:
    column = FeatureColumn(name="kind", width=0, categories=())
    seen = RawFeatures(np.empty((4, 0)), [Categories(["b", "a"], np.array([0, 1, 1, 0]))])
    fitted = Preprocessing.fit([column], seen, np.arange(4))
    new = RawFeatures(np.empty((3, 0)), [Categories(["z", "a"], np.array([0, 1, 0]))])
    assert fitted.apply(new).tolist() == [[0, 0], [1, 0], [0, 0]]
