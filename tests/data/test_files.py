from __future__ import annotations

import gzip
import io
import logging
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from gnntrain.config import FilesConfig
from gnntrain.data.build import write_store
from gnntrain.data.datasets import builder_for
from gnntrain.data.graph import GraphData, PrepareOptions
from gnntrain.data.store import StoredGraph
from gnntrain.errors import UserError
from tests.examples import examples

AnyArray = npt.NDArray[Any]

FEATURES = "id,f0,f1\n10,0.5,1\n20,1.5,2\n30,2.5,3\n40,3.5,4\n"
LABELS = "id,label\n10,a\n20,b\n30,a\n40,b\n"
EDGES = "source,target\n10,20\n20,30\n40,10\n"
SPLIT = "id,split\n10,train\n20,valid\n30,test\n40,train\n"


def write(folder: Path, **texts: str | bytes) -> dict[str, Any]:
    """Write one csv file a role, the usual small graph where none is given."""
    usual = {"features": FEATURES, "labels": LABELS, "edges": EDGES, "split": SPLIT}
    paths = {}
    for role, text in {**usual, **texts}.items():
        path = folder / f"{role}.csv"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        paths[role] = str(path)
    return paths


def build(**options: Any) -> GraphData:
    data = builder_for(FilesConfig.model_validate(options)).build()
    assert isinstance(data, GraphData)
    return data


def edges_of(data: GraphData) -> list[tuple[int, int]]:
    return list(zip(data.src.tolist(), data.dst.tolist(), strict=True))


def features_of(data: GraphData) -> AnyArray:
    assert isinstance(data.features, np.ndarray)
    return data.features


def message_of(**options: Any) -> str:
    with pytest.raises(UserError) as caught:
        build(**options)
    return str(caught.value)


def test_a_graph_of_four_csv_files_is_read(tmp_path: Path) -> None:
    data = build(**write(tmp_path))
    assert data.dataset == "files"
    assert data.num_nodes == 4
    assert edges_of(data) == [(0, 1), (1, 2), (3, 0)]
    assert features_of(data).tolist() == [[0.5, 1], [1.5, 2], [2.5, 3], [3.5, 4]]
    assert features_of(data).dtype == np.float32
    assert data.labels.tolist() == [0, 1, 0, 1]
    assert {name: ids.tolist() for name, ids in data.splits.items()} == {
        "train": [0, 3],
        "val": [1],
        "test": [2],
    }
    assert data.node_ids is not None
    assert data.node_ids.tolist() == [10, 20, 30, 40]
    assert (data.task, data.metric, data.num_classes) == ("binary", "roc_auc", 2)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ("id,label\n10,é\n20,b\n30,é\n40,b\n", ["b", "é"]),
        ("id,label\n10,7\n20,3\n30,3\n40,-1\n", [3, 7]),
        ("id,label\n10,1\n20,0\n30,1\n40,0\n", None),
        ("id,label\n10,1.0\n20,0.0\n30,1.0\n40,\n", None),
        ("id,label\n10,01\n20,2\n30,01\n40,2\n", ["01", "2"]),
        ("id,label\n10,1E1\n20,2E1\n30,2E1\n40,1E1\n", ["1E1", "2E1"]),
        ("id,label\n10,01.11\n20,02.5\n30,02.5\n40,-1\n", ["01.11", "02.5"]),
        (f"id,label\n10,{2**64}\n20,{2**64 + 1}\n30,{2**64}\n", [f"{2**64}", f"{2**64 + 1}"]),
        ("id,old,rich\n10,1,0\n20,0,0\n30,1,1\n40,0,1\n", ["old", "rich"]),
        ("10,1,0\n20,0,0\n30,1,1\n40,0,1\n", None),
    ],
)
def test_classes_keep_the_names_they_have(tmp_path: Path, labels: str, names: Any) -> None:
    split = "id,split\n10,train\n20,val\n30,test\n"
    data = build(**write(tmp_path, labels=labels, split=split))
    store = write_store(tmp_path / "store", data, PrepareOptions(), {})
    assert store.class_names == names
    assert StoredGraph.open(store.path).class_names == names


def test_text_ids_are_kept_as_utf_8(tmp_path: Path) -> None:
    names = {"10": "Zoë", "20": "b 2", "30": "007", "40": "x"}
    texts = {"features": FEATURES, "labels": LABELS, "edges": EDGES, "split": SPLIT}
    for number, name in names.items():
        texts = {role: text.replace(number, name) for role, text in texts.items()}
    data = build(**write(tmp_path, **texts))
    assert data.node_ids is not None
    assert [name.decode() for name in data.node_ids.tolist()] == list(names.values())
    assert edges_of(data) == [(0, 1), (1, 2), (3, 0)]
    assert data.splits["train"].tolist() == [0, 3]


WRITTEN = {
    "zeros": ["00", "01", "02", "03"],
    "some zeros": ["0", "1", "02", "3"],
    "codes": ["1E1", "1E2", "10", "100"],
    "signs": ["+1", "-2", "3", "+4"],
    "hexadecimal": ["0x1", "0x2", "1", "2"],
    "beyond 64 bits": [str(2**64 + i) for i in range(4)],
    "versions": ["1.0", "1", "1.1", "2.0"],
    "gaps": ["1.0", "2.0", "3.0", "4.0"],
}


