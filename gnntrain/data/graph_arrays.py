"""A whole graph as arrays by PyG's names (`x`, `y`, `edge_index`, `train_mask`, …) as `GraphData`.

A `Data`, a dictionary, a saved file: each becomes such arrays first. Rows of `x` are the nodes 0,
1, 2, …, to which `edge_index` refers. The summary lists the arrays that were read and left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gnntrain.data.array_files import PAIR_ARRAYS, SPLIT_ARRAYS, WEIGHT_ARRAYS
from gnntrain.data.columns import from_numpy, to_plain
from gnntrain.data.graph import (
    SPLITS,
    AnyArray,
    FeatureRows,
    GraphData,
    Int64Array,
    IntArray,
    NodeData,
)
from gnntrain.data.preprocessing import (
    FeatureColumn,
    PreparedFeatures,
    Preprocessing,
    RawFeatures,
    warn_of_coarse_columns,
)
from gnntrain.data.read.labels import ask_about_labels, stored_names
from gnntrain.data.read.splits import drawn_splits
from gnntrain.data.summary import EDGES_ALONE, DataSummary, split_sizes
from gnntrain.data.targets import check_split_number, random_split, smallest_int
from gnntrain.errors import UserError
from gnntrain.metrics import DEFAULT_METRICS, LabelKind

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig

Arrays = Mapping[str, AnyArray]

LABEL_NAMES = ("y", "labels", "label")
_FEATURES = ("x", "features", "feature", "feat", "attr", "attr_matrix", "node_feat")
_IDS = ("ids", "id", "node_ids", "node_id")
_NO_USE = "models here take x, y, edge_index, edge_weight and masks"
_EDGE_ATTR = "edges have no features here; dataset.weight_column=edge_attr takes it as weights"


@dataclass(frozen=True)
class _Labels:
    """`GraphData.labels`, `num_classes`, `task` and `class_names`."""

    values: AnyArray
    num_classes: int
    task: LabelKind
    names: AnyArray | None = None

    @property
    def labelled(self) -> Int64Array:
        """The nodes that have a label."""
        if self.task == "multilabel":
            return np.arange(len(self.values))
        if self.task == "continuous":
            return np.flatnonzero(~np.isnan(self.values).all(axis=1))
        return np.flatnonzero(self.values >= 0)


class _Attributes:
    """Arrays, taken by name; arrays that are never taken are listed as left out."""

    def __init__(self, arrays: Arrays, source: str) -> None:
        self._left = dict(arrays)
        self.source = source

    def take(self, *names: str) -> tuple[str, AnyArray | None]:
        """The first of these arrays that is there, and its name."""
        name = next((name for name in names if name in self._left), names[0])
        return name, self._left.pop(name, None)

    def left_out(self) -> dict[str, str]:
        return {name: _EDGE_ATTR if name == "edge_attr" else _NO_USE for name in self._left}

    def wrong(self, name: str, what: str, hint: str) -> UserError:
        return UserError(f"{self.source}: {name} {what}.", hint)


def graph_of_arrays(
    arrays: Arrays,
    config: FilesConfig,
    source: str,
    *,
    labelled: bool = True,
    preprocessing: Preprocessing | None = None,
    is_own: bool = True,
) -> GraphData:
    """A graph from its arrays.

    Args:
        arrays: `x` `[num_nodes, num_features]`; `edge_index` `[2, num_edges]`, sources first; `y`
            `[num_nodes]` or `[num_nodes, n]`; `train_mask` and its siblings, `[num_nodes]` or
            `[num_nodes, num_splits]`; `edge_weight` `[num_edges]`; `ids` `[num_nodes]`;
            `num_nodes` (no dimension), which counts where there is no `x`.
        config: Name, task, metric, and how the split is chosen or drawn.
        source: What the arrays are from, for messages: a path, or "data".
        labelled: False: for a graph to predict on; `y` and masks are not read.
        preprocessing: What makes the features of a model that was trained on another graph; None:
            it is learnt from this one.
        is_own: Whether it is a user's own: what may be wrong is asked about, and a split is drawn
            as the keys for own data say. False: of a data set that is known to be right.

    Raises:
        UserError: An array is missing, or is of a type or a shape that it cannot have.
    """
    given = _Attributes(arrays, source)
    features: AnyArray | FeatureRows | None
    features = x = _features(given)
    _, counted = given.take("num_nodes")
    label_name, y = given.take(*LABEL_NAMES)
    num_nodes = _num_nodes(given, x, y, counted)
    src, dst, edges = _ends(given, num_nodes, num_nodes)
    weight, weighted = _weight(given, len(src), config.weight_column)
    ids = _ids(given, num_nodes)
    masks = {split: given.take(*names) for split, names in SPLIT_ARRAYS.items()}
    if labelled:
        labels = _labels(given, label_name, y, num_nodes, config)
        if is_own:
            _ask(given, label_name, labels, weight, config)
        splits, split = _splits(given, masks, labels, num_nodes, config, is_own=is_own)
    else:
        labels = _Labels(np.full(num_nodes, -1, np.int32), 1, "multiclass")
        splits, split = {name: np.empty(0, np.int64) for name in SPLITS}, ""
    if x is not None:
        features, preprocessing = _prepared(given, x, splits["train"], config, preprocessing)
    metric = DEFAULT_METRICS[labels.task] if config.metric == "auto" else config.metric
    return GraphData(
        dataset=config.name,
        num_nodes=num_nodes,
        src=src,
        dst=dst,
        labels=labels.values,
        num_classes=labels.num_classes,
        task=labels.task,
        splits=splits,
        features=features,
        edge_weight=weight,
        node_ids=ids,
        class_names=labels.names,
        labelled=labelled,
        metric=metric,
        preprocessing=preprocessing,
        summary=DataSummary(
            ids="row numbers" if ids is None else "the graph's own",
            edges=edges + weighted,
            split=split,
            left_out=given.left_out(),
        ),
    )


def nodes_of_arrays(
    arrays: Arrays, config: FilesConfig, source: str, preprocessing: Preprocessing | None = None
) -> tuple[NodeData, dict[str, str]]:
    """The nodes of one type without labels, and what was left out, each with the reason.

    Args:
        arrays: `x`, `ids` and `num_nodes`, see `graph_of_arrays`.
        config: What is done to features; statistics are those of all nodes.
        source: See `graph_of_arrays`.
        preprocessing: See `graph_of_arrays`.

    Raises:
        UserError: An array is of a type or a shape that it cannot have.
    """
    given = _Attributes(arrays, source)
    x = _features(given)
    _, counted = given.take("num_nodes")
    num_nodes = _num_nodes(given, x, None, counted)
    ids = _ids(given, num_nodes)
    if x is None:
        return NodeData(num_nodes, ids=ids), given.left_out()
    features, made_by = _prepared(given, x, np.arange(num_nodes), config, preprocessing)
    return NodeData(num_nodes, features, ids, preprocessing=made_by), given.left_out()


def edges_of_arrays(
    arrays: Arrays, source: str, num_src: int, num_dst: int
) -> tuple[tuple[IntArray, IntArray], dict[str, str]]:
    """Sources and destinations of one edge type, and what was left out, each with the reason.

    Args:
        arrays: `edge_index` `[2, num_edges]`, sources first.
        source: See `graph_of_arrays`.
        num_src: Number of source nodes.
        num_dst: Number of destination nodes.

    Raises:
        UserError: There is no such array, or it holds no such edges.
    """
    given = _Attributes(arrays, source)
    src, dst, _ = _ends(given, num_src, num_dst)
    return (src, dst), dict.fromkeys(given.left_out(), EDGES_ALONE)


def _features(given: _Attributes) -> AnyArray | None:
    name, x = given.take(*_FEATURES)
    if x is None:
        return None
    if x.ndim != 2 or x.dtype.kind not in "biuf":
        hint = f"Give {name} a row of numbers a node; one number a node is {name}.reshape(-1, 1)."
        raise given.wrong(name, f"is {_shown(x)} instead of [num_nodes, num_features]", hint)
    return x


def _prepared(
    given: _Attributes,
    x: AnyArray,
    train: Int64Array,
    config: FilesConfig,
    preprocessing: Preprocessing | None,
) -> tuple[AnyArray | FeatureRows, Preprocessing | None]:
    """Features as the configuration or, to predict, the run's graph has them, and what makes them.

    Raises:
        UserError: A value is missing and may not be, or the model takes other features.
    """
    raw = RawFeatures(x)
    if preprocessing is None:
        if not config.standardize:
            names = [f"{at} of x" for at in range(x.shape[1])]
            warn_of_coarse_columns(raw, names, given.source)
        if config.missing == "refuse" and not config.standardize:
            return x, None
        columns = [FeatureColumn(name=str(place), width=1) for place in range(x.shape[1])]
        preprocessing = Preprocessing.fit(
            columns,
            raw,
            train,
            missing=config.missing,
            standardize=config.standardize,
            has_names=False,
        )
    elif preprocessing.has_categories or preprocessing.num_numbers != x.shape[1]:
        takes = "categories, and " * preprocessing.has_categories
        raise UserError(
            f"The model takes {takes}{preprocessing.num_numbers} numbers a node; {given.source} "
            f"has {x.shape[1]} in x.",
            "Give the features it was trained on: of categories, as a table.",
        )
    return (
        (x, None)
        if preprocessing.is_identity
        else (
            PreparedFeatures(raw, preprocessing),
            preprocessing,
        )
    )


def _num_nodes(
    given: _Attributes, x: AnyArray | None, y: AnyArray | None, counted: AnyArray | None
) -> int:
    lengths = [len(array) for array in (x, y) if array is not None and array.ndim]
    if counted is not None:
        if x is not None and len(x) != counted:
            hint = "Leave num_nodes out, or give x a row for each node."
            raise given.wrong("num_nodes", f"is {int(counted):,}, but x has {len(x):,} rows", hint)
        lengths.insert(0, int(counted))
    if not lengths:
        raise no_features(given.source)
    return lengths[0]


def no_features(source: str) -> UserError:
    """The error for a graph without features."""
    return UserError(
        f"{source} has no x.",
        "Give x a row of numbers a node; a column of ones will do: torch.ones(num_nodes, 1).",
    )


def _ends(given: _Attributes, num_src: int, num_dst: int) -> tuple[IntArray, IntArray, str]:
    """Sources and targets of the edges, and what they were read from."""
    name, ends = given.take(*PAIR_ARRAYS)
    if ends is None:
        hint = "Give edge_index of shape [2, num_edges]; without edges: [2, 0]."
        raise UserError(f"{given.source} has no edge_index.", hint)
    if ends.size and ends.dtype.kind not in "iu":
        hint = "An edge's ends are row numbers of x: edge_index.long()."
        raise given.wrong(name, f"is {ends.dtype} instead of integers", hint)
    if ends.ndim != 2 or ends.shape[0] != 2:
        hint = "PyG has sources in the first row and targets in the second: edge_index.t()."
        raise given.wrong(name, f"is {_shown(ends)} instead of [2, num_edges]", hint)
    for row, num_nodes in zip(ends, (num_src, num_dst), strict=True):
        outside = row[(row < 0) | (row >= num_nodes)]
        if len(outside):
            raise given.wrong(
                name,
                f"goes beyond the nodes 0 to {num_nodes - 1}: {outside[0]} is the first of "
                f"{len(outside):,} such ends",
                "Its numbers are rows of x, counted from 0.",
            )
    src, dst = (
        smallest_int(row.astype(np.int64), num_nodes)
        for row, num_nodes in zip(ends, (num_src, num_dst), strict=True)
    )
    return src, dst, f"{len(src):,} in {name}"


def _weight(
    given: _Attributes, num_edges: int, weight_column: str | None
) -> tuple[AnyArray | None, str]:
    """Weights of the edges, and what they were read from."""
    weight_name, weight = given.take(
        *(WEIGHT_ARRAYS if weight_column is None else (weight_column,))
    )
    if weight is None:
        if weight_column is not None:
            hint = "Give the name of an array with a number an edge, or leave the key out."
            raise given.wrong(weight_name, "is asked for as dataset.weight_column", hint)
        return None, ""
    if weight.size != num_edges or weight.dtype.kind not in "biuf":
        hint = f"Give a number an edge: there are {num_edges:,}."
        raise given.wrong(weight_name, f"is {_shown(weight)} instead of [num_edges]", hint)
    return weight.reshape(-1).astype(np.float32), f", weighted by {weight_name}"


def _ids(given: _Attributes, num_nodes: int) -> AnyArray | None:
    """The user's own ids, None where they are 0, 1, …."""
    name, ids = given.take(*_IDS)
    if ids is None:
        return None
    if ids.shape != (num_nodes,) or ids.dtype.kind not in "iuUSO":
        hint = f"Give an id a node: there are {num_nodes:,}."
        raise given.wrong(name, f"is {_shown(ids)} instead of [num_nodes]", hint)
    if len(np.unique(ids)) < num_nodes:
        raise given.wrong(name, "has an id twice", "Give each node an id of its own.")
    if ids.dtype.kind in "iu":
        return None if (ids == np.arange(num_nodes)).all() else ids.astype(np.int64)
    if ids.dtype.kind == "S":
        return ids
    return np.char.encode(ids.astype(str), "utf-8")


