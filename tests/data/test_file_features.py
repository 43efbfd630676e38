"""Which columns of a user's table are features, and what is made of them: no leak, no guess."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import feather

from gnntrain.config import FilesConfig
from gnntrain.data.datasets import builder_for
from gnntrain.data.graph import NODE, GraphData
from gnntrain.data.preprocessing import Preprocessing
from tests.data.files import build, check, check_both, refusal, save, told, write
from tests.examples import examples

IDS = [f"n{i}" for i in range(8)]
LABELS = ["a", "b"] * 4
PARTS = ["train"] * 4 + ["val"] * 2 + ["test"] * 2
FLAGS = [0, 1] * 4
ONLY = {"names": ["f0", "f1"]}


def nodes(**columns: Any) -> pd.DataFrame:
    """A table of 8 nodes with two features, and more columns."""
    usual = {"id": IDS, "f0": np.arange(8) / 4, "f1": np.arange(8)[::-1] / 2}
    return pd.DataFrame({**usual, **columns})


def paths(folder: Path, table: Any, suffix: str = "csv", **files: Any) -> dict[str, Any]:
    """Files of a graph: the nodes, labels of their own, edges along a ring, a split."""
    ids = table["id"] if "id" in table else range(len(table))
    usual = {
        f"features.{suffix}": table,
        "labels": pd.DataFrame({"id": ids, "label": LABELS}),
        "edges": pd.DataFrame({"source": ids, "target": np.roll(ids, -1)}),
        "split": pd.DataFrame({"id": ids, "split": PARTS}),
    }
    folder.mkdir(exist_ok=True)
    return write(folder, usual | files)


def with_index(table: pd.DataFrame, suffix: str) -> Any:
    """The table as pandas writes it with its index."""
    return (
        pa.Table.from_pandas(table, preserve_index=True) if suffix == "parquet" else table.to_csv()
    )


def preprocessing_of(data: GraphData) -> Preprocessing:
    made_by = data.nodes[NODE].preprocessing
    assert made_by is not None
    return made_by


def again(data: GraphData, keys: dict[str, Any]) -> dict[str, Any]:
    """What is read of a graph to predict for, with the features of the training's graph."""
    return told(build(keys, labelled=False, preprocessing=data.nodes[NODE].preprocessing))


# Each: more columns of the nodes' table, other files, keys, what is read.
CHOSEN: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # Labels, splits and masks.
    **{f"a column {name}": ({name: FLAGS}, {}, {}, {**ONLY, "left_out": [name]})
       for name in ("Labels", "node_id", "test_mask_0", "split")},
    "the labels file's columns": (
        {"kind": FLAGS, "part": FLAGS},
        {"labels": pd.DataFrame({"id": IDS, "kind": LABELS, "part": PARTS}), "split": None},
        {"label_column": "kind", "split_column": "part"}, ONLY,
    ),
    "several labels": (
        {"red": FLAGS, "green": [1] * 8},
        {"labels": pd.DataFrame({"id": IDS, "red": FLAGS, "green": FLAGS})}, {}, ONLY,
    ),
    "labels by name beside a pattern": (
        {"y": FLAGS}, {}, {"feature_columns": ["y", "*"]}, {"names": ["f0", "f1", "y"]},
    ),
    "labels by a pattern alone": ({"y": FLAGS}, {}, {"feature_columns": "*"}, ONLY),
    "labels as categories": (
        {"y": FLAGS}, {}, {"categorical": "y"}, {"names": ["f0", "f1", "y=0", "y=1"]},
    ),
    # Indices and ids.
    **{f"an index {name}": ({name: range(first, first + 8)}, {}, {}, {**ONLY, "left_out": [name]})
       for name in ("Unnamed: 0", "level_0") for first in (0, 1)},
    "an index by name": (
        {"index": range(8)}, {}, {"feature_columns": ["f0", "index"]}, {"names": ["f0", "index"]},
    ),
    **{f"no index, but called {name!r}": ({name: [0.5, 1, 2, 3, 4, 4, 6, 7]}, {}, {},
                                          {"names": ["f0", "f1", name or "3"], "left_out": []})
       for name in ("", "Unnamed: 3", "index")},
    # Names, numbers and patterns.
    "a pattern": (
        {"g0": 1.0, "g1": 2.0, "G2": 3.0}, {}, {"feature_columns": "g?"},
        {"names": ["g0", "g1"], "left_out": ["f0", "f1", "G2"]},
    ),
    "signs of patterns in a name": (
        {"h[0]": 4.0}, {}, {"feature_columns": ["f*", "h[0]"]}, {"names": ["f0", "f1", "h[0]"]},
    ),
    "numbers of columns": (
        {"G2": 3.0}, {}, {"feature_columns": [2, "G2"]}, {"names": ["f1", "G2"]},
    ),
    "columns to leave out": ({"g0": 1.0, "g1": 2.0, "G2": 3.0}, {}, {"ignore": ["g*", 5]}, ONLY),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOSEN)
