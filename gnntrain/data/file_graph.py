"""Reads the graph of `dataset=files`: nodes and features first, then labels, splits and edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gnntrain.data.bad_rows import BadRows, Record
from gnntrain.data.file_columns import (
    edge_columns,
    feature_columns,
    is_array_file,
    is_pandas_index,
    label_columns,
    split_columns,
)
from gnntrain.data.file_feature_columns import FeatureChoice, choose_features, has_names
from gnntrain.data.file_features import (
    describe_features,
    drop_bad_values,
    make_features,
    refuse_text_columns,
    resolve_indices,
)
from gnntrain.data.file_targets import no_splits, no_targets, read_targets, split_nodes
from gnntrain.data.graph import AnyArray, GraphData, index_dtype
from gnntrain.data.node_index import UNKNOWN_NODE, NodeIndex, drop_repeated
from gnntrain.data.preprocessing import Preprocessing
from gnntrain.data.summary import DataSummary
from gnntrain.data.tables import Columns, Rows
from gnntrain.errors import UserError
from gnntrain.metrics import DEFAULT_METRICS, LabelKind, metrics_for

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig

_MOST_ROWS = 1 << 24  # of edges at a time: about 1 GiB of ids that are texts
_NO_ID_HINT = (
    "If the features file has no column of node ids, set dataset.id_column=none: its rows are "
    "then the nodes 0, 1, 2, …."
)


def read_graph(
    config: FilesConfig,
    paths: Mapping[str, Path],
    *,
    labelled: bool,
    preprocessing: Preprocessing | None = None,
) -> GraphData:
    """Read a user's files.

    Args:
        config: How they are read.
        paths: The files by role: "edges", "features" and perhaps "labels" and "split".
        labelled: False: labels and splits are neither needed nor read.
        preprocessing: What makes the features of a model that was trained on another graph;
            None: it is learnt from these files.

    Raises:
        UserError: A file cannot be read, or (with `bad_rows=error`) has bad rows.
    """
    bad = BadRows(config.bad_rows)
    columns = feature_columns(
        paths["features"], config, bad, labelled=labelled, preprocessing=preprocessing
    )
    elsewhere = _columns_of_other_files(paths, config, bad) if labelled else {}
    choice = choose_features(columns, config, elsewhere, preprocessing, strict=labelled)
    choice, nodes = _read_nodes(choice, config, bad)
    index = NodeIndex(nodes.columns.get("id"), len(nodes))
    if labelled:
        targets = read_targets(paths.get("labels"), nodes, index, config, bad)
        splits = split_nodes(paths.get("split"), targets, index, config, bad)
        metric = _metric(config.metric, targets.task)
    else:
        targets, splits, metric = no_targets(nodes, index), no_splits(), "accuracy"
        if preprocessing is None:
            _refuse_statistics(config)
    src, dst, weight = _read_edges(edge_columns(paths["edges"], config, bad), index, bad)
    bad.report()
    features, fitted = make_features(nodes, choice, splits["train"], config, preprocessing)
    data = GraphData(
        dataset=config.name,
        num_nodes=index.num_nodes,
        src=src,
        dst=dst,
        labels=targets.labels,
        num_classes=targets.num_classes,
        task=targets.task,
        splits=splits,
        features=features,
        edge_weight=weight,
        node_ids=index.node_ids(),
        class_names=targets.class_names,
        labelled=labelled,
        metric=metric,
        feature_names=fitted.feature_names if fitted is not None and fitted.has_names else None,
        preprocessing=fitted,
    )
    phrases = {
        "ids": _describe_ids(nodes),
        "features": describe_features(nodes, fitted, config.missing, fitted=labelled),
        "left_out": choice.left_out,
    }
    return replace(data, summary=DataSummary.model_validate(phrases))


def _columns_of_other_files(
    paths: Mapping[str, Path], config: FilesConfig, bad: BadRows
) -> dict[str, str]:
    """Names of columns of labels and splits in files of their own, with what they hold."""
    found: dict[str, str] = {}
    if "labels" in paths and not is_array_file(paths["labels"]):
        columns = label_columns(paths["labels"], config, bad)
        taken = [place for role, place in columns.places.items() if role != "id"]
        found |= _names_of(columns, [*columns.numbers, *taken], paths["labels"], "labels")
    if "split" in paths and not is_array_file(paths["split"]):
        columns = split_columns(paths["split"], config, bad)
        found |= _names_of(columns, [columns.places["split"]], paths["split"], "splits")
    return found


def _names_of(columns: Columns, places: Sequence[int], path: Path, what: str) -> dict[str, str]:
    if not has_names(columns.table):
        return {}
    return {columns.table.names[place]: f"{path.name} has {what} of this name" for place in places}


def _refuse_statistics(config: FilesConfig) -> None:
    """Raise a UserError where features need what a model's run does not say."""
    for key in ("standardize", "categorical"):
        if getattr(config, key):
            raise UserError(
                f"dataset.{key}: the model was trained without it.",
                "Prepare the features as those that the model was trained on.",
            )
    if config.missing not in ("refuse", "zero"):
        raise UserError(
            f"dataset.missing={config.missing}: the model was trained without it.",
            "Use dataset.missing=zero, or fill in the missing values.",
        )


def _describe_ids(nodes: Rows) -> str:
    place = nodes.source.places.get("id")
    if place is None:
        return f"row numbers of {nodes.path.name}"
    table = nodes.source.table
    kind = ", a pandas index" if is_pandas_index(table.names[place]) else ""
    return f"column {table.shown(place)} of {nodes.path.name}{kind}"


def _metric(asked: str, task: LabelKind) -> str:
    if asked == "auto":
        return DEFAULT_METRICS[task]
    if asked not in metrics_for(task):
        raise UserError(
            f"dataset.metric={asked}: the labels make a {task} task.",
            f"Choose one of {', '.join(metrics_for(task))}, or leave dataset.metric=auto.",
        )
    return asked


def _read_nodes(
    choice: FeatureChoice, config: FilesConfig, bad: BadRows
) -> tuple[FeatureChoice, Rows]:
    """The rows of the features file that define a node: an id of its own and usable values.

    Raises:
        UserError: There are no features or no rows; or rows are bad, and are to be errors or,
            without ids, cannot be left out.
    """
    nodes = choice.columns.read()
    path = nodes.path
    if "id" in nodes.columns:
        nodes = nodes.drop_missing("id", bad, "the node id is missing", _NO_ID_HINT)
        nodes = drop_repeated(nodes, nodes.columns["id"], bad, _NO_ID_HINT)
    choice, nodes = resolve_indices(choice, nodes)
    refuse_text_columns(nodes)
    # Without ids a row's place is its node: none can be left out.
    strict = bad if "id" in nodes.columns else BadRows("error")
    nodes = drop_bad_values(nodes, choice, config, strict)
    strict.report()
    bad.report()
    if "id" not in nodes.columns and len(nodes) < nodes.end:
        raise UserError(
            f"{path} has bad rows and no node ids.",
            "Correct it or give it node ids: left out, they would move the rows behind them.",
        )
    if not len(nodes):
        raise UserError(f"{path} has no rows.", "Give it a row of numbers a node.")
    return choice, nodes


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
