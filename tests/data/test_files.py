"""Tables and arrays of a user: ids, headers, columns, edges, labels, splits, bad rows, damage."""

from __future__ import annotations

import io
import logging
import pickle
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from gnntrain.config import FilesConfig
from gnntrain.data.datasets import builder_for
from gnntrain.data.read.labels import draw_split
from gnntrain.errors import UserError
from tests.data.files import (
    EDGES,
    FEATURES,
    LABELS,
    SPLIT,
    USUAL,
    Files,
    Keys,
    as_schema,
    build,
    check,
    check_both,
    refusal,
    save,
    small_blocks,
    told,
    write,
)

Case = tuple[Files, Keys, dict[str, Any]]
PAIRS = np.array([[10, 20], [20, 30], [30, 40]])
CHAIN = {"edges": [(0, 1), (1, 2), (2, 3)]}

TIES = np.array([[0, 1, 2], [1, 2, 3]])
NODES: Files = {
    "features.npz": {"x": np.eye(4), "y": np.array([0, 1, 0, 1])}, "labels": None, "split": None,
}  # fmt: skip
LETTERS = {
    "features": "id,f\nu,1\nv,2\ny,3\n", "labels": "id,label\nu,a\nv,b\ny,a\n", "split": None,
}  # fmt: skip
PATH = {"edges": [(0, 1), (1, 2)]}
WEIGHTED = "source,target,weight,time\n10,20,2,7\n20,30,3,8\n"
SEMICOLONS = {
    "features": "id;f\n10;0,5\n20;1,5\n", "labels": "id;label\n10;a\n20;b\n",
    "edges": "source;target;w\n10;20;2,5\n20;10;1.5\n", "split": None,
}  # fmt: skip
USUAL_ENDS = ("source target", "SRC DST", "From To", "head tail", "id1 id2")
NO_LABELS = {"labels": None, "split": None}
IDS = [10, 20, 30, 40]
NAN = float("nan")
TRAIN, VAL, TEST = [1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]
MASKS = {"train_mask": TRAIN, "val_mask": VAL, "test_mask": TEST}
USUAL_SPLIT = {"splits": [[0, 3], [1], [2]]}
NO_SPLIT = {"split": None}
PAIR = {"edges": "0,1\n"}
REGRESSION = {"task": "regression"}
ARRAYS = {"features.npz": {"x": np.eye(4), "y": np.array([0, 1, 0, 1])}, **PAIR, **NO_LABELS}


def table(**columns: Any) -> dict[str, Any]:
    """A features file with labels and more columns, and edges."""
    usual = {"id": IDS, "f": [0.5, 1.5, 2.5, 3.5], "label": [*"abab"]}
    return {"features": pd.DataFrame({**usual, **columns}), **NO_LABELS}


def labels(*values: object, name: str = "label", **files: Any) -> dict[str, Any]:
    rows = "".join(f"{node},{value}\n" for node, value in zip(IDS, values, strict=False))
    return {"labels": f"id,{name}\n{rows}", "split": None, **files}


def many(*values: object) -> dict[str, Any]:
    """A graph with so many nodes as there are labels, called `income`."""
    rows = "".join(f"{node},{value}\n" for node, value in enumerate(values))
    features = "".join(f"{node},{node / 7}\n" for node in range(len(values)))
    return {"features": f"id,f\n{features}", "labels": f"id,income\n{rows}", **PAIR, **NO_SPLIT}


FLAGS_MISSING = "id,old,rich\n10,1,0\n20,NA,?\n30,1,1\n40,0,1\n"
QUANTITIES = "id,rent,f,income\n10,1.5,7,100\n20,,8,200\n30,NA,9,?\n40,2.5,6,300\n"
TARGETS = np.array([[1.5, 7], [2.5, NAN], [NAN, NAN], [4.5, 9]], np.float32)


def renamed(*ids: str) -> dict[str, str]:
    """The usual files with other ids."""
    texts = dict(USUAL)
    for role, text in texts.items():
        for number, name in zip(("10", "20", "30", "40"), ids, strict=True):
            text = text.replace(f"\n{number},", f"\n<{name}>,")
            text = text.replace(f",{number}\n", f",<{name}>\n")
        texts[role] = text.replace("<", "").replace(">", "")
    return texts


def with_ids(*ids: str) -> Case:
    """Ids that are kept as the file writes them."""
    expected = {"ids": list(ids), "edges": [(0, 1), (1, 2), (3, 0)]}
    return renamed(*ids), {}, expected | {"labels": [0, 1, 0, 1], "splits": [[0, 3], [1], [2]]}


