from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from gnntrain.data.graph import GraphData
from tests.data.test_files import build, features_of, message_of, write

TRAIN, VAL, TEST = [1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]
MASKS = {"train_mask": TRAIN, "val_mask": VAL, "test_mask": TEST}


def splits_of(data: GraphData) -> list[list[int]]:
    return [data.splits[name].tolist() for name in ("train", "val", "test")]


def phrase_of(data: GraphData) -> str:
    assert data.summary is not None
    return data.summary.split


def table_with(folder: Path, **columns: object) -> dict[str, Any]:
    """A features file with labels and more columns."""
    paths = write(folder)
    usual = {"id": [10, 20, 30, 40], "f": [0.5, 1.5, 2.5, 3.5], "label": ["a", "b", "a", "b"]}
    pd.DataFrame({**usual, **columns}).to_csv(paths["features"], index=False)
    return {"features": paths["features"], "edges": paths["edges"]}


@pytest.mark.parametrize("kind", [int, bool, float, str])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_of_masks_are_the_split_and_no_features(
    tmp_path: Path, kind: type, suffix: str
) -> None:
    masks: dict[str, Any] = {name: np.array(mask).astype(kind) for name, mask in MASKS.items()}
    paths = table_with(tmp_path, **masks)
    if suffix == "parquet":
        table = pd.read_csv(paths["features"])
        paths["features"] = str(tmp_path / "f.parquet")
        table.assign(**masks).to_parquet(paths["features"])
    data = build(**paths)
    assert splits_of(data) == [[0, 3], [1], [2]]
    assert features_of(data).tolist() == [[0.5], [1.5], [2.5], [3.5]]
    assert "train_mask, val_mask, test_mask of" in phrase_of(data)
    assert "2 train, 1 val, 1 test" in phrase_of(data)


@pytest.mark.parametrize("names", [("train", "val", "test"), ("is_train", "is_valid", "is_test")])
def test_columns_of_plain_words_are_masks_where_there_are_several(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    columns = dict(zip(names, MASKS.values(), strict=True))
    data = build(**table_with(tmp_path, **{k: np.array(v).astype(int) for k, v in columns.items()}))
    assert splits_of(data) == [[0, 3], [1], [2]]
    assert features_of(data).tolist() == [[0.5], [1.5], [2.5], [3.5]]


def test_a_column_called_test_alone_is_a_feature(tmp_path: Path) -> None:
    data = build(**table_with(tmp_path, test=[1.5, 2.5, 3.5, 4.5]))
    assert features_of(data).tolist() == [[0.5, 1.5], [1.5, 2.5], [2.5, 3.5], [3.5, 4.5]]


@pytest.mark.parametrize("place", ["features", "labels", "split"])
@pytest.mark.parametrize("kind", ["npz", "pt"])
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.float32])
def test_masks_among_arrays_are_the_split(
    tmp_path: Path, place: str, kind: str, dtype: type
) -> None:
    files: dict[str, dict[str, Any]] = {
        "features": {"x": np.eye(4, dtype=np.float32)},
        "labels": {"y": np.array([0, 1, 0, 1])},
        "split": {},
    }
    files[place] |= {name: np.array(mask, dtype) for name, mask in MASKS.items()}
    paths = {"edges": write(tmp_path, edges="0,1\n")["edges"]}
    for role, arrays in files.items():
        if arrays:
            paths[role] = str(tmp_path / f"{role}.{kind}")
            if kind == "npz":
                np.savez(paths[role], **arrays)
            else:
                tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
                torch.save(tensors, paths[role])
    data = build(**paths)
    assert splits_of(data) == [[0, 3], [1], [2]]
    assert data.num_features == 4


