"""Checks of a graph before it is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations

import numpy as np

from gnntrain.config.problems import did_you_mean
from gnntrain.data.graph import SPLITS, AnyArray, EdgeData, GraphData, IntArray, NodeType
from gnntrain.errors import UserError
from gnntrain.metrics import LABEL_KINDS, metrics_for

_NUM_SHOWN = 5
_CHUNK_VALUES = 1 << 20


def check_graph(data: GraphData) -> None:
    """Raise one `UserError` that names everything wrong with `data`.

    Features that are streamed are checked as they are written, by `prepared_features`.
    """
    if problems := list(_find_problems(data)):
        raise bad_graph(data.dataset, problems)


def bad_graph(dataset: str, problems: Iterable[str]) -> UserError:
    listed = "".join(f"\n  - {problem}" for problem in problems)
    return UserError(
        f"the graph of data set {dataset!r} cannot be stored:{listed}",
        "Correct the data; nothing was written.",
    )


def feature_problems(rows: AnyArray, first_node: int = 0) -> Iterator[str]:
    """The problems of the features of the nodes from `first_node` on."""
    return wrong_values(rows, _is_not_finite, "features are not finite", "node", first_node)


def wrong_values(
    values: AnyArray,
    is_wrong: Callable[[AnyArray], AnyArray],
    problem: str,
    row_name: str,
    first_row: int = 0,
) -> Iterator[str]:
    """A sentence with the number of wrong values and the first of them, if there are any.

    `values` are `[num_rows]` or `[num_rows, num_columns]`, from row `first_row` on; `is_wrong` gets
    some MiB of them at a time, and gives bools of their shape.
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
        yield f"{num_wrong} {problem} {_first(shown, num_wrong)}"


def _first(values: AnyArray | Sequence[str], num_values: int = 0) -> str:
    first = ", ".join(map(str, values[:_NUM_SHOWN]))
    return f"(first: {first}{', …' * (max(num_values, len(values)) > _NUM_SHOWN)})"


def _is_not_finite(values: AnyArray) -> AnyArray:
    return ~np.isfinite(values)


def _find_problems(data: GraphData) -> Iterator[str]:
    if data.target not in data.nodes:
        yield f"the target type {_no_type(data.target, data)}"
        return
    for name, number in (("nodes", data.target_nodes.num_nodes), ("classes", data.num_classes)):
        if number < 1:
            yield f"num_{name} is {number}"
            return
    if data.task not in LABEL_KINDS:
        yield f"task is {data.task!r}, expected one of {', '.join(LABEL_KINDS)}"
        return
    if data.task == "binary" and data.num_classes != 2:
        yield f"num_classes is {data.num_classes}, a binary task has 2"
    if data.metric not in (possible := metrics_for(data.task)):
        yield f"metric is {data.metric}, but a {data.task} task is judged by {', '.join(possible)}"
    if not data.edges:
        yield "it has no edge types"
    for edge_type, edges in data.edges.items():
        ends = (edge_type[0], edge_type[2])
        found = [_no_type(name, data) for name in ends if name not in data.nodes]
        found = found or [*_edge_problems(edges, [data.nodes[name].num_nodes for name in ends])]
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
        found = [*_array_problems("node_ids", nodes.ids, (nodes.num_nodes,), "iS")]
        if nodes.num_nodes < 1:
            found = ["it has no nodes"]
        elif isinstance(nodes.features, np.ndarray):
            shape = (nodes.num_nodes, None)
            wrong = [*_array_problems("features", nodes.features, shape, "biuf")]
            found += wrong or feature_problems(nodes.features)
        yield from (where + problem for problem in found)
    yield from _array_problems("class_names", data.class_names, (data.num_classes,), "iS")


def _no_type(name: NodeType, data: GraphData) -> str:
    hint = did_you_mean(name, data.nodes)
    return f"{name!r} is no node type" + (f" ({hint})" if hint else "")


