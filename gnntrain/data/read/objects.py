"""Graphs given as objects in Python: PyG's `Data`, dictionaries of arrays, a `GraphData`.

An object becomes arrays by PyG's names (`x`, `y`, `edge_index`, `train_mask`, …) for each node type
and edge type; one of one type has a single entry of each. Rows of `x` are the nodes 0, 1, 2, …, to
which `edge_index` refers. Features, labels and splits are then read as those of a file of arrays
are. The summary lists the arrays that were read and left out.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, Dataset, HeteroData

from gnntrain.config import DatasetConfig, FilesConfig
from gnntrain.config.graph_spec import NodeSpec, spec_of_files
from gnntrain.config.problems import did_you_mean
from gnntrain.data.array_files import (
    MASK_ARRAYS,
    PAIR_ARRAYS,
    SPLIT_ARRAYS,
    WEIGHT_ARRAYS,
    ArrayTable,
)
from gnntrain.data.bad_rows import BadRows
from gnntrain.data.conversions import dgl_hint, networkx_hint
from gnntrain.data.graph import (
    EDGE,
    NODE,
    SPLITS,
    AnyArray,
    EdgeData,
    EdgeType,
    FeatureRows,
    GraphData,
    HeteroGraphData,
    IntArray,
    NodeData,
    NodeType,
)
from gnntrain.data.preprocessing import AnyPreprocessing, Preprocessing, of_one_type
from gnntrain.data.read.features import NamedMatrix, choose_features, make_features
from gnntrain.data.read.labels import Targets, no_targets, targets_of_rows
from gnntrain.data.read.nodes import NodeIndex
from gnntrain.data.read.splits import assign_arrays, drawn_splits
from gnntrain.data.sparse import ADJACENCIES, densified, edges_of
from gnntrain.data.store_meta import canonical_json
from gnntrain.data.summary import EDGES_ALONE, DataSummary, split_sizes
from gnntrain.data.tables import Columns, refuse_beyond_memory
from gnntrain.data.targets import check_split_number, random_split, smallest_int
from gnntrain.errors import UserError
from gnntrain.metrics import DEFAULT_METRICS

_WHOLE_GRAPH_KEYS = {
    *("data", "split", "split_ratio", "split_seed", "stratify", "weight_column", "task", "metric"),
    *("missing", "standardize"),
}
"""Keys of `FilesConfig` that say something of a graph that is no table."""

_NODE_LISTS = {*chain(*SPLIT_ARRAYS.values())} - {*MASK_ARRAYS}
_LABELS = ("y", "labels", "label")
_FEATURES = ("x", "features", "feature", "feat", "attr", "attr_matrix", "node_feat")
_IDS = ("ids", "id", "node_ids", "node_id")
_NO_USE = "models here take x, y, edge_index, edge_weight and masks"
_EDGE_ATTR = "edges have no features here; dataset.weight_column=edge_attr takes it as weights"
_DIGEST_ROWS = 1 << 16
_GLOBAL = "_global_store"
"""Where PyG keeps what is neither of nodes nor of edges."""


@dataclass
class _Arrays:
    """Arrays, taken by name; arrays that are never taken are listed as left out.

    Attributes:
        source: What they are from, for messages.
        left: The arrays that have not been taken.
        columns: Names of the columns of tables, by the arrays that they became.
    """

    source: str
    left: dict[str, AnyArray]
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def take(self, *names: str) -> tuple[str, AnyArray | None]:
        """The first of these arrays that is there, and its name."""
        name = next((name for name in names if name in self.left), names[0])
        return name, self.left.pop(name, None)

    def wrong(self, name: str, what: str, hint: str) -> UserError:
        return UserError(f"{self.source}: {name} {what}.", hint)


def graph_of_object(
    given: object,
    config: FilesConfig,
    source: str = "data",
    *,
    labelled: bool = True,
    preprocessing: AnyPreprocessing | None = None,
) -> HeteroGraphData:
    """A user's graph from an object.

    Args:
        given: A PyG `Data` or `HeteroData`, or a list or data set of one; a mapping of arrays,
            tensors or tables by PyG's names, for a typed graph of such mappings by node type and
            edge type; a `GraphData` or `HeteroGraphData`. `x` is `[num_nodes, num_features]`;
            `edge_index` `[2, num_edges]`, sources first; `y` `[num_nodes]` or `[num_nodes, n]`;
            `train_mask` and its siblings `[num_nodes]` or `[num_nodes, num_splits]`; `edge_weight`
            `[num_edges]`; `ids` `[num_nodes]`; `num_nodes` counts where there is no `x`.
        config: Name, task, metric, split, and what else makes a graph of it.
        source: What the object is called in messages.
        labelled: False: for a graph to predict on; labels and splits are not read.
        preprocessing: What makes the features of a model that was trained on another graph, of a
            typed one by node type.

    Raises:
        UserError: It is no such object, or has a mistake.
    """
    if isinstance(given, HeteroGraphData):
        _refuse_keys_without_use(given, config, source)
        _refuse_other_columns(given, preprocessing, source)
        graph = copy.copy(given)
        graph.dataset, graph.labelled = config.name, labelled and given.labelled
        return graph
    attributes = _attributes(given, source)
    is_typed = _is_typed(attributes)
    _refuse_keys_without_use(given, config, source, is_typed=is_typed)
    if is_typed:
        made_by = None if isinstance(preprocessing, Preprocessing) else preprocessing
    else:
        plain = of_one_type(preprocessing, source)
        made_by = None if plain is None else {NODE: plain}
    graph = _graph(attributes, config, source, labelled=labelled, preprocessing=made_by)
    if isinstance(graph, GraphData):
        if graph.features is None:
            raise _no_features(source)
        if isinstance(given, Mapping):
            _refuse_two_meanings(graph, source)
    return graph


def _graph(
    attributes: Mapping[Any, Any],
    config: FilesConfig,
    source: str,
    *,
    labelled: bool = True,
    preprocessing: Mapping[NodeType, Preprocessing] | None = None,
    is_own: bool = True,
) -> HeteroGraphData:
    """A graph from its attributes.

    Args:
        attributes: Arrays by PyG's names, or what `HeteroData.to_dict()` gives.
        config: See `graph_of_object`.
        source: See `graph_of_object`.
        labelled: See `graph_of_object`.
        preprocessing: By node type.
        is_own: Whether it is a user's own: what may be wrong is asked about, and a split is drawn
            as the keys for own data say. False: of a data set that is known to be right.

    Raises:
        UserError: An array is missing, or is of a type or a shape that it cannot have.
    """
    is_typed, made_by = _is_typed(attributes), preprocessing or {}
    target = NODE
    if is_typed:
        nodes, edges = _by_type(attributes, source)
        target = _target(nodes, config, source, labelled=labelled)
    else:
        given = _arrays(attributes, source)
        nodes, edges = {NODE: given}, {EDGE: given}
    spec = spec_of_files(config, NODE, EDGE).nodes[NODE]
    spec = replace(spec, label=replace(spec.label, keys={"column": "y"}))
    bad = BadRows("error", source)
    made: dict[NodeType, NodeData] = {}
    for name in sorted(nodes, key=lambda name: name != target):
        given, of_target = nodes[name], name == target
        x = _features(given)
        _, counted = given.take("num_nodes")
        label_name, y = given.take(*_LABELS) if of_target else ("", None)
        num_nodes = _num_nodes(given, x, y, counted)
        if not is_typed:
            ends, phrase = _ends(given, num_nodes, num_nodes)
            weight, weighted = _weight(given, len(ends[0]), config.weight_column, is_own=is_own)
        ids = _ids(given, num_nodes)
        train: AnyArray = np.arange(num_nodes)
        if of_target:
            index = NodeIndex(None, num_nodes, home=given.source)
            targets, splits, split = _targets_and_splits(
                given, label_name, y, index, spec, config, bad, labelled=labelled, is_own=is_own
            )
            train = splits["train"]
        made[name] = NodeData(num_nodes, ids=ids)
        if x is not None:
            columns = _columns(given, x)
            choice = choose_features(
                columns, spec, {}, made_by.get(name), strict=False, required=False
            )
            rows = choice.columns.read()
            features: AnyArray | FeatureRows
            features, fitted = make_features(rows, choice, train, spec, made_by.get(name))
            has_names = fitted is not None and fitted.has_names
            made[name].features = features
            if fitted is not None and (has_names or not fitted.is_identity):
                made[name].preprocessing = fitted
                made[name].feature_names = fitted.feature_names if has_names else None
    common: dict[str, Any] = {
        "dataset": config.name,
        "labels": targets.labels,
        "num_classes": targets.num_classes,
        "task": targets.task,
        "splits": splits,
        "class_names": targets.class_names,
        "labelled": labelled,
        "metric": DEFAULT_METRICS[targets.task] if config.metric == "auto" else config.metric,
    }
    if not is_typed:
        of_type = made[NODE]
        left_out = {n: _EDGE_ATTR if n == "edge_attr" else _NO_USE for n in given.left}
        where = "row numbers" if of_type.ids is None else "the graph's own"
        return GraphData(
            num_nodes=of_type.num_nodes,
            src=ends[0],
            dst=ends[1],
            features=of_type.features,
            edge_weight=weight,
            node_ids=of_type.ids,
            feature_names=of_type.feature_names,
            preprocessing=of_type.preprocessing,
            summary=DataSummary(ids=where, edges=phrase + weighted, split=split, left_out=left_out),
            **common,
        )
    lists = {}
    left_out = {
        f"{name}.{key}": _EDGE_ATTR if key == "edge_attr" else _NO_USE
        for name in made
        for key in nodes[name].left
    }
    for edge_type, given in edges.items():
        sizes = made[edge_type[0]].num_nodes, made[edge_type[2]].num_nodes
        lists[edge_type], _ = _ends(given, *sizes)
        left_out |= {f"{'/'.join(edge_type)}.{key}": EDGES_ALONE for key in given.left}
    own = [name for name in made if made[name].ids is not None]
    where = f"the graph's own of {', '.join(own)}, else row numbers" if own else "row numbers"
    return HeteroGraphData(
        nodes={name: made[name] for name in nodes},
        edges={name: EdgeData(*ends) for name, ends in lists.items()},
        target=target,
        summary=DataSummary(ids=where, split=split, left_out=left_out),
        **common,
    )


def _by_type(
    attributes: Mapping[Any, Any], source: str
) -> tuple[dict[NodeType, _Arrays], dict[EdgeType, _Arrays]]:
    """The arrays of each type; node types are also those that only edges name.

    Raises:
        UserError: A name is no type; there are no edges; or one names a type that is like another,
            and perhaps misspelt.
    """
    nodes: dict[NodeType, _Arrays] = {}
    edges: dict[EdgeType, _Arrays] = {}
    for name, given in attributes.items():
        if not isinstance(given, Mapping) or name == _GLOBAL:
            continue
        if isinstance(name, str):
            nodes[name] = _arrays(given, f"{source}[{name!r}]")
        elif isinstance(name, tuple) and len(name) == 3 and all(isinstance(n, str) for n in name):
            edges[name] = _arrays(given, f"{source}[{name}]", square=False)
        else:
            raise UserError(
                f"{source}: {name!r} is no node type and no edge type.",
                "A node type is a text, an edge type three: ('author', 'writes', 'paper').",
            )
    if not edges:
        raise UserError(
            f"{source} has no edge types.",
            "Give it edges: data['author', 'writes', 'paper'].edge_index = edge_index.",
        )
    known = dict(nodes)
    for edge_type in edges:
        for name in edge_type[::2]:
            if name not in known and did_you_mean(name, known) is not None:
                raise UserError(
                    f"{source}[{edge_type}]: {name!r} is no node type.",
                    f"{_known(name, known)} If it is another one: data[{name!r}].num_nodes = ….",
                )
            nodes.setdefault(name, _Arrays(f"{source}[{name!r}]", {}))
    for name, of_type in nodes.items():
        if "x" in of_type.left or "num_nodes" in of_type.left:
            continue
        # As many as the edges count.
        lengths = [len(of_type.left[key]) for key in _LABELS if key in of_type.left]
        for edge_type, of_edges in edges.items():
            ends = next((of_edges.left[key] for key in PAIR_ARRAYS if key in of_edges.left), None)
            if ends is None or ends.ndim != 2 or len(ends) != 2 or ends.dtype.kind not in "iu":
                continue
            for end, row in zip(edge_type[::2], ends, strict=True):
                if end == name and len(row):
                    lengths.append(int(row.max()) + 1)
        of_type.left["num_nodes"] = np.array(max(lengths, default=0))
    return nodes, edges


def _target(
    nodes: Mapping[NodeType, _Arrays], config: FilesConfig, source: str, *, labelled: bool
) -> NodeType:
    """The node type to learn."""
    labels = [name for name, of_type in nodes.items() if {*_LABELS} & of_type.left.keys()]
    if config.target is not None:
        if config.target not in nodes:
            raise UserError(
                f"task.target={config.target}: {source} has no such node type.",
                _known(config.target, nodes),
            )
        return config.target
    if len(labels) == 1 or len(nodes) == 1:
        return (labels or list(nodes))[0]
    if not labels:
        raise UserError(
            f"{source}: no node type has labels.",
            f"Give y a label a node: data[{next(iter(nodes))!r}].y = y."
            if labelled
            else f"Set task.target to one of {', '.join(nodes)}.",
        )
    raise UserError(
        f"{source}: {', '.join(labels)} have labels.", f"Choose one: task.target={labels[0]}."
    )


def _known(name: str, nodes: Mapping[NodeType, object]) -> str:
    guess = did_you_mean(name, nodes)
    told = f"The node types are {', '.join(nodes)}."
    return told if guess is None else f"{guess[0].upper()}{guess[1:]} {told}"


def _features(given: _Arrays) -> AnyArray | None:
    name, x = given.take(*_FEATURES)
    if x is None:
        return None
    if x.ndim != 2 or x.dtype.kind not in "biuf":
        hint = f"Give {name} a row of numbers a node; one number a node is {name}.reshape(-1, 1)."
        raise given.wrong(name, f"is {_shown(x)} instead of [num_nodes, num_features]", hint)
    return x


def _columns(given: _Arrays, x: AnyArray) -> Columns:
    """The features as the numbers of a table in memory, whose columns may have names."""
    names = next((given.columns[name] for name in _FEATURES if name in given.columns), ())
    path = Path(given.source)
    table = NamedMatrix(path, x, names) if names else ArrayTable(path, {}, x)
    return Columns(table, {}, table.main)


def _num_nodes(
    given: _Arrays, x: AnyArray | None, y: AnyArray | None, counted: AnyArray | None
) -> int:
    lengths = [len(array) for array in (x, y) if array is not None and array.ndim]
    if counted is not None:
        if x is not None and len(x) != counted:
            hint = "Leave num_nodes out, or give x a row for each node."
            raise given.wrong("num_nodes", f"is {int(counted):,}, but x has {len(x):,} rows", hint)
        lengths.insert(0, int(counted))
    if not lengths:
        raise _no_features(given.source)
    return lengths[0]


def _no_features(source: str) -> UserError:
    """The error for a graph without features."""
    return UserError(
        f"{source} has no x.",
        "Give x a row of numbers a node; a column of ones will do: torch.ones(num_nodes, 1).",
    )


def _ends(given: _Arrays, num_src: int, num_dst: int) -> tuple[tuple[IntArray, IntArray], str]:
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
    return (src, dst), f"{len(src):,} in {name}"


def _weight(
    given: _Arrays, num_edges: int, weight_column: str | None, *, is_own: bool
) -> tuple[AnyArray | None, str]:
    """Weights of the edges, and what they were read from."""
    name, weight = given.take(*(WEIGHT_ARRAYS if weight_column is None else (weight_column,)))
    if weight is None:
        if weight_column is not None:
            hint = "Give the name of an array with a number an edge, or leave the key out."
            raise given.wrong(name, "is asked for as dataset.weight_column", hint)
        return None, ""
    if weight.size != num_edges or weight.dtype.kind not in "biuf":
        hint = f"Give a number an edge: there are {num_edges:,}."
        raise given.wrong(name, f"is {_shown(weight)} instead of [num_edges]", hint)
    weight = weight.reshape(-1).astype(np.float32)
    if is_own and (weight < 0).any():
        shown = f"has {(weight < 0).sum():,} weights below 0 (first: {weight[weight < 0][0]:g})"
        raise given.wrong(name, shown, "A weight is a number from 0 on.")
    return weight, f", weighted by {name}"


def _ids(given: _Arrays, num_nodes: int) -> AnyArray | None:
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


def _targets_and_splits(
    given: _Arrays,
    name: str,
    y: AnyArray | None,
    index: NodeIndex,
    spec: NodeSpec,
    config: FilesConfig,
    bad: BadRows,
    *,
    labelled: bool,
    is_own: bool,
) -> tuple[Targets, Mapping[str, AnyArray], str]:
    """Labels, node ids by split, and where these are from.

    Raises:
        UserError: There are none, or they are of a type or a shape that they cannot have.
    """
    masks = {}
    for names in SPLIT_ARRAYS.values():
        mask_name, mask = given.take(*names)
        if mask is not None:
            masks[mask_name] = mask
    if not labelled:
        rows = Columns(ArrayTable(Path(given.source), {"y": np.empty(0)}), {}, ()).read()
        return no_targets(rows, index), {split: np.empty(0, np.int64) for split in SPLITS}, ""
    if y is None:
        hint = "Give y a label a node: integers for classes, -1 where a node has none."
        raise UserError(f"{given.source} has no y.", hint)
    if y.ndim not in (1, 2) or len(y) != index.num_nodes:
        hint = f"Give it a row a node: there are {index.num_nodes:,}."
        raise given.wrong(name, f"is {_shown(y)} instead of [num_nodes]", hint)
    if y.dtype.kind not in "biufUS":
        raise given.wrong(name, f"is {y.dtype}", "Labels are integers, 0 and 1, or quantities.")
    y = y[:, 0] if y.shape[1:] == (1,) else y
    path = Path(given.source)
    if config.task == "regression" or y.ndim == 2:
        matrix = y.reshape(len(y), -1)
        if matrix.dtype.kind in "US":
            hint = "Leave task.type out for classes."
            raise given.wrong(name, "is text, which is no quantity", hint)
        called = [f"{name}_{at}" for at in range(matrix.shape[1])] if y.ndim == 2 else [name]
        is_named = config.task == "regression"
        table = NamedMatrix(path, matrix, called) if is_named else ArrayTable(path, {}, matrix)
        columns = Columns(table, {}, table.main)
    else:
        if y.dtype.kind == "f" and config.task == "auto":
            raise given.wrong(
                name,
                f"is {y.dtype}, which may be quantities or classes",
                "Set task.type=node_regression for quantities; for classes give integers: "
                "y.long().",
            )
        y = y.astype(np.int8) if y.dtype.kind == "b" else y
        columns = Columns(ArrayTable(path, {name: y}), {"label": 0}, ())
    rows = index.locate(columns.read(), bad)
    targets = targets_of_rows(rows, index, spec, config, bad, ask=is_own)
    bad.report()

    number = config.split if isinstance(config.split, int) else 0
    if not masks:
        nodes = np.flatnonzero(targets.labelled)
        if is_own:
            drawn = drawn_splits(targets.labels, targets.task, nodes, config)
            return targets, drawn.nodes, drawn.phrase
        splits = random_split(nodes, number)
        return targets, splits, f"{split_sizes(splits)}, drawn at random (dataset.split={number})"
    widths = {mask.shape[1] for mask in masks.values() if mask.ndim == 2} - {1}
    num_splits = min(widths, default=1)
    check_split_number(given.source, number, range(num_splits))
    split_of = np.full(index.num_nodes, -1, np.int8)
    assign_arrays(path, masks, targets, index, split_of, bad, number)
    bad.report()
    splits = {split: np.flatnonzero(split_of == code) for code, split in enumerate(SPLITS)}
    which = f", column {number} of {num_splits} (dataset.split)" if num_splits > 1 else ""
    return targets, splits, f"{split_sizes(splits)} by {', '.join(masks)}{which}"


def _shown(array: AnyArray) -> str:
    return f"{array.dtype} {list(array.shape)}"


def _refuse_other_columns(
    given: HeteroGraphData,
    preprocessing: AnyPreprocessing | None,
    source: str,
) -> None:
    """Refuse finished features for a model whose features were made of columns."""
    finished = {name: nodes.preprocessing for name, nodes in given.nodes.items()}
    asked = {NODE: preprocessing} if isinstance(preprocessing, Preprocessing) else preprocessing
    for name, made_by in (asked or {}).items():
        if made_by != finished.get(name) and not made_by.is_identity:
            raise UserError(
                f"{source} is a {type(given).__name__}, and the model's features were made of "
                "columns.",
                "Give tables, or a PyG Data, with the columns it was trained on.",
            )


def _is_typed(attributes: Mapping[Any, Any]) -> bool:
    """Whether attributes are those of a `HeteroData`: mappings by node type and edge type."""
    return any(isinstance(value, Mapping) for value in attributes.values())


def _refuse_two_meanings(graph: GraphData, source: str) -> None:
    """Raise a UserError where an edge's ends may be rows of `x` or the user's own ids.

    In a file of features and one of edges they are ids; in a PyG `Data` they are rows.
    """
    ids = graph.node_ids
    if ids is None or ids.dtype.kind != "i" or not len(graph.src):
        return
    if np.isin(graph.src, ids).all() and np.isin(graph.dst, ids).all():
        raise UserError(
            f"{source} has ids, and edge_index may hold them or count the rows of x.",
            "Leave the ids out if it counts rows. If it holds ids, give the file as "
            "dataset.features and as dataset.edges.",
        )


def from_pyg(data: Data, dataset: str, *, split: int = 0, quantities: bool = False) -> GraphData:
    """A PyG `Data` of a data set as `GraphData`; see `graph_of_object` for what is read.

    Args:
        data: A graph of one type; it may be without features.
        dataset: Name of the data set.
        split: Which of its splits; of a graph without masks, which of the random ones.
        quantities: Whether its labels are quantities.

    Raises:
        UserError: There is no split of this number, or the graph has a mistake.
    """
    config = FilesConfig(split=split, task="regression" if quantities else "auto")
    graph = _graph(data.to_dict(), config, dataset, is_own=False)
    assert isinstance(graph, GraphData)
    graph.dataset = dataset
    return graph


def from_pyg_hetero(
    data: HeteroData,
    dataset: str,
    *,
    split: int = 0,
    target: NodeType | None = None,
    quantities: bool = False,
) -> HeteroGraphData:
    """A PyG `HeteroData` of a data set as `HeteroGraphData`, see `from_pyg`.

    Args:
        data: A typed graph; types may be without features.
        dataset: Name of the data set.
        split: See `from_pyg`.
        target: The node type to learn; None: the only one that has labels.
        quantities: See `from_pyg`.

    Raises:
        UserError: See `from_pyg`; or there is no such node type.
    """
    config = FilesConfig(split=split, task="regression" if quantities else "auto")
    graph = _graph(data.to_dict(), config.for_target(target), dataset, is_own=False)
    assert isinstance(graph, HeteroGraphData)
    graph.dataset = dataset
    return graph


def _refuse_keys_without_use(
    given: object, config: FilesConfig, source: str, *, is_typed: bool = False
) -> None:
    """Refuse keys that are about other graphs: nothing that was asked for is left undone."""
    is_done = isinstance(given, HeteroGraphData)
    known = {"task"} if is_done else _WHOLE_GRAPH_KEYS - ({"weight_column"} if is_typed else set())
    for key, field_of_key in FilesConfig.model_fields.items():
        if key in known or key in DatasetConfig.model_fields:
            continue
        if getattr(config, key) != field_of_key.default:
            raise UserError(
                f"dataset.{key}: {source} is a {type(given).__name__}, which is taken as it is."
                if is_done
                else f"dataset.{key}: {source} is a graph of arrays; the key is about tables.",
                "Leave it out, or give tables as dataset.features and dataset.edges.",
            )


def _attributes(given: object, source: str) -> Mapping[Any, Any]:
    """The attributes of the one graph that an object is or holds; of a typed one by type."""
    attributes = _as_given(given, source)
    if not any(str(name).endswith("_dict") for name in attributes):
        return attributes
    by_type: dict[Any, dict[str, Any]] = {}  # OGB has each attribute by type
    for name, values in attributes.items():
        for type_name, value in values.items() if isinstance(values, Mapping) else ():
            by_type.setdefault(type_name, {})[name.removesuffix("_dict")] = value
    return by_type


def _as_given(given: Any, source: str) -> Mapping[Any, Any]:
    if hasattr(given, "get_idx_split"):  # a data set of OGB
        return {**_as_given(given[0], source), **given.get_idx_split()}
    if isinstance(given, Batch) and given.num_graphs > 1:
        raise _several(source, given.num_graphs)
    if isinstance(given, Data | HeteroData):
        return dict(given.to_dict())
    if isinstance(given, Mapping):
        return given if _is_typed(given) else {str(name): v for name, v in given.items()}
    if _is_ogbs(given):
        return {**given[0], "y": given[1]}
    if isinstance(given, tuple) and len(given) in (2, 3) and isinstance(given[1], dict | None):
        return _of_processed(given[0], given[1], source)
    if isinstance(given, list | tuple | Dataset):
        if len(given) != 1:
            raise _several(source, len(given))
        return _as_given(given[0], source)
    raise _unknown(given, source)


def _of_processed(data: Any, slices: Mapping[Any, Any] | None, source: str) -> Mapping[Any, Any]:
    """The graph in what PyG's `InMemoryDataset` saves: all graphs end to end, and their ends."""
    num_graphs = max((len(ends) - 1 for ends in _all_ends(slices or {})), default=1)
    if num_graphs != 1:
        raise _several(source, num_graphs)
    return _as_given(data, source)