def test_a_mask_of_several_splits_is_chosen_by_its_number(tmp_path: Path) -> None:
    masks = {name: np.array([mask, np.roll(mask, 1)]).T for name, mask in MASKS.items()}
    path = tmp_path / "graph.npz"
    arrays = {"x": np.eye(4), "y": np.array([0, 1, 0, 1]), **masks}
    np.savez(path, allow_pickle=False, **arrays)
    options = {"features": str(path), "edges": write(tmp_path, edges="0,1\n")["edges"]}
    assert splits_of(build(**options)) == [[0, 3], [1], [2]]
    data = build(**options, split=1)
    assert splits_of(data) == [[0, 1], [2], [3]]
    assert "number 1 of 2" in phrase_of(data)
    assert "dataset.split=2" in message_of(**options, split=2)


def test_masks_of_the_features_file_serve_labels_of_another(tmp_path: Path) -> None:
    paths = {**write(tmp_path), **table_with(tmp_path, **MASKS), "split": None}
    assert splits_of(build(**paths)) == [[0, 3], [1], [2]]
    labels = pd.read_csv(paths["labels"]).assign(split=["test", "train", "val", "train"])
    labels.to_csv(paths["labels"], index=False)
    data = build(**paths)
    assert splits_of(data) == [[1, 3], [2], [0]]
    assert features_of(data).shape == (4, 1)


def test_masks_of_a_table_of_splits(tmp_path: Path) -> None:
    text = "id,train,valid,test\n20,0,1,0\n10,1,0,0\n40,1,0,0\n30,0,0,0\n"
    assert splits_of(build(**write(tmp_path, split=text))) == [[0, 3], [1], []]


@pytest.mark.parametrize(
    ("masks", "report"),
    [
        ({"train_mask": TRAIN, "test_mask": [1, 0, 1, 0]}, "line 2: the node is in two splits"),
        ({"train_mask": [1, 2, 0, 0]}, "line 3: train_mask is '2' instead of 0 or 1"),
        ({"train_mask": [1, None, 0, 0]}, "line 3: train_mask is '' instead of 0 or 1"),
        (
            {"train_mask": TRAIN, "label": ["a", "b", "a", ""]},
            "line 5: the node is in a split and",
        ),
        ({"val_mask": VAL}, "no train_mask"),
        ({**MASKS, "split": ["train"] * 4}, "says the split twice"),
    ],
)
def test_masks_that_make_no_split_are_told(
    tmp_path: Path, masks: dict[str, Any], report: str
) -> None:
    assert report in message_of(**table_with(tmp_path, **masks))


def test_a_mask_of_training_nodes_alone_leaves_the_others_empty(tmp_path: Path) -> None:
    data = build(**table_with(tmp_path, train_mask=TRAIN))
    assert splits_of(data) == [[0, 3], [], []]
    assert "2 train, 0 val, 0 test" in phrase_of(data)


def test_of_two_splits_one_is_named_or_left_out(tmp_path: Path) -> None:
    paths = table_with(tmp_path, **MASKS, split=["test", "train", "train", "val"])
    assert splits_of(build(**paths, split_column="split")) == [[1, 2], [3], [0]]
    assert splits_of(build(**paths, ignore=["split"])) == [[0, 3], [1], [2]]


def many(folder: Path, num_nodes: int = 100) -> dict[str, Any]:
    nodes = range(num_nodes)
    features = "id,f\n" + "".join(f"{node},{node / 7}\n" for node in nodes)
    labels = "id,label\n" + "".join(f"{node},{'a' if node < 20 else 'b'}\n" for node in nodes)
    return {**write(folder, features=features, labels=labels, edges="0,1\n"), "split": None}


def test_a_drawn_split_is_told_and_depends_on_ratio_seed_and_number(tmp_path: Path) -> None:
    paths = many(tmp_path)
    assert phrase_of(build(**paths)) == (
        "drawn at random: 60/20/20, seed 0, number 0; 60 train, 20 val, 20 test"
    )
    paths.pop("split")
    drawn = {}
    for number in (0, 1):
        for seed in (0, 1):
            data = build(**paths, split=number, split_seed=seed, split_ratio=[0.5, 0.25, 0.25])
            assert [len(nodes) for nodes in splits_of(data)] == [50, 25, 25]
            assert f"50/25/25, seed {seed}, number {number}" in phrase_of(data)
            drawn[tuple(splits_of(data)[0])] = data
    assert len(drawn) == 4