READ: dict[str, Case] = {
    "four tables": (
        {}, {},
        {"ids": [10, 20, 30, 40], "names": ["f0", "f1"],
         "features": [[0.5, 1], [1.5, 2], [2.5, 3], [3.5, 4]], "edges": [(0, 1), (1, 2), (3, 0)],
         "weights": None, "labels": [0, 1, 0, 1], "classes": ["a", "b"],
         "splits": [[0, 3], [1], [2]], "task": ("binary", "roc_auc", 2)},
    ),
    # Ids and classes are what the file says.
    "ids of zeros": with_ids("00", "01", "02", "03"),
    "ids in hexadecimal": with_ids("0x1", "0x2", "1", "2"),
    "ids of a column with gaps": with_ids("1.0", "2.0", "3.0", "4.0"),
    "ids with a decimal comma": (
        {"features": FEATURES.replace(",", ";").replace(".", ",").replace("10;", "10,0;"),
         "edges": "source;target\n10;20,0\n20;30\n"}, {"decimal": ","}, PATH,
    ),
    "texts of one file are the numbers of another": (
        {"edges.parquet": pd.DataFrame({"source": ["10", "20"], "target": ["20", "30"]})}, {},
        PATH,
    ),
    "numbers of one file are the texts of another": (
        {"features": FEATURES.replace("40", "d"), "labels": LABELS.replace("40", "d"),
         "split": SPLIT.replace("40", "d"),
         "edges.parquet": pd.DataFrame({"source": [10, 20], "target": [20, 30]})}, {},
        PATH,
    ),
    "unsigned ids beyond 64 bits in npz": (
        {"features.npz": {"ids": np.array([10, 20, 30, 2**64 - 1], np.uint64),
              "x": np.ones((4, 1))}, "split": None}, {"bad_rows": "skip"},
        {"ids": ["10", "20", "30", str(2**64 - 1)], "labels": [0, 1, 0, -1]},
    ),
    **{
        f"classes {names}": ({"labels": labels, "split": None}, {}, {"classes": names})
        for labels, names in (
            ("id,label\n10,é\n20,b\n30,é\n40,b\n", ["b", "é"]),
            ("id,label\n10,300\n20,20\n30,100\n40,-1\n", [20, 100, 300]),
            ("id,label\n10,1.0\n20,0.0\n30,1.0\n40,\n", None),
            ("id,label\n10,01\n20,2\n30,01\n40,2\n", ["01", "2"]),
            ("id,label\n10,1E1\n20,2E1\n30,2E1\n40,1E1\n", ["1E1", "2E1"]),
            (f"id,label\n10,{2**64}\n20,{2**64 + 1}\n", [f"{2**64}", f"{2**64 + 1}"]),
            ("id,old,rich\n10,1,0\n20,0,0\n30,1,1\n40,0,1\n", ["old", "rich"]),
        )
    },
    "flags without names": (
        {"labels": "10,1,0\n20,0,0\n30,1,1\n40,0,1\n", "split": None}, {}, {"classes": None},
    ),
    # The first line.
    "a header alone: no edge": ({"edges": "source,target\n\n"}, {}, {"edges": []}),
    "texts, and a header by its key": (
        {"features": "id,f\na,1\nb,2\nc,3\n", "labels": "who,what\nb,y\nc,x\n",
         "split": "who,part\nb,test\nc,train\n", "edges": "who,whom\nb,c\n"}, {"header": True},
        {"edges": [(1, 2)], "labels": [-1, 1, 0]},
    ),
    "blanks around fields, below a comment": (
        {"features": "% exported\nid , f\n 10 , 0.5\n20,1.5 \n30, 2\n40,3\n", **NO_SPLIT,
         "labels": "id,rent\n10, 1.5\n 20 ,2 \n30, \n40,4\n"},
        REGRESSION,
        {"ids": IDS, "features": [[0.5], [1.5], [2], [3]], "labels": [[1.5], [2], [NAN], [4]]},
    ),
    # Columns.
    "fractions first: no ids": (
        {"features": "0.5,1\n1.5,2\n", "edges": "0,1\n", "labels.npy": [0, 1], "split": None}, {},
        {"ids": [0, 1], "features": [[0.5, 1], [1.5, 2]]},
    ),
    # Arrays.
    "arrays by their names": (
        {"features.npz": {"x": np.eye(4), "ids": np.array([*"abcd"])},
         "labels.npz": {"labels": np.array([2, 1, np.nan]), "ids": np.array([*"dba"])},
         "split.npz": {"train": np.array(["d"]), "val": np.array(["b"])},
         "edges.npz": {"source": np.array(["a", "b"]), "target": np.array(["c", "d"]),
                       "weight": np.ones(2)}}, {},
        {"edges": [(0, 2), (1, 3)], "weights": [1, 1], "labels": [-1, 0, -1, 1],
         "splits": [[3], [1], []]},
    ),
    "pairs": ({"edges.npy": PAIRS}, {}, CHAIN),
    "two by two: sources above targets": (
        {"edges.npy": PAIRS[:2]}, {}, PATH,
    ),
    "what else is in an archive": (
        {"features.npz": {"ids": np.array([10, 20, 30, 40]), "x": np.ones((4, 2)), "z": [1]}}, {},
        {"features": [[1, 1]] * 4},
    ),
    "categories of Parquet": (
        {"edges.parquet": pd.DataFrame(
            {"source": ["10", "40"], "target": ["20", "10"]}, dtype="category"
        )},
        {}, {"edges": [(0, 1), (3, 0)]},
    ),
    # Edges.
    **{
        f"ends {pair}": (
            {"edges": "edge_no,{1},time,{0}\n10,20,30,10\n20,30,40,20\n".format(*pair.split())},
            {},
            {**PATH, "left_out": ["edge_no", "time"]},
        )
        for pair in USUAL_ENDS
    },
    **{
        f"edges {text!r}": ({"edges": text}, {}, PATH)
        for text in (
            "citing,cited,weight\n10,20,10\n20,30,10\n",
            "Unnamed: 0,citing,cited\n0,10,20\n1,20,30\n",
            "10,20,0.5\n20,30,10\n",
            "target,source\n20,10\n30,20\n",
        )
    },
    "an edge list": ({"edges": None, "edges.edges": "10 20 0.5\n20 30 0.5\n"}, {}, PATH),
    "letters that are usual names": ({**LETTERS, "edges": "u,v\nv,y\n"}, {}, PATH),
    "a weight that is not read": (
        {"edges": WEIGHTED}, {},
        {**PATH, "weights": None, "left_out": ["weight", "time"],
         "summary": "a weight only by dataset.weight_column=weight"},
    ),
    "an array that is not read": (
        {**NODES, "edges.pt": {"edge_index": TIES, "edge_attr": np.ones((3, 3))}}, {},
        {"left_out": ["edge_attr"]},
    ),
    # Labels and splits.
    "a word that may be a class": (
        labels("Mild", "None", "Severe", "None"), {},
        {"labels": [0, -1, 1, -1], "summary": "None: 2"},
    ),
    "flags that are missing": (
        {"labels": FLAGS_MISSING, **NO_SPLIT}, {},
        {"labels": [[1, 0], [0, 0], [1, 1], [0, 1]], "summary": "1 of 4 nodes have none",
         "task": ("multilabel", "f1_micro", 2)},
    ),
    "flags in the features file": (
        {"features": "id,a,f,b\n10,1,7,0\n20,0,8,1\n30,1,9,1\n40,0,6,0\n", **NO_LABELS},
        {"label_column": ["a", "b"]},
        {"labels": [[1, 0], [0, 1], [1, 1], [0, 0]], "features": [[7], [8], [9], [6]]},
    ),
    "two classes as more": ({}, {"task": "multiclass"}, {"task": ("multiclass", "accuracy", 2)}),
    "a metric": ({}, {"metric": "average_precision"}, {"task": ("binary", "average_precision", 2)}),
    "quantities": (
        {"features": QUANTITIES, **NO_LABELS}, REGRESSION | {"label_column": ["rent", "income"]},
        {"labels": [[1.5, 100], [NAN, 200], [NAN, NAN], [2.5, 300]], "classes": ["rent", "income"],
         "features": [[7], [8], [9], [6]]},
    ),
    "a column of quantities with a decimal comma": (
        {"features": FEATURES.replace(",", ";").replace(".", ","), "split": None,
         "labels": "id;y\n10;18000\n20;52500,5\n30;\n40;120000\n"},
        REGRESSION | {"decimal": ","},
        {"labels": [[18_000], [52_500.5], [NAN], [120_000]], "task": ("continuous", "r2", 1),
         "summary": "from 18,000 to 120,000; 1 of 4 nodes have none"},
    ),
    "quantities of two arrays": (
        {"features.npz": {"x": np.eye(4), "a": TARGETS[:, 0], "b": TARGETS[:, 1]}, **NO_LABELS,
         **PAIR}, REGRESSION | {"label_column": ["a", "b"]},
        {"labels": TARGETS.tolist(), "classes": ["a", "b"], "features": np.eye(4).tolist()},
    ),
    "a named array": (
        {"features.npz": {"x": np.eye(4), "groups": np.arange(4)}, **NO_LABELS, **PAIR},
        {"label_column": "groups"}, {"labels": [0, 1, 2, 3]},
    ),
    "rows that are left out": (
        {"features": "id,label,f,split\n10,a,1,train\n20,b,x,train\n30,b\n"
                     "40,b,4,val\n50,c,5,test\n",
         "edges": "10,40\n", **NO_LABELS}, {"bad_rows": "skip"},
        {"ids": [10, 40, 50], "labels": [0, 1, 2], "splits": [[0], [1], [2]]},
    ),
    # Splits.
    "masks by other names": (
        table(is_train=TRAIN, is_valid=VAL, test=TEST), {}, {**USUAL_SPLIT, "names": ["f"]},
    ),
    "a feature called test": (table(test=[1.5, 2.5, 3.5, 4.5]), {}, {"names": ["f", "test"]}),
    "masks of the features file for labels of another": (
        {"features": table(**MASKS)["features"].drop(columns="label"), "split": None}, {},
        {**USUAL_SPLIT, "names": ["f"]},
    ),
    "a split of the labels file before masks": (
        {"features": table(**MASKS)["features"],
         "labels": "id,label,split\n10,a,test\n20,b,train\n30,a,val\n40,b,train\n", "split": None},
        {}, {"splits": [[1, 3], [2], [0]], "names": ["f"]},
    ),
    "a split file before masks of the labels' table": (
        {"features": table(**MASKS)["features"], "labels": None}, {},
        {"splits": [[0, 3], [1], [2]], "names": ["f"], "summary": "split of split.csv"},
    ),
    "a table of masks": (
        {"split": "id,train,valid,test\n20,0,1,0\n10,1,0,0\n40,1,0,0\n30,0,0,0\n"}, {},
        {"splits": [[0, 3], [1], []]},
    ),
    "training nodes alone": (
        table(train_mask=TRAIN), {},
        {"splits": [[0, 3], [], []], "summary": "2 train, 0 val, 0 test"},
    ),
    "one of two splits by name": (
        table(**MASKS, split=["test", "train", "train", "val"]), {"split_column": "split"},
        {"splits": [[1, 2], [3], [0]]},
    ),
    "keys of a drawn split": (
        table(split=["train", "val", "test", "train"]), {"split_seed": 5},
        {**USUAL_SPLIT, "summary": "split_seed without effect"},
    ),
    "a drawn split in place of a column": (
        table(split=["train", "val", "test", "train"]), {"split": 3, "ignore": ["split"]},
        {"summary": "drawn at random"},
    ),
    "a column of a table of splits": (
        {"split": "id,fold,part\n10,1,train\n20,2,val\n30,2,test\n40,1,train\n"},
        {"split_column": "part"}, USUAL_SPLIT,
    ),
}  # fmt: skip


