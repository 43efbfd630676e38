"""A user's own graph, `dataset=files`.

`dataset.features` has a row a node and defines the nodes; `dataset.edges` has a row an edge,
source and target first unless `source_column` and `target_column` say otherwise; `dataset.labels`
and `dataset.split` speak of nodes by the ids of the features file, or row by row without ids.
Tables are CSV, TSV, other delimited text (packed with gzip, bzip2 or zstandard, too) or Parquet;
arrays are npy, npz or pt. `gnntrain.data.tables` says when a table has a header,
`gnntrain.data.node_rows` which column is the id.

A row that cannot be used (too few fields, text for a number, an unknown node, …) is reported with
its file, line and reason; `dataset.bad_rows` says whether that is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gnntrain.data.array_files import (
    ARRAY_SUFFIXES,
    Arrays,
    ArraySource,
    load_arrays,
    pick,
    pick_or_only,
)
from gnntrain.data.bad_rows import BadRows, Record
from gnntrain.data.columns import Rows, column_of_array, finite_rows
from gnntrain.data.file_targets import no_splits, no_targets, read_targets, split_nodes
from gnntrain.data.graph import JSON, AnyArray, GraphData, Int64Array, Task
from gnntrain.data.node_index import NodeIndex
from gnntrain.data.node_rows import (
    REPEATED_NODE,
    SOURCE_NAMES,
    TARGET_NAMES,
    UNKNOWN_NODE,
    NodeRows,
    open_user_table,
    place_of,
    read_features,
    repeated,
    unknown_hint,
)
from gnntrain.data.targets import smallest_int
from gnntrain.errors import UserError
from gnntrain.metrics import DEFAULT_METRICS, metrics_for

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig

_ROLES = ("edges", "features", "labels", "split")
_OPTIONS = (
    "header",
    "source_column",
    "target_column",
    "weight_column",
    "id_column",
    "label_column",
    "split_column",
    "task",
    "metric",
    "bad_rows",
)
# What is kept of the same files; raised when it grows. 2: the classes' names.
_READING = 2
_EDGE_ARRAYS = ("edge_index", "edges")
_WEIGHT_ARRAYS = ("edge_weight", "weight", "weights")


class FilesBuilder:
    """Builds a graph from the user's files.

    Args:
        config: The files and how they are read.
        labelled: False: for a graph to predict on; labels and splits are neither needed nor read.
    """

    def __init__(self, config: FilesConfig, *, labelled: bool = True) -> None:
        self.config = config
        self._labelled = labelled
        self._paths = {
            role: None if (given := getattr(config, role)) is None else Path(given).absolute()
            for role in _ROLES
        }
        for role in ("edges", "features"):
            self._path(role)

    def identity(self) -> dict[str, JSON]:
        """Paths, sizes and times of the files, and how they are read.

        Raises:
            UserError: A file is not there.
        """
        roles = _ROLES if self._labelled else ("edges", "features")
        files: dict[str, JSON] = {
            role: _stamp(role, path) for role in roles if (path := self._paths[role]) is not None
        }
        options: dict[str, JSON] = {name: getattr(self.config, name) for name in _OPTIONS}
        identity: dict[str, JSON] = {"dataset": "files", "files": files, "options": options}
        if self._labelled:
            return identity | {"reading": _READING}
        elsewhere = [role for role in ("labels", "split") if self._paths[role] is not None]
        return identity | {"reading": _READING, "unread": list[JSON](elsewhere)}

    def build(self) -> GraphData:
        """Read the files.

        Raises:
            UserError: A file cannot be read, or (with `bad_rows=error`) has bad rows.
        """
        config = self.config
        bad = BadRows(config.bad_rows)
        nodes = read_features(self._path("features"), config, bad, labelled=self._labelled)
        nodes = _checked_features(nodes, bad)
        bad.settle()
        if not len(nodes.rows):
            raise UserError(f"{self._path('features')} has no rows.", _MISSING_HINTS["features"])
        index = NodeIndex(nodes.column("id") if "id" in nodes.places else None, len(nodes.rows))
        if self._labelled:
            targets = read_targets(self._paths["labels"], nodes, index, config, bad)
            splits = split_nodes(self._paths["split"], targets, index, config, bad)
            metric = _metric(config.metric, targets.task)
        else:
            targets, splits, metric = no_targets(nodes, index), no_splits(), "accuracy"
        src, dst, weight = _known_edges(_read_edges(self._path("edges"), config, bad), index, bad)
        bad.settle()
        return GraphData(
            dataset="files",
            num_nodes=index.num_nodes,
            src=smallest_int(src, index.num_nodes),
            dst=smallest_int(dst, index.num_nodes),
            labels=targets.labels,
            num_classes=targets.num_classes,
            task=targets.task,
            splits=splits,
            features=nodes.rows.matrix,
            edge_weight=weight,
            node_ids=index.node_ids(),
            class_names=targets.class_names,
            labelled=self._labelled,
            metric=metric,
        )

    def _path(self, role: str) -> Path:
        path = self._paths[role]
        if path is None:
            raise UserError(f"dataset.{role} is not given.", _MISSING_HINTS[role])
        return path


def _metric(asked: str, task: Task) -> str:
    if asked == "auto":
        return DEFAULT_METRICS[task]
    if asked not in metrics_for(task):
        raise UserError(
            f"dataset.metric={asked}: the labels make a {task} task.",
            f"Choose one of {', '.join(metrics_for(task))}, or leave dataset.metric=auto.",
        )
    return asked


_MISSING_HINTS = {
    "edges": "Give a file with one edge a row: source and target.",
    "features": "Give a file with one row of numbers a node; it defines the nodes. If there is "
    "nothing to tell, a column of ones or of the nodes' degrees will do.",
}
_NO_ID_HINT = (
    "If the features file has no column of node ids, set dataset.id_column=none: its rows are "
    "then the nodes 0, 1, 2, …."
)


@dataclass(frozen=True)
class Edges:
    """Rows about edges.

    Attributes:
        rows: Columns of sources and targets; the matrix holds the weights, if there are any.
        places: Places of source, target and perhaps weight among the fields of a row.
    """

    rows: Rows
    places: tuple[int, ...]


def _stamp(role: str, path: Path) -> dict[str, JSON]:
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(
            f"dataset.{role}={path}: {error.strerror}.", "Give the path of a file that is there."
        ) from error
    return {"path": str(path), "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _checked_features(nodes: NodeRows, bad: BadRows) -> NodeRows:
    """The rows with an id of their own and finite numbers.

    Raises:
        UserError: There are no numbers; or rows without ids are bad, and cannot be left out
            without moving the ids of those behind.
    """
    if not nodes.numbers:
        raise UserError(
            f"{nodes.rows.source.path} has no numbers beside the id.", _MISSING_HINTS["features"]
        )
    if "id" not in nodes.places:
        return _checked_without_ids(nodes, bad)
    nodes = nodes.drop(
        nodes.column("id").missing, bad, lambda _: "the node id is missing", _NO_ID_HINT
    )
    ids = nodes.column("id")
    again = repeated(ids.texts() if ids.is_text else ids.values)
    nodes = nodes.drop_by_field(again, bad, "id", REPEATED_NODE, _NO_ID_HINT)
    return _with_finite_numbers(nodes, bad)


def _checked_without_ids(nodes: NodeRows, bad: BadRows) -> NodeRows:
    """Without ids a row's place is its node: none can be left out."""
    strict = BadRows("error")
    nodes = _with_finite_numbers(nodes, strict)
    strict.settle()
    if nodes.rows.origin is not None:
        bad.settle()
        raise UserError(
            f"{nodes.rows.source.path} has bad rows and no node ids.",
            "Correct it or give it node ids: left out, they would move the rows behind them.",
        )
    return nodes


