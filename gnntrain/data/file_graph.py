"""Reads the graph of `dataset=files`: nodes and features first, then labels, splits and edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gnntrain.config.problems import told
from gnntrain.data.array_files import ArrayTable
from gnntrain.data.bad_rows import BadRows
from gnntrain.data.drawn_splits import no_splits
from gnntrain.data.file_columns import (
    NO_ID,
    columns_of_nodes,
    is_array_file,
    is_pandas_index,
    open_features,
    open_table,
    unknown_names,
)
from gnntrain.data.file_edges import edge_table, read_edges
from gnntrain.data.file_feature_columns import FeatureChoice, choose_features, has_names
from gnntrain.data.file_features import (
    describe_features,
    drop_bad_values,
    make_features,
    refuse_text_columns,
    resolve_indices,
)
from gnntrain.data.file_splits import split_nodes
from gnntrain.data.file_target_columns import (
    has_split,
    label_columns,
    label_columns_within,
    open_labels,
    split_columns,
)
from gnntrain.data.file_targets import no_targets, read_targets
from gnntrain.data.graph import GraphData
from gnntrain.data.label_leaks import warn_of_label_leaks
from gnntrain.data.node_index import NodeIndex, drop_repeated
from gnntrain.data.preprocessing import Preprocessing
from gnntrain.data.summary import DataSummary
from gnntrain.data.tables import Columns, Rows, Table
from gnntrain.errors import UserError
from gnntrain.metrics import DEFAULT_METRICS, LabelKind, metrics_for

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig

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
    tables = _opened(paths, config, bad, labelled=labelled)
    labels = label_columns(tables["labels"], config) if "labels" in tables else None
    split: Columns | Sequence[Path] | None
    split = [paths["split"]] if labelled and "split" in paths else None
    if "split" in tables:
        split = split_columns(tables["split"], config)
    elsewhere = {**names_of(labels, "labels"), **names_of(split, "splits")}
    columns = columns_of_nodes(
        tables["features"],
        config,
        split_elsewhere=split is not None or (labels is not None and has_split(labels)),
        preprocessing=preprocessing,
    )
    if labelled and labels is None and not isinstance(columns.table, ArrayTable):
        # First, or the labels are called a feature that holds text.
        label_columns_within(columns.table, config)
    choice = choose_features(columns, config, elsewhere, preprocessing, strict=labelled)
    choice, nodes = read_nodes(choice, config, bad)
    home = f"the features file {nodes.path.name}"
    index = NodeIndex(nodes.columns.get("id"), len(nodes), home=home, decimal=config.decimal)
    if labelled:
        targets = read_targets(labels, nodes, index, config, bad)
        splits = split_nodes(split, targets, nodes, index, config, bad)
        metric = chosen_metric(config.metric, targets.task)
    else:
        targets, splits, metric = no_targets(nodes, index), no_splits(), "accuracy"
        if preprocessing is None:
            refuse_statistics(config)
    ends = tables["edges"] if "edges" in tables else edge_table(paths["edges"], config, bad)
    edges = read_edges(ends, config, index, bad)
    bad.report()
    features, fitted = make_features(nodes, choice, splits.nodes["train"], config, preprocessing)
    if labelled and targets.task in ("multiclass", "binary"):
        warn_of_label_leaks(nodes, choice.categorical, targets.labels, splits.nodes["train"])
    summary = DataSummary(
        ids=_describe_ids(nodes.source, labels, split),
        features=describe_features(nodes, fitted, config.missing, fitted=labelled),
        labels=targets.phrase,
        edges=edges.phrase,
        split=splits.phrase,
        left_out={
            **choice.left_out,
            **unused(labels, "not a label, by its name or dataset.label_column"),
            **unused(split, "not the split"),
            **edges.left_out,
            **bad.left_out,
        },
    )
    return GraphData(
        dataset=config.name,
        num_nodes=index.num_nodes,
        src=edges.src,
        dst=edges.dst,
        labels=targets.labels,
        num_classes=targets.num_classes,
        task=targets.task,
        splits=splits.nodes,
        features=features,
        edge_weight=edges.weight,
        node_ids=index.node_ids(),
        class_names=targets.class_names,
        labelled=labelled,
        metric=metric,
        feature_names=fitted.feature_names if fitted is not None and fitted.has_names else None,
        preprocessing=fitted,
        summary=summary,
    )


def _opened(
    paths: Mapping[str, Path], config: FilesConfig, bad: BadRows, *, labelled: bool
) -> dict[str, Table]:
    """The files by role, those of edges and splits only where they are tables.

    Raises:
        UserError: A file cannot be read, or a key names columns that are not there.
    """
    tables = {"features": open_features(paths["features"], config, bad)}
    if labelled and "labels" in paths:
        tables["labels"] = open_labels([paths["labels"]], config, bad)
    if labelled and "split" in paths and not is_array_file(paths["split"]):
        tables["split"] = open_table(paths["split"], config, bad)
    nodes = list(tables.values())
    asked = [("id_column", [table]) for table in nodes if config.id_column != NO_ID]
    if labelled:
        features = [tables["features"]]
        asked += [
            ("label_column", [tables.get("labels", tables["features"])]),
            ("split_column", [tables["split"]] if "split" in tables else nodes),
            *(("feature_columns", features), ("categorical", features), ("ignore", nodes)),
        ]
    if not is_array_file(paths["edges"]):
        tables["edges"] = edge_table(paths["edges"], config, bad)
        ends = ("source_column", "target_column", "weight_column")
        asked += [(key, [tables["edges"]]) for key in ends]
    problems = []
    for key, given in asked:
        names = getattr(config, key) or ()
        names = (names,) if isinstance(names, str) else names
        problems += unknown_names([(f"dataset.{key}", name) for name in names], given)
    if problems:
        raise UserError(
            told(problems, "the configuration"), "Give a column's name, or its number from 0."
        )
    return tables


def names_of(columns: object, what: str) -> dict[str, str]:
    """Names of columns of labels or splits, with what they hold."""
    if not isinstance(columns, Columns) or not has_names(columns.table):
        return {}
    table = columns.table
    others = [place for role, place in columns.places.items() if role != "id"]
    reason = f"{table.path.name} has {what} of this name"
    return {table.names[place]: reason for place in (*columns.numbers, *others)}


def unused(columns: object, reason: str) -> dict[str, str]:
    """Columns of the labels or the split file that are not used."""
    if not isinstance(columns, Columns) or is_array_file(columns.table.path):
        return {}
    table, used = columns.table, {*columns.places.values(), *columns.numbers}
    unused = [place for place in range(len(table.names)) if place not in used]
    return {f"{table.shown(place)} of {table.path.name}": reason for place in unused}


def refuse_statistics(config: FilesConfig) -> None:
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


def _describe_ids(nodes: Columns, labels: object, split: object) -> str:
    """Where the ids are; in other files only where they have another name there."""
    name = name_of_ids(nodes)
    is_index = "id" in nodes.places and is_pandas_index(nodes.table.names[nodes.places["id"]])
    found = [f"{name} of {nodes.table.path.name}" + ", a pandas index" * is_index]
    found += [
        f"{name_of_ids(other)} of {other.table.path.name}"
        for other in (labels, split)
        if isinstance(other, Columns) and name_of_ids(other) != name
    ]
    return "; ".join(found)


def name_of_ids(columns: Columns) -> str:
    """Where the ids of a table's rows are, in words."""
    place = columns.places.get("id")
    return "row numbers" if place is None else f"column {columns.table.shown(place)}"