def test_the_edges_of_a_file_of_a_whole_graph(tmp_path: Path) -> None:
    ends = {"start": TIES[0], "end": TIES[1]}
    paths = write(tmp_path, {**NODES, "features.npz": {**NODES["features.npz"], **ends}})
    paths["edges"] = paths["features"]
    check(build(paths | {"source_column": "start", "target_column": "end"}), CHAIN)
    assert "not one value an edge" in refusal(paths)


@pytest.mark.parametrize("name", READ)
def test_it_is_read_by_keys_and_by_a_schema(tmp_path: Path, name: str) -> None:
    files, keys, expected = READ[name]
    keys = write(tmp_path, files) | keys
    check_both(tmp_path, keys, expected)


# Rows that cannot be used: told with file, line and reason, or left out with a warning.

BAD: list[tuple[str, str, list[str]]] = [
    ("edges", "10,20\n10\n20,30\n10,20,30\n", ["line 2: 1 field", "line 4: 3 fields"]),
    ("edges", "10,20\nabc,20\n", ["line 2: node 'abc'"]),
    ("edges", "source,target\n,20\n10,20\n10,\n", ["line 2: the source", "line 4: the target"]),
    (
        "edges",
        "# from\nsource,target\n10,20\n\n10\n\n\n20,77\n",
        ["line 5: 1 field", "line 8: node '77'"],
    ),
    ("features", FEATURES + "50,x,1\n", ["line 6: column f0 is 'x'"]),
    ("features", FEATURES + "50,1,\n", ["line 6: column f1 is ''"]),
    ("features", FEATURES + "50,1,1e99\n", ["line 6: column f1 is '1e99'"]),
    (
        "features",
        FEATURES + "10,1,1\n50,x,1\n",
        ["line 6: node '10' is there", "line 7: column f0"],
    ),
    ("features", FEATURES + ",1,1\n", ["line 6: the node id is missing"]),
    ("features", FEATURES + "50,1\n", ["line 6: 2 fields"]),
    ("labels", LABELS + "50,a\n", ["line 6: node '50'"]),
    ("labels", LABELS + "10,b\n", ["line 6: node '10' is there"]),
    ("labels", "id,label\n10,1\n20,-2\n30,2\n40,1\n", ["line 3: label '-2'"]),
    ("labels", "id,p,q\n10,1,0\n20,1,2\n30,0,0\n40,0,1\n", ["line 3: label q is '2'"]),
    ("labels", "id,p,q\n10,1,0\n20,1,\n30,0,0\n40,0,1\n", ["line 3: label q is ''"]),
    ("split", SPLIT.replace("valid", "later"), ["line 3: split 'later'"]),
    ("split", SPLIT.replace("valid", ""), ["line 3: the split is missing"]),
    ("split", SPLIT + "10,test\n", ["line 6: node '10' is there"]),
    ("split", SPLIT + "99,test\n", ["line 6: node '99'"]),
]


