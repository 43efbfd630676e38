"""Reads the graph of `dataset=files`: nodes and features first, then labels, splits and edges."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gnntrain.data.bad_rows import BadRows, Record, first_other
from gnntrain.data.columns import is_finite
from gnntrain.data.file_columns import edge_columns, feature_columns
from gnntrain.data.file_targets import no_splits, no_targets, read_targets, split_nodes
from gnntrain.data.graph import AnyArray, GraphData, index_dtype
from gnntrain.data.node_index import UNKNOWN_NODE, NodeIndex, drop_repeated
from gnntrain.data.tables import Columns, Rows
from gnntrain.errors import UserError
from gnntrain.metrics import DEFAULT_METRICS, LabelKind, metrics_for

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig

_MOST_ROWS = 1 << 24  # of edges at a time: about 1 GiB of ids that are texts
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
    nodes = _read_nodes(feature_columns(paths["features"], config, bad, labelled=labelled), bad)
    index = NodeIndex(nodes.columns.get("id"), len(nodes))
    if labelled:
        targets = read_targets(paths.get("labels"), nodes, index, config, bad)
        splits = split_nodes(paths.get("split"), targets, index, config, bad)
        metric = _metric(config.metric, targets.task)
    else:
        targets, splits, metric = no_targets(nodes, index), no_splits(), "accuracy"
    src, dst, weight = _read_edges(edge_columns(paths["edges"], config, bad), index, bad)
    bad.report()
    return GraphData(
        dataset=config.name,
        num_nodes=index.num_nodes,
        src=src,
        dst=dst,
        labels=targets.labels,
        num_classes=targets.num_classes,
        task=targets.task,
        splits=splits,
        features=nodes.matrix,
        edge_weight=weight,
        node_ids=index.node_ids(),
        class_names=targets.class_names,
        labelled=labelled,
        metric=metric,
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


def _read_edges(
    columns: Columns, index: NodeIndex, bad: BadRows
) -> tuple[AnyArray, AnyArray, AnyArray | None]:
    """Source nodes, target nodes and weights of the edges between known nodes.

    Of the file, only a batch of rows is held at a time: about as many as there are nodes. Nodes
    are int32 where their number allows, else int64.
    """

    def unknown_end(record: Record) -> str:
        for end in ("source", "target"):
            field = record[columns.places[end]]
            if not field.strip():
                return f"the {end} node is missing"
            if not index.knows(field):
                return UNKNOWN_NODE.format(repr(field))
        return "its nodes are not in the features file"

    def wrong_weight(record: Record) -> str:
        return f"weight {record[columns.numbers[0]]!r} is not a number from 0 on"

    dtype = index_dtype(index.num_nodes)
    sources, targets = [np.empty(0, dtype)], [np.empty(0, dtype)]
    weights = [np.empty(0, np.float32)]
    for batch in columns.batches(min(index.num_hashed, _MOST_ROWS)):
        src, dst = index.find(batch.columns["source"]), index.find(batch.columns["target"])
        known = (src >= 0) & (dst >= 0)
        usable = (np.isfinite(batch.matrix) & (batch.matrix >= 0)).all(axis=1)
        bad.add(columns.table, batch.rows[~known], unknown_end, index.hint)
        bad.add(columns.table, batch.rows[known & ~usable], wrong_weight)
        kept = known & usable
        sources.append(src[kept].astype(dtype))
        targets.append(dst[kept].astype(dtype))
        weights.append(batch.matrix[kept].reshape(-1))
    weight = np.concatenate(weights) if columns.numbers else None
    return np.concatenate(sources), np.concatenate(targets), weight
