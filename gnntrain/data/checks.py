"""Everything that can be wrong with a graph, found before it is written."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gnntrain.data.csc import CHUNK_EDGES
from gnntrain.data.graph import SPLITS, AnyArray, GraphData, IntArray
from gnntrain.errors import UserError
from gnntrain.metrics import LABEL_KINDS, metrics_for

_NUM_SHOWN = 5
_CHUNK_VALUES = 1 << 20


def check_graph(data: GraphData) -> None:
    """Raise one `UserError` that names everything wrong with `data`.

    Features that are streamed are checked as they are written, by `feature_problem`.
    """
    problems = list(_find_problems(data))
    if problems:
        raise bad_graph(data.dataset, problems)


def bad_graph(dataset: str, problems: list[str]) -> UserError:
    listed = "".join(f"\n  - {problem}" for problem in problems)
    return UserError(
        f"the graph of data set {dataset!r} cannot be stored:{listed}",
        "Correct the data; nothing was written.",
    )


def feature_problem(rows: AnyArray, first_node: int) -> str | None:
    """What is wrong with the features of the nodes from `first_node` on, if anything."""
    if rows.dtype.kind in "biu" or np.isfinite(np.sum(rows, dtype=np.float64)):
        return None
    bad = np.argwhere(~np.isfinite(rows))
    if len(bad) == 0:
        return None
    shown = ", ".join(
        f"{rows[node, column]} at node {first_node + node}, column {column}"
        for node, column in bad[:_NUM_SHOWN].tolist()
    )
    return f"{len(bad)} features are not finite (first: {shown})"


def _find_problems(data: GraphData) -> Iterator[str]:
    if data.num_nodes < 1:
        yield f"num_nodes is {data.num_nodes}"
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
    yield from _edge_problems(data)
    yield from _label_problems(data)
    yield from _split_problems(data)
    yield from _array_feature_problems(data)
    if data.node_ids is not None:
        if data.node_ids.shape != (data.num_nodes,):
            yield f"node_ids has shape {list(data.node_ids.shape)}, expected [{data.num_nodes}]"
        if data.node_ids.dtype.kind not in "iS":
            yield f"node_ids is {data.node_ids.dtype}, expected int64 or bytes"
    names = data.class_names
    if names is not None and (names.shape != (data.num_classes,) or names.dtype.kind not in "iS"):
        yield (
            f"class_names is {names.dtype} {list(names.shape)}, "
            f"expected int64 or bytes [{data.num_classes}]"
        )


def _edge_problems(data: GraphData) -> Iterator[str]:
    src, dst, weight = data.src, data.dst, data.edge_weight
    if src.ndim != 1 or src.shape != dst.shape:
        yield f"src has shape {list(src.shape)} and dst {list(dst.shape)}, expected one length"
        return
    for name, ids in (("src", src), ("dst", dst)):
        if ids.dtype.kind not in "iu":
            yield f"{name} is {ids.dtype}, expected integers"
        else:
            yield from _range_problems(f"edge ends in {name}", "edge", ids, data.num_nodes)
    if weight is None:
        return
    if weight.shape != src.shape:
        yield f"edge_weight has shape {list(weight.shape)}, expected {list(src.shape)}"
        return
    bad = _Offenders()
    for start in range(0, len(weight), CHUNK_EDGES):
        part = weight[start : start + CHUNK_EDGES]
        if not np.isfinite(np.sum(part, dtype=np.float64)):
            bad.add(part, ~np.isfinite(part), start)
    if bad.num:
        yield f"{bad.num} edge weights are not finite (first: {bad.shown('edge')})"


def _label_problems(data: GraphData) -> Iterator[str]:
    labels = data.labels
    multilabel = data.task == "multilabel"
    shape = (data.num_nodes, data.num_classes) if multilabel else (data.num_nodes,)
    if labels.shape != shape:
        yield f"labels has shape {list(labels.shape)}, expected {list(shape)}"
        return
    if labels.dtype.kind not in "biuf":
        yield f"labels is {labels.dtype}, expected integers"
        return
    bad = _Offenders()
    step = max(1, _CHUNK_VALUES // (data.num_classes if multilabel else 1))
    for start in range(0, data.num_nodes, step):
        part = labels[start : start + step]
        if multilabel:
            bad.add(part, (part != 0) & (part != 1), start)
            continue
        unlabelled = (part == -1) | (part != part)
        whole = part == np.floor(part) if part.dtype.kind == "f" else True
        bad.add(part, ~unlabelled & ~(whole & (part >= 0) & (part < data.num_classes)), start)
    if bad.num:
        expected = "0 or 1" if multilabel else f"0 … {data.num_classes - 1}, or −1 for none"
        yield f"{bad.num} labels are not {expected} (first: {bad.shown('node')})"


def _split_problems(data: GraphData) -> Iterator[str]:
    if sorted(data.splits) != sorted(SPLITS):
        yield f"splits are {', '.join(map(repr, data.splits))}, expected {', '.join(SPLITS)}"
        return
    usable: list[tuple[str, IntArray]] = []
    for name in SPLITS:
        ids = np.asarray(data.splits[name])
        if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
            yield f"split {name} is {ids.dtype} {list(ids.shape)}, expected a list of node ids"
            continue
        problems = [
            *_range_problems(f"ids in split {name}", "position", ids, data.num_nodes),
            *_duplicate_problems(name, ids),
        ]
        yield from problems
        if not problems:
            usable.append((name, ids))
            yield from _unlabelled_problems(data, name, ids)
    if data.labelled and len(data.splits["train"]) == 0:
        yield "split train is empty"
    yield from _overlap_problems(usable, data.num_nodes)


def _duplicate_problems(name: str, ids: IntArray) -> Iterator[str]:
    unique, counts = np.unique(ids, return_counts=True)
    repeated = unique[counts > 1]
    if len(repeated):
        yield f"split {name} repeats {len(repeated)} nodes (first: {_listed(repeated)})"


def _unlabelled_problems(data: GraphData, name: str, ids: IntArray) -> Iterator[str]:
    if data.task == "multilabel" or data.labels.shape != (data.num_nodes,) or len(ids) == 0:
        return
    labels = data.labels[ids]
    bare = ids[(labels == -1) | (labels != labels)]
    if len(bare):
        yield f"{len(bare)} nodes of split {name} have no label (first: {_listed(bare)})"


def _overlap_problems(splits: list[tuple[str, IntArray]], num_nodes: int) -> Iterator[str]:
    for position, (name, ids) in enumerate(splits):
        member = np.zeros(num_nodes, dtype=np.bool_)
        member[ids.astype(np.int64)] = True
        for other_name, other in splits[position + 1 :]:
            common = other[member[other.astype(np.int64)]]
            if len(common):
                yield (
                    f"splits {name} and {other_name} share {len(common)} nodes "
                    f"(first: {_listed(np.sort(common))})"
                )


def _array_feature_problems(data: GraphData) -> Iterator[str]:
    features = data.features
    if not isinstance(features, np.ndarray):
        return
    if features.ndim != 2 or len(features) != data.num_nodes:
        yield f"features has shape {list(features.shape)}, expected [{data.num_nodes}, …]"
        return
    if features.dtype.kind not in "biuf":
        yield f"features is {features.dtype}, expected numbers"
        return
    bad = _Offenders()
    step = max(1, _CHUNK_VALUES // max(1, features.shape[1]))
    for start in range(0, data.num_nodes, step):
        rows = features[start : start + step]
        if rows.dtype.kind == "f" and not np.isfinite(np.sum(rows, dtype=np.float64)):
            bad.add(rows, ~np.isfinite(rows), start)
    if bad.num:
        yield f"{bad.num} features are not finite (first: {bad.shown('node')})"


def _range_problems(what: str, place: str, ids: IntArray, num_nodes: int) -> Iterator[str]:
    bad = _Offenders()
    for start in range(0, len(ids), CHUNK_EDGES):
        part = ids[start : start + CHUNK_EDGES]
        if part.min() < 0 or part.max() >= num_nodes:
            bad.add(part, (part < 0) | (part >= num_nodes), start)
    if bad.num:
        yield (f"{bad.num} {what} are not node ids 0 … {num_nodes - 1} (first: {bad.shown(place)})")


def _listed(ids: IntArray) -> str:
    more = ", …" if len(ids) > _NUM_SHOWN else ""
    return ", ".join(str(node) for node in ids[:_NUM_SHOWN].tolist()) + more


class _Offenders:
    """Counts wrong values over several chunks and remembers the first ones."""

    def __init__(self) -> None:
        self.num = 0
        self._first: list[tuple[int, ...]] = []
        self._values: list[object] = []

    def add(self, values: AnyArray, wrong: AnyArray, start: int) -> None:
        num = int(np.count_nonzero(wrong))
        if num == 0:
            return
        self.num += num
        for place in np.argwhere(wrong)[: _NUM_SHOWN - len(self._first)].tolist():
            self._first.append((start + place[0], *place[1:]))
            self._values.append(values[tuple(place)].item())

    def shown(self, what: str) -> str:
        parts = [
            f"{value} at {what} {place[0]}" + (f", column {place[1]}" if len(place) > 1 else "")
            for place, value in zip(self._first, self._values, strict=True)
        ]
        return ", ".join(parts) + (", …" if self.num > len(parts) else "")