@pytest.mark.parametrize("by", ["keys", "schema"])
@pytest.mark.parametrize(("role", "text", "reports"), BAD)
def test_a_bad_row_is_reported_or_left_out_with_a_warning(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    role: str,
    text: str,
    reports: list[str],
    by: str,
) -> None:
    keys: Any = write(tmp_path, {role: text})
    if by == "schema":
        keys = as_schema(tmp_path, keys)
    message = refusal(keys)
    assert all(word in message for word in [f"{role}.csv", "dataset.bad_rows=skip"])
    with caplog.at_level(logging.WARNING, "gnntrain"):
        data = build({**keys, "bad_rows": "skip"})
    for report in reports:
        report = report.replace("node '", "") if by == "schema" else report
        assert report.partition(": ")[0] in message
        assert report.partition(": ")[0] in caplog.text
        assert report in message or by == "schema"
    assert len(told(data)["ids"]) == 4
    assert np.isfinite(told(data)["features"]).all()


def test_ten_bad_rows_are_shown_and_all_of_all_files_are_counted(tmp_path: Path) -> None:
    edges = "source,target\n" + "10,99\n" * 1000 + "10,20\n"
    message = refusal(write(tmp_path, {"edges": edges, "labels": LABELS + "98,a\n"}))
    assert all(count in message for count in ("1001 bad rows", "edges.csv: 1000", "labels.csv: 1"))
    assert message.count("node '") == 10


def test_a_weight_that_is_no_weight_is_a_bad_row(tmp_path: Path) -> None:
    edges = "source,target,w\n10,20,1\n10,20,x\n10,20,\n10,20,-1\n10,20,inf\n"
    keys = {**write(tmp_path, {"edges": edges}), "weight_column": "w"}
    for line, weight in ((3, "x"), (4, ""), (5, "-1"), (6, "inf")):
        assert f"line {line}: weight {weight!r}" in refusal(keys)
    data = build({**keys, "bad_rows": "skip"})
    assert told(data)["weights"] == [1.0]
    assert data.summary is not None
    reason = {"4 rows of edges.csv": "bad, or only their label, split or key"}
    assert data.summary.left_out == reason  # also when the store is there


@pytest.mark.parametrize("role", ["edges", "labels", "split"])
@pytest.mark.parametrize(("nodes", "other"), [("007", "7"), ("7", "007"), ("7", "7E0")])
def test_an_id_that_is_written_otherwise_is_told_with_both(
    tmp_path: Path, role: str, nodes: str, other: str
) -> None:
    files = {name: text.replace("10,", f"{nodes},") for name, text in USUAL.items()}
    files["edges"] = f"source,target\n{nodes},20\n20,30\n"
    message = refusal(write(tmp_path, files | {role: files[role].replace(nodes, other, 1)}))
    assert f"{role}.csv line 2: node '{other}'" in message
    assert f"has '{nodes}'" in message


