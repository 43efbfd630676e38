"""Which columns of a user's table are features, and what is made of them: no leak, no guess."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import feather

from gnntrain.config import FilesConfig
from gnntrain.data.build import write_store
from gnntrain.data.datasets import builder_for
from gnntrain.data.graph import NODE, FeatureRows, GraphData, PrepareOptions
from gnntrain.data.preprocessing import Preprocessing
from gnntrain.data.store import StoredGraph
from gnntrain.errors import UserError
from tests.examples import examples

AnyArray = npt.NDArray[Any]

IDS = [f"n{i}" for i in range(8)]
LABELS = ["a", "b"] * 4


def nodes(**columns: Any) -> pd.DataFrame:
    """A table of 8 nodes with two features, and more columns."""
    usual = {"id": IDS, "f0": np.arange(8) / 4, "f1": np.arange(8)[::-1] / 2}
    return pd.DataFrame({**usual, **columns})


def save(table: pd.DataFrame, path: Path, **options: Any) -> str:
    if path.suffix == ".parquet":
        table.to_parquet(path, **options)
    else:
        table.to_csv(path, **{"index": False, **options})
    return str(path)


def paths(folder: Path, table: pd.DataFrame, suffix: str = "csv", **options: Any) -> dict[str, Any]:
    """Files of a graph: the features, labels of their own, edges along a ring."""
    ids = list(table["id"]) if "id" in table else list(range(len(table)))
    labels = pd.DataFrame({"id": ids, "label": LABELS[: len(ids)]})
    edges = pd.DataFrame({"source": ids, "target": [*ids[1:], ids[0]]})
    return {
        "features": save(table, folder / f"nodes.{suffix}", **options),
        "labels": save(labels, folder / "labels.csv"),
        "edges": save(edges, folder / "edges.csv"),
    }


def build(**options: Any) -> GraphData:
    data = builder_for(FilesConfig.model_validate(options)).build()
    assert isinstance(data, GraphData)
    return data


def names_of(data: GraphData) -> list[str]:
    assert data.feature_names is not None
    return list(data.feature_names)


def left_out(data: GraphData) -> dict[str, str]:
    assert data.summary is not None
    return dict(data.summary.left_out)


def features_of(data: GraphData) -> AnyArray:
    if isinstance(data.features, np.ndarray):
        return data.features
    assert isinstance(data.features, FeatureRows)
    return data.features.rows(0, data.num_nodes)


def message_of(**options: Any) -> str:
    with pytest.raises(UserError) as caught:
        build(**options)
    return str(caught.value)


# --- labels, splits and masks


@pytest.mark.parametrize("name", ["label", "Labels", "class", "y"])
def test_a_column_called_like_a_label_is_no_feature_of_a_graph_with_a_labels_file(
    tmp_path: Path, name: str
) -> None:
    data = build(**paths(tmp_path, nodes(**{name: [0, 1] * 4})))
    assert names_of(data) == ["f0", "f1"]
    assert features_of(data).shape == (8, 2)
    assert list(left_out(data)) == [name]


def test_the_labels_files_own_columns_are_no_features(tmp_path: Path) -> None:
    table = nodes(kind=[0, 1] * 4, part=[0, 0, 0, 0, 1, 1, 2, 2])
    given = paths(tmp_path, table)
    labels = table[["id", "kind"]].assign(part=["train"] * 4 + ["val"] * 2 + ["test"] * 2)
    given["labels"] = save(labels, tmp_path / "labels.csv")
    data = build(**given, label_column="kind", split_column="part")
    assert names_of(data) == ["f0", "f1"]
    assert "labels.csv" in left_out(data)["kind"]


def test_columns_of_several_labels_are_no_features(tmp_path: Path) -> None:
    table = nodes(red=[0, 1] * 4, green=[1, 1] * 4)
    given = paths(tmp_path, table)
    given["labels"] = save(table[["id", "red", "green"]], tmp_path / "labels.csv")
    data = build(**given)
    assert data.task == "multilabel"
    assert names_of(data) == ["f0", "f1"]


def test_the_split_files_column_is_no_feature(tmp_path: Path) -> None:
    table = nodes(part=[0, 0, 0, 0, 1, 1, 2, 2])
    parts = pd.DataFrame({"id": IDS, "part": ["train"] * 4 + ["val"] * 2 + ["test"] * 2})
    split = save(parts, tmp_path / "split.csv")
    data = build(**paths(tmp_path, table), split=split, split_column="part")
    assert names_of(data) == ["f0", "f1"]


def test_masks_that_are_read_are_no_features(tmp_path: Path) -> None:
    masks = {"train_mask": [1] * 4 + [0] * 4, "val_mask": [0] * 4 + [1, 1, 0, 0]}
    given = paths(tmp_path, nodes(**masks, test_mask=[0] * 6 + [1, 1]))
    data = build(**given)
    assert names_of(data) == ["f0", "f1"]
    assert data.splits["test"].tolist() == [6, 7]


def test_another_label_is_no_feature_where_the_label_is_a_column_of_the_same_file(
    tmp_path: Path,
) -> None:
    given = paths(tmp_path, nodes(kind=LABELS, label=[0, 1] * 4))
    data = build(features=given["features"], edges=given["edges"], label_column="kind")
    assert names_of(data) == ["f0", "f1"]


@pytest.mark.parametrize("name", ["train_mask", "val_mask", "test_mask_0", "split", "target"])
def test_masks_splits_and_ends_are_no_features_beside_a_split_file(
    tmp_path: Path, name: str
) -> None:
    data = build(**with_split(tmp_path, nodes(**{name: [0, 1] * 4})))
    assert names_of(data) == ["f0", "f1"]
    assert list(left_out(data)) == [name]


def test_what_is_named_explicitly_is_a_feature_all_the_same(tmp_path: Path) -> None:
    given = paths(tmp_path, nodes(y=np.arange(8) / 8, train_mask=[0, 1] * 4))
    assert names_of(build(**given, feature_columns=["f0", "y"])) == ["f0", "y"]
    assert names_of(build(**given, feature_columns=["y", "*"])) == ["f0", "f1", "y"]
    assert names_of(build(**given, feature_columns="*")) == ["f0", "f1"], "a pattern names none"
    assert "y=0.125" in names_of(build(**given, categorical="y"))


@pytest.mark.parametrize("name", ["id", "kind"])
def test_ids_and_labels_themselves_are_never_features(tmp_path: Path, name: str) -> None:
    given = paths(tmp_path, nodes(kind=LABELS))
    options = {"features": given["features"], "edges": given["edges"], "label_column": "kind"}
    message = message_of(**options, feature_columns=["f0", name])
    assert "dataset.feature_columns" in message
    assert name in message


def test_a_labels_file_without_a_label_takes_no_features_away_in_silence(tmp_path: Path) -> None:
    table = nodes()
    given = paths(tmp_path, table)
    message = message_of(**{**given, "labels": given["features"]})
    assert "f0: nodes.csv has labels of this name" in message


# --- indices of pandas


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("order", ["in order", "sorted", "filtered"])
def test_an_index_that_pandas_wrote_is_no_feature(tmp_path: Path, suffix: str, order: str) -> None:
    table = nodes()
    if order == "sorted":
        table = table.sort_values("f1")
    elif order == "filtered":
        table.index = np.array([0, 3, 5, 9, 10, 44, 45, 46])
    data = build(**paths(tmp_path, table, suffix, index=True))
    assert names_of(data) == ["f0", "f1"]
    assert data.node_ids is not None
    assert data.node_ids.tolist() == [name.encode() for name in table["id"]]
    assert len(left_out(data)) == 1


@pytest.mark.parametrize("name", ["Unnamed: 0", "index", "level_0"])
def test_an_index_that_was_written_twice_or_reset_is_no_feature(tmp_path: Path, name: str) -> None:
    data = build(**paths(tmp_path, nodes(**{name: range(8)})))
    assert names_of(data) == ["f0", "f1"]
    assert list(left_out(data)) == [name]
    assert names_of(build(**paths(tmp_path, nodes(**{name: range(1, 9)})))) == ["f0", "f1"]
    named = build(**paths(tmp_path, nodes(**{name: range(8)})), feature_columns=["f0", name])
    assert names_of(named) == ["f0", name]


@pytest.mark.parametrize("name", ["", "Unnamed: 3", "index"])
def test_a_column_with_the_name_of_an_index_and_other_numbers_is_a_feature(
    tmp_path: Path, name: str
) -> None:
    table = nodes(**{name: [0.5, 1, 2, 3, 4, 4, 6, 7], "z": 1.5})
    data = build(**paths(tmp_path, table))
    assert names_of(data) == ["f0", "f1", name or "3", "z"]
    np.testing.assert_allclose(features_of(data), table.iloc[:, 1:].to_numpy(), rtol=1e-6)
    assert left_out(data) == {}


@pytest.mark.parametrize("users", [[3, 0, 1, 2, 7, 6, 5, 4], list("hgfedcba")])
def test_it_is_asked_which_of_an_index_and_another_column_is_the_id(
    tmp_path: Path, users: list[Any]
) -> None:
    table = nodes().drop(columns="id")
    table.insert(0, "user", users)
    given = paths(tmp_path, table, index=True)
    with pytest.raises(UserError, match="user") as caught:
        build(**given)
    assert "dataset.id_column=user" in str(caught.value.hint)
    given["labels"] = save(pd.DataFrame({"user": users, "label": LABELS}), tmp_path / "kinds.csv")
    ring = pd.DataFrame({"source": users, "target": users[::-1]})
    data = build(**{**given, "edges": save(ring, tmp_path / "ring.csv")}, id_column="user")
    assert data.node_ids is not None
    assert [str(name) for name in data.node_ids.astype(str)] == [str(user) for user in users]
    assert names_of(data) == ["f0", "f1"]


def test_an_index_called_index_in_another_order_is_a_feature(tmp_path: Path) -> None:
    data = build(**paths(tmp_path, nodes(index=[7, 0, 1, 2, 3, 4, 5, 6])))
    assert names_of(data) == ["f0", "f1", "index"]


def test_an_unnamed_first_column_is_the_id_where_nothing_else_is_and_never_a_feature(
    tmp_path: Path,
) -> None:
    table = nodes().drop(columns="id")
    data = build(**paths(tmp_path, table, index=True))
    assert names_of(data) == ["f0", "f1"]
    assert data.summary is not None
    assert data.summary.ids == "column 0 of nodes.csv, a pandas index; column id of labels.csv"
    data = build(**paths(tmp_path, table, index=True), id_column="none")
    assert names_of(data) == ["f0", "f1"]
    assert data.summary is not None
    assert data.summary.ids == "row numbers of nodes.csv"
    assert "pandas index" in left_out(data)["column 0 (without a name)"]
    table.index = pd.Index(IDS)
    given = paths(tmp_path, table, "parquet")
    edges = save(pd.DataFrame({"source": IDS, "target": IDS[::-1]}), tmp_path / "edges.csv")
    labels = save(pd.DataFrame({"id": IDS, "label": LABELS}), tmp_path / "labels.csv")
    data = build(**{**given, "edges": edges, "labels": labels})
    assert names_of(data) == ["f0", "f1"]
    assert data.node_ids is not None


def test_an_ordinary_column_of_row_numbers_is_told(tmp_path: Path) -> None:
    data = build(**paths(tmp_path, nodes(row=range(8))))
    assert names_of(data) == ["f0", "f1", "row"]
    assert data.summary is not None
    assert "column row holds row numbers" in data.summary.features


def test_a_second_column_called_like_an_id_is_no_feature(tmp_path: Path) -> None:
    data = build(**paths(tmp_path, nodes(node_id=range(100, 108))))
    assert names_of(data) == ["f0", "f1"]
    table = nodes().assign(id=range(8))
    data = build(**paths(tmp_path, table), id_column="none")
    assert names_of(data) == ["f0", "f1"]


def test_a_label_in_the_first_column_is_not_the_id(tmp_path: Path) -> None:
    table = nodes().drop(columns="id")
    table.insert(0, "label", LABELS)
    given = paths(tmp_path, table)
    data = build(features=given["features"], edges=given["edges"])
    assert names_of(data) == ["f0", "f1"]
    assert data.labels.tolist() == [0, 1] * 4
    assert data.node_ids is None


# --- texts


@pytest.mark.parametrize(
    "values", [[f"Autauga {i}" for i in range(8)], ["2020-01-02"] * 7 + [""], ["x"] * 5 + ["1"] * 3]
)
def test_a_column_of_texts_is_named_once_with_the_keys_that_help(
    tmp_path: Path, values: list[str]
) -> None:
    given = paths(tmp_path, nodes(county=values))
    message = message_of(**given)
    assert "Column county of" in message
    assert repr(values[0]) in message
    assert "dataset.ignore=[county]" in message
    assert "dataset.categorical=[county]" in message
    assert "bad_rows" not in message
    assert message_of(**given, bad_rows="skip") == message
    assert names_of(build(**given, ignore="county")) == ["f0", "f1"]


def test_several_columns_of_texts_and_dates_are_told_at_once(tmp_path: Path) -> None:
    dates = pd.date_range("2020", periods=8)
    given = paths(tmp_path, nodes(**{"my place": IDS, "day": dates}), "parquet")
    assert 'dataset.ignore=["my place",day]' in message_of(**given)


def test_a_few_texts_among_numbers_are_bad_rows(tmp_path: Path) -> None:
    given = paths(tmp_path, nodes(a=[1, 2, "x", 4, 5, 6, 7, 8]))
    assert "nodes.csv line 4: column a is 'x'" in message_of(**given)


def test_a_decimal_comma_is_said_where_it_makes_texts_of_numbers(tmp_path: Path) -> None:
    table = nodes(flag=[True, False] * 4, **{"": np.arange(8) / 8})
    given = paths(tmp_path, table, sep=";", decimal=",")
    (tmp_path / "labels.csv").write_text("id;label\n" + "".join(f"{i};{i[1]}\n" for i in IDS))
    assert "Set dataset.decimal=','." in message_of(**given)
    data = build(**given, decimal=",")
    np.testing.assert_allclose(features_of(data)[:, 3], np.arange(8) / 8)
    table.loc[2, "f1"] = None
    save(table, tmp_path / "nodes.csv", sep=";", decimal=",")
    message = message_of(**given, decimal=",")
    assert "line 4: column f1 is ''" in message


def test_lists_may_be_missing_where_a_file_begins(tmp_path: Path) -> None:
    table = pa.table({"id": IDS, "emb": [None] * 5 + [[1.0, 2.0]] * 3, "a": np.arange(8.0)})
    given = paths(tmp_path, nodes())
    given["features"] = str(tmp_path / "nodes.feather")
    feather.write_feather(table, given["features"], chunksize=2)
    data = build(**given, missing="zero")
    assert names_of(data) == ["emb_0", "emb_1", "a"]
    assert features_of(data)[4:6].tolist() == [[0, 0, 4], [1, 2, 5]]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_truth_values_are_1_and_0(tmp_path: Path, suffix: str) -> None:
    data = build(**paths(tmp_path, nodes(flag=[True, False] * 4), suffix))
    assert features_of(data)[:, 2].tolist() == [1, 0] * 4


def test_lists_of_parquet_stand_beside_numbers(tmp_path: Path) -> None:
    lists = [[float(i), i / 2] for i in range(8)]
    table = pd.DataFrame({"id": IDS, "emb": lists, "a": np.arange(8.0)})
    data = build(**paths(tmp_path, table, "parquet"))
    assert names_of(data) == ["emb_0", "emb_1", "a"]
    np.testing.assert_array_equal(features_of(data)[:, :2], lists)
    assert features_of(data)[:, 2].tolist() == table["a"].tolist()
    table.loc[3, "a"] = np.nan
    table.at[5, "emb"] = [1.0]
    message = message_of(**paths(tmp_path, table, "parquet"))
    assert "row 3: column a is 'nan'" in message or "row 3: column a is ''" in message
    assert "row 5: " in message


# --- choosing columns


def test_columns_are_chosen_by_name_number_and_pattern(tmp_path: Path) -> None:
    given = paths(tmp_path, nodes(g0=1.0, g1=2.0, G2=3.0, **{"h[0]": 4.0}))
    for chosen, expected in (
        ("g?", ["g0", "g1"]),
        (["f*", "h[0]"], ["f0", "f1", "h[0]"]),
        ([2, "G2"], ["f1", "G2"]),
        ("h[*", ["h[0]"]),
    ):
        data = build(**given, feature_columns=chosen)
        assert names_of(data) == expected
        assert len(left_out(data)) == 6 - len(expected)
    assert names_of(build(**given, ignore=["g*", 6])) == ["f0", "f1", "G2"]
    both = build(**given, feature_columns=["f*", "g*"], ignore="g1")
    assert names_of(both) == ["f0", "f1", "g0"]


@pytest.mark.parametrize("key", ["feature_columns", "ignore", "categorical"])
def test_a_name_that_is_no_column_is_told_with_the_nearest(tmp_path: Path, key: str) -> None:
    given = paths(tmp_path, nodes(county=1.0))
    message = message_of(**given, **{key: "contry"})
    assert f"dataset.{key}" in message
    assert "did you mean county?" in message
    assert "q*" in message_of(**given, **{key: "q*"})


@pytest.mark.parametrize("key", ["feature_columns", "ignore", "categorical"])
def test_an_array_has_no_names_to_choose_by(tmp_path: Path, key: str) -> None:
    given = paths(tmp_path, nodes())
    np.save(tmp_path / "x.npy", np.eye(8))
    options = {**given, "features": str(tmp_path / "x.npy"), key: "a"}
    assert f"dataset.{key}=[a]" in message_of(**options)


def test_a_column_that_is_ignored_is_not_found_as_id_or_label(tmp_path: Path) -> None:
    table = nodes().rename(columns={"id": "name"})
    edges = save(pd.DataFrame({"source": [0, 1], "target": [1, 2]}), tmp_path / "e.csv")
    labels = save(pd.DataFrame({"label": LABELS}), tmp_path / "l.csv")
    given = {**paths(tmp_path, table), "edges": edges, "labels": labels}
    data = build(**given, ignore="name")
    assert data.node_ids is None
    assert list(left_out(data)) == ["name"]
    assert "dataset.id_column" in message_of(**given, ignore="name", id_column="name")
    del given["labels"]
    save(table.assign(label=LABELS), tmp_path / "nodes.csv")
    assert "no column called label" in message_of(**given, ignore=["name", "label"])


def test_very_many_columns_that_are_left_out_are_counted(tmp_path: Path) -> None:
    data = build(**paths(tmp_path, nodes(**{f"g{i}": 1.0 for i in range(200)})), ignore="g*")
    assert len(left_out(data)) == 11
    assert "190 other columns" in left_out(data)


def test_no_column_left_is_told_with_what_was_left_out(tmp_path: Path) -> None:
    assert "f0: dataset.ignore names it" in message_of(**paths(tmp_path, nodes()), ignore="f*")


# --- categories, missing values, scales


SPLIT = ["train"] * 4 + ["val"] * 2 + ["test"] * 2


def with_split(folder: Path, table: pd.DataFrame, suffix: str = "csv") -> dict[str, Any]:
    split = save(pd.DataFrame({"id": table["id"], "split": SPLIT}), folder / "split.csv")
    return {**paths(folder, table, suffix), "split": split}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("missing", ["refuse", "mean", "zero", "indicator"])
def test_missing_values_and_categories(tmp_path: Path, suffix: str, missing: str) -> None:
    values = [1.0, None, 3.0, 8.0, 100.0, None, 7.0, 9.0]
    kinds = ["x", "y", None, "x", "z", "x", "y", "x"]
    table = nodes(a=values, kind=kinds)[["id", "a", "kind"]]
    given = with_split(tmp_path, table, suffix)
    options = {**given, "categorical": "kind", "missing": missing}
    if missing == "refuse":
        message = message_of(**options)
        assert "column a is" in message
        assert "column kind has no value" in message
        assert build(**options, bad_rows="skip").num_nodes == 5
        return
    data = build(**options)
    fill = 0.0 if missing == "zero" else 4.0  # the mean of the training split
    numbers = pd.Series(values, dtype=float).fillna(fill).tolist()
    columns = {"a": numbers}
    if missing == "indicator":
        columns["a_missing"] = [0, 1, 0, 0, 0, 1, 0, 0]
    columns |= {f"kind={k}": [float(kind == k) for kind in kinds] for k in "xyz"}
    if missing == "indicator":
        columns["kind_missing"] = [0, 0, 1, 0, 0, 0, 0, 0]
    assert names_of(data) == list(columns)
    np.testing.assert_array_equal(features_of(data), np.array(list(columns.values())).T)


@pytest.mark.parametrize(
    "mark", ["", "nan", "NaN", "NA", "N/A", "None", "NULL", "null", "?", " ? "]
)
def test_every_mark_of_a_missing_value_is_one(tmp_path: Path, mark: str) -> None:
    table = nodes(a=["1", mark, "3", "4", "5", "6", "7", "8"])
    given = with_split(tmp_path, table)
    assert features_of(build(**given, missing="zero"))[:, 2].tolist() == [1, 0, 3, 4, 5, 6, 7, 8]
    assert "line 3" in message_of(**given)
    table = nodes(a=["x", mark, *"xyxyxy"])
    found = features_of(build(**with_split(tmp_path, table), missing="zero", categorical="a"))
    assert found[:3, 2:].tolist() == [[1, 0], [0, 0], [1, 0]]


@pytest.mark.parametrize("wrong", ["x", "inf", "1e99"])
def test_what_is_no_number_is_not_taken_for_missing(tmp_path: Path, wrong: str) -> None:
    table = nodes(a=["1", "2", "", wrong, "5", "6", "7", "8"])
    message = message_of(**with_split(tmp_path, table), missing="mean")
    assert "1 bad row" in message
    assert f"line 5: column a is {wrong!r}" in message


def test_features_are_scaled_by_the_training_split_alone(tmp_path: Path) -> None:
    a = np.array([1.0, 2, 3, 6, 1000, -1000, 5, 5])
    table = nodes(a=a, c=[2.0] * 4 + [3.0] * 4, kind=["x", "y"] * 4)
    data = build(**with_split(tmp_path, table), standardize=True, categorical=["kind"])
    found = features_of(data)
    np.testing.assert_allclose(found[:, 2], (a - a[:4].mean()) / a[:4].std(), rtol=1e-6)
    assert found[:, 3].tolist() == [0] * 4 + [1] * 4, "constant in training"
    assert found[:, 4:].tolist() == [[1, 0], [0, 1]] * 4
    assert data.summary is not None
    assert "standardised on the training split" in data.summary.features
    store = write_store(tmp_path / "store", data, PrepareOptions(), {})
    np.testing.assert_array_equal(store.features, found)
    assert StoredGraph.open(store.path).meta.preprocessing[NODE] == data.preprocessing


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_digits_that_float32_has_not_count_until_a_column_is_standardised(
    tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    t = 1.7e9 + np.array([1.0, 2, 3, 6, 60, -60, 0.25, 5])
    table = nodes(t=t, one=1e9, list=[[i / 3, 1e9 + i] for i in range(8)])
    given = with_split(tmp_path, table if suffix == "parquet" else table.drop(columns="list"))
    if suffix == "parquet":
        given["features"] = save(table, tmp_path / "nodes.parquet")
    if suffix == "npz":
        given["features"] = str(tmp_path / "x.npz")
        np.savez(given["features"], x=table[["f0", "f1", "t", "one"]], ids=np.array(IDS))
    found = features_of(build(**given, standardize=True))
    np.testing.assert_allclose(found[:, 2], (t - t[:4].mean()) / t[:4].std(), rtol=1e-6)
    if suffix == "parquet":
        np.testing.assert_allclose(found[:4, 5], np.arange(-3, 5, 2) / 5**0.5, rtol=1e-6)
    assert "float32" not in caplog.text
    build(**given)
    (told,) = (record.getMessage() for record in caplog.records if "float32" in record.msg)
    names = {"csv": "t", "npz": "2", "parquet": "t, list_1"}
    assert f"float32: {names[suffix]}." in told


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_arrays_are_filled_and_scaled_by_place(tmp_path: Path, suffix: str) -> None:
    table = nodes()
    given = with_split(tmp_path, table)
    matrix = np.arange(24, dtype=np.float64).reshape(8, 3)
    matrix[[1, 6], [0, 2]] = np.nan
    if suffix == "npy":
        np.save(tmp_path / "x.npy", matrix)
        for role in ("labels", "split", "edges"):
            text = Path(given[role]).read_text()
            for i, name in enumerate(IDS):
                text = text.replace(name, str(i))
            Path(given[role]).write_text(text)
    else:
        np.savez(tmp_path / "x.npz", x=matrix, ids=np.array(IDS))
    options = {**given, "features": str(tmp_path / f"x.{suffix}"), "standardize": True}
    assert "column 0 is 'nan'" in message_of(**options)
    data = build(**options, missing="indicator")
    train = pd.DataFrame(matrix[:4])
    filled = pd.DataFrame(matrix).fillna(train.mean()).to_numpy()
    scaled = (filled - filled[:4].mean(axis=0)) / filled[:4].std(axis=0)
    expected = np.insert(scaled, [1, 3], np.isnan(matrix)[:, [0, 2]], axis=1)
    np.testing.assert_allclose(features_of(data), expected, rtol=1e-6)
    assert data.feature_names is None


def test_a_category_is_the_same_in_every_file(tmp_path: Path) -> None:
    kinds = [1, 2, 10, 1, 2, 10, 1, 2]
    expected = ["f0", "f1", "kind=1", "kind=2", "kind=10"]
    for i, column in enumerate((kinds, [float(kind) for kind in kinds], list(map(str, kinds)))):
        for suffix in ("csv", "parquet"):
            folder = tmp_path / f"{suffix}{i}"
            folder.mkdir()
            data = build(**paths(folder, nodes(kind=column), suffix), categorical="kind")
            assert names_of(data) == expected
    flags = [
        build(**paths(tmp_path, nodes(kind=[True, False] * 4), suffix), categorical="kind")
        for suffix in ("csv", "parquet")
    ]
    assert names_of(flags[0]) == names_of(flags[1]) == ["f0", "f1", "kind=False", "kind=True"]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "feather", "jsonl"])
def test_every_kind_of_table_has_categories_and_missing_values(tmp_path: Path, suffix: str) -> None:
    table = nodes(a=[1.0, np.nan] * 4, kind=["x", None] * 4)
    given = with_split(tmp_path, table)
    if suffix == "feather":
        table.to_feather(tmp_path / "nodes.feather")
    elif suffix == "jsonl":
        table.to_json(tmp_path / "nodes.jsonl", orient="records", lines=True)
    else:
        save(table, tmp_path / f"nodes.{suffix}")
    given["features"] = str(tmp_path / f"nodes.{suffix}")
    data = build(**given, categorical="kind", missing="indicator")
    assert names_of(data) == ["f0", "f1", "a", "a_missing", "kind=x", "kind_missing"]
    assert features_of(data)[:, 2:].tolist() == [[1, 0, 1, 0], [1, 1, 0, 1]] * 4


def test_a_mean_that_does_not_exist_is_told(tmp_path: Path) -> None:
    given = with_split(tmp_path, nodes(a=[None] * 4 + [1.0] * 4))
    message = message_of(**given, missing="mean")
    assert "value of a" in message
    assert "dataset.ignore=[a]" in message
    assert features_of(build(**given, missing="zero"))[:, 2].tolist() == [0] * 4 + [1] * 4


# --- another graph for a model


def again(preprocessing: Preprocessing | None, **options: Any) -> GraphData:
    """A graph to predict for, with the features of a model's training."""
    config = FilesConfig.model_validate(options)
    data = builder_for(config, labelled=False, preprocessing=preprocessing).build()
    assert isinstance(data, GraphData)
    return data


