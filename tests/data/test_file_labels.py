"""Labels, quantities and splits of a user's files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.data.read.splits import draw_split
from tests.data.files import USUAL, Files, Keys, build, check, check_both, refusal, told, write

IDS = [10, 20, 30, 40]
NAN = float("nan")
TRAIN, VAL, TEST = [1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]
MASKS = {"train_mask": TRAIN, "val_mask": VAL, "test_mask": TEST}
USUAL_SPLIT = {"splits": [[0, 3], [1], [2]]}
NO_SPLIT = {"split": None}
NO_LABELS = {"labels": None, "split": None}
PAIR = {"edges": "0,1\n"}
REGRESSION = {"task": "regression"}
ARRAYS = {"features.npz": {"x": np.eye(4), "y": np.array([0, 1, 0, 1])}, **PAIR, **NO_LABELS}


def table(**columns: Any) -> dict[str, Any]:
    """A features file with labels and more columns, and edges."""
    usual = {"id": IDS, "f": [0.5, 1.5, 2.5, 3.5], "label": [*"abab"]}
    return {"features": pd.DataFrame({**usual, **columns}), **NO_LABELS}


def masks_as(kind: type) -> dict[str, Any]:
    return {name: np.array(mask).astype(kind) for name, mask in MASKS.items()}


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

VALUES = pd.DataFrame({"id": IDS, "y": [18_000, 52_500.5, NAN, 120_000]})
ONE_QUANTITY: dict[str, Files] = {
    "parquet": {"labels.parquet": VALUES},
    "npz": {"labels.npz": {"ids": np.array(IDS), "y": VALUES["y"].to_numpy()}},
    "features": {"features": VALUES.assign(f=[0.5, 1.5, 2.5, 3.5]), "labels": None},
    "comma": {"features": USUAL["features"].replace(",", ";").replace(".", ","),
              "labels": VALUES.to_csv(index=False, sep=";", decimal=",")},
}  # fmt: skip

READ: dict[str, tuple[Files, Keys, dict[str, Any]]] = {
    "a word that may be a class": (
        labels("Mild", "None", "Severe", "None"), {},
        {"labels": [0, -1, 1, -1], "summary": "None: 2"},
    ),
    "-1 among texts": (
        labels("True", -1, "False", "True"), {}, {"labels": [1, -1, 0, 1], "summary": "-1: 1"},
    ),
    "flags": (
        {"labels": "id,red,green,blue\n10,1,0,1\n30,0,0,0\n20,1,1,1\n", "split": None}, {},
        {"labels": [[1, 0, 1], [1, 1, 1], [0, 0, 0], [0, 0, 0]],
         "task": ("multilabel", "f1_micro", 3)},
    ),
    "flags that are missing": (
        {"labels": FLAGS_MISSING, **NO_SPLIT}, {},
        {"labels": [[1, 0], [0, 0], [1, 1], [0, 1]], "summary": "1 of 4 nodes have none"},
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
    **{
        f"a column of quantities, {kind}": (
            {**files, "split": None}, REGRESSION | ({"decimal": ","} if kind == "comma" else {}),
            {"labels": [[18_000], [52_500.5], [NAN], [120_000]], "task": ("continuous", "r2", 1),
             "summary": "from 18,000 to 120,000; 1 of 4 nodes have none"},
        )
        for kind, files in ONE_QUANTITY.items()
    },
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
    **{
        f"masks of {kind.__name__} in {suffix}": (
            {"features": None, f"features.{suffix}": table(**masks_as(kind))["features"],
             **NO_LABELS},
            {}, {**USUAL_SPLIT, "names": ["f"], "summary": "2 train, 1 val, 1 test"},
        )
        for kind, suffix in ((float, "csv"), (str, "parquet"))
    },
    **{
        f"masks called {names[0]}": (
            table(**dict(zip(names, MASKS.values(), strict=True))),
            {},
            {**USUAL_SPLIT, "names": ["f"]},
        )
        for names in (("train", "val", "test"), ("is_train", "is_valid", "is_test"))
    },
    "a feature called test": (table(test=[1.5, 2.5, 3.5, 4.5]), {}, {"names": ["f", "test"]}),
    "masks of floats in a file of arrays": (
        {**ARRAYS, "split.npz": masks_as(np.float32), "split": None}, {}, USUAL_SPLIT,
    ),
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
    "a split file without ids": (
        {"features": "f,g\n0.5,1\n1.5,2\n2.5,3\n3.5,4\n", "labels": "label\na\nb\na\nb\n",
         "split": 'split\ntrain\nNA\ntest\n""\n', **PAIR}, {}, {"splits": [[0], [], [2]]},
    ),
    "ids of a split without a test": (
        {**ARRAYS, "split.npz": {"train_mask": np.array([1, 1, 0, 0], bool)}, "split": None}, {},
        {"splits": [[0, 1], [], []]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_labels_and_splits_are_read_by_keys_and_by_a_schema(tmp_path: Path, name: str) -> None:
    files, keys, expected = READ[name]
    keys = write(tmp_path, files) | keys
    check_both(tmp_path, keys, expected)


REFUSED: dict[str, tuple[Files, Keys, list[str]]] = {
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
def test_labels_and_splits_that_are_refused(tmp_path: Path, name: str) -> None:
    files, keys, words = REFUSED[name]
    message = refusal(write(tmp_path, files) | keys)
    assert not [word for word in words if word not in message], message


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
        (np.arange(60) // 20, {}, False),  # as many values as classes
    ],
)
def test_a_feature_that_stands_for_the_classes_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, extra: Any, keys: Keys, is_told: bool
) -> None:
    columns = {"x": np.linspace(0.1, 0.9, 60), "label": np.array(["a", "b", "c"])[CLASSES]}
    nodes = pd.DataFrame({"id": range(60), "extra": extra, **columns})
    build(write(tmp_path, {"features": nodes, "edges": "0,1\n", **NO_LABELS}) | keys)
    assert ("dataset.ignore=[extra]" in caplog.text) == is_told