def npy(shape: tuple[int, ...], data: bytes = b"") -> bytes:
    """An npy file whose header tells of float32 numbers of a shape, whatever there is."""
    file = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + data


def npz(member: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", member)
    return file.getvalue()


CSR: dict[str, Any] = {
    "format": np.array(b"csr"),
    "data": np.ones(2),
    "indices": np.array([0, 2]),
    "indptr": np.array([0, 1, 1, 2]),
    "shape": np.array([3, 3]),
}
TWO_NAMES = pa.Table.from_arrays([pa.array([10, 20])] * 2, ["source", "source"])
NO_IDS = {"features": "1,1\n1,2\n", "edges": "0,1\n", "labels.npy": [0, 1], "split": None}
HEADERLESS = {
    "features": "id,f\na,1\nb,2\n",
    "labels": "id,label\na,x\nb,y\n",
    "split": "id,split\na,train\nb,test\n",
    "edges": "person,friend\na,b\n",
}
SKIP = {"bad_rows": "skip"}
EVERY_MISTAKE = {
    "id_column": "usr",
    "label_column": "lable",
    "target_column": "shp",
    "ignore": "ag",
    "categorical": ["conty", "a*"],
}

REFUSED: dict[str, tuple[Files, Keys, list[str]]] = {
    "a weight with another decimal mark": (
        SEMICOLONS, {"weight_column": "w", "decimal": ","}, ["line 3: weight '1.5'"],
    ),
    "a header that is not seen": (HEADERLESS, {}, ["line 1: node 'person'", "dataset.header=true"]),
    "ids that are not seen as none": (NO_IDS, {}, ["node '1'", "dataset.id_column=none"]),
    "all names of columns at once": (
        {**NO_LABELS, "features": "user,age,county,label\n1,x,2,a\n2,y,3,b\n",
         "edges": "card,shop\nc,d\n"}, EVERY_MISTAKE,
        [*("5 mistakes", "mean user?", "mean label?", "mean shop?", "mean age?"), "mean county?"],
    ),
    **{
        f"ends that may be others, {text!r}": (
            {"edges": text}, {}, ["dataset.source_column", "dataset.target_column"],
        )
        for text in (
            "edge_id,user_a,user_b\n10,20,30\n20,30,40\n",
            "10,20,30\n20,30,40\n",  # all are node ids
            "0.5,10,7\n0.5,20,7\n",
            "10,20,0.5,1\n20,30,0.5,1\n",
            "a,b,c\n10,20,0.5\n20,30,0.5\n",
            "source,target,src,dst\n10,20,30,40\n",
            "target,count\n10,20\n",
            "weight,user\n10,20\n",
            "user,source\n10,20\n",
        )
    },
    "nodes that are not there": ({"edges": "a,b\nc,d\n"}, {}, ["(10, 20, 30, …)"]),
    "no multilabel labels": ({}, {"task": "multilabel"}, ["dataset.task=multilabel"]),
    "three classes as two": (
        {"labels": LABELS.replace("30,a", "30,c")}, {"task": "binary"}, ["3 different labels"],
    ),
    "a metric of other labels": (
        {"labels": LABELS.replace("30,a", "30,c")}, {"metric": "roc_auc"},
        ["dataset.metric=roc_auc", "accuracy"],
    ),
    "one class": ({"labels": LABELS.replace("b", "a")}, {}, ["only one label"]),
    "an unknown suffix": ({"edges.foo": EDGES}, {}, ["'.foo'", ".parquet"]),
    # Rows of arrays and Parquet count from 0; without ids none can be left out.
    "a bad row of an array": (
        {"edges.npy": np.array([[10, 20], [20, 30], [20, 99]])}, {}, ["edges.npy row 2: node '99'"],
    ),
    "a bad row of Parquet": (
        {"features.parquet": pd.DataFrame({"id": [10, 20, 30, 40], "f": [1, 2, np.nan, 4]})}, {},
        ["features.parquet row 2: column f"],
    ),
    "a bad row of features without ids": (
        {**NO_IDS, "features.npy": np.array([[1, 2], [np.nan, 3]])}, SKIP,
        ["features.npy row 1: column 0 is 'nan'"],
    ),
    "a short row without ids": (
        {**NO_IDS, "features": "1,1\n1\n1,2\n"}, {**SKIP, "id_column": "none"}, ["no node ids"],
    ),
    "labels of another number": ({**NO_IDS, "features.npy": np.eye(3)}, {}, ["3 nodes"]),
    "ends of two lengths": (
        {"edges.npz": {"source": PAIRS[:, 0], "target": PAIRS[:2, 1]}}, {},
        ["source int64 [3], target int64 [2]"],
    ),
    "weights of texts": (
        {"edges.npz": {"edges": PAIRS, "weight": np.array([*"abc"])}}, {}, ["one number an edge"],
    ),
    "edges of three columns": ({"edges.npy": np.ones((3, 3), int)}, {}, ["shape [3, 3]"]),
    "edges as truth values": ({"edges.npy": np.eye(2, dtype=bool)}, {}, ["truth values"]),
    "complex numbers": ({"features.npy": np.ones((4, 1), complex)}, {}, ["complex128"]),
    "columns of one name": ({"edges.parquet": TWO_NAMES}, {}, ["same name"]),
    # Damaged files, and files made to harm.
    "blank lines": ({"features": b"\n\n"}, {}, ["features.csv"]),
    "no row": ({"features": b"id,f\n"}, {}, ["features.csv"]),
    "no text": ({"features": b"id,f\n1,\xff\xfe\n"}, {}, ["features.csv"]),
    "200,000 columns": ({"features": b"," * 200_000 + b"\n"}, {}, ["features.csv"]),
    "100,001 columns": ({"features.npy": npy((4, 100_001), bytes(1_600_016))}, {}, ["100,000"]),
    "2^40 columns of no row": ({"features.npy": npy((0, 2**40))}, {}, ["more than 100,000"]),
    "no Parquet": ({"edges.parquet": EDGES}, {}, ["cannot be read"]),
    "a broken header": (
        {"features.npz": npz(npy((4, 1)).replace(b"'shape': (4, 1)", b"'shape': (((4,1"))}, {},
        ["header is broken"],
    ),
    "an object in npy": (
        {"features.npy": np.array([Path()])}, {}, ["only arrays are loaded"],
    ),
    "an object in pt": (
        {"features.pt": pickle.dumps(Path())}, {}, ["only arrays are loaded"],
    ),
    **{
        f"no {suffix}": ({f"features.{suffix}": b"ARROW1\0\0 and no more {"}, {}, [f"s.{suffix}"])
        for suffix in ("arrow", "jsonl")
    },
    "JSON lines of several types": (
        {"features.jsonl": '{"id": 10, "x": {"a": 1}}\n{"id": 20, "x": {"a": 2}}\n'}, {},
        ["features.jsonl"],
    ),
    **{
        f"a sparse matrix with the {part} {value!r}": (
            {"edges.npz": CSR | {part: np.array(value)}}, {}, ["edges.npz"],
        )
        for part, *values in (
            ("indices", [0, 99]), ("indptr", [0, 2]), ("shape", [3, 4]), ("format", b"bsr"),
        )
        for value in values
    },
    "sparse features beyond the memory": (
        {"features.npz": sparse.coo_array(([1.0], ([0], [0])), shape=(2**20, 2**30))}, {}, ["GiB"],
    ),
    **{
        f"a table of {suffix}": ({f"edges.{suffix}": b"\x80"}, {}, ["onvert it"])
        for suffix in ("pkl", "bin", "xlsx", "gml")
    },
    **{
        f"a header of {shape} in {suffix}": (
            {f"features.{suffix}": made(npy(shape, bytes(40)))},
            {},
            ["its header tells of", "40 bytes"],
        )
        for shape in ((2**62, 2**62), (10**30,), (4, 3))
        for suffix, made in (("npy", bytes), ("npz", npz))
    },
    # Labels and splits.
    "a missing label in a split": (
        {"labels": "id,label\n10,1\n20,NA\n30,2\n40,1\n"}, {},
        ["split.csv line 3: the node is in a split"],
    ),
    "a missing quantity in a split": (
        table(label=[1.5, NAN, 2.5, 3.5], split=["train", "val", "test", "train"]), REGRESSION,
        ["features.csv line 3: the node is in a split"],
    ),
    "flags of which some are missing": (
        {"labels": FLAGS_MISSING.replace("?", "1"), **NO_SPLIT}, {}, ["line 3: label old is 'NA'"],
    ),
    "fractions": (many(1, 1.5, 2, 1), {}, ["1 of 4, such as 1.5", "task.type=node_regression"]),
    "fractions as classes": (many(1, 1.5, 2, 1), {"task": "multiclass"}, ["line 3: label '1.5'"]),
    "texts as quantities": (
        many(1.5, "many", 1e99, 2, 3), REGRESSION,
        ["line 3: label income is 'many'", "line 4: label income is '1e+99'"],
    ),
    "texts alone as quantities": (many("a", "b"), REGRESSION, ["label income is 'a'"]),
    "numbers of two ways to write": (
        {"labels": "id;a;b\n10;1,5;2,5\n20;2.5;1,5\n30;1_000;1,5\n40;3,5;0,5\n",
         "features": "id;f\n10;1\n20;2\n30;3\n40;4\n", "edges": "source;target\n10;20\n",
         "split": None}, REGRESSION | {"decimal": ","}, ["label a is '2.5'", "label a is '1_000'"],
    ),
    "columns that are no flags": (
        {"labels": "id,city,income\n10,Rome,7\n20,Oslo,8\n30,Bonn,9\n40,Rome,7\n", "split": None},
        {}, ["label city is 'Rome'", "dataset.label_column"],
    ),
    "arrays without labels": (
        {"features.npz": {"x": np.eye(4), "groups": np.arange(4)}, **NO_LABELS}, {}, ["x, groups"],
    ),
    # Splits.
    "two splits": (
        table(train_mask=TRAIN, test_mask=[1, 0, 1, 0]), {}, ["line 2: the node is in two splits"],
    ),
    "a mask and no label": (
        table(train_mask=TRAIN, label=["a", "b", "a", ""]), {}, ["line 5: the node is in a split"],
    ),
    "no training mask": (table(val_mask=VAL), {}, ["no train_mask"]),
    "a split twice": (table(**MASKS, split=["train"] * 4), {}, ["says the split twice"]),
    "overlapping arrays": (
        {**ARRAYS, "split.npz": {"train": np.array([1, 0, 0, 0], bool), "test": np.ones(4, bool)}},
        {}, ["row 0: node '0' in split test"],
    ),
    "a short mask": (
        {**ARRAYS, "split.npz": {"train": np.ones(3, bool)}}, {}, ["train has 3 rows", "4 nodes"],
    ),
    "no array of a split": (
        {**ARRAYS, "split.npz": {"tran": np.ones(4, bool)}}, {}, ["no array called train"],
    ),
    "a number beside the labels file's column": (
        {"labels": "id,label,split\n10,a,train\n20,b,test\n30,a,test\n40,b,test\n", "split": None},
        {"split": 3}, ["dataset.ignore=[split]"],
    ),
    "a table of splits of several columns": (
        {"split": "id,fold,part\n10,1,train\n"}, {}, ["dataset.split_column"],
    ),
    "flags, stratified": (
        {"labels": "id,a,b\n10,1,0\n20,0,1\n30,1,1\n40,0,1\n", **NO_SPLIT}, {"stratify": True},
        ["dataset.stratify=true"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(tmp_path: Path, name: str) -> None:
    files, keys, words = REFUSED[name]
    message = refusal(write(tmp_path, files) | keys)
    assert not [word for word in words if word not in message], message
    assert "weights_only" not in message


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.npz", np.zeros((4, 100_000), np.float32)),
        ("x.pt", np.zeros((4, 100_000), np.float32)),
        ("y.pt", np.broadcast_to(np.float32(0), (4, 100_000))),  # one number, repeated
        ("x.parquet", pd.DataFrame({"id": np.arange(100_000), "a": 1.0})),
    ],
)
def test_what_unpacks_to_more_than_the_free_memory_is_refused_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: Any
) -> None:
    monkeypatch.setattr("gnntrain.data.tables.available_memory", lambda: 100_000)
    path = tmp_path / name
    if name == "x.npz":
        np.savez_compressed(path, x=content)
    else:
        save(path, content)
    message = refusal({**write(tmp_path), "features": str(path)})
    assert f"{name} unpacks to" in message
    assert "memory are free" in message


def test_the_identity_changes_with_the_files_and_the_way_they_are_read(tmp_path: Path) -> None:
    paths = write(tmp_path)

    def identity(given: Keys = paths, target: str | None = None, **keys: Any) -> dict[str, Any]:
        config = FilesConfig.model_validate({**given, **keys}).for_target(target)
        return dict(builder_for(config).identity())

    by_schema: Any = as_schema(tmp_path, paths)
    schema, of_schema = Path(by_schema["schema"]), [identity(by_schema)]
    schema.write_text("# a comment\n" + schema.read_text())
    assert identity(by_schema) == of_schema[0]
    of_schema += [identity(by_schema, "node"), identity(by_schema, standardize=True)]
    of_schema += [identity(by_schema, missing="zero"), identity(by_schema, bad_rows="skip")]
    schema.write_text("reverse: true\n" + schema.read_text())
    of_schema.append(identity(by_schema))
    first = identity()
    assert first == identity() == identity(store_dir=str(tmp_path))
    others = [identity(task="multiclass"), *(identity(split=split) for split in (None, 0, 1))]
    write(tmp_path, {"edges": EDGES + "10,30\n"})
    others.append(identity())
    others.append(identity(by_schema))
    assert len({str(one) for one in [first, *others, *of_schema]}) == 13
    paths["edges"] = str(tmp_path / "none.csv")
    with pytest.raises(UserError, match=r"dataset\.edges=.*none\.csv: No such file"):
        identity()
    assert "none.csv" in refusal(paths)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
@pytest.mark.parametrize("as_text", [False, True])
def test_a_graph_read_in_small_blocks_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, as_text: bool
) -> None:
    rng = np.random.default_rng(0)
    ids = rng.permutation(1000)[:100]
    names = np.char.add("n", ids.astype(str)) if as_text else ids
    ends = names[rng.integers(0, 100, (2, 500))]
    ends[:, 250] = names[0] * 2 if as_text else -1  # no such node
    x = rng.random((100, 3))
    columns: dict[str, Any] = {
        "edges": {"source": ends[0], "target": ends[1], "w": rng.random(500)},
        "features": {"id": names, "a": x[:, 0], "b": x[:, 1], "c": x[:, 2]},
        "labels": {"id": names[::-1], "label": rng.integers(0, 4, 100)},
    }
    files = {f"{role}.{suffix}": pd.DataFrame(of_role) for role, of_role in columns.items()}
    if suffix == "npz":
        files = {f"{role}.npz": of_role for role, of_role in columns.items()}
        files["features.npz"] = {"id": names, "x": x}
    keys = {**write(tmp_path, {**files, "split": None}), "weight_column": "w"}
    whole, message = told(build({**keys, **SKIP})), refusal(keys)
    small_blocks(monkeypatch, 300)
    np.testing.assert_equal(told(build({**keys, **SKIP})), whole)
    assert len(whole["edges"]) == 499
    assert refusal(keys) == message
    assert f"edges.{suffix} {'line 252' if suffix == 'csv' else 'row 250'}: node" in message