def _with_finite_numbers(nodes: NodeRows, bad: BadRows) -> NodeRows:
    return nodes.drop(
        ~finite_rows(nodes.rows.matrix), bad, lambda row: _not_finite(row, nodes.numbers)
    )


def _not_finite(record: Record, numbers: Mapping[int, str]) -> str:
    """Says which number of a row is none; a row of lists has just the wrong length."""
    for place, name in numbers.items():
        if not _is_finite(record[place]):
            return f"column {name} is {record[place]!r} instead of a finite number"
    return "the list of numbers is missing, not finite, or of another length than the first"


def _is_finite(field: str) -> bool:
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.float32(field)))
    except ValueError:
        return False


def _read_edges(path: Path, config: FilesConfig, bad: BadRows) -> Edges:
    if path.suffix.lower() in ARRAY_SUFFIXES:
        return _edges_of_arrays(path, load_arrays(path), config.weight_column)
    table = open_user_table(path, config, bad)
    if len(table.names) < 2:
        raise UserError(f"{path} has only one column.", "It needs two: source and target.")
    source = place_of(table, "source_column", config.source_column, SOURCE_NAMES)
    target = place_of(table, "target_column", config.target_column, TARGET_NAMES)
    ends = (0 if source is None else source, 1 if target is None else target)
    weight = place_of(table, "weight_column", config.weight_column, ())
    weights = () if weight is None else (weight,)
    return Edges(table.read(ends, weights), (*ends, *weights))


