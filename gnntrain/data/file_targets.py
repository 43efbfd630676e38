"""Labels and splits from a user's files."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gnntrain.data.array_files import ArrayTable, load_arrays, pick
from gnntrain.data.bad_rows import BadRows, Record, first_other
from gnntrain.data.columns import TEXT, BoolArray
from gnntrain.data.file_columns import is_array_file, label_columns, split_columns
from gnntrain.data.graph import SPLITS, AnyArray, Int64Array
from gnntrain.data.node_index import NodeIndex, utf8
from gnntrain.data.tables import Columns, Rows
from gnntrain.data.targets import random_split
from gnntrain.errors import UserError
from gnntrain.metrics import LabelKind

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig

_logger = logging.getLogger("gnntrain")

_SPLIT_WORDS = {
    "train": 0,
    "training": 0,
    "val": 1,
    "valid": 1,
    "validation": 1,
    "dev": 1,
    "test": 2,
    "testing": 2,
}
_SPLIT_ARRAYS = {
    "train": ("train", "train_mask", "train_idx"),
    "val": ("val", "valid", "val_mask", "valid_mask", "val_idx", "valid_idx"),
    "test": ("test", "test_mask", "test_idx"),
}


@dataclass(frozen=True)
class Targets:
    """Labels of the nodes.

    Attributes:
        labels: int32 `[num_nodes]`, −1 without a label; or uint8 `[num_nodes, num_classes]`.
        num_classes: Number of classes.
        task: Kind of labels.
        labelled: bool `[num_nodes]`: nodes that have labels.
        rows: Where they were read; may have a column of splits.
        class_names: See `GraphData.class_names`.
    """

    labels: AnyArray
    num_classes: int
    task: LabelKind
    labelled: BoolArray
    rows: Rows
    class_names: AnyArray | None = None


def no_targets(rows: Rows, index: NodeIndex) -> Targets:
    """Targets of a graph to predict on only: no node has a label."""
    labels = np.full(index.num_nodes, -1, np.int32)
    return Targets(labels, 1, "multiclass", labels >= 0, rows)


def no_splits() -> dict[str, Int64Array]:
    """Splits of a graph to predict on only: they are empty."""
    return {name: np.empty(0, np.int64) for name in SPLITS}


def read_targets(
    path: Path | None, features: Rows, index: NodeIndex, config: FilesConfig, bad: BadRows
) -> Targets:
    """Labels from the labels file, or else from a column of the features file.

    One column of texts or of whole numbers gives classes, numbered in sorted order; −1 means
    "no label", and so does an empty field or NaN where rows have other reasons to be there
    (features file, arrays). Several columns of 0 and 1 are multi-label.

    Raises:
        UserError: The labels do not fit the task, or tell nothing apart.
    """
    if path is None:
        rows = replace(features, nodes=np.arange(index.num_nodes))
    else:
        rows = index.locate(label_columns(path, config, bad).read(), bad)
    if "label" in rows.columns:
        return _classes(rows, index, config, bad, must_have_label=path is not None)
    return _flags(rows, index, config, bad)


def _classes(
    rows: Rows, index: NodeIndex, config: FilesConfig, bad: BadRows, *, must_have_label: bool
) -> Targets:
    if must_have_label and not isinstance(rows.source.table, ArrayTable):
        rows = rows.drop_missing("label", bad, "the label is missing")
    rows = rows.drop_by_field(
        _is_no_class(rows.columns["label"]),
        bad,
        "label",
        "label {} is not a whole number from 0 on, or −1 for none",
    )
    has_label = _has_label(rows.columns["label"])
    found = rows.columns["label"].filter(has_label).dictionary_encode()
    classes, codes = np.unique(found.dictionary.to_numpy(zero_copy_only=False), return_inverse=True)
    labels = np.full(index.num_nodes, -1, np.int32)
    labels[rows.nodes[has_label]] = codes[found.indices.to_numpy()]
    if len(classes) < 2:
        bad.report()  # bad rows may be why
    task = _class_task(config, len(classes), rows)
    return Targets(labels, len(classes), task, labels >= 0, rows, _names(classes))


def _names(classes: AnyArray) -> AnyArray | None:
    """Classes as a store keeps them; None if they are 0, 1, …."""
    if classes.dtype == object:
        return utf8(classes)
    if (classes == np.arange(len(classes))).all():
        return None
    _logger.info("labels %s are classes 0 … %d", _first(classes), len(classes) - 1)
    return classes.astype(np.int64)


def _has_label(column: pa.Array) -> BoolArray:
    if column.type == TEXT:
        return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), bool)
    return np.asarray(column.fill_null(-1).to_numpy() != -1)


def _is_no_class(column: pa.Array) -> BoolArray:
    if column.type == TEXT:
        return np.zeros(len(column), bool)
    values = column.fill_null(-1).to_numpy()
    return np.asarray((values < -1) | (values != np.floor(values)) | np.isinf(values))


def _class_task(config: FilesConfig, num_classes: int, rows: Rows) -> LabelKind:
    few = {0: "no label", 1: "only one label"}
    number = few.get(num_classes, f"{num_classes} different labels")
    found = f"{rows.path} has {number}"
    if config.task == "multilabel":
        raise UserError(
            f"dataset.task=multilabel: {rows.path} has one column of labels.",
            "Give a column of 0 and 1 for each label, or leave dataset.task=auto.",
        )
    if num_classes < 2:
        raise UserError(f"{found}; there is nothing to tell apart.", "Give two labels or more.")
    if config.task == "binary" and num_classes != 2:
        raise UserError(f"dataset.task=binary: {found}.", "Set dataset.task=multiclass.")
    if config.task == "multiclass":
        return "multiclass"
    return "binary" if num_classes == 2 else "multiclass"


def _flags(rows: Rows, index: NodeIndex, config: FilesConfig, bad: BadRows) -> Targets:
    path, num_classes = rows.path, len(rows.source.numbers)
    if num_classes == 0:
        raise UserError(f"{path} has no column of labels.", "Set dataset.label_column.")
    if config.task not in ("auto", "multilabel"):
        raise UserError(
            f"dataset.task={config.task}: {path} has {num_classes} columns of labels.",
            "Say which one is meant with dataset.label_column.",
        )
    wrong = np.asarray(~np.isin(rows.matrix, (0, 1)).all(axis=1))
    hint = "If only one column holds the labels, set dataset.label_column."
    rows = rows.drop(wrong, bad, lambda record: _no_flag(record, rows), hint)
    labels = np.zeros((index.num_nodes, num_classes), np.uint8)
    labels[rows.nodes] = rows.matrix
    labelled = np.zeros(index.num_nodes, bool)
    labelled[rows.nodes] = True
    names = list(rows.source.names_of_numbers.values())
    # Columns without a header are called by their places, which say nothing.
    is_named = len(set(names)) == num_classes and not all(name.isdecimal() for name in names)
    class_names = utf8(np.array(names, object)) if is_named else None
    return Targets(labels, num_classes, "multilabel", labelled, rows, class_names)


def _no_flag(record: Record, rows: Rows) -> str:
    wrong = first_other(record, rows.source.names_of_numbers, lambda number: number in (0, 1))
    name, field = wrong or ("", "")
    return f"label {name} is {field!r} instead of 0 or 1"


def _first(values: AnyArray) -> str:
    return ", ".join(str(value) for value in values[:5]) + (", …" if len(values) > 5 else "")


def split_nodes(
    path: Path | None, targets: Targets, index: NodeIndex, config: FilesConfig, bad: BadRows
) -> dict[str, Int64Array]:
    """Splits from the split file, else from the labels' split column, else at random.

    A table has a row a node and the split's name (train, val or valid, test); arrays are called
    by those names and hold ids or are boolean masks. The random split is 60 % train, 20 % val,
    20 % test of the nodes with labels, always the same.

    Returns:
        Sorted node ids by split.

    Raises:
        UserError: The file cannot be read.
    """
    if path is None and "split" not in targets.rows.columns:
        return random_split(np.flatnonzero(targets.labelled), 0)
    split_of = np.full(index.num_nodes, -1, np.int8)
    if path is None:
        _assign_named(targets.rows, targets, split_of, bad)
    elif is_array_file(path):
        _assign_arrays(path, targets, index, split_of, bad)
    else:
        rows = split_columns(path, config, bad).read()
        rows = rows.drop_missing("split", bad, "the split is missing")
        _assign_named(index.locate(rows, bad), targets, split_of, bad)
    return {name: np.flatnonzero(split_of == code) for code, name in enumerate(SPLITS)}


def _assign_named(rows: Rows, targets: Targets, split_of: AnyArray, bad: BadRows) -> None:
    """Put each row's node into the split of its name; a row without a name says nothing."""
    codes = _codes_of_names(rows)
    named = ~rows.is_missing("split")
    wrong = named & (codes < 0)
    rows = rows.drop_by_field(wrong, bad, "split", "split {} is none of train, val, test")
    codes, named = codes[~wrong], named[~wrong]
    unlabelled = named & ~targets.labelled[rows.nodes]
    rows = rows.drop_by_field(unlabelled, bad, "split", "node in split {} has no label")
    split_of[rows.nodes] = np.where(named, codes, -1)[~unlabelled]