@pytest.mark.parametrize("ids", WRITTEN.values(), ids=WRITTEN)
def test_ids_are_the_texts_of_the_file(tmp_path: Path, ids: list[str]) -> None:
    texts = {"features": FEATURES, "labels": LABELS, "edges": EDGES, "split": SPLIT}
    for role, text in texts.items():
        for number, name in zip(("10", "20", "30", "40"), ids, strict=True):
            text = text.replace(f"\n{number},", f"\n<{name}>,").replace(
                f",{number}\n", f",<{name}>\n"
            )
        texts[role] = text.replace("<", "").replace(">", "")
    data = build(**write(tmp_path, **texts))
    assert data.node_ids is not None
    assert [name.decode() for name in data.node_ids.tolist()] == ids
    assert edges_of(data) == [(0, 1), (1, 2), (3, 0)]
    assert data.labels.tolist() == [0, 1, 0, 1]
    assert data.splits["train"].tolist() == [0, 3]


@pytest.mark.parametrize("decimal", [".", ","])
def test_whole_numbers_of_a_column_with_gaps_match_as_numbers(tmp_path: Path, decimal: str) -> None:
    features = FEATURES.replace(",", ";").replace(".", decimal).replace("10;", f"10{decimal}0;")
    edges = f"source;target\n10;20{decimal}0\n20;30\n"
    given = write(tmp_path, features=features, edges=edges)
    assert edges_of(build(**given, decimal=decimal)) == [(0, 1), (1, 2)]


@pytest.mark.parametrize("role", ["edges", "labels", "split"])
@pytest.mark.parametrize(("nodes", "other"), [("007", "7"), ("7", "007"), ("7", "7E0")])
def test_an_id_that_is_written_otherwise_is_told_with_both(
    tmp_path: Path, role: str, nodes: str, other: str
) -> None:
    texts = {"features": FEATURES, "labels": LABELS, "edges": EDGES, "split": SPLIT}
    texts = {name: text.replace("10,", f"{nodes},") for name, text in texts.items()}
    texts["edges"] = f"source,target\n{nodes},20\n20,30\n"
    message = message_of(**write(tmp_path, **texts | {role: texts[role].replace(nodes, other, 1)}))
    assert f"{role}.csv line 2: node '{other}' is not in the features file features.csv" in message
    assert f"which has '{nodes}': write it alike in both" in message


def test_ids_that_are_numbers_in_one_file_and_texts_in_another_are_matched(
    tmp_path: Path,
) -> None:
    edges = pd.DataFrame({"source": ["10", "20"], "target": ["20", "30"]})
    edges.to_parquet(tmp_path / "edges.parquet")
    paths = {**write(tmp_path), "edges": str(tmp_path / "edges.parquet")}
    assert edges_of(build(**paths)) == [(0, 1), (1, 2)]
    big = 2**62 + 1
    texts = {
        "features": f"id,f\n{big},1\n{big - 1},2\n",
        "edges": f"{big},{big - 1}\nx,{big}\n",
        "labels": f"id,label\n{big},a\n{big - 1},b\n",
    }
    data = build(**{**write(tmp_path, **texts), "split": None}, bad_rows="skip")
    assert edges_of(data) == [(0, 1)]
    mixed = FEATURES.replace("40", "d")
    paths = write(tmp_path, features=mixed, labels=LABELS.replace("40", "d"), split=SPLIT[:-9])
    paths["edges"] = str(tmp_path / "edges.parquet")
    assert edges_of(build(**paths)) == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("first_lines", "has_header"),
    [
        ("10,20\n20,30\n", False),
        ("from,to\n10,20\n", True),
        ("citing,cited\n10,20\n", True),
        ("# a comment\n\n10,20\n20,30\n", False),
        ("# a comment\nsource,target\n10,20\n", True),
    ],
)
def test_a_header_is_told_from_the_first_row(
    tmp_path: Path, first_lines: str, has_header: bool
) -> None:
    edges = edges_of(build(**write(tmp_path, edges=first_lines)))
    assert edges == ([(0, 1)] if has_header else [(0, 1), (1, 2)])


def test_text_ids_without_a_known_name_above_them_have_no_header(tmp_path: Path) -> None:
    texts = {
        "features": "id,f\na,1\nb,2\nc,3\n",
        "labels": "a,x\nb,y\nc,x\n",
        "split": "a,train\nb,test\nc,val\n",
    }
    assert edges_of(build(**write(tmp_path, edges="a,b\nb,c\n", **texts))) == [(0, 1), (1, 2)]
    texts["split"] = "a,train\nb,test\nc,train\n"
    data = build(**write(tmp_path, edges="a,b\nb,c\n", **texts), header=True)
    assert edges_of(data) == [(1, 2)]
    assert data.labels.tolist() == [-1, 1, 0]


def test_a_header_that_is_not_seen_is_reported_with_the_remedy(tmp_path: Path) -> None:
    texts = {
        "features": "id,f\na,1\nb,2\n",
        "labels": "id,label\na,x\nb,y\n",
        "split": "id,split\na,train\nb,test\n",
    }
    paths = write(tmp_path, edges="person,friend\na,b\n", **texts)
    message = message_of(**paths)
    assert "edges.csv line 1: node 'person'" in message
    assert "dataset.header=true" in message
    assert edges_of(build(**paths, header=True)) == [(0, 1)]


def test_columns_are_chosen_by_name_or_number(tmp_path: Path) -> None:
    edges = "w,dst_id,src_id\n0.5,20,10\n2,30,20\n"
    names = {"source_column": "src_id", "target_column": "dst_id", "weight_column": "w"}
    numbers = {"source_column": 2, "target_column": 1, "weight_column": 0}
    for choice in (names, numbers):
        data = build(**write(tmp_path, edges=edges), **choice)
        assert edges_of(data) == [(0, 1), (1, 2)]
        assert data.edge_weight is not None
        assert data.edge_weight.tolist() == [0.5, 2.0]
        assert data.edge_weight.dtype == np.float32