def trained(folder: Path) -> tuple[GraphData, dict[str, Any], pd.DataFrame]:
    table = nodes(a=[1.0, None, 3, 8, 100, None, 7, 9], kind=list("xyxyxzxy"), note=IDS)
    keys = {"categorical": ["kind"], "missing": "mean", "standardize": True, "ignore": ["note"]}
    return build(**with_split(folder, table), **keys), keys, table


def test_columns_of_one_name_or_none_are_found_again(tmp_path: Path) -> None:
    rows = "".join(f"n{node},{node / 7},{node / 3},{10 * node},x\n" for node in range(8))
    given = with_split(tmp_path, nodes())
    Path(given["features"]).write_text(f"id,f,,f,note\n{rows}")
    data = build(**given, ignore="note", standardize=True)
    assert len(names_of(data)) == 3
    graph = {key: given[key] for key in ("features", "edges")}
    new = again(data.preprocessing, **graph, standardize=True)
    np.testing.assert_array_equal(features_of(new), features_of(data))
    one = build(**given, feature_columns=["2", "3"], standardize=True).preprocessing
    with pytest.raises(UserError, match="several columns called f"):
        again(one, **graph, standardize=True)


def test_columns_of_another_graph_are_found_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, keys, table = trained(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    shuffled = table[["kind", "f1", "a", "id", "f0"]].assign(more="text")
    with caplog.at_level(logging.WARNING, "gnntrain"):
        new = again(data.preprocessing, **paths(other, shuffled), **keys)
    assert "another order" in caplog.text
    assert "more" in caplog.text
    np.testing.assert_array_equal(features_of(new), features_of(data))
    assert left_out(new) == {"more": "the model was not trained on it"}
    for missing in ("a", "kind"):
        given = paths(other, shuffled.drop(columns=missing))
        with pytest.raises(UserError, match=rf"lacks columns .*: {missing}"):
            again(data.preprocessing, **given, **keys)


def test_another_graph_gets_the_statistics_of_training(tmp_path: Path) -> None:
    data, keys, table = trained(tmp_path)
    moved = table.assign(f0=table["f0"] + 5, kind=["x", "new"] * 4, a=None)
    (tmp_path / "other").mkdir()
    new = features_of(again(data.preprocessing, **paths(tmp_path / "other", moved), **keys))
    std = table["f0"][:4].std(ddof=0)
    np.testing.assert_allclose(new[:, 0] - features_of(data)[:, 0], 5 / std, rtol=1e-5)
    np.testing.assert_allclose(new[:, 2], 0, atol=1e-6)  # all are the mean
    assert new[:, 3:].tolist() == [[1, 0, 0], [0, 0, 0]] * 4


def test_labels_of_another_graph_are_no_features(tmp_path: Path) -> None:
    table = nodes(dollars=range(10, 18))
    given = paths(tmp_path, table)
    given["labels"] = save(table[["id", "dollars"]].assign(dollars=LABELS), tmp_path / "l.csv")
    data = build(**given)
    assert names_of(data) == ["f0", "f1"]
    assert names_of(again(data.preprocessing, **given)) == ["f0", "f1"]


def test_ids_of_another_graph_are_found_wherever_they_stand(tmp_path: Path) -> None:
    table = nodes(note=IDS).rename(columns={"id": "fips"})
    edges = save(pd.DataFrame({"source": IDS, "target": IDS[::-1]}), tmp_path / "edges.csv")
    labels = save(pd.DataFrame({"fips": IDS, "label": LABELS}), tmp_path / "labels.csv")
    features = save(table, tmp_path / "nodes.csv")
    data = build(features=features, edges=edges, labels=labels, ignore="note")
    features = save(table[["f1", "note", "fips", "f0"]], tmp_path / "new.csv")
    new = again(data.preprocessing, features=features, edges=edges, ignore="note")
    assert new.node_ids is not None
    assert new.node_ids.tolist() == [name.encode() for name in IDS]


def test_without_names_the_number_of_columns_must_fit(tmp_path: Path) -> None:
    data = build(**paths(tmp_path, nodes()))
    np.save(tmp_path / "x.npy", features_of(data))
    edges = save(pd.DataFrame({"source": [0], "target": [1]}), tmp_path / "e.csv")
    new = again(data.preprocessing, features=str(tmp_path / "x.npy"), edges=edges)
    np.testing.assert_array_equal(features_of(new), features_of(data))
    np.save(tmp_path / "x.npy", features_of(data)[:, :1])
    with pytest.raises(UserError, match=r"\b2 columns.*\b1\b"):
        again(data.preprocessing, features=str(tmp_path / "x.npy"), edges=edges)
    data, keys, _ = trained(tmp_path)
    np.save(tmp_path / "x.npy", np.ones((8, 4)))
    with pytest.raises(UserError, match="categories of kind"):
        again(data.preprocessing, features=str(tmp_path / "x.npy"), edges=edges, **keys)


def test_a_table_without_a_header_is_read_by_place(tmp_path: Path) -> None:
    data, keys, table = trained(tmp_path)
    (tmp_path / "other").mkdir()
    given = paths(tmp_path / "other", table.drop(columns="note"), header=False)
    keys = {**keys, "ignore": [], "categorical": []}
    new = again(data.preprocessing, **given, **keys)
    np.testing.assert_array_equal(features_of(new), features_of(data))


def test_the_identity_holds_the_preprocessing(tmp_path: Path) -> None:
    data, keys, table = trained(tmp_path)
    config = FilesConfig.model_validate({**with_split(tmp_path, table), **keys})
    identities = [
        builder_for(
            config.model_copy(update=update), labelled=labelled, preprocessing=made_by
        ).identity()
        for update, labelled, made_by in (
            ({}, True, None),
            ({}, False, None),
            ({}, False, data.preprocessing),
            ({}, False, Preprocessing(columns=())),
            ({"standardize": False}, True, None),
            ({"missing": "zero"}, True, None),
            ({"ignore": ()}, True, None),
            ({"categorical": ()}, True, None),
            ({"feature_columns": ("a",)}, True, None),
        )
    ]
    assert all(a != b for i, a in enumerate(identities) for b in identities[:i])


def test_the_columns_of_a_whole_graph_in_one_file_are_prepared_alike(tmp_path: Path) -> None:
    networkx = pytest.importorskip("networkx", reason="it writes the file")
    graph = networkx.Graph()
    for i in range(6):
        graph.add_node(f"n{i}", size=float(i * i), kind="ab"[i % 2], label=i % 2)
    graph.add_edges_from([("n0", "n1"), ("n2", "n3")])
    networkx.write_graphml(graph, tmp_path / "seen.graphml")
    keys = {"standardize": True, "categorical": "kind"}
    data = build(data=str(tmp_path / "seen.graphml"), **keys)
    for i in range(6):
        graph.nodes[f"n{i}"]["size"] += 100.0
    networkx.write_graphml(graph, tmp_path / "new.graphml")
    new = again(data.preprocessing, data=str(tmp_path / "new.graphml"), **keys)
    assert data.preprocessing is not None
    assert data.preprocessing.stds is not None
    moved = features_of(new)[:, 0] - features_of(data)[:, 0]
    np.testing.assert_allclose(moved, 100 / data.preprocessing.stds[0], rtol=1e-5)


CELLS = st.one_of(
    st.integers(-(2**20), 2**20).map(str),
    st.floats(-1e6, 1e6, width=32).map(str),
    st.sampled_from(["", "nan", "NA", "N/A", "None", "null", "?", "True", "false"]),
)
KINDS = st.sampled_from(["red", "blue", "1", "2.0", "é è", "", "NA", "None"])


@st.composite
def own_tables(draw: st.DrawFn) -> pd.DataFrame:
    """A table of texts as a user's file may hold them: ids, numbers, categories, in any order."""
    columns: dict[str, list[str]] = {"id": IDS}
    for i in range(draw(st.integers(1, 3))):
        columns[f"x{i}"] = draw(st.lists(CELLS, min_size=8, max_size=8))
    for i in range(draw(st.integers(0, 2))):
        columns[f"kind{i}"] = draw(st.lists(KINDS, min_size=8, max_size=8))
    for name in draw(st.sets(st.sampled_from(["label", "test_mask", "split", "Unnamed: 0"]))):
        columns[name] = list(map(str, range(8)))
    return pd.DataFrame({name: columns[name] for name in draw(st.permutations(list(columns)))})


def number_of(cell: str) -> float:
    """A cell as a number; 0 where it is missing."""
    if cell in ("True", "false"):
        return float(cell == "True")
    return 0.0 if cell in ("", "nan", "NA", "N/A", "None", "null", "?") else float(cell)


def kind_of(cell: str) -> str | None:
    return None if cell in ("", "NA", "None") else cell.removesuffix(".0")


@given(table=own_tables(), suffix=st.sampled_from(["csv", "parquet"]))
@examples(60)
def test_cells_become_the_features_that_an_obvious_reader_makes_of_them(
    tmp_path_factory: pytest.TempPathFactory, table: pd.DataFrame, suffix: str
) -> None:
    given = with_split(tmp_path_factory.mktemp("own"), table, suffix)
    keys = {"categorical": "kind*"} if any(name.startswith("kind") for name in table) else {}
    data = build(**given, missing="zero", **keys)
    expected: dict[str, list[float]] = {}
    for name in table:
        if name.startswith("x"):
            expected[name] = [number_of(cell) for cell in table[name]]
        elif name.startswith("kind"):
            kinds = [kind_of(cell) for cell in table[name]]
            for kind in sorted({kind for kind in kinds if kind is not None}):
                expected[f"{name}={kind}"] = [float(kind == other) for other in kinds]
    assert names_of(data) == list(expected)
    columns = np.array(list(expected.values()), np.float32)
    np.testing.assert_array_equal(features_of(data), columns.T)


def test_the_index_of_a_parquet_file_is_the_id_before_its_first_column(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    given = {"features": str(path), "edges": str(tmp_path / "e.csv"), "label_column": "kind"}
    Path(given["edges"]).write_text("source,target\n10,20\n30,40\n")
    table = pd.DataFrame({"age": [7, 7, 3, 5], "kind": list("abab")}, index=[40, 10, 30, 20])
    table.to_parquet(path)
    data = build(**given)
    assert data.node_ids is not None
    assert data.node_ids.tolist() == [40, 10, 30, 20]
    table.assign(age=[8, 7, 3, 5]).to_parquet(path)
    with pytest.raises(UserError) as caught:
        build(**given)
    assert "dataset.id_column=age" in str(caught.value.hint)


def test_labels_that_are_not_found_are_told_before_text_that_is_no_feature(tmp_path: Path) -> None:
    given = paths(tmp_path, nodes(kind=LABELS))
    del given["labels"]
    with pytest.raises(UserError, match="label_column=kond") as caught:
        build(**given, label_column="kond")
    assert "did you mean kind?" in caught.value.message
    with pytest.raises(UserError) as caught:
        build(**given)
    assert "dataset.label_column" in str(caught.value.hint)


def test_a_category_that_is_missing_says_what_fills_it(tmp_path: Path) -> None:
    given = paths(tmp_path, nodes(kind=[None, *LABELS[1:]]))
    with pytest.raises(UserError) as caught:
        build(**given, categorical="kind")
    assert "dataset.missing" in str(caught.value.hint)
    data = build(**given, categorical="kind", missing="zero")
    assert features_of(data)[0].tolist()[2:] == [0, 0]