def test_a_stratified_split_has_each_class_alike(tmp_path: Path) -> None:
    data = build(**many(tmp_path), stratify=True)
    assert [sum(node < 20 for node in nodes) for nodes in splits_of(data)] == [12, 4, 4]
    assert "within each class" in phrase_of(data)
    quantities = "id,y\n" + "".join(f"{node},{node**2 / 7}\n" for node in range(100))
    paths = {**many(tmp_path), "labels": write(tmp_path, labels=quantities)["labels"]}
    paths = {**paths, **many(tmp_path)}
    Path(paths["labels"]).write_text(quantities)
    data = build(**paths, task="regression", stratify=True)
    for tenth in range(10):
        sizes = [sum(node // 10 == tenth for node in nodes) for nodes in splits_of(data)]
        assert sizes == [6, 2, 2]
    flags = "id,a,b\n" + "".join(f"{node},1,{node % 2}\n" for node in range(100))
    Path(paths["labels"]).write_text(flags)
    assert "dataset.stratify=true" in message_of(**paths, stratify=True)


def test_a_number_where_the_split_is_given_is_refused_and_other_keys_are_told(
    tmp_path: Path,
) -> None:
    split = ["train", "val", "test", "train"]
    paths = table_with(tmp_path, split=split)
    assert "column split of features.csv" in message_of(**paths, split=3)
    data = build(**paths, split_seed=5)
    assert splits_of(data) == [[0, 3], [1], [2]]
    assert "split_seed without effect" in phrase_of(data)
    assert "drawn at random" in phrase_of(build(**paths, split=3, ignore=["split"]))


def test_a_table_of_splits_with_several_columns_is_asked_about(tmp_path: Path) -> None:
    text = "id,fold,part\n10,1,train\n20,2,val\n30,2,test\n40,1,train\n"
    paths = write(tmp_path, split=text)
    assert "dataset.split_column" in message_of(**paths)
    assert splits_of(build(**paths, split_column="part")) == [[0, 3], [1], [2]]


def test_a_number_of_a_split_column_counts_the_labels_files_columns(tmp_path: Path) -> None:
    labels = "10,a,train\n20,b,val\n30,a,test\n40,b,train\n"
    paths = write(tmp_path, labels=labels, features="10,0.5,1\n20,1.5,2\n30,2.5,3\n40,3.5,4\n")
    keys = {"split": None, "id_column": 0, "label_column": 1, "split_column": 2}
    data = build(**{**paths, **keys})
    assert splits_of(data) == [[0, 3], [1], [2]]
    assert features_of(data).shape == (4, 2)


def test_columns_of_another_split_are_told_and_no_features(tmp_path: Path) -> None:
    paths = {**write(tmp_path), **table_with(tmp_path, **MASKS)}
    data = build(**paths)
    assert splits_of(data) == [[0, 3], [1], [2]]
    assert features_of(data).shape == (4, 1)
    assert data.summary is not None
    assert set(data.summary.left_out) >= set(MASKS)
    assert "split of split.csv" in phrase_of(data)


def test_a_split_file_without_ids_may_leave_nodes_out(tmp_path: Path) -> None:
    texts = {
        "features": "f,g\n0.5,1\n1.5,2\n2.5,3\n3.5,4\n",
        "labels": "label\na\nb\na\nb\n",
        "split": 'split\ntrain\nNA\ntest\n""\n',
    }
    assert splits_of(build(**write(tmp_path, edges="0,1\n", **texts))) == [[0], [], [2]]


def test_a_split_column_of_the_labels_file_may_be_left_out(tmp_path: Path) -> None:
    labels = "id,label,split\n10,a,train\n20,b,test\n30,a,test\n40,b,test\n"
    paths = {**write(tmp_path, labels=labels), "split": 3}
    assert "dataset.ignore=[split]" in message_of(**paths)
    assert "number 3; 2 train, 1 val, 1 test" in phrase_of(build(**paths, ignore="split"))
    assert "dataset.ignore" in message_of(**paths, ignore="splitt")