def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    message = message_of(**write(tmp_path), weight_column="wieght")
    assert "dataset.weight_column=wieght" in message
    assert "source, target" in message
    assert "did you mean" not in message
    message = message_of(**write(tmp_path), label_column="lable")
    assert "dataset.label_column=lable" in message
    assert "did you mean label?" in message


def test_all_names_of_columns_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    features = "user,age,county,label\n1,x,2,a\n2,y,3,b\n"
    paths = write(tmp_path, features=features, edges="card,shop\nc,d\n")
    paths = {"features": paths["features"], "edges": paths["edges"]}
    names = {"id_column": "usr", "label_column": "lable", "target_column": "shp"}
    message = message_of(**paths, **names, ignore="ag", categorical=["conty", "a*"])
    assert "5 mistakes" in message
    near = {"usr": "user", "lable": "label", "shp": "shop", "ag": "age", "conty": "county"}
    assert all(f"mean {name}?" in message for name in near.values())


def test_labels_and_splits_may_be_columns_of_the_features_file(tmp_path: Path) -> None:
    text = "id,label,f0,split\n1,2,0.5,train\n2,1,1.5,val\n3,,2.5,\n4,0,3.5,test\n"
    paths = write(tmp_path, features=text, edges="1,2\n3,4\n")
    data = build(edges=paths["edges"], features=paths["features"])
    assert features_of(data).tolist() == [[0.5], [1.5], [2.5], [3.5]]
    assert data.labels.tolist() == [2, 1, -1, 0]
    assert [data.splits[name].tolist() for name in ("train", "val", "test")] == [[0], [1], [3]]
    assert (data.task, data.metric) == ("multiclass", "accuracy")


def test_a_split_may_be_a_column_of_the_labels_file(tmp_path: Path) -> None:
    labels = "id,kind,part\n10,a,train\n20,b,VAL\n30,c,testing\n40,a,train\n"
    paths = write(tmp_path, labels=labels)
    data = build(**{**paths, "split": None}, label_column="kind", split_column="part")
    assert [data.splits[name].tolist() for name in ("train", "val", "test")] == [[0, 3], [1], [2]]


def test_without_a_split_labelled_nodes_are_shared_out_at_random_but_always_alike(
    tmp_path: Path,
) -> None:
    features = "id,f\n" + "".join(f"{node},{node / 7}\n" for node in range(50))
    labels = "id,label\n" + "".join(f"{node},{node % 3}\n" for node in range(0, 50, 2))
    paths = {**write(tmp_path, features=features, labels=labels, edges="0,1\n"), "split": None}
    first, again = build(**paths), build(**paths)
    assert [len(nodes) for nodes in first.splits.values()] == [15, 5, 5]
    for name, nodes in first.splits.items():
        np.testing.assert_array_equal(nodes, again.splits[name])
    everywhere = np.concatenate(list(first.splits.values()))
    assert sorted(everywhere.tolist()) == list(range(0, 50, 2))


def test_several_label_columns_of_0_and_1_are_multi_label(tmp_path: Path) -> None:
    labels = "id,red,green,blue\n10,1,0,1\n30,0,0,0\n20,1,1,1\n"
    paths = {**write(tmp_path, labels=labels), "split": None}
    data = build(**paths)
    assert data.labels.tolist() == [[1, 0, 1], [1, 1, 1], [0, 0, 0], [0, 0, 0]]
    assert data.labels.dtype == np.uint8
    assert (data.task, data.metric, data.num_classes) == ("multilabel", "f1_micro", 3)
    assert 3 not in np.concatenate(list(data.splits.values()))


def test_task_and_metric_may_be_chosen(tmp_path: Path) -> None:
    paths = write(tmp_path)
    data = build(**paths, task="multiclass")
    assert (data.task, data.metric) == ("multiclass", "accuracy")
    data = build(**paths, metric="average_precision")
    assert (data.task, data.metric) == ("binary", "average_precision")
    assert "dataset.task=multilabel" in message_of(**paths, task="multilabel")
    three = write(tmp_path, labels="id,label\n10,a\n20,b\n30,c\n40,b\n")
    assert "3 different labels" in message_of(**three, task="binary")
    message = message_of(**three, metric="roc_auc")
    assert "dataset.metric=roc_auc" in message
    assert "accuracy, f1_micro, f1_macro" in message
    one = write(tmp_path, labels="id,label\n10,a\n20,a\n30,a\n40,a\n")
    assert "only one label" in message_of(**one)


@pytest.mark.parametrize(
    ("labels", "report"),
    [
        ("id,label\nx,0\ny,1\n", "line 2: node 'x' is not in the features file"),
        ("id,label\n10,-2\n20,-3\n", "line 2: label '-2' is not a whole number"),
    ],
)
def test_bad_rows_are_told_before_that_no_label_is_left(
    tmp_path: Path, labels: str, report: str
) -> None:
    message = message_of(**write(tmp_path, labels=labels))
    assert "2 bad rows (labels.csv: 2)" in message
    assert report in message


def test_who_names_an_unknown_node_is_shown_what_ids_there_are(tmp_path: Path) -> None:
    for features, ids in ((FEATURES, "10, 20, 30, …"), ("f0,f1\n0.5,1\n1.5,2\n", "0, 1")):
        with pytest.raises(UserError) as caught:
            build(**write(tmp_path, features=features, edges="a,b\nc,d\n"))
        assert caught.value.hint is not None
        assert f"defines the nodes ({ids})" in caught.value.hint