def _is_ogbs(given: object) -> bool:
    """Whether it is OGB's pair of a graph and labels; PyG's `InMemoryDataset` saves another."""
    match given:
        case ({"edge_index_dict": _}, _):
            return True
        case ({"edge_index": _}, labels):
            return not isinstance(labels, dict | None)
    return False


def _all_ends(slices: Mapping[Any, Any]) -> Iterator[Any]:
    """The ends of each attribute, of a typed graph in mappings by type."""
    for ends in slices.values():
        if isinstance(ends, Mapping):
            yield from _all_ends(ends)
        else:
            yield ends


def _several(source: str, number: int) -> UserError:
    return UserError(
        f"{source} holds {number:,} graphs.",
        "One graph is learnt from, node by node: give one of them.",
    )


def _unknown(given: object, source: str) -> UserError:
    kind = f"{type(given).__module__}.{type(given).__qualname__}"
    library = kind.partition(".")[0]
    known = {"networkx": networkx_hint, "dgl": dgl_hint}
    hint = "Give a PyG Data: Data(x=x, y=y, edge_index=edge_index)."
    kind = kind.removeprefix("builtins.")
    return UserError(f"{source} is a {kind}.", known[library]() if library in known else hint)


def _arrays(attributes: Mapping[str, Any], source: str, *, square: bool = True) -> _Arrays:
    """The attributes that are arrays; sparse ones become an edge index, or dense."""
    _refuse_other_orders(attributes, source)
    arrays: dict[str, AnyArray] = {}
    columns = {}
    for name, value in attributes.items():
        if value is None:
            continue
        if name in (*ADJACENCIES, "adj_t") and "edge_index" not in attributes:
            arrays |= _of_adjacency(value, source, transposed=name == "adj_t", square=square)
            continue
        arrays[name] = _array(value, f"{source}: {name}")
        names = [str(column) for column in getattr(value, "columns", ())]  # of a data frame
        if len(set(names)) == len(names) and not all(map(str.isdecimal, names)):
            columns[name] = names
    return _Arrays(source, arrays, columns)