def _edges_of_arrays(path: Path, arrays: Arrays, weight_name: str | None) -> Edges:
    source, target = pick(arrays, SOURCE_NAMES), pick(arrays, TARGET_NAMES)
    if source is None or target is None:
        weights = {weight_name, *_WEIGHT_ARRAYS}
        others = {name: array for name, array in arrays.items() if name not in weights}
        source, target = _both_ends(path, pick_or_only(path, others, _EDGE_ARRAYS))
    weight = pick(arrays, _WEIGHT_ARRAYS if weight_name is None else (weight_name,))
    if weight is None and weight_name is not None:
        raise UserError(
            f"dataset.weight_column={weight_name}: {path} has no such array; it has "
            f"{', '.join(arrays)}."
        )
    if source.ndim != 1 or source.shape != target.shape:
        raise UserError(
            f"{path}: sources of shape {list(source.shape)}, targets of {list(target.shape)}."
        )
    if "b" in (source.dtype.kind, target.dtype.kind):
        raise UserError(
            f"{path}: the edges are truth values, not node ids.",
            "List the edges of an adjacency matrix as pairs of nodes.",
        )
    if weight is not None and (weight.size != len(source) or weight.dtype.kind not in "biuf"):
        raise UserError(f"{path}: the weights are not one number an edge.")
    ends = (column_of_array(source), column_of_array(target))
    matrix = np.empty((len(source), 0 if weight is None else 1), np.float32)
    if weight is not None:
        with np.errstate(over="ignore"):  # too large for float32: infinite, hence reported
            matrix[:, 0] = weight.reshape(-1)
    fields = (source, target) if weight is None else (source, target, weight.reshape(-1))
    return Edges(Rows(ArraySource(path, fields), ends, matrix), tuple(range(len(fields))))


def _both_ends(path: Path, pairs: AnyArray) -> tuple[AnyArray, AnyArray]:
    """The ends of `[2, num_edges]` or `[num_edges, 2]`; two by two is taken as the former."""
    if pairs.ndim != 2 or 2 not in pairs.shape:
        raise UserError(
            f"{path}: shape {list(pairs.shape)} instead of [2, num_edges] or [num_edges, 2]."
        )
    return (pairs[0], pairs[1]) if pairs.shape[0] == 2 else (pairs[:, 0], pairs[:, 1])


def _known_edges(
    edges: Edges, index: NodeIndex, bad: BadRows
) -> tuple[Int64Array, Int64Array, AnyArray | None]:
    """Source nodes, target nodes and weights of the edges that are between known nodes."""
    src, dst = (index.find(column) for column in edges.rows.columns)
    known = (src >= 0) & (dst >= 0)
    rows = edges.rows.drop(
        ~known, bad, lambda row: _unknown_end(row, edges.places, index), unknown_hint(index)
    )
    src, dst, weight = src[known], dst[known], rows.matrix
    if not weight.shape[1]:
        return src, dst, None
    usable = (np.isfinite(weight) & (weight >= 0))[:, 0]
    place = edges.places[-1]
    rows.drop(~usable, bad, lambda row: f"weight {row[place]!r} is not a number from 0 on")
    return src[usable], dst[usable], weight[usable, 0]


def _unknown_end(record: Record, places: tuple[int, ...], index: NodeIndex) -> str:
    for end, place in zip(("source", "target"), places, strict=False):
        if not record[place].strip():
            return f"the {end} node is missing"
        if not index.knows(record[place]):
            return UNKNOWN_NODE.format(repr(record[place]))
    return "its nodes are not in the features file"