def test_whole_number_labels_become_classes_in_order_and_minus_one_is_none(
    tmp_path: Path,
) -> None:
    labels = "id,label\n10,300\n20,-1\n30,20\n40,100\n"
    data = build(**{**write(tmp_path, labels=labels), "split": None})
    assert data.labels.tolist() == [2, -1, 0, 1]
    assert data.num_classes == 3


BAD_FILES = [
    ("edges", "10,20\n10\n20,30\n10,20,30\n", ["line 2: 1 field instead of 2", "line 4: 3 f"]),
    ("edges", "10,20\n\n10,99\n", ["line 3: node '99' is not in the features file"]),
    ("edges", "10,20\nabc,20\n", ["line 2: node 'abc' is not in the features file"]),
    ("edges", "source,target\n,20\n10,20\n", ["line 2: the source node is missing"]),
    ("features", FEATURES + "50,x,1\n", ["line 6: column f0 is 'x' instead of a finite number"]),
    ("features", FEATURES + "50,1,\n", ["line 6: column f1 is '' instead of a finite number"]),
    ("features", FEATURES + "50,nan,1\n", ["line 6: column f0 is 'nan'"]),
    ("features", FEATURES + "50,1,-inf\n", ["line 6: column f1 is '-inf'"]),
    ("features", FEATURES + "50,1,1e99\n", ["line 6: column f1 is '1e99'"]),
    ("features", FEATURES + "10,1,1\n", ["line 6: node '10' is there already"]),
    ("features", FEATURES + ",1,1\n", ["line 6: the node id is missing"]),
    ("features", FEATURES + "50,1\n", ["line 6: 2 fields instead of 3"]),
    ("labels", LABELS + "50,a\n", ["line 6: node '50' is not in the features file"]),
    ("labels", LABELS + "10,b\n", ["line 6: node '10' is there already"]),
    ("labels", "id,label\n10,1\n20,-2\n30,2\n40,1\n", ["line 3: label '-2' is not a whole"]),
    ("labels", "id,p,q\n10,1,0\n20,1,2\n30,0,0\n40,0,1\n", ["line 3: label q is '2' instead"]),
    ("labels", "id,p,q\n10,1,0\n20,1,\n30,0,0\n40,0,1\n", ["line 3: label q is '' instead"]),
    ("split", SPLIT.replace("valid", "later"), ["line 3: split 'later' is none of train, val"]),
    ("split", SPLIT.replace("valid", ""), ["line 3: the split is missing"]),
    ("split", SPLIT + "10,test\n", ["line 6: node '10' is there already"]),
    ("split", SPLIT + "99,test\n", ["line 6: node '99' is not in the features file"]),
]


@pytest.mark.parametrize(("role", "text", "reports"), BAD_FILES)
def test_a_bad_row_is_reported_with_file_line_and_reason(
    tmp_path: Path, role: str, text: str, reports: list[str]
) -> None:
    message = message_of(**write(tmp_path, **{role: text}))
    for report in reports:
        assert f"{tmp_path / role}.csv {report}" in message
    assert "dataset.bad_rows=skip" in message


@pytest.mark.parametrize(("role", "text", "reports"), BAD_FILES)
def test_bad_rows_are_left_out_on_request_with_a_warning(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    role: str,
    text: str,
    reports: list[str],
) -> None:
    with caplog.at_level(logging.WARNING, "gnntrain"):
        data = build(**write(tmp_path, **{role: text}), bad_rows="skip")
    for report in reports:
        assert report in caplog.text
    assert data.num_nodes == 4
    assert np.isfinite(features_of(data)).all()


def test_lines_are_counted_right_behind_blank_and_wrong_ones_and_in_packed_files(
    tmp_path: Path,
) -> None:
    text = "# from somewhere\nsource,target\n10,20\n\n10\n\n\n20,77\n"
    message = message_of(**write(tmp_path, edges=text))
    assert "line 5: 1 field" in message
    assert "line 8: node '77'" in message
    packed = tmp_path / "edges.csv.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    paths = {**write(tmp_path), "edges": str(packed)}
    assert "line 8: node '77'" in message_of(**paths)


def test_a_row_behind_one_that_was_left_out_keeps_its_line(tmp_path: Path) -> None:
    features = "id,f0\n,1\n10,0\n10,1\n20,1\n30,x\n40,1\n"
    message = message_of(**write(tmp_path, features=features))
    assert "line 2: " in message
    assert "line 4: node '10'" in message
    assert "line 6: column f0 is 'x'" in message


def test_a_missing_id_is_not_taken_for_node_0(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.eye(2))
    np.save(tmp_path / "y.npy", np.array([0, 1]))
    options = {
        "features": str(tmp_path / "x.npy"),
        "labels": str(tmp_path / "y.npy"),
        "edges": write(tmp_path, edges="source,target\n0,1\n,1\n1,\n")["edges"],
    }
    message = message_of(**options)
    assert "line 3: the source" in message
    assert "line 4: the target" in message
    assert edges_of(build(**options, bad_rows="skip")) == [(0, 1)]


def test_ten_bad_rows_are_shown_and_all_are_counted(tmp_path: Path) -> None:
    edges = "source,target\n" + "10,99\n" * 1000 + "10,20\n"
    message = message_of(**write(tmp_path, edges=edges))
    assert "1000 bad rows (edges.csv: 1000)" in message
    assert message.count("node '99'") == 10


def test_bad_rows_of_several_files_are_reported_at_once(tmp_path: Path) -> None:
    message = message_of(**write(tmp_path, edges="10,99\n", labels=LABELS + "98,a\n"))
    assert "2 bad rows" in message
    assert "edges.csv: 1" in message
    assert "labels.csv: 1" in message