def _refuse_other_orders(attributes: Mapping[str, Any], source: str) -> None:
    """Refuse columns of pandas whose rows are not in the order of the others'."""
    indices = {
        name: value.index
        for name, value in attributes.items()
        if hasattr(value, "iloc") and not name.startswith("edge") and name not in _NODE_LISTS
    }
    first, rows = next(iter(indices.items()), ("", None))
    for name, index in indices.items():
        if not index.equals(rows):
            raise UserError(
                f"{source}: {name} has another index than {first}.",
                f"Give {name}.loc[{first}.index], or {name}.to_numpy() if its order is the same.",
            )
    if rows is not None and not rows.is_monotonic_increasing and set(rows) == {*range(len(rows))}:
        raise UserError(
            f"{source}: the index of {first} has the row numbers in another order.",
            f"Give {first}.sort_index(), or {first}.to_numpy() if its order is right.",
        )


def _of_adjacency(
    value: Any, source: str, *, transposed: bool, square: bool
) -> dict[str, AnyArray]:
    """`edge_index` and `edge_weight` of a sparse matrix: of `adj_t`, rows are targets."""
    import scipy.sparse

    if isinstance(value, Tensor) and value.layout != torch.strided:
        entries = torch.Tensor.to_sparse(value.detach().cpu()).coalesce()
        places, size = tuple(entries.indices().numpy()), tuple(value.shape)
        value = scipy.sparse.coo_array((entries.values().numpy(), places), shape=size)
    elif hasattr(value, "to_scipy"):  # torch_sparse's SparseTensor
        value = value.to_scipy(layout="coo")
    if not scipy.sparse.issparse(value):
        hint = "Give edge_index instead: torch_geometric.utils.dense_to_sparse(adj)[0]."
        raise UserError(f"{source}: the adjacency matrix is a {type(value).__name__}.", hint)
    return edges_of(value.T if transposed else value, source, square=square)