def _labels(
    given: _Attributes, name: str, y: AnyArray | None, num_nodes: int, config: FilesConfig
) -> _Labels:
    if y is None:
        hint = "Give y a label a node: integers for classes, -1 where a node has none."
        raise UserError(f"{given.source} has no y.", hint)
    if y.ndim not in (1, 2) or len(y) != num_nodes:
        hint = f"Give it a row a node: there are {num_nodes:,}."
        raise given.wrong(name, f"is {_shown(y)} instead of [num_nodes]", hint)
    if y.dtype.kind not in "biufUS":
        raise given.wrong(name, f"is {y.dtype}", "Labels are integers, 0 and 1, or quantities.")
    y = y[:, 0] if y.shape[1:] == (1,) else y
    if config.task == "regression":
        return _quantities(given, name, y)
    return _classes(given, name, y, config) if y.ndim == 1 else _flags(given, name, y, config)


def _quantities(given: _Attributes, name: str, y: AnyArray) -> _Labels:
    if y.dtype.kind in "US":
        raise given.wrong(name, "is text, which is no quantity", "Leave task.type out for classes.")
    values = y.reshape(len(y), -1).astype(np.float64)
    names = [name] if values.shape[1] == 1 else [f"{name}_{i}" for i in range(values.shape[1])]
    return _Labels(values, values.shape[1], "continuous", np.char.encode(names, "utf-8"))


