from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from gnntrain.data.columns import MISSING_MARKS
from gnntrain.data.graph import GraphData
from tests.data.test_files import build, features_of, message_of, write

NO_SPLIT: dict[str, Any] = {"split": None}


def summary_of(data: GraphData) -> str:
    assert data.summary is not None
    return data.summary.labels


def income(folder: Path, values: list[object], column: str = "income") -> dict[str, Any]:
    rows = "".join(f"{node},{value}\n" for node, value in enumerate(values))
    features = "id,f\n" + "".join(f"{node},{node / 7}\n" for node in range(len(values)))
    paths = write(folder, labels=f"id,{column}\n{rows}", features=features, edges="0,1\n")
    return {**paths, **NO_SPLIT}


@pytest.mark.parametrize("mark", [*MISSING_MARKS, "None", "N/A", " NULL "])
@pytest.mark.parametrize("kind", ["csv", "parquet", "npz", "features"])
def test_marks_of_missing_labels_are_no_classes(tmp_path: Path, mark: str, kind: str) -> None:
    paths = {**write(tmp_path), **NO_SPLIT}
    labels = pd.DataFrame({"id": [10, 20, 30, 40], "label": ["a", mark, "b", "a"]})
    if kind == "features":
        labels.assign(f=1.5).to_csv(paths["features"], index=False)
        paths["labels"] = None
    elif kind == "csv":
        labels.to_csv(paths["labels"], index=False)
    else:
        paths["labels"] = str(tmp_path / f"labels.{kind}")
        if kind == "parquet":
            labels.to_parquet(paths["labels"])
        else:
            ids, texts = labels["id"].to_numpy(), labels["label"].to_numpy().astype(str)
            np.savez(paths["labels"], ids=ids, labels=texts)
    data = build(**paths)
    assert data.num_classes == 2
    assert data.labels.tolist() == [0, -1, 1, 0]
    assert "1 of 4 nodes have none" in summary_of(data)


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NaT, pd.NA])
def test_what_pandas_calls_missing_is_no_class(tmp_path: Path, missing: object) -> None:
    paths = {**write(tmp_path), **NO_SPLIT, "labels": str(tmp_path / "labels.parquet")}
    labels = pd.DataFrame({"id": [10, 20, 30, 40], "label": ["a", missing, "b", "a"]})
    labels.to_parquet(paths["labels"])
    assert build(**paths).labels.tolist() == [0, -1, 1, 0]
    labels["label"] = pd.array([7, None, 3, 7], "Int64")
    labels.to_parquet(paths["labels"])
    assert build(**paths).labels.tolist() == [1, -1, 0, 1]


def test_a_missing_label_of_a_split_is_a_bad_row(tmp_path: Path) -> None:
    labels = "id,label\n10,1\n20,NA\n30,2\n40,1\n"
    assert build(**{**write(tmp_path, labels=labels), **NO_SPLIT}).labels.tolist() == [0, -1, 1, 0]
    message = message_of(**write(tmp_path, labels=labels))
    assert "split.csv line 3: node in split 'valid'" in message


def test_a_word_that_may_be_a_class_is_told_when_it_is_taken_as_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    labels = "id,label\n10,Mild\n20,None\n30,Severe\n40,None\n"
    with caplog.at_level(logging.WARNING, "gnntrain"):
        data = build(**{**write(tmp_path, labels=labels), **NO_SPLIT})
    assert data.labels.tolist() == [0, -1, 1, -1]
    assert "None: 2" in summary_of(data)
    assert "None: 2" in caplog.text


def test_flags_are_missing_all_or_none(tmp_path: Path) -> None:
    labels = "id,old,rich\n10,1,0\n20,NA,?\n30,1,1\n40,0,1\n"
    data = build(**{**write(tmp_path, labels=labels), **NO_SPLIT})
    assert data.labels.tolist() == [[1, 0], [0, 0], [1, 1], [0, 1]]
    assert 1 not in np.concatenate(list(data.splits.values()))
    assert "1 of 4 nodes have none" in summary_of(data)
    message = message_of(**{**write(tmp_path, labels=labels.replace("?", "1")), **NO_SPLIT})
    assert "line 3: label old is 'NA'" in message


@pytest.mark.parametrize(
    ("values", "asked"),
    [
        ([18_000 + 35 * node for node in range(300)], True),  # all different
        ([10 * (node % 60) for node in range(1200)], True),  # tens: most of the range is empty
        ([node % 60 for node in range(1200)], False),  # class numbers, 20 nodes each
        ([node % 60 for node in range(180)], True),  # 3 nodes each
        ([1000 * (node % 50) for node in range(60)], False),  # 50 classes need no question
        ([18_000.0 + 35 * node for node in range(300)], True),
    ],
)
def test_many_whole_numbers_are_asked_about(
    tmp_path: Path, values: list[object], asked: bool
) -> None:
    paths = income(tmp_path, values)
    num_different = len(set(values))
    if asked:
        message = message_of(**paths)
        assert f"{num_different:,} different whole numbers" in message
        assert "task.type=node_regression" in message
        assert "dataset.task=multiclass" in message
    else:
        assert build(**paths).num_classes == num_different
    data = build(**paths, task="multiclass")
    assert (data.task, data.num_classes) == ("multiclass", num_different)