# Classes and drawn splits.


@pytest.mark.parametrize(
    ("values", "question"),
    [
        ([18_000 + 35 * node for node in range(300)], "300 different whole numbers"),
        ([10 * (node % 60) for node in range(1200)], "60 different whole numbers"),  # gaps
        ([node % 60 for node in range(180)], "60 different whole numbers"),  # 3 nodes each
        ([node % 60 for node in range(1200)], None),  # class numbers, 20 nodes each
        ([1000 * (node % 50) for node in range(60)], None),  # 50 classes need no question
        ([f"${12_345 + node}" for node in range(80)], "80 different texts"),
        ([f"class {node % 60}" for node in range(180)], None),  # 3 nodes each
    ],
)
def test_many_values_are_asked_about(
    tmp_path: Path, values: list[object], question: str | None
) -> None:
    keys: dict[str, Any] = write(tmp_path, many(*values))
    if question is not None:
        message = refusal(keys)
        assert question in message
        assert "dataset.task=multiclass" in message
        keys["task"] = "multiclass"
    check(build(keys), {"task": ("multiclass", "accuracy", len(set(values)))})


def test_a_mask_of_several_splits_is_chosen_by_its_number(tmp_path: Path) -> None:
    masks = {name: np.array([mask, np.roll(mask, 1)]).T for name, mask in MASKS.items()}
    arrays = {**ARRAYS["features.npz"], **masks}  # type: ignore[dict-item]
    keys: dict[str, Any] = write(tmp_path, {**ARRAYS, "features.npz": arrays})
    check(build(keys), USUAL_SPLIT)
    check(build({**keys, "split": 1}), {"splits": [[0, 1], [2], [3]], "summary": "number 1 of 2"})
    assert "dataset.split=2" in refusal({**keys, "split": 2})