def _classes(given: _Attributes, name: str, y: AnyArray, config: FilesConfig) -> _Labels:
    if config.task == "multilabel":
        hint = "Give y a column of 0 and 1 for each label, or leave dataset.task=auto."
        raise given.wrong(name, "has one column, but dataset.task=multilabel", hint)
    if y.dtype.kind == "f" and config.task == "auto":
        raise given.wrong(
            name,
            f"is {y.dtype}, which may be quantities or classes",
            "Set task.type=node_regression for quantities; for classes give integers: y.long().",
        )
    if y.dtype.kind in "US":
        y = to_plain(from_numpy(y), labels=True).to_numpy(zero_copy_only=False)
        has_label = np.asarray(y != None)  # noqa: E711 - of each value
    else:
        has_label = _is_class(given, name, y)
    found, codes = np.unique(y[has_label], return_inverse=True)
    if len(found) < 2:
        hint = "Give two labels or more."
        raise given.wrong(name, f"has {len(found)} classes: nothing to tell apart", hint)
    if config.task == "binary" and len(found) != 2:
        raise given.wrong(
            name, f"has {len(found)} classes, but dataset.task=binary", "Leave dataset.task=auto."
        )
    labels = np.full(len(y), -1, np.int32)
    labels[has_label] = codes
    is_binary = len(found) == 2 and config.task != "multiclass"
    return _Labels(labels, len(found), "binary" if is_binary else "multiclass", stored_names(found))