def test_fractions_are_asked_about_and_bad_rows_of_classes(tmp_path: Path) -> None:
    paths = income(tmp_path, [1, 1.5, 2, 1])
    message = message_of(**paths)
    assert "1 of 4, such as 1.5" in message
    assert "task.type=node_regression" in message
    assert "line 3: label '1.5'" in message_of(**paths, task="multiclass")


@pytest.mark.parametrize("kind", ["csv", "comma", "parquet", "npz", "pt", "features"])
def test_a_column_of_quantities_is_read_as_it_is(tmp_path: Path, kind: str) -> None:
    values = np.array([18_000, 52_500.5, np.nan, 120_000])
    paths = {**write(tmp_path), **NO_SPLIT, "labels": str(tmp_path / f"l.{kind}")}
    table = pd.DataFrame({"id": [10, 20, 30, 40], "y": values})
    options: dict[str, Any] = {}
    if kind == "csv":
        table.to_csv(paths["labels"], index=False)
    elif kind == "comma":
        paths["labels"] = str(tmp_path / "l.csv")
        table.to_csv(paths["labels"], index=False, sep=";", decimal=",")
        semicolons = (tmp_path / "features.csv").read_text().replace(",", ";").replace(".", ",")
        (tmp_path / "features.csv").write_text(semicolons)
        options["decimal"] = ","
    elif kind == "parquet":
        table.to_parquet(paths["labels"])
    elif kind == "npz":
        np.savez(paths["labels"], ids=table["id"], y=values)
    elif kind == "pt":
        torch.save(
            {"ids": torch.tensor([10, 20, 30, 40]), "y": torch.tensor(values)}, tmp_path / "l.pt"
        )
    else:
        table.assign(f=[0.5, 1.5, 2.5, 3.5]).to_csv(paths["features"], index=False)
        paths["labels"] = None
    data = build(**paths, **options, task="regression")
    assert data.labels.dtype == np.float64
    np.testing.assert_array_equal(data.labels, values.astype(np.float64)[:, None])
    assert (data.task, data.metric, data.num_classes) == ("continuous", "r2", 1)
    assert 2 not in np.concatenate(list(data.splits.values()))
    assert "from 18,000 to 120,000; 1 of 4 nodes have none" in summary_of(data)
    assert features_of(data)[:, 0].tolist() == [0.5, 1.5, 2.5, 3.5]
    assert build(**paths, **options, task="regression", metric="mae").metric == "mae"


def test_several_columns_are_several_targets_and_no_features(tmp_path: Path) -> None:
    features = "id,rent,f,income\n10,1.5,7,100\n20,,8,200\n30,NA,9,?\n40,2.5,6,300\n"
    paths = {**write(tmp_path, features=features), **NO_SPLIT, "labels": None}
    data = build(**paths, task="regression", label_column=["rent", "income"])
    nan = np.nan
    expected = np.array([[1.5, 100], [nan, 200], [nan, nan], [2.5, 300]], np.float32)
    np.testing.assert_array_equal(data.labels, expected)
    assert data.class_names is not None
    assert data.class_names.tolist() == [b"rent", b"income"]
    assert features_of(data).tolist() == [[7], [8], [9], [6]]
    everywhere = np.concatenate(list(data.splits.values()))
    assert sorted(everywhere.tolist()) == [0, 1, 3]


def test_a_target_that_is_no_number_is_a_bad_row(tmp_path: Path) -> None:
    message = message_of(**income(tmp_path, [1.5, "many", 1e99, 2, 3]), task="regression")
    assert "line 3: label income is 'many'" in message
    assert "line 4: label income is '1e+99'" in message
    assert "no row has numbers" in message_of(**income(tmp_path, ["a", "b"]), task="regression")
    assert "two different" in message_of(**income(tmp_path, [1, 1, 1]), task="regression")


def test_flags_within_the_features_file_are_no_features(tmp_path: Path) -> None:
    features = "id,a,f,b\n10,1,7,0\n20,0,8,1\n30,1,9,1\n40,0,6,0\n"
    paths = {**write(tmp_path, features=features), **NO_SPLIT, "labels": None}
    data = build(**paths, label_column=["a", "b"])
    assert data.labels.tolist() == [[1, 0], [0, 1], [1, 1], [0, 0]]
    assert features_of(data).tolist() == [[7], [8], [9], [6]]


@pytest.mark.parametrize("kind", ["npz", "pt"])
def test_features_and_labels_of_one_file_of_arrays(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"graph.{kind}"
    arrays = {"x": np.eye(4, dtype=np.float32), "y": np.array([0, 1, 2, 1])}
    if kind == "npz":
        np.savez(path, allow_pickle=False, **arrays)
    else:
        torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)
    edges = write(tmp_path, edges="0,1\n1,2\n")["edges"]
    data = build(features=str(path), edges=edges)
    assert data.labels.tolist() == [0, 1, 2, 1]
    assert features_of(data).tolist() == np.eye(4).tolist()
    again = build(features=str(path), labels=str(path), edges=edges)
    assert again.labels.tolist() == [0, 1, 2, 1]