def test_a_drawn_split_is_told_and_depends_on_ratio_seed_and_number(tmp_path: Path) -> None:
    keys: dict[str, Any] = write(
        tmp_path, many(*("a" if i < 20 else "" for i in range(40)), *"b" * 60)
    )
    drawn = build(keys)
    check(drawn, {"summary": "60/20/20, seed 0, number 0; 48 train, 16 val, 16 test"})
    everywhere = np.concatenate(list(drawn.splits.values()))
    assert sorted(everywhere.tolist()) == [*range(20), *range(40, 100)], "those with labels"
    splits = []
    for number, seed in ((0, 0), (0, 1), (1, 0), (1, 1), (1, 1)):
        ratio = {"split_ratio": [0.5, 0.25, 0.25], "split": number, "split_seed": seed}
        found = told(build({**keys, **ratio}))
        assert [len(nodes) for nodes in found["splits"]] == [40, 20, 20]
        assert f"50/25/25, seed {seed}, number {number}" in found["summary"]
        splits.append(str(found["splits"]))
    assert len(set(splits)) == 4
    assert splits[3] == splits[4]


@pytest.mark.parametrize("keys", [{}, REGRESSION], ids=["classes", "a quantity"])
def test_a_stratified_split_has_each_class_and_each_tenth_alike(tmp_path: Path, keys: Keys) -> None:
    values = [node**2 / 7 if keys else f"class {node // 10}" for node in range(100)]
    data = build(write(tmp_path, many(*values)) | keys | {"stratify": True})
    for part, share in zip(told(data)["splits"], (6, 2, 2), strict=True):
        assert Counter(node // 10 for node in part) == dict.fromkeys(range(10), share)


@given(
    labels=st.lists(st.integers(0, 4), max_size=60),
    parts=st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9)),
    seed=st.integers(0, 2**63 - 1),
    number=st.integers(0, 2**62),
    stratify=st.booleans(),
)
def test_a_drawn_split_shares_out_all_nodes_exactly_but_for_rounding(
    labels: list[int], parts: tuple[int, ...], seed: int, number: int, stratify: bool
) -> None:
    ratio, nodes = [part / sum(parts) for part in parts], np.arange(len(labels)) * 3 + 1
    strata = np.array(labels, np.int64)
    split = draw_split(nodes, ratio, seed, number, strata if stratify else None)
    assert sorted(np.concatenate(list(split.values())).tolist()) == nodes.tolist()
    assert all(np.all(np.diff(ids) > 0) for ids in split.values())
    groups = [nodes, *(nodes[strata == value] for value in set(labels) if stratify)]
    for group in groups:
        sizes = [np.isin(ids, group).sum() for ids in split.values()]
        most = 1 if len(group) == len(nodes) else 2
        assert abs(sizes[0] - ratio[0] * len(group)) < 1 + 1e-9
        for size, share in zip(sizes, ratio, strict=True):
            assert abs(size - share * len(group)) < most + 1e-9
    assert all(share > 0 or len(ids) == 0 for share, ids in zip(ratio, split.values(), strict=True))