def test_a_weight_that_is_no_weight_is_a_bad_row(tmp_path: Path) -> None:
    edges = "source,target,w\n10,20,1\n10,20,x\n10,20,\n10,20,-1\n10,20,inf\n"
    message = message_of(**write(tmp_path, edges=edges), weight_column="w")
    for line, weight in ((3, "x"), (4, ""), (5, "-1"), (6, "inf")):
        assert f"line {line}: weight {weight!r}" in message
    data = build(**write(tmp_path, edges=edges), weight_column="w", bad_rows="skip")
    assert data.edge_weight is not None
    assert data.edge_weight.tolist() == [1.0]
    assert data.summary is not None
    assert data.summary.left_out["4 rows of edges.csv"] == "bad"  # also when the store is there


def test_rows_of_binary_files_are_counted_from_zero(tmp_path: Path) -> None:
    paths = write(tmp_path)
    np.save(tmp_path / "edges.npy", np.array([[10, 20], [20, 30], [20, 99]]))
    message = message_of(**{**paths, "edges": str(tmp_path / "edges.npy")})
    assert "edges.npy row 2: node '99'" in message
    table = pd.DataFrame({"id": [10, 20, 30, 40], "f": [1.0, 2.0, np.nan, 4.0]})
    table.to_parquet(tmp_path / "features.parquet")
    message = message_of(**{**paths, "features": str(tmp_path / "features.parquet")})
    assert "features.parquet row 2: column f is ''" in message


def test_features_without_ids_are_nodes_in_order_and_none_can_be_left_out(
    tmp_path: Path,
) -> None:
    features = np.arange(8, dtype=np.float32).reshape(4, 2)
    np.save(tmp_path / "x.npy", features)
    np.save(tmp_path / "y.npy", np.array([0, 1, -1, 2]))
    options = {
        "features": str(tmp_path / "x.npy"),
        "labels": str(tmp_path / "y.npy"),
        "edges": write(tmp_path, edges="0,1\n3,2\n")["edges"],
    }
    data = build(**options)
    assert isinstance(data.features, np.memmap)
    assert data.node_ids is None
    assert edges_of(data) == [(0, 1), (3, 2)]
    assert data.labels.tolist() == [0, 1, -1, 2]
    np.save(tmp_path / "x.npy", np.where(features == 4, np.nan, features))
    message = message_of(**options, bad_rows="skip")
    assert "x.npy row 2: column 0 is 'nan'" in message
    np.save(tmp_path / "x.npy", features[:3])
    assert "3 nodes" in message_of(**options)


def test_a_table_without_ids_is_one_by_choice_or_by_its_fractions(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.array([0, 1]))
    common = {
        "labels": str(tmp_path / "y.npy"),
        "edges": write(tmp_path, edges="0,1\n")["edges"],
    }
    fractions = write(tmp_path, edges="0,1\n", features="0.5,1\n1.5,2\n")["features"]
    assert features_of(build(features=fractions, **common)).tolist() == [[0.5, 1], [1.5, 2]]
    whole = write(tmp_path, edges="0,1\n", features="1,1\n1,2\n")["features"]
    message = message_of(features=whole, **common)
    assert "node '1'" in message
    assert "dataset.id_column=none" in message
    data = build(features=whole, id_column="none", **common)
    assert features_of(data).tolist() == [[1, 1], [1, 2]]
    short = write(tmp_path, edges="0,1\n", features="1,1\n1\n1,2\n")["features"]
    message = message_of(features=short, id_column="none", bad_rows="skip", **common)
    assert "no node ids" in message


def test_arrays_say_what_they_hold_by_their_names(tmp_path: Path) -> None:
    ids = np.array(["a", "b", "c", "d"])
    np.savez(tmp_path / "f.npz", x=np.eye(4), ids=ids)
    np.savez(tmp_path / "l.npz", labels=np.array([2.0, 1.0, np.nan]), ids=ids[[3, 1, 0]])
    np.savez(tmp_path / "s.npz", train=ids[3:], val=ids[1:2])
    np.savez(tmp_path / "e.npz", source=ids[:2], target=ids[2:], weight=np.ones(2))
    data = build(
        **{
            role: str(tmp_path / f"{role[0]}.npz")
            for role in ("features", "labels", "edges", "split")
        }
    )
    assert edges_of(data) == [(0, 2), (1, 3)]
    assert data.edge_weight is not None
    assert data.labels.tolist() == [-1, 0, -1, 1]
    assert [data.splits[name].tolist() for name in ("train", "val", "test")] == [[3], [1], []]


def test_splits_may_be_masks_and_may_not_overlap_or_hold_nodes_without_label(
    tmp_path: Path,
) -> None:
    paths = write(tmp_path, labels="id,label\n10,a\n20,b\n30,a\n")
    path = tmp_path / "split.npz"
    paths["split"] = str(path)
    train, test = np.array([True, True, False, False]), np.array([False, False, True, False])
    np.savez(path, train_mask=train, test_mask=test)
    data = build(**paths)
    assert [data.splits[name].tolist() for name in ("train", "val", "test")] == [[0, 1], [], [2]]
    np.savez(path, train=train, test=~test)
    message = message_of(**paths)
    assert "row 0: node '0' in split test" in message
    assert "row 3: node '3' in split test" in message
    np.savez(path, train=train[:3])
    assert "mask train has 3 values" in message_of(**paths)
    np.savez(path, tran=train)
    assert "no array called train" in message_of(**paths)


