"""Reads the graph of `dataset=files`: nodes and features first, then labels, splits and edges."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gnntrain.data.bad_rows import BadRows, Record, first_other
from gnntrain.data.columns import is_finite
from gnntrain.data.file_columns import feature_columns
from gnntrain.data.file_edges import read_edges
from gnntrain.data.file_splits import no_splits, split_nodes
from gnntrain.data.file_targets import no_targets, read_targets
from gnntrain.data.graph import GraphData
from gnntrain.data.node_index import NodeIndex, drop_repeated
from gnntrain.data.summary import DataSummary
from gnntrain.data.tables import Columns, Rows
from gnntrain.errors import UserError
from gnntrain.metrics import DEFAULT_METRICS, LabelKind, metrics_for

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig

_LARGEST = float(np.finfo(np.float32).max)
_NO_ID_HINT = (
    "If the features file has no column of node ids, set dataset.id_column=none: its rows are "
    "then the nodes 0, 1, 2, …."
)


def read_graph(config: FilesConfig, paths: Mapping[str, Path], *, labelled: bool) -> GraphData:
    """Read a user's files.

    Args:
        config: How they are read.
        paths: The files by role: "edges", "features" and perhaps "labels" and "split".
        labelled: False: labels and splits are neither needed nor read.

    Raises:
        UserError: A file cannot be read, or (with `bad_rows=error`) has bad rows.
    """
    bad = BadRows(config.bad_rows)
    nodes = _read_nodes(feature_columns(paths["features"], config, bad), bad)
    index = NodeIndex(nodes.columns.get("id"), len(nodes))
    if labelled:
        targets = read_targets(paths.get("labels"), nodes, index, config, bad)
        splits = split_nodes(paths.get("split"), targets, nodes, index, config, bad)
        metric = _metric(config.metric, targets.task)
    else:
        targets, splits, metric = no_targets(nodes, index), no_splits(), "accuracy"
    edges = read_edges(paths["edges"], config, index, bad)
    bad.report()
    return GraphData(
        dataset="files",
        num_nodes=index.num_nodes,
        src=edges.src,
        dst=edges.dst,
        labels=targets.labels,
        num_classes=targets.num_classes,
        task=targets.task,
        splits=splits.nodes,
        features=nodes.matrix,
        edge_weight=edges.weight,
        node_ids=index.node_ids(),
        class_names=targets.class_names,
        labelled=labelled,
        metric=metric,
        summary=DataSummary(
            labels=targets.phrase,
            edges=edges.phrase,
            split=splits.phrase,
            left_out=edges.left_out,
        ),
    )


def _metric(asked: str, task: LabelKind) -> str:
    if asked == "auto":
        return DEFAULT_METRICS[task]
    if asked not in metrics_for(task):
        raise UserError(
            f"dataset.metric={asked}: the labels make a {task} task.",
            f"Choose one of {', '.join(metrics_for(task))}, or leave dataset.metric=auto.",
        )
    return asked


def _read_nodes(columns: Columns, bad: BadRows) -> Rows:
    """The rows of the features file that define a node: an id of its own and finite numbers.

    Raises:
        UserError: There are no numbers or no rows; or rows are bad, and are to be errors or,
            without ids, cannot be left out.
    """
    path = columns.table.path
    if not columns.numbers:
        raise UserError(
            f"{path} has no numbers beside the id.",
            "Give a file with one row of numbers a node. If there is nothing to tell, a column of "
            "ones or of the nodes' degrees will do.",
        )
    nodes = columns.read()
    if "id" in nodes.columns:
        nodes = nodes.drop_missing("id", bad, "the node id is missing", _NO_ID_HINT)
        nodes = drop_repeated(nodes, nodes.columns["id"], bad, _NO_ID_HINT)
    # Without ids a row's place is its node: none can be left out.
    strict = bad if "id" in nodes.columns else BadRows("error")
    names = columns.names_of_numbers
    nodes = nodes.drop(~is_finite(nodes.matrix), strict, lambda row: _not_finite(row, names))
    strict.report()
    bad.report()
    if "id" not in nodes.columns and len(nodes) < nodes.end:
        raise UserError(
            f"{path} has bad rows and no node ids.",
            "Correct it or give it node ids: left out, they would move the rows behind them.",
        )
    if not len(nodes):
        raise UserError(f"{path} has no rows.", "Give it a row of numbers a node.")
    return nodes


def _not_finite(record: Record, numbers: Mapping[int, str]) -> str:
    """Says which number of a row is none; a row of lists has just the wrong length."""
    wrong = first_other(record, numbers, lambda number: abs(number) <= _LARGEST)
    if wrong is not None:
        return f"column {wrong[0]} is {wrong[1]!r} instead of a finite number"
    return "the list of numbers is missing, not finite, or of another length than the first"