@pytest.mark.parametrize("strata", [None, np.repeat([0, 1], 10)], ids=["all", "stratified"])
def test_every_node_is_in_each_split_as_often_as_the_shares_say(strata: Any) -> None:
    nodes, ratio, num_draws = np.arange(20), (0.5, 0.3, 0.2), 2000
    counts: Counter[tuple[int, str]] = Counter()
    for number in range(num_draws):
        for name, ids in draw_split(nodes, ratio, 7, number, strata).items():
            counts.update((node, name) for node in ids.tolist())
    chi_square = sum(
        (counts[node, name] - num_draws * share) ** 2 / (num_draws * share)
        for node in nodes.tolist()
        for name, share in zip(("train", "val", "test"), ratio, strict=True)
    )
    assert chi_square < 80  # 38 degrees of freedom: the 0.9999 quantile is 79


CLASSES = np.arange(60) % 3


@pytest.mark.parametrize(
    ("extra", "keys", "is_told"),
    [
        (CLASSES, {}, True),
        (np.array([7.5, -1.0, 0.0])[CLASSES], {}, True),
        (np.array(["one", "two", "three"])[CLASSES], {"categorical": ["extra"]}, True),
        (CLASSES, {"ignore": ["extra"]}, False),
        (np.where(np.arange(60) < 5, 0, CLASSES), {}, False),  # wrong for some nodes
    ],
)
def test_a_feature_that_stands_for_the_classes_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, extra: Any, keys: Keys, is_told: bool
) -> None:
    columns = {"x": np.linspace(0.1, 0.9, 60), "label": np.array(["a", "b", "c"])[CLASSES]}
    nodes = pd.DataFrame({"id": range(60), "extra": extra, **columns})
    build(write(tmp_path, {"features": nodes, "edges": "0,1\n", **NO_LABELS}) | keys)
    assert ("dataset.ignore=[extra]" in caplog.text) == is_told