def test_a_list_column_of_parquet_is_a_row_of_features(tmp_path: Path) -> None:
    table = pd.DataFrame({"id": [10, 20, 30, 40], "vector": [[1.0, 2], [3, 4], [5, 6], [7, 8]]})
    table.to_parquet(tmp_path / "f.parquet")
    paths = {**write(tmp_path), "features": str(tmp_path / "f.parquet")}
    assert features_of(build(**paths)).tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    table.loc[2, "vector"] = None
    table.to_parquet(tmp_path / "f.parquet")
    assert "f.parquet row 2" in message_of(**paths)


class Evil:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return (eval, ("1/0",))


def test_no_file_may_run_code(tmp_path: Path) -> None:
    paths = write(tmp_path)
    np.save(tmp_path / "x.npy", np.array([Evil()], object))
    np.savez(tmp_path / "x.npz", x=np.array([Evil()], object))
    torch.save({"x": Evil()}, tmp_path / "x.pt")
    (tmp_path / "y.pt").write_bytes(pickle.dumps(Evil()))
    (tmp_path / "y.npz").write_bytes((tmp_path / "x.npz").read_bytes()[:-9])
    for name in ("x.npy", "x.npz", "x.pt", "y.pt", "y.npz"):
        message = message_of(**{**paths, "features": str(tmp_path / name)})
        assert "cannot be read" in message
        assert "trust" not in message
        assert "weights_only" not in message


def npy(shape: tuple[int, ...], data: bytes = b"") -> bytes:
    """An npy file whose header tells of float32 numbers of a shape, whatever there is."""
    file = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + data


@pytest.mark.parametrize("shape", [(2**40, 2**10), (2**62, 2**62), (10**30,), (4, -1), (4, 3)])
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_a_header_that_tells_of_more_than_is_there_is_refused_before_anything_is_allocated(
    tmp_path: Path, shape: tuple[int, ...], suffix: str
) -> None:
    path = tmp_path / f"x.{suffix}"
    if suffix == "npz":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", npy(shape, bytes(40)))
    else:
        path.write_bytes(npy(shape, bytes(40)))
    message = message_of(**{**write(tmp_path), "features": str(path)})
    assert "its header tells of" in message
    assert "40 bytes are there" in message


@pytest.mark.parametrize("num_rows", [0, 4])
def test_more_columns_than_any_table_has_are_refused(tmp_path: Path, num_rows: int) -> None:
    path = tmp_path / "x.npy"
    shape = (num_rows, 2**40 if num_rows == 0 else 100_001)
    path.write_bytes(npy(shape, bytes(4 * num_rows * shape[1])))
    message = message_of(**{**write(tmp_path), "features": str(path)})
    assert f"{shape[1]:,} columns, more than 100,000" in message