def _array_problems(
    name: str, array: AnyArray | None, shape: tuple[int | None, ...], kinds: str
) -> Iterator[str]:
    """The problem of an array of another shape (None: any length) or of no such kind of NumPy's."""
    if array is None:
        return
    rank = len(shape)
    if array.ndim != rank or any(shape[i] not in (None, array.shape[i]) for i in range(rank)):
        expected = ", ".join("…" if length is None else str(length) for length in shape)
        yield f"{name} has shape {list(array.shape)}, expected [{expected}]"
    elif array.dtype.kind not in kinds:
        wanted = {"iS": "int64 or bytes", "iu": "integers"}.get(kinds, "numbers")
        yield f"{name} is {array.dtype}, expected {wanted}"


def _edge_problems(edges: EdgeData, num_nodes: Sequence[int]) -> Iterator[str]:
    (src, dst), weight = edges, edges.weight
    if src.ndim != 1 or src.shape != dst.shape:
        yield f"src has shape {list(src.shape)} and dst {list(dst.shape)}, expected one length"
        return
    for name, ids, count in zip(("src", "dst"), edges, num_nodes, strict=True):
        found = [*_array_problems(name, ids, ids.shape, "iu")]
        yield from found or _range_problems(f"edge ends in {name}", "edge", ids, count)
    found = [*_array_problems("edge_weight", weight, src.shape, "biuf")]
    if weight is not None and not found:
        yield from wrong_values(weight, _is_not_finite, "edge weights are not finite", "edge")
    yield from found


def _range_problems(what: str, place: str, ids: IntArray, num_nodes: int) -> Iterator[str]:
    problem = f"{what} are not node ids 0 … {num_nodes - 1}"
    return wrong_values(ids, lambda ids: (ids < 0) | (ids >= num_nodes), problem, place)


def _label_problems(data: GraphData) -> Iterator[str]:
    shape = data.target_nodes.num_nodes, data.num_classes
    highest, is_several = data.num_classes - 1, data.task in ("multilabel", "continuous")
    problem = f"labels are not 0 … {highest}, or −1 for none"
    if data.task == "multilabel":
        highest, problem = 1, "labels are not 0 or 1"
    elif data.task == "continuous":
        problem = "targets are not finite"

    def is_wrong(labels: AnyArray) -> AnyArray:
        if data.task == "continuous":
            return np.asarray(np.isinf(labels))
        right = (labels >= 0) & (labels <= highest) & (labels == np.floor(labels))
        return np.asarray(~(right if is_several else right | _is_unlabelled(data, labels)))

    found = [*_array_problems("labels", data.labels, shape[: 1 + is_several], "biuf")]
    yield from found or wrong_values(data.labels, is_wrong, problem, "node")


def _is_unlabelled(data: GraphData, labels: AnyArray) -> AnyArray:
    is_nan = labels != labels
    return np.asarray(is_nan if data.task == "continuous" else (labels == -1) | is_nan)


def _split_problems(data: GraphData) -> Iterator[str]:
    if sorted(data.splits) != sorted(SPLITS):
        yield f"splits are {', '.join(map(repr, data.splits))}, expected {', '.join(SPLITS)}"
        return
    num_nodes = data.target_nodes.num_nodes
    usable: dict[str, IntArray] = {}
    for name in SPLITS:
        ids = np.asarray(data.splits[name])
        if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
            yield f"split {name} is {ids.dtype} {list(ids.shape)}, expected a list of node ids"
            continue
        problems = [*_range_problems(f"ids in split {name}", "position", ids, num_nodes)]
        unique, counts = np.unique(ids, return_counts=True)
        if len(repeated := unique[counts > 1]):
            problems.append(f"split {name} repeats {len(repeated)} nodes {_first(repeated)}")
        yield from problems
        if problems:
            continue
        usable[name] = ids
        if len(ids) and data.task != "multilabel" and len(data.labels) == num_nodes:
            lacks = _is_unlabelled(data, data.labels[ids]).reshape(len(ids), -1)
            if len(bare := ids[lacks.all(axis=1)]):
                yield f"{len(bare)} nodes of split {name} have no label {_first(bare)}"
    if data.labelled and len(data.splits["train"]) == 0:
        yield "split train is empty"
    for one, other in combinations(usable, 2):
        if len(common := np.intersect1d(usable[one], usable[other])):
            yield f"splits {one} and {other} share {len(common)} nodes {_first(common)}"
