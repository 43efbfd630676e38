"""Checks of a graph before it is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations

import numpy as np

from gnntrain.config.problems import did_you_mean
from gnntrain.data.graph import (
    SPLITS,
    AnyArray,
    EdgeData,
    GraphData,
    IntArray,
    NodeData,
    NodeType,
)
from gnntrain.errors import UserError
from gnntrain.metrics import LABEL_KINDS, metrics_for

_NUM_SHOWN = 5
_CHUNK_VALUES = 1 << 20


def check_graph(data: GraphData) -> None:
    """Raise one `UserError` that names everything wrong with `data`.

    Features that are streamed are checked as they are written, by `feature_problems`.
    """
    if problems := list(_find_problems(data)):
        raise bad_graph(data.dataset, problems)


def bad_graph(dataset: str, problems: list[str]) -> UserError:
    listed = "".join(f"\n  - {problem}" for problem in problems)
    return UserError(
        f"the graph of data set {dataset!r} cannot be stored:{listed}",
        "Correct the data; nothing was written.",
    )


def feature_problems(rows: AnyArray, first_node: int = 0) -> Iterator[str]:
    """The problems of the features of the nodes from `first_node` on."""
    yield from wrong_values(rows, _is_not_finite, "features are not finite", "node", first_node)


def wrong_values(
    values: AnyArray,
    is_wrong: Callable[[AnyArray], AnyArray],
    problem: str,
    row_name: str,
    first_row: int = 0,
) -> Iterator[str]:
    """A sentence with the number of wrong values and the first of them, if there are any.

    Args:
        values: `[num_rows]` or `[num_rows, num_columns]`.
        is_wrong: Bool of the same shape, from some MiB of `values` at a time.
        problem: The problem, for the message.
        row_name: The name of a row, for the message.
        first_row: Number of the first row.
    """
    num_wrong, shown = 0, list[str]()
    step = max(1, _CHUNK_VALUES // max(1, math.prod(values.shape[1:])))
    for start in range(0, len(values), step):
        chunk = values[start : start + step]
        wrong = np.argwhere(is_wrong(chunk))
        num_wrong += len(wrong)
        for row, *column in wrong[: _NUM_SHOWN - len(shown)].tolist():
            where = f"{row_name} {first_row + start + row}"
            where += f", column {column[0]}" if column else ""
            shown.append(f"{chunk[row, *column]} at {where}")
    if num_wrong:
        yield f"{num_wrong} {problem} (first: {_listed(shown, num_wrong)})"


def _is_not_finite(values: AnyArray) -> AnyArray:
    return ~np.isfinite(values)


def _find_problems(data: GraphData) -> Iterator[str]:
    if data.target not in data.nodes:
        yield f"the target type {_no_type(data.target, data)}"
        return
    if data.target_nodes.num_nodes < 1:
        yield f"num_nodes is {data.target_nodes.num_nodes}"
        return
    if data.task not in LABEL_KINDS:
        yield f"task is {data.task!r}, expected one of {', '.join(LABEL_KINDS)}"
        return
    if data.task == "binary" and data.num_classes != 2:
        yield f"num_classes is {data.num_classes}, a binary task has 2"
    if data.num_classes < 1:
        yield f"num_classes is {data.num_classes}"
        return
    possible = metrics_for(data.task)
    if data.metric not in possible:
        listed = ", ".join(possible)
        yield f"metric is {data.metric}, but a {data.task} task is judged by {listed}"
    if not data.edges:
        yield "it has no edge types"
    for edge_type, edges in data.edges.items():
        ends = (edge_type[0], edge_type[2])
        found = [_no_type(name, data) for name in ends if name not in data.nodes]
        found = found or [*_edge_problems(edges, *(data.nodes[name].num_nodes for name in ends))]
        if edges.weight is not None and (len(data.edges) > 1 or len(data.nodes) > 1):
            found.append("it has weights, which only a graph of one node and edge type may have")
        if edges.symmetric and ends[0] != ends[1]:
            found.append("it is symmetric, but joins two node types")
        where = "" if data.is_homogeneous else f"edge type {'/'.join(edge_type)}: "
        yield from (where + problem for problem in found)
    yield from _label_problems(data)
    yield from _split_problems(data)
    for name, nodes in data.nodes.items():
        where = "" if name == data.target else f"node type {name}: "
        found = [*_node_problems(nodes)] if nodes.num_nodes > 0 else ["it has no nodes"]
        yield from (where + problem for problem in found)
    yield from _name_problems("class_names", data.class_names, data.num_classes)


def _no_type(name: NodeType, data: GraphData) -> str:
    hint = did_you_mean(name, data.nodes)
    return f"{name!r} is no node type" + (f" ({hint})" if hint else "")


def _node_problems(nodes: NodeData) -> Iterator[str]:
    features = nodes.features
    if isinstance(features, np.ndarray):
        if features.ndim != 2 or len(features) != nodes.num_nodes:
            yield f"features has shape {list(features.shape)}, expected [{nodes.num_nodes}, …]"
        elif features.dtype.kind not in "biuf":
            yield f"features is {features.dtype}, expected numbers"
        else:
            yield from feature_problems(features)
    yield from _name_problems("node_ids", nodes.ids, nodes.num_nodes)


def _name_problems(name: str, array: AnyArray | None, length: int) -> Iterator[str]:
    if array is not None and array.shape != (length,):
        yield f"{name} has shape {list(array.shape)}, expected [{length}]"
    if array is not None and array.dtype.kind not in "iS":
        yield f"{name} is {array.dtype}, expected int64 or bytes"


def _edge_problems(edges: EdgeData, num_src: int, num_dst: int) -> Iterator[str]:
    (src, dst), weight = edges, edges.weight
    if src.ndim != 1 or src.shape != dst.shape:
        yield f"src has shape {list(src.shape)} and dst {list(dst.shape)}, expected one length"
    else:
        for name, ids, num_nodes in (("src", src, num_src), ("dst", dst, num_dst)):
            if ids.dtype.kind not in "iu":
                yield f"{name} is {ids.dtype}, expected integers"
            else:
                yield from _range_problems(f"edge ends in {name}", "edge", ids, num_nodes)
    if weight is not None and weight.shape != src.shape:
        yield f"edge_weight has shape {list(weight.shape)}, expected {list(src.shape)}"
    elif weight is not None:
        yield from wrong_values(weight, _is_not_finite, "edge weights are not finite", "edge")


def _label_problems(data: GraphData) -> Iterator[str]:
    labels, num_classes = data.labels, data.num_classes
    multilabel = data.task == "multilabel"
    is_class = data.task in ("multiclass", "binary")
    shape = (
        (data.target_nodes.num_nodes,) if is_class else (data.target_nodes.num_nodes, num_classes)
    )
    if labels.shape != shape:
        yield f"labels has shape {list(labels.shape)}, expected {list(shape)}"
    elif labels.dtype.kind not in "biuf":
        yield f"labels is {labels.dtype}, expected integers"
    elif multilabel:
        yield from wrong_values(
            labels, lambda rows: (rows != 0) & (rows != 1), "labels are not 0 or 1", "node"
        )
    elif data.task == "continuous":
        yield from wrong_values(labels, np.isinf, "targets are not finite", "node")
    else:
        problem = f"labels are not 0 … {num_classes - 1}, or −1 for none"
        yield from wrong_values(labels, partial(_is_no_class, num_classes), problem, "node")


def _is_no_class(num_classes: int, labels: AnyArray) -> AnyArray:
    is_class = (labels >= 0) & (labels < num_classes) & (labels == np.floor(labels))
    return np.asarray(~(is_class | _is_unlabelled(labels)))


def _is_unlabelled(labels: AnyArray) -> AnyArray:
    return np.asarray((labels == -1) | (labels != labels))


def _split_problems(data: GraphData) -> Iterator[str]:
    if sorted(data.splits) != sorted(SPLITS):
        yield f"splits are {', '.join(map(repr, data.splits))}, expected {', '.join(SPLITS)}"
        return
    usable: dict[str, IntArray] = {}
    for name in SPLITS:
        ids = np.asarray(data.splits[name])
        if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
            yield f"split {name} is {ids.dtype} {list(ids.shape)}, expected a list of node ids"
            continue
        problems = [
            *_range_problems(f"ids in split {name}", "position", ids, data.target_nodes.num_nodes),
            *_duplicate_problems(name, ids),
        ]
        yield from problems
        if not problems:
            usable[name] = ids
            yield from _unlabelled_problems(data, name, ids)
    if data.labelled and len(data.splits["train"]) == 0:
        yield "split train is empty"
    for one, other in combinations(usable, 2):
        common = np.intersect1d(usable[one], usable[other])
        if len(common):
            first = _listed(common, len(common))
            yield f"splits {one} and {other} share {len(common)} nodes (first: {first})"


def _duplicate_problems(name: str, ids: IntArray) -> Iterator[str]:
    unique, counts = np.unique(ids, return_counts=True)
    repeated = unique[counts > 1]
    if len(repeated):
        first = _listed(repeated, len(repeated))
        yield f"split {name} repeats {len(repeated)} nodes (first: {first})"


def _unlabelled_problems(data: GraphData, name: str, ids: IntArray) -> Iterator[str]:
    if (
        data.task == "multilabel"
        or len(data.labels) != data.target_nodes.num_nodes
        or len(ids) == 0
    ):
        return
    labels = data.labels[ids]
    # A target of −1 is a number like any other.
    lacks = labels != labels if data.task == "continuous" else _is_unlabelled(labels)
    bare = ids[np.asarray(lacks).reshape(len(ids), -1).all(axis=1)]
    if len(bare):
        first = _listed(bare, len(bare))
        yield f"{len(bare)} nodes of split {name} have no label (first: {first})"


def _range_problems(what: str, place: str, ids: IntArray, num_nodes: int) -> Iterator[str]:
    problem = f"{what} are not node ids 0 … {num_nodes - 1}"
    yield from wrong_values(ids, lambda ids: (ids < 0) | (ids >= num_nodes), problem, place)


def _listed(values: AnyArray | list[str], num_values: int) -> str:
    first = ", ".join(map(str, values[:_NUM_SHOWN]))
    return first + (", …" if num_values > _NUM_SHOWN else "")