def test_a_header_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", npy((4, 1)).replace(b"'shape': (4, 1)", b"'shape': (((4,1"))
    assert "its header is broken" in message_of(**{**write(tmp_path), "features": str(path)})


def test_what_unpacks_to_more_than_the_free_memory_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnntrain.data.tables.available_memory", lambda: 100_000)
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((4, 100_000), np.float32))
    torch.save(torch.zeros(4, 100_000), tmp_path / "x.pt")
    torch.save(torch.zeros(4, 1).expand(4, 100_000), tmp_path / "y.pt")  # one number, repeated
    table = pd.DataFrame({"id": np.arange(100_000), "a": 1.0})
    table.to_parquet(tmp_path / "x.parquet")
    paths = write(tmp_path)
    for name in ("x.npz", "x.pt", "y.pt", "x.parquet"):
        message = message_of(**{**paths, "features": str(tmp_path / name)})
        assert f"{name} unpacks to" in message
        assert "0.0 GiB of memory are free" in message


def test_what_else_lies_in_an_archive_is_passed_over(tmp_path: Path) -> None:
    paths = write(tmp_path)
    np.savez(tmp_path / "x.npz", ids=np.array([10, 20, 30, 40]), x=np.ones((4, 2)))
    with zipfile.ZipFile(tmp_path / "x.npz", "a") as archive:
        archive.writestr("readme.txt", "hello")
    assert build(**{**paths, "features": str(tmp_path / "x.npz")}).num_nodes == 4


@pytest.mark.parametrize("values", [np.ones((4, 1), complex), np.zeros((4, 1), "datetime64[s]")])
def test_arrays_of_other_than_real_numbers_and_texts_are_refused(
    tmp_path: Path, values: AnyArray
) -> None:
    np.save(tmp_path / "x.npy", values)
    message = message_of(**{**write(tmp_path), "features": str(tmp_path / "x.npy")})
    assert f"holds values of type {values.dtype}" in message
    assert "Only real numbers" in message


def test_truth_values_are_no_edges(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", np.eye(2, dtype=bool))
    message = message_of(**{**write(tmp_path), "edges": str(tmp_path / "e.npy")})
    assert "the edges are truth values" in message


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_ids_beyond_64_bits_are_texts_and_not_taken_for_others(tmp_path: Path, kind: str) -> None:
    paths = write(tmp_path)
    ids = np.array([10, 20, 30, 2**64 - 1], np.uint64)
    if kind == "npz":
        np.savez(tmp_path / "f.npz", ids=ids, x=np.ones((4, 1)))
    else:
        pd.DataFrame({"id": ids, "a": 1.0}).to_parquet(tmp_path / "f.parquet")
    options = {"features": str(tmp_path / f"f.{kind}"), "bad_rows": "skip", "split": None}
    data = build(**{**paths, **options})
    assert data.node_ids is not None
    assert data.node_ids.tolist() == [b"10", b"20", b"30", b"18446744073709551615"]
    assert data.labels.tolist() == [0, 1, 0, -1]


def test_a_line_that_is_not_utf_8_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for field in (b"\xe9,b", b"\xe9b"):
        content = b"id,label\n10,\xc3\xa9\n20," + field + b"\n30,a\n"
        message = message_of(**write(tmp_path, labels=content))
        assert "labels.csv line 3 is not UTF-8" in message
        assert "dataset.encoding" in message
    assert capfd.readouterr().err == ""  # Arrow prints a traceback where a handler cannot be called


@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n", b"id,f\n", b"id,f\n1,\xff\xfe\n", b"," * 200_000 + b"\n"],
)
def test_a_file_that_is_no_table_is_a_users_error(tmp_path: Path, content: bytes) -> None:
    assert "features.csv" in message_of(**write(tmp_path, features=content))


def test_an_unknown_suffix_and_a_broken_parquet_file_are_a_users_error(tmp_path: Path) -> None:
    paths = write(tmp_path)
    (tmp_path / "edges.foo").write_text(EDGES)
    message = message_of(**{**paths, "edges": str(tmp_path / "edges.foo")})
    assert "'.foo'" in message
    assert ".parquet" in message
    (tmp_path / "edges.parquet").write_text(EDGES)
    assert "cannot be read" in message_of(**{**paths, "edges": str(tmp_path / "edges.parquet")})


def test_what_is_not_given_is_asked_for(tmp_path: Path) -> None:
    paths = write(tmp_path)
    assert "a column of ones" in message_of(**{**paths, "features": None})
    assert "dataset.edges is not given" in message_of(**{**paths, "edges": None})
    assert "dataset.labels is not given" in message_of(**{**paths, "labels": None})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    paths = {**write(tmp_path), "edges": str(tmp_path / "none.csv")}
    with pytest.raises(UserError, match=r"dataset\.edges=.*none\.csv: No such file"):
        builder_for(FilesConfig.model_validate(paths)).identity()
    assert "none.csv" in message_of(**paths)


def test_the_identity_changes_with_the_files_and_the_way_they_are_read(tmp_path: Path) -> None:
    paths = write(tmp_path)

    def identity(**options: Any) -> dict[str, Any]:
        return dict(builder_for(FilesConfig.model_validate({**paths, **options})).identity())

    first = identity()
    assert first == identity()
    assert first != identity(task="multiclass")
    assert first != identity(split=None)
    assert identity(split=0) != identity(split=1) != identity(split=None)
    assert first == identity(store_dir=str(tmp_path))
    write(tmp_path, edges=EDGES + "10,30\n")
    assert first != identity()


def _save(folder: Path, role: str, suffix: str, columns: dict[str, Any]) -> str:
    """Write columns as a table or as arrays with the names they have there."""
    path = folder / f"{role}.{suffix}"
    table = pd.DataFrame(columns)
    if suffix in ("csv", "csv.gz", "tsv"):
        table.to_csv(path, index=False, sep="\t" if suffix == "tsv" else ",")
    elif suffix == "parquet":
        table.to_parquet(path)
    else:
        rest = [name for name in columns if name != "id"]
        both = np.stack([np.asarray(columns[name]) for name in rest], axis=-1)
        main = both[:, 0] if role == "labels" else both
        name = {"edges": "edge_index", "features": "x", "labels": "y"}[role]
        arrays = {"id": np.asarray(columns["id"]), name: main} if "id" in columns else {name: main}
        if suffix == "npz":
            np.savez(path, allow_pickle=False, **arrays)
        else:
            torch.save({key: torch.from_numpy(value) for key, value in arrays.items()}, path)
    return str(path)


TABLES = st.sampled_from(["csv", "csv.gz", "tsv", "parquet"])
ANY = st.sampled_from(["csv", "csv.gz", "tsv", "parquet", "npz", "pt"])


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Any]:
    num_nodes = draw(st.integers(3, 12))
    nodes = st.integers(0, num_nodes - 1)
    as_text = draw(st.booleans())
    texts = st.text("abcXYZ é-_'1", min_size=1).map(str.strip).filter(lambda text: text != "")
    usable = texts.filter(lambda text: not text.lstrip("-").replace("_", "").isdigit())
    kind: st.SearchStrategy[Any] = usable if as_text else st.integers(-(2**40), 2**40)
    return {
        "as_text": as_text,
        "ids": draw(st.lists(kind, min_size=num_nodes, max_size=num_nodes, unique=True)),
        "edges": draw(st.lists(st.tuples(nodes, nodes), min_size=1, max_size=30)),
        "features": draw(
            st.lists(
                st.tuples(st.floats(-1e6, 1e6, width=32), st.integers(-5, 5)),
                min_size=num_nodes,
                max_size=num_nodes,
            )
        ),
        "labels": [node % 3 for node in range(num_nodes)],
        "suffixes": [draw(TABLES if as_text else ANY) for _ in range(3)],
    }


@given(graph=graphs())
@examples(50)
def test_what_is_written_in_any_format_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, graph: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("files")
    ids, edges, features = graph["ids"], graph["edges"], graph["features"]
    suffixes = graph["suffixes"]
    paths = {
        "edges": _save(
            folder,
            "edges",
            suffixes[0],
            {
                "source": [ids[source] for source, _ in edges],
                "target": [ids[target] for _, target in edges],
            },
        ),
        "features": _save(
            folder,
            "features",
            suffixes[1],
            {"id": ids, "f0": [a for a, _ in features], "f1": [float(b) for _, b in features]},
        ),
        "labels": _save(folder, "labels", suffixes[2], {"id": ids, "label": graph["labels"]}),
    }
    data = build(**paths)
    two_by_two = suffixes[0] in ("npz", "pt") and len(edges) == 2
    if not two_by_two:
        assert edges_of(data) == edges
    np.testing.assert_array_equal(features_of(data), np.array(features, np.float32))
    assert data.labels.tolist() == graph["labels"]
    if data.node_ids is None:
        assert ids == list(range(data.num_nodes))
    elif graph["as_text"]:
        assert [name.decode() for name in data.node_ids.tolist()] == ids
    else:
        assert data.node_ids.tolist() == ids


def test_two_rows_of_any_length_and_any_number_of_pairs_are_edges(tmp_path: Path) -> None:
    paths = write(tmp_path)
    pairs = np.array([[10, 20], [20, 30], [30, 40]])
    for array in (pairs, pairs.T, pairs.astype(np.int32)):
        np.save(tmp_path / "e.npy", array)
        data = build(**{**paths, "edges": str(tmp_path / "e.npy")})
        assert edges_of(data) == [(0, 1), (1, 2), (2, 3)]
    np.save(tmp_path / "e.npy", pairs[:2])
    data = build(**{**paths, "edges": str(tmp_path / "e.npy")})
    assert edges_of(data) == [(0, 1), (1, 2)], "two by two: sources above, targets below"
    np.savez(tmp_path / "e.npz", source=pairs[:, 0], target=pairs[:2, 1])
    assert "source [3], target [2]" in message_of(**{**paths, "edges": str(tmp_path / "e.npz")})
    np.savez(tmp_path / "e.npz", edges=pairs, weight=np.array(["a", "b", "c"]))
    assert "one number an edge" in message_of(**{**paths, "edges": str(tmp_path / "e.npz")})
    torch.save(
        {"edge_index": torch.tensor(pairs.T), "edge_weight": torch.ones(3, dtype=torch.bfloat16)},
        tmp_path / "e.pt",
    )
    data = build(**{**paths, "edges": str(tmp_path / "e.pt")})
    assert data.edge_weight is not None
    assert data.edge_weight.tolist() == [1, 1, 1]
    np.save(tmp_path / "e.npy", np.ones((3, 3), int))
    assert "shape [3, 3]" in message_of(**{**paths, "edges": str(tmp_path / "e.npy")})


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
@pytest.mark.parametrize("as_text", [False, True])
def test_a_graph_read_in_small_batches_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, as_text: bool
) -> None:
    rng = np.random.default_rng(0)
    ids = rng.permutation(1000)[:100]
    names = np.char.add("n", ids.astype(str)) if as_text else ids
    ends = names[rng.integers(0, 100, (2, 500))]
    ends[:, 250] = names[0] * 2 if as_text else -1  # no such node
    edges = {"source": ends[0], "target": ends[1], "w": rng.random(500)}
    numbers = rng.random((100, 3))
    paths = {}
    for role, columns in {
        "edges": edges,
        "features": {"id": names, "a": numbers[:, 0], "b": numbers[:, 1], "c": numbers[:, 2]},
        "labels": {"id": names[::-1], "label": rng.integers(0, 4, 100)},
    }.items():
        path = tmp_path / f"{role}.{suffix}"
        if suffix == "npz" and role == "features":
            np.savez(path, id=names, x=numbers)
        elif suffix == "npz":
            np.savez(path, allow_pickle=False, **columns)
        elif suffix == "csv":
            pd.DataFrame(columns).to_csv(path, index=False)
        else:
            pd.DataFrame(columns).to_parquet(path)
        paths[role] = str(path)
    options = {**paths, "weight_column": "w"}
    whole, message = build(**options, bad_rows="skip"), message_of(**options)
    for name, size in {
        "text_table._BLOCK_BYTES": 300,
        "table_files._BATCH_ROWS": 7,
        "array_files._BATCH_ROWS": 7,
    }.items():
        monkeypatch.setattr(f"gnntrain.data.{name}", size)
    again = build(**options, bad_rows="skip")
    assert edges_of(again) == edges_of(whole)
    assert len(edges_of(again)) == 499
    for first, second in (
        (whole.features, again.features),
        (whole.labels, again.labels),
        (whole.edge_weight, again.edge_weight),
        (whole.node_ids, again.node_ids),
    ):
        np.testing.assert_array_equal(first, second)
    assert message_of(**options) == message
    assert f"edges.{suffix} {'line 252' if suffix == 'csv' else 'row 250'}: node" in message


def test_categories_of_parquet_are_their_values(tmp_path: Path) -> None:
    paths = write(tmp_path)
    labels = pd.DataFrame({"id": [10, 20, 30, 40], "label": ["a", "b", "a", "b"]})
    edges = pd.DataFrame({"source": ["10", "20", "40"], "target": ["20", "30", "10"]})
    for role, table in (("labels", labels), ("edges", edges)):
        paths[role] = str(tmp_path / f"{role}.parquet")
        table.astype("category").to_parquet(paths[role])
    data = build(**paths)
    assert edges_of(data) == [(0, 1), (1, 2), (3, 0)]
    assert data.labels.tolist() == [0, 1, 0, 1]
    assert data.class_names is not None
    assert data.class_names.tolist() == [b"a", b"b"]


def test_columns_of_parquet_with_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([10, 20])] * 2, ["source", "source"])
    parquet.write_table(table, tmp_path / "edges.parquet")
    message = message_of(**{**write(tmp_path), "edges": str(tmp_path / "edges.parquet")})
    assert "same name" in message


def test_edges_of_a_header_alone_are_none(tmp_path: Path) -> None:
    for text in ("source,target", "source,target\n", "source,target\n\n"):
        assert edges_of(build(**write(tmp_path, edges=text))) == []