def test_a_file_of_arrays_without_labels_says_how_they_are_called(tmp_path: Path) -> None:
    np.savez(tmp_path / "graph.npz", x=np.eye(4), groups=np.arange(4))
    options = {"features": str(tmp_path / "graph.npz"), "edges": write(tmp_path)["edges"]}
    message = message_of(**options)
    assert "(it has x, groups)" in message
    options["edges"] = write(tmp_path, edges="0,1\n")["edges"]
    assert build(**options, label_column="groups").num_classes == 4


def test_rows_that_are_left_out_move_no_label(tmp_path: Path) -> None:
    features = "id,label,f,split\n10,a,1,train\n20,b,x,train\n30,b,3\n40,b,4,val\n50,c,5,test\n"
    paths = write(tmp_path, features=features, edges="10,40\n")
    data = build(edges=paths["edges"], features=paths["features"], bad_rows="skip")
    assert data.node_ids is not None
    assert data.node_ids.tolist() == [10, 40, 50]
    assert data.labels.tolist() == [0, 1, 2]
    assert [nodes.tolist() for nodes in data.splits.values()] == [[0], [1], [2]]


def test_minus_one_among_texts_is_no_class(tmp_path: Path) -> None:
    labels = "id,label\n10,True\n20,-1\n30,False\n40,True\n"
    data = build(**{**write(tmp_path, labels=labels), **NO_SPLIT})
    assert data.labels.tolist() == [1, -1, 0, 1]
    assert "-1: 1" in summary_of(data)


def test_columns_of_the_labels_file_that_are_not_used_are_told(tmp_path: Path) -> None:
    labels = "id,label,when\n10,a,7\n20,b,8\n30,a,9\n40,b,7\n"
    data = build(**{**write(tmp_path, labels=labels), **NO_SPLIT})
    assert data.labels.tolist() == [0, 1, 0, 1]
    assert data.summary is not None
    assert list(data.summary.left_out) == ["when of labels.csv"]


def test_columns_that_are_no_flags_at_all_are_asked_about(tmp_path: Path) -> None:
    labels = "id,city,income\n10,Rome,7\n20,Oslo,8\n30,Bonn,9\n40,Rome,7\n"
    message = message_of(**{**write(tmp_path, labels=labels), **NO_SPLIT})
    assert "columns city, income of labels.csv" in message
    assert "dataset.label_column" in message


@pytest.mark.parametrize("label_column", [None, "y", ["a", "b"]])
def test_several_targets_among_arrays(tmp_path: Path, label_column: object) -> None:
    targets = np.array([[1.5, 7], [2.5, np.nan], [np.nan, np.nan], [4.5, 9]], np.float32)
    path, edges = tmp_path / "graph.npz", write(tmp_path, edges="0,1\n")["edges"]
    np.savez(path, x=np.eye(4), y=targets, a=targets[:, 0], b=targets[:, 1])
    options = {"features": str(path), "edges": edges, "task": "regression"}
    data = build(**options, label_column=label_column)
    np.testing.assert_array_equal(data.labels, targets)
    assert data.num_features == 4
    assert (data.class_names is None) == (label_column in (None, "y"))


@pytest.mark.parametrize("shape", ["${}", "name {}", "{}/01"])
def test_texts_that_stand_once_are_asked_about(tmp_path: Path, shape: str) -> None:
    paths = income(tmp_path, [shape.format(12_345 + number) for number in range(80)])
    assert "80 different texts" in message_of(**paths)
    assert build(**paths, task="multiclass").num_classes == 80


def test_many_texts_that_stand_several_times_are_classes(tmp_path: Path) -> None:
    paths = income(tmp_path, [f"class {number % 60}" for number in range(180)])
    assert build(**paths).num_classes == 60


def test_a_label_that_is_no_number_is_named(tmp_path: Path) -> None:
    labels = "id;a;b\n10;1,5;2,5\n20;2.5;1,5\n30;1_000;1,5\n40;3,5;0,5\n"
    features = "id;f\n10;1\n20;2\n30;3\n40;4\n"
    paths = write(tmp_path, labels=labels, features=features, edges="source;target\n10;20\n")
    message = message_of(**{**paths, **NO_SPLIT}, task="regression", decimal=",")
    assert "label a is '2.5'" in message
    assert "label a is '1_000'" in message


def test_ids_that_have_another_name_in_the_labels_file_are_told(tmp_path: Path) -> None:
    rows = "a,40\nb,30\na,20\nb,10\n"
    data = build(**{**write(tmp_path, labels=f"label,rank\n{rows}"), **NO_SPLIT})
    assert data.summary is not None
    assert data.summary.ids == "column id of features.csv; column rank of labels.csv"
    assert data.labels.tolist() == [1, 0, 1, 0]