def chosen_metric(asked: str, task: LabelKind) -> str:
    """The metric of `dataset.metric`.

    Raises:
        UserError: It is none of the task's.
    """
    if asked == "auto":
        return DEFAULT_METRICS[task]
    if asked not in metrics_for(task):
        raise UserError(
            f"dataset.metric={asked}: the labels make a {task} task.",
            f"Choose one of {', '.join(metrics_for(task))}, or leave dataset.metric=auto.",
        )
    return asked


def read_nodes(
    choice: FeatureChoice, config: FilesConfig, bad: BadRows, *, required: bool = True
) -> tuple[FeatureChoice, Rows]:
    """The rows of the features file that define a node: an id of its own and usable values.

    Args:
        choice: The columns.
        config: How missing values are treated.
        bad: Takes the bad rows.
        required: Whether there must be features.

    Raises:
        UserError: There are no features or no rows; or rows are bad, and are to be errors or,
            without ids, cannot be left out.
    """
    nodes = choice.columns.read()
    path = nodes.path
    if "id" in nodes.columns:
        nodes = nodes.drop_missing("id", bad, "the node id is missing", _NO_ID_HINT)
        nodes = drop_repeated(nodes, nodes.columns["id"], bad, _NO_ID_HINT)
    choice, nodes = resolve_indices(choice, nodes, required=required)
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