def _codes_of_names(rows: Rows) -> AnyArray:
    words = rows.columns["split"].cast(TEXT).dictionary_encode()
    known = [_SPLIT_WORDS.get(word.lower(), -1) for word in words.dictionary.to_pylist()]
    codes: AnyArray = np.array([*known, -1])[words.indices.fill_null(len(known)).to_numpy()]
    return codes


def _assign_arrays(
    path: Path, targets: Targets, index: NodeIndex, split_of: AnyArray, bad: BadRows
) -> None:
    arrays = load_arrays(path)
    found = {name: pick(arrays, names) for name, names in _SPLIT_ARRAYS.items()}
    if found["train"] is None:
        raise UserError(
            f"{path} has no array called train (it has {', '.join(arrays)}).",
            "Call the arrays of ids or masks train, val and test.",
        )
    for code, name in enumerate(SPLITS):
        array = found[name]
        if array is not None:
            rows = _rows_of_split(path, name, array, index, bad)
            reason = _reason(f"in split {name} has no label")
            rows = rows.drop(~targets.labelled[rows.nodes], bad, reason)
            reason = _reason(f"in split {name} is in another split, too")
            rows = rows.drop(split_of[rows.nodes] >= 0, bad, reason)
            split_of[rows.nodes] = code


def _reason(what: str) -> Callable[[Record], str]:
    return lambda record: f"node {record[0]!r} {what}"


def _rows_of_split(path: Path, name: str, array: AnyArray, index: NodeIndex, bad: BadRows) -> Rows:
    if array.ndim != 1:
        raise UserError(f"{path}: {name} has shape {list(array.shape)} instead of one dimension.")
    if array.dtype == np.bool_:
        if len(array) != index.num_nodes:
            raise UserError(
                f"{path}: mask {name} has {len(array)} values; there are {index.num_nodes} nodes."
            )
        nodes = np.flatnonzero(array)
        source = Columns(ArrayTable(path, {"node": np.arange(index.num_nodes)}), {}, ())
        return Rows(source, {}, np.empty((len(nodes), 0)), nodes, index.num_nodes, nodes)
    return index.locate(Columns(ArrayTable(path, {"id": array}), {"id": 0}, ()).read(), bad)