def _is_class(given: _Attributes, name: str, y: AnyArray) -> AnyArray:
    """Which nodes have a class; −1 and NaN are none."""
    values = np.where(y != y, -1, y)
    wrong = (values < -1) | (values != np.floor(values))
    if wrong.any():
        first = y[wrong][0]
        hint = (
            "Classes are whole numbers from 0 on, and -1 where a node has none: "
            f"{name}[{name} == {first}] = -1."
        )
        shown = f"has {wrong.sum():,} labels that are no classes (first: {first})"
        raise given.wrong(name, shown, hint)
    return np.asarray(values >= 0)


def _flags(given: _Attributes, name: str, y: AnyArray, config: FilesConfig) -> _Labels:
    if config.task not in ("auto", "multilabel"):
        hint = "Give it one column, or leave dataset.task=auto."
        raise given.wrong(name, f"has {y.shape[1]} columns, but dataset.task={config.task}", hint)
    wrong = ~np.isin(y, (0, 1))
    if wrong.any():
        raise given.wrong(
            name,
            f"has several columns, and {wrong.sum():,} labels are not 0 or 1 "
            f"(first: {y[wrong][0]})",
            "Several columns are labels of 0 and 1, or quantities: set task.type=node_regression.",
        )
    return _Labels(y.astype(np.uint8), y.shape[1], "multilabel")


_Found = Mapping[str, tuple[str, AnyArray | None]]


