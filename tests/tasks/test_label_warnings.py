from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gnntrain.tasks.label_warnings import label_warnings
from tests.graphs import random_graph, stored

SPLITS = {"train": np.arange(6), "val": np.arange(6, 9), "test": np.arange(9, 12)}


def warnings_of(path: Path, labels: list[int] | list[list[int]], **changes: Any) -> list[str]:
    values = np.array(labels)
    num_classes = values.shape[1] if values.ndim == 2 else int(values.max()) + 1
    options = {"splits": SPLITS, "num_classes": num_classes, **changes}
    store = stored(path / "store", random_graph(12, 30, labels=values, **options))
    return label_warnings(store, store.metric)


def test_a_graph_like_any_other_has_no_warning(tmp_path: Path) -> None:
    assert warnings_of(tmp_path, [0, 1, 2] * 4) == []


def test_classes_without_a_training_node_are_counted_with_the_nodes_that_have_them(
    tmp_path: Path,
) -> None:
    (warning,) = warnings_of(tmp_path, [0, 1, 0, 1, 0, 1, *(2, 2, 0), *(2, 3, 1)])
    assert "2 of 4 classes" in warning
    assert "class 2 (2 val and 1 test nodes), class 3 (0 val and 1 test nodes)" in warning


def test_classes_are_called_as_the_user_calls_them(tmp_path: Path) -> None:
    names = np.array([b"cat", b"dog", b"eel"])
    (warning,) = warnings_of(tmp_path, [0, 1] * 5 + [1, 2], class_names=names)
    assert "class eel (0 val and 1 test nodes)" in warning


def test_labels_that_no_training_node_has_are_told_too(tmp_path: Path) -> None:
    flags = [[1, 0]] * 6 + [[1, 1], [0, 0], [0, 1]] + [[0, 0]] * 3
    (warning,) = warnings_of(tmp_path, flags, task="multilabel", metric="f1_micro")
    assert "1 of 2 labels" in warning
    assert "label 1 (2 val and 0 test nodes)" in warning


def test_unlabelled_nodes_are_of_no_class(tmp_path: Path) -> None:
    splits = {"train": np.arange(6), "val": np.arange(6, 8), "test": np.arange(8, 10)}
    assert warnings_of(tmp_path, [0, 1] * 5 + [-1, 2], splits=splits) == []


def test_a_metric_that_a_split_cannot_give_is_told(tmp_path: Path) -> None:
    labels = [0, 1, 0, 1, 0, 1, *(0, 0, 0), *(1, 1, 1)]
    val, test = warnings_of(tmp_path, labels, task="binary", metric="roc_auc")
    assert val.startswith("roc_auc is not defined on val")
    assert "last epoch" in val
    assert test.startswith("roc_auc is not defined on test")
    assert warnings_of(tmp_path, labels, task="binary", metric="accuracy") == []


def test_of_several_labels_one_that_can_be_ranked_is_enough(tmp_path: Path) -> None:
    flags = [[1, 0], [0, 1]] * 3 + [[1, 1], [1, 0], [1, 0]] + [[1, 0], [0, 1], [1, 1]]
    assert warnings_of(tmp_path, flags, task="multilabel", metric="roc_auc") == []