def test_columns_that_are_features(tmp_path: Path, name: str) -> None:
    columns, files, keys, expected = CHOSEN[name]
    table = nodes(**columns)
    keys = paths(tmp_path, table, **files) | keys
    if not files and set(expected["names"]) <= set(table):
        values = table[expected["names"]].to_numpy(np.float32).tolist()
        expected = {"features": values, **expected}
    check_both(tmp_path, keys, expected)


# Each: more columns, other files, keys, words of the refusal.
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str]]] = {
    "the id as a feature": ({}, {}, {"feature_columns": ["f0", "id"]}, ["feature_columns", "id"]),
    "the label as a feature": (
        {"kind": LABELS}, {"labels": None},
        {"label_column": "kind", "feature_columns": ["f0", "kind"]}, ["feature_columns", "kind"],
    ),
    "a labels file without labels": (
        {}, {"labels": nodes()}, {}, ["f0: labels.csv has labels of this name"],
    ),
    "columns of text": (
        {"my place": IDS, "day": IDS}, {}, {},
        ["'n0'", 'dataset.ignore=["my place",day]', 'dataset.categorical=["my place",day]'],
    ),
    "a decimal comma": (
        {},
        {"features": nodes().to_csv(index=False, sep=";", decimal=","),
         "labels": pd.DataFrame({"id": IDS, "label": LABELS}).to_csv(index=False, sep=";")}, {},
        ["Set dataset.decimal=','."],
    ),
    "an unknown name": (
        {"county": 1.0}, {}, {"feature_columns": ["contry", "q*"]},
        ["dataset.feature_columns", "mean county?", "q*"],
    ),
    **{f"names of an array, {key}": ({}, {"features": None, "features.npy": np.eye(8)}, {key: "a"},
                                     [f"dataset.{key}=a"])
       for key in ("feature_columns", "ignore")},
    "an id that is left out": ({}, {}, {"ignore": "id", "id_column": "id"}, ["dataset.id_column"]),
    "an infinite number": (
        {"a": ["1", "2", "", "inf", *"5678"]}, {}, {"missing": "mean"},
        ["1 bad row", "line 5: column a is 'inf'"],
    ),
    "a mean that does not exist": (
        {"a": [None] * 4 + [1.0] * 4}, {}, {"missing": "mean"},
        ["value of a", "dataset.ignore=[a]"],
    ),
    "a label that is not named": ({"kind": LABELS}, {"labels": None}, {}, ["dataset.label_column"]),
    "missing values": (
        {"a": [1, None, *range(6)], "kind": ["x", "y", None, *"xyxyx"]}, {},
        {"categorical": "kind"},
        ["line 3: column a", "line 4: column kind has no category: ''", "dataset.missing"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_columns_that_are_refused(tmp_path: Path, name: str) -> None:
    columns, files, keys, words = REFUSED[name]
    message = refusal(paths(tmp_path, nodes(**columns), **files) | keys)
    assert not [word for word in words if word not in message], message


# Indices of pandas.


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("order", ["in order", "sorted", "filtered"])
def test_an_index_that_pandas_wrote_is_no_feature(tmp_path: Path, suffix: str, order: str) -> None:
    table = nodes()
    if order == "sorted":
        table = table.sort_values("f1")
    elif order == "filtered":
        table.index = np.array([0, 3, 5, 9, 10, 44, 45, 46])
    keys = paths(tmp_path, nodes(), suffix, **{f"features.{suffix}": with_index(table, suffix)})
    found = told(build(keys))
    assert (found["ids"], found["names"]) == (list(table["id"]), ["f0", "f1"])
    assert len(found["left_out"]) == 1


@pytest.mark.parametrize("users", [[3, 0, 1, 2, 7, 6, 5, 4], list("hgfedcba")])
def test_it_is_asked_which_of_an_index_and_another_column_is_the_id(
    tmp_path: Path, users: list[Any]
) -> None:
    table = nodes().rename(columns={"id": "user"}).assign(user=users)
    keys = paths(tmp_path, nodes(id=users), features=with_index(table, "csv"))
    assert "dataset.id_column=user" in refusal(keys)
    for role in ("labels", "split"):
        path = Path(keys[role])
        save(path, path.read_text().replace("id,", "user,", 1))
    check(build({**keys, "id_column": "user"}), {**ONLY, "ids": users})


def test_an_unnamed_first_column_is_the_id_where_nothing_else_is_and_never_a_feature(
    tmp_path: Path,
) -> None:
    table = nodes().drop(columns="id")
    keys = paths(tmp_path, table, features=with_index(table, "csv"))
    check(build(keys), {**ONLY, "summary": "column 0 of features.csv, a pandas index"})
    data = build({**keys, "id_column": "none"})
    check(data, {**ONLY, "summary": "row numbers of features.csv"})
    assert "column 0 (without a name)" in told(data)["left_out"]
    by_text = paths(tmp_path, nodes(), "parquet", **{"features.parquet": nodes().set_index("id")})
    check(build(by_text), {**ONLY, "ids": IDS})


def test_the_index_of_a_parquet_file_is_the_id_before_its_first_column(tmp_path: Path) -> None:
    table = pd.DataFrame({"age": [7, 7, 3, 5], "kind": list("abab")}, index=[40, 10, 30, 20])
    files = {"labels": None, "split": None, "edges": "10,20\n30,40\n", "features.parquet": table}
    keys: dict[str, Any] = {**write(tmp_path, files), "label_column": "kind"}
    check(build(keys), {"ids": [40, 10, 30, 20]})
    table.assign(age=[8, 7, 3, 5]).to_parquet(keys["features"])
    assert "dataset.id_column=age" in refusal(keys)


def test_a_column_with_another_use_is_not_found_as_id(tmp_path: Path) -> None:
    table = nodes().drop(columns="id")
    table.insert(0, "label", LABELS)
    keys: dict[str, Any] = paths(tmp_path, table, labels=None)
    check(build(keys), {**ONLY, "labels": FLAGS, "ids": list(range(8))})
    table.insert(0, "name", IDS)
    save(Path(keys["features"]), table)
    check(build({**keys, "ignore": "name"}), {"ids": list(range(8)), "left_out": ["name"]})


# Categories, missing values, scales.


@pytest.mark.parametrize("missing", ["mean", "zero", "indicator"])
def test_missing_values_and_categories(tmp_path: Path, missing: str) -> None:
    values = [1.0, None, 3.0, 8.0, 100.0, None, 7.0, 9.0]
    kinds = ["x", "y", None, "x", "z", "x", "y", "x"]
    keys: dict[str, Any] = paths(tmp_path, nodes(a=values, kind=kinds)[["id", "a", "kind"]])
    keys |= {"categorical": "kind", "missing": missing}
    fill = 0.0 if missing == "zero" else 4.0  # the mean of the training split
    columns = {"a": pd.Series(values, dtype=float).fillna(fill).tolist()}
    if missing == "indicator":
        columns["a_missing"] = [0, 1, 0, 0, 0, 1, 0, 0]
    columns |= {f"kind={k}": [float(kind == k) for kind in kinds] for k in "xyz"}
    if missing == "indicator":
        columns["kind_missing"] = [0, 0, 1, 0, 0, 0, 0, 0]
    expected = {"names": list(columns), "features": np.array(list(columns.values())).T.tolist()}
    check_both(tmp_path, keys, expected)
    skipped = build({**keys, "missing": "refuse", "bad_rows": "skip"})
    assert told(skipped)["ids"] == [IDS[i] for i in (0, 3, 4, 6, 7)]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_digits_that_float32_has_not_count_until_a_column_is_standardised(
    tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnntrain.data.preprocessing._CHUNK_VALUES", 7)
    t = 1.7e9 + np.array([1.0, 2, 3, 6, 60, -60, 0.25, 5])
    table: Any = nodes(t=t)
    if suffix == "parquet":
        table["list"] = [[i / 3, 1e9 + i] for i in range(8)]
    elif suffix == "npz":
        table = {"x": table[["f0", "f1", "t"]].to_numpy(), "id": np.array(IDS)}
    keys: dict[str, Any] = paths(tmp_path, table, suffix)
    found = np.array(told(build({**keys, "standardize": True}))["features"])
    np.testing.assert_allclose(found[:, 2], (t - t[:4].mean()) / t[:4].std(), rtol=1e-6)
    if suffix == "parquet":
        np.testing.assert_allclose(found[:4, 4], np.arange(-3, 5, 2) / 5**0.5, rtol=1e-6)
    assert "float32" not in caplog.text
    build(keys)
    (warning,) = (text for text in caplog.messages if "float32" in text)
    names = {"csv": "t", "npz": "2", "parquet": "t, list_1"}
    assert f"float32: {names[suffix]}." in warning


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_category_that_is_called_like_a_missing_value_is_told(
    tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    country = pd.Categorical([*["NA", "DE", None] * 2, "NA", "null"])
    table = nodes(country=country, code=["1", "NA"] * 4)
    keys: dict[str, Any] = paths(tmp_path, table, suffix)
    keys["categorical"] = ["country", "code"]
    message = refusal(keys)
    row = "line 2" if suffix == "csv" else "row 0"
    assert f"{row}: column country has no category: 'NA'" in message
    assert "kept under another name" in message
    data = build({**keys, "missing": "indicator"})
    assert "missing numbers are the mean" in told(data)["summary"]
    assert "missing categories are 0 in each, marked by 2 indicators" in told(data)["summary"]
    (warning,) = (text for text in caplog.messages if "not as categories" in text)
    assert "column country: " in warning
    assert "NA: 3, null: 1." in warning


@pytest.mark.parametrize("suffix", ["csv", "parquet", "feather", "jsonl"])
def test_a_category_is_the_same_in_every_file(tmp_path: Path, suffix: str) -> None:
    kinds = [1, 2, 10, 1, 2, 10, 1, 2]
    for column in (kinds, [float(kind) for kind in kinds], list(map(str, kinds))):
        table = nodes(kind=column, flag=[True, False] * 4, a=[1.0, np.nan] * 4)
        keys: dict[str, Any] = paths(tmp_path, table, suffix)
        data = build({**keys, "categorical": ["kind", "flag"], "missing": "indicator"})
        names = ["kind=1", "kind=2", "kind=10", "flag=False", "flag=True", "a", "a_missing"]
        assert told(data)["names"][2:] == names


def test_lists_of_parquet_stand_beside_numbers(tmp_path: Path) -> None:
    table = nodes(emb=[[float(i), i / 2] for i in range(8)], a=np.arange(8.0))
    found = told(build(paths(tmp_path, table, "parquet")))
    assert found["names"] == ["f0", "f1", "emb_0", "emb_1", "a"]
    assert found["features"][3][2:] == [3, 1.5, 3]
    table.loc[3, "a"] = np.nan
    table.at[5, "emb"] = [1.0]
    message = refusal(paths(tmp_path, table, "parquet"))
    assert "row 3: column a" in message
    assert "row 5: " in message


def test_lists_may_be_missing_where_a_file_begins(tmp_path: Path) -> None:
    table = pa.table({"id": IDS, "emb": [None] * 5 + [[1.0, 2.0]] * 3, "a": np.arange(8.0)})
    keys: dict[str, Any] = paths(tmp_path, nodes(), split="id,split\nn6,train\nn0,test\n")
    keys |= {"features": str(tmp_path / "nodes.feather"), "missing": "indicator"}
    feather.write_feather(table, keys["features"], chunksize=2)
    found = told(build(keys))
    assert found["names"] == ["emb_0", "emb_1", "emb_missing", "a"]
    assert found["features"][4:6] == [[1, 2, 1, 4], [1, 2, 0, 5]]


# Another graph for a model.

KEYS: dict[str, Any] = {"categorical": ["kind"], "missing": "mean", "standardize": True}


def trained(folder: Path) -> tuple[GraphData, pd.DataFrame]:
    table = nodes(a=[1.0, None, 3, 8, 100, None, 7, 9], kind=list("xyxyxzxy"), note=IDS)
    return build({**paths(folder, table), **KEYS, "ignore": ["note"]}), table


def test_columns_of_one_name_or_none_are_found_again(tmp_path: Path) -> None:
    rows = "".join(f"n{node},{node / 7},{node / 3},{10 * node},x\n" for node in range(8))
    keys: dict[str, Any] = paths(tmp_path, nodes(), features=f"id,f,,f,note\n{rows}")
    data = build({**keys, "ignore": "note", "standardize": True})
    found = again(data, {**keys, "standardize": True})
    assert len(found["names"]) == 3
    assert found["features"] == told(data)["features"]
    one = build({**keys, "feature_columns": ["2", "3"], "standardize": True})
    message = refusal(keys, labelled=False, preprocessing=preprocessing_of(one))
    assert "several columns called f" in message


def test_categories_are_not_looked_for_in_an_array(tmp_path: Path) -> None:
    data, _ = trained(tmp_path)
    save(tmp_path / "e.csv", "source,target\n0,1\n")
    save(tmp_path / "x.npy", np.ones((8, 4)))
    keys = {"features": str(tmp_path / "x.npy"), "edges": str(tmp_path / "e.csv")}
    message = refusal(keys | KEYS, labelled=False, preprocessing=preprocessing_of(data))
    assert "categories of kind" in message


def test_a_table_without_a_header_is_read_by_place(tmp_path: Path) -> None:
    data, table = trained(tmp_path)
    text = table.drop(columns="note").to_csv(index=False, header=False)
    keys = paths(tmp_path / "new", table, features=text) | KEYS | {"categorical": []}
    assert again(data, keys)["features"] == told(data)["features"]


def test_the_identity_holds_the_preprocessing(tmp_path: Path) -> None:
    data, table = trained(tmp_path)
    config = FilesConfig.model_validate({**paths(tmp_path, table), **KEYS, "ignore": ["note"]})
    ways = None, preprocessing_of(data), Preprocessing(columns=())
    builders = [builder_for(config, labelled=False, preprocessing=made_by) for made_by in ways]
    assert len({str(builder.identity()) for builder in builders}) == 3


MARKS = ("", "nan", "NaN", "NA", "N/A", "None", "NULL", " ? ")
CELLS = st.one_of(
    st.integers(-(2**20), 2**20).map(str),
    st.floats(-1e6, 1e6, width=32).map(str),
    st.sampled_from([*MARKS, "True", "false"]),
)
KINDS = st.sampled_from(["red", "blue", "1", "2.0", "é è", *MARKS])


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
    return 0.0 if cell in MARKS else float(cell)


@given(table=own_tables(), suffix=st.sampled_from(["csv", "parquet"]))
@examples(60)
def test_cells_become_the_features_that_an_obvious_reader_makes_of_them(
    tmp_path_factory: pytest.TempPathFactory, table: pd.DataFrame, suffix: str
) -> None:
    keys: dict[str, Any] = paths(tmp_path_factory.mktemp("own"), table, suffix)
    if any(name.startswith("kind") for name in table):
        keys["categorical"] = "kind*"
    expected: dict[str, list[float]] = {}
    for name in table:
        if name.startswith("x"):
            expected[name] = [number_of(cell) for cell in table[name]]
        elif name.startswith("kind"):
            kinds = [None if c in MARKS else c.removesuffix(".0") for c in table[name]]
            for kind in sorted({kind for kind in kinds if kind is not None}):
                expected[f"{name}={kind}"] = [float(kind == other) for other in kinds]
    found = told(build({**keys, "missing": "zero"}))
    assert found["names"] == list(expected)
    columns = np.array(list(expected.values()), np.float32)
    np.testing.assert_array_equal(found["features"], columns.T)