def _ask(
    given: _Attributes,
    name: str,
    labels: _Labels,
    weight: AnyArray | None,
    config: FilesConfig,
) -> None:
    """Raise a UserError for labels that may be no classes, and for weights below 0."""
    if config.task == "auto" and labels.task in ("multiclass", "binary"):
        classes = labels.values if labels.names is None else labels.names[labels.values]
        ask_about_labels(
            from_numpy(classes[labels.labelled]),
            f"{given.source}: {name}",
            "dataset.label_column",
        )
    if weight is not None and (weight < 0).any():
        shown = f"has {(weight < 0).sum():,} weights below 0 (first: {weight[weight < 0][0]:g})"
        raise given.wrong("edge_weight", shown, "A weight is a number from 0 on.")


def _splits(
    given: _Attributes,
    found: _Found,
    labels: _Labels,
    num_nodes: int,
    config: FilesConfig,
    *,
    is_own: bool,
) -> tuple[Mapping[str, Int64Array], str]:
    """Node ids by split, and where they are from."""
    number = config.split if isinstance(config.split, int) else 0
    masks = {
        split: _mask(given, name, array, num_nodes)
        for split, (name, array) in found.items()
        if array is not None
    }
    if not masks:
        if is_own:
            drawn = drawn_splits(labels.values, labels.task, labels.labelled, config)
            return drawn.nodes, drawn.phrase
        return _drawn(labels, number)
    num_splits = min({mask.shape[1] for mask in masks.values()} - {1}, default=1)
    check_split_number(given.source, number, range(num_splits))
    splits = {split: np.empty(0, np.int64) for split in SPLITS}
    for split, mask in masks.items():
        column = mask[:, number if mask.shape[1] > 1 else 0]
        splits[split] = np.flatnonzero(column)
        _refuse_unlabelled(given, found[split][0], splits[split], labels)
    names = ", ".join(name for name, array in found.values() if array is not None)
    which = f", column {number} of {num_splits} (dataset.split)" if num_splits > 1 else ""
    return splits, f"{split_sizes(splits)} by {names}{which}"


def _refuse_unlabelled(given: _Attributes, name: str, nodes: Int64Array, labels: _Labels) -> None:
    bare = np.setdiff1d(nodes, labels.labelled)
    if len(bare):
        lacks = "y.isnan()" if labels.task == "continuous" else "y < 0"
        line = f"{name}[{lacks}] = False"
        if not name.endswith("mask"):
            line = f"{name} = {name}[~({lacks})[{name}]]"
        shown = f"has {len(bare):,} nodes without a label (first: {bare[0]})"
        raise given.wrong(name, shown, f"Leave them out of the split: {line}.")


def _drawn(labels: _Labels, number: int) -> tuple[dict[str, Int64Array], str]:
    splits = random_split(labels.labelled, number)
    return splits, f"{split_sizes(splits)}, drawn at random (dataset.split={number})"


def _mask(given: _Attributes, name: str, array: AnyArray, num_nodes: int) -> AnyArray:
    """A mask, bool `[num_nodes, num_splits]`, from a mask or, by its name, from node numbers."""
    if array.dtype.kind in "iu" and not name.endswith("mask"):
        return _mask_of_nodes(given, name, array, num_nodes)
    if array.ndim not in (1, 2) or len(array) != num_nodes:
        hint = f"Give it true or false for each node: there are {num_nodes:,}."
        raise given.wrong(name, f"is {_shown(array)} instead of [num_nodes]", hint)
    if not np.isin(array, (0, 1)).all():
        raise given.wrong(name, "is no mask", f"Give true or false for each node: {name}.bool().")
    return array.astype(bool).reshape(num_nodes, -1)


def _mask_of_nodes(given: _Attributes, name: str, nodes: AnyArray, num_nodes: int) -> AnyArray:
    outside = nodes[(nodes < 0) | (nodes >= num_nodes)]
    if nodes.ndim != 1 or len(outside):
        which = _shown(nodes) if nodes.ndim != 1 else f"has {outside[0]}"
        hint = f"It lists node numbers from 0 to {num_nodes - 1}."
        raise given.wrong(name, f"is no list of nodes ({which})", hint)
    mask = np.zeros((num_nodes, 1), bool)
    mask[nodes] = True
    if mask.sum() < len(nodes):
        hint = "It lists node numbers, each once; a mask has truth values."
        raise given.wrong(name, "has a node twice", hint)
    return mask


def _shown(array: AnyArray) -> str:
    return f"{array.dtype} {list(array.shape)}"