def _array(value: Any, what: str) -> AnyArray:
    import scipy.sparse

    if isinstance(value, Tensor):
        return _of_tensor(value, what)
    if scipy.sparse.issparse(value):
        return densified(value, what)
    array: AnyArray = np.asarray(value)
    if array.dtype != object:
        return array
    if hasattr(value, "columns") and all(kind.kind in "biuf" for kind in value.dtypes):
        # Numbers of several types.
        return np.asarray(value.to_numpy(np.float64, na_value=np.nan))
    return array.astype(str) if all(isinstance(each, str) for each in array.flat) else array


def _of_tensor(tensor: Tensor, what: str) -> AnyArray:
    tensor = tensor.detach()
    num_bytes = tensor.numel() * tensor.element_size()
    is_sparse = tensor.layout != torch.strided
    # A dense one, too, may repeat one number as often as it likes.
    if is_sparse or num_bytes > tensor.untyped_storage().nbytes():
        refuse_beyond_memory(what, num_bytes)
    tensor = (tensor.to_dense() if is_sparse else tensor).cpu()
    array: AnyArray = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def content_digest(graph: HeteroGraphData) -> str:
    """Hexadecimal digest of all that a graph holds: equal graphs share a store."""
    fields = {
        name: getattr(graph, name)
        for name in ("target", "num_classes", "task", "metric", "reverse", "labelled", "ogb_name")
    }
    fields["summary"] = None if graph.summary is None else graph.summary.model_dump(mode="json")
    fields["edges"] = [["/".join(name), edges.symmetric] for name, edges in graph.edges.items()]
    arrays: dict[str, AnyArray | None] = {
        **{"labels": graph.labels, "class_names": graph.class_names},
        **{split: np.asarray(graph.splits[split]) for split in SPLITS if split in graph.splits},
    }
    for edge_type, edges in graph.edges.items():
        for key in ("src", "dst", "weight"):
            arrays[f"{edge_type} {key}"] = getattr(edges, key)
    nodes_fields = {}
    for name, nodes in graph.nodes.items():
        made_by, names = nodes.preprocessing, nodes.feature_names
        nodes_fields[name] = {
            "num_nodes": nodes.num_nodes,
            "preprocessing": None if made_by is None else made_by.model_dump(mode="json"),
            "feature_names": None if names is None else list(names),
        }
        arrays[f"{name} ids"] = nodes.ids
    fields["nodes"] = nodes_fields
    digest = blake2b(canonical_json(fields).encode(), digest_size=20)
    for name, array in arrays.items():
        digest.update(_head(name, array))
        if array is not None:
            digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    for nodes in graph.nodes.values():
        for rows in _feature_rows(nodes.features, nodes.num_nodes):
            digest.update(_head("features", rows))
            digest.update(np.ascontiguousarray(rows).data.cast("B") if rows.size else b"")
    return digest.hexdigest()


def _head(name: str, array: AnyArray | None) -> bytes:
    told = "none" if array is None else f"{array.dtype.str}{list(array.shape)}"
    return f"{name}:{told};".encode()


def _feature_rows(features: AnyArray | FeatureRows | None, num_nodes: int) -> Iterator[AnyArray]:
    if features is None:
        return
    for start in range(0, num_nodes, _DIGEST_ROWS):
        stop = min(start + _DIGEST_ROWS, num_nodes)
        if isinstance(features, np.ndarray):
            yield features[start:stop]
        else:
            yield features.rows(start, stop)
