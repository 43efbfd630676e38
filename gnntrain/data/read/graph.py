"""Reads the graph of a `GraphSpec`: nodes and features first, then labels, splits and edges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gnntrain.config.graph_spec import NO_ID, GraphSpec, NodeSpec
from gnntrain.config.problems import Problem, meant_or
from gnntrain.data.array_files import ArrayTable
from gnntrain.data.bad_rows import BadRows
from gnntrain.data.graph import (
    EDGE,
    SPLITS,
    EdgeData,
    GraphData,
    HeteroGraphData,
    NodeData,
    NodeType,
)
from gnntrain.data.preprocessing import Preprocessing
from gnntrain.data.read.columns import (
    COLUMN_NAMES,
    columns_of_nodes,
    has_split,
    is_array_file,
    is_pandas_index,
    label_columns,
    label_columns_within,
    open_labels,
    open_nodes,
    open_table,
    split_columns,
    unknown_names,
)
from gnntrain.data.read.edges import (
    WEIGHT_NAMES,
    EdgeLists,
    EdgeSource,
    IdCollector,
    collect_ids,
    edge_source,
    foreign_ids,
    open_edges,
    read_edges,
    read_foreign_key,
)
from gnntrain.data.read.features import (
    FeatureChoice,
    choose_features,
    describe_features,
    has_names,
    make_features,
)
from gnntrain.data.read.labels import no_targets, read_targets, warn_of_label_leaks
from gnntrain.data.read.nodes import TYPE_NAMES, NodeIndex, nodes_by_type, read_nodes
from gnntrain.data.read.splits import Splits, SplitSource, split_nodes
from gnntrain.data.summary import EDGES_ALONE, DataSummary
from gnntrain.data.table_files import table_in_memory
from gnntrain.data.tables import Columns, Rows, Table
from gnntrain.errors import UserError
from gnntrain.metrics import DEFAULT_METRICS, LabelKind, metrics_for

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig

Paths = Mapping[str, Sequence[Path]]
"""Files by their places in a `GraphSpec`."""


@dataclass(frozen=True)
class _Nodes:
    """The nodes of a type, read.

    Attributes:
        spec: What is said of them.
        choice: The columns of features.
        rows: A row a node.
        index: From ids to numbers.
    """

    spec: NodeSpec
    choice: FeatureChoice
    rows: Rows
    index: NodeIndex


def read_graph(
    spec: GraphSpec,
    paths: Paths,
    options: FilesConfig,
    *,
    labelled: bool,
    preprocessing: Mapping[NodeType, Preprocessing] | None = None,
) -> HeteroGraphData:
    """Read the tables and arrays of a graph.

    Args:
        spec: Which tables and columns hold what.
        paths: Their files.
        options: How text is read, how splits are drawn, the task and its metric.
        labelled: False: labels and splits are neither needed nor read.
        preprocessing: What makes the features of a model that was trained on another graph, by
            node type; None: it is learnt from these files.

    Raises:
        UserError: A file cannot be read, or (with `bad_rows=error`) has bad rows.
    """
    bad = BadRows(options.bad_rows)
    tables = _opened(spec, paths, options, bad, labelled=labelled)
    specs, node_tables = _node_types(spec, tables, options, bad, labelled=labelled)
    is_typed, known = spec.schema is not None, preprocessing or {}
    sources: list[EdgeSource] = []
    if is_typed:
        sources = [edge_source(tables[edges.place], edges) for edges in spec.edges]
        target = _target(spec, specs, node_tables, options.target, labelled=labelled)
    else:
        (target,) = specs

    # Labels and splits in files of their own.
    learnt = specs[target]
    labels: Columns | None = None
    split: SplitSource | None = None
    if learnt.label.place in tables:
        labels = label_columns(tables[learnt.label.place], learnt, options)
    if learnt.split.place in tables:
        split = split_columns(tables[learnt.split.place], learnt)
    elif labelled and learnt.split.parts:
        split = {name: paths[f"{learnt.split.place}.{name}"] for name in learnt.split.parts}
    elif labelled and learnt.split.files:
        split = paths[learnt.split.place]

    # The nodes of each type that has a table, then of those that edges alone name.
    nodes: dict[NodeType, _Nodes] = {}
    for name, table in node_tables.items():
        of_target, part, made_by = name == target, specs[name], known.get(name)
        elsewhere = {**_names(labels, "labels"), **_names(split, "splits")} if of_target else {}
        has_own_split = split is not None or (labels is not None and has_split(labels))
        columns = columns_of_nodes(
            table, part, split_elsewhere=of_target and has_own_split, preprocessing=made_by
        )
        if of_target and labelled and labels is None and not isinstance(table, ArrayTable):
            # First, or the labels are called a feature that holds text.
            label_columns_within(table, part, options)
        choice = choose_features(
            columns, part, elsewhere, made_by, strict=labelled, required=not is_typed
        )
        choice, rows = read_nodes(choice, part, bad, required=not is_typed)
        index = NodeIndex(
            rows.columns.get("id"),
            len(rows),
            kind=name if is_typed else "node",
            home=rows.path.name if is_typed else f"the features file {rows.path.name}",
            decimal=options.decimal,
            id_key=part.key("id"),
        )
        nodes[name] = _Nodes(part, choice, rows, index)
        if not labelled and preprocessing is None:
            _refuse_statistics(part)
    if is_typed:
        bad.report()
        nodes |= _nodes_of_edges(spec, specs, nodes, sources, options)
        nodes = {name: nodes[name] for name in specs}

    chosen = nodes[target]
    if labelled:
        targets = read_targets(labels, chosen.rows, chosen.index, learnt, options, bad)
        splits = split_nodes(split, targets, chosen.rows, chosen.index, learnt, options, bad)
        metric = _chosen_metric(options.metric, targets.task)
    else:
        targets, metric = no_targets(chosen.rows, chosen.index), "accuracy"
        splits = Splits({name: np.empty(0, np.int64) for name in SPLITS}, "")

    lists = EdgeLists({name: of_type.index for name, of_type in nodes.items()})
    for edges in () if is_typed else spec.edges:
        edge_table = tables.get(edges.place) or open_edges(paths[edges.place], edges, options, bad)
        sources.append(edge_source(edge_table, edges, chosen.index))
    for source in sources:
        read_edges(source, lists, bad)
    for name, of_type in nodes.items():
        for column, other in of_type.spec.foreign_keys.items():
            read_foreign_key(of_type.rows, column, (name, column, other), lists, bad)
    arrays = lists.arrays()
    bad.report()

    made: dict[NodeType, NodeData] = {}
    for name, of_type in nodes.items():
        made[name] = NodeData(of_type.index.num_nodes, ids=of_type.index.node_ids())
        if of_type.choice.order:
            # Statistics are those of the training split; other types have none: of all rows.
            train = splits.nodes["train"] if name == target else np.arange(len(of_type.rows))
            features, fitted = make_features(
                of_type.rows, of_type.choice, train, of_type.spec, known.get(name)
            )
            names = fitted.feature_names if fitted is not None and fitted.has_names else None
            made[name] = replace(
                made[name], features=features, feature_names=names, preprocessing=fitted
            )
    if labelled and targets.task in ("multiclass", "binary"):
        categorical, train = chosen.choice.categorical, splits.nodes["train"]
        warn_of_label_leaks(chosen.rows, categorical, targets.labels, train, learnt)
    parts = [_phrases(of_type, made[name], labelled) for name, of_type in nodes.items()]
    left_out: dict[str, str] = {}
    if is_typed:
        ids = "; ".join(f"{name}: {part[0]}" for name, part in zip(nodes, parts, strict=True))
        phrase = "; ".join(f"{name}: {part[1]}" for name, part in zip(nodes, parts, strict=True))
        counts = ", ".join(f"{len(ends[0]):,} {'/'.join(name)}" for name, ends in arrays.items())
        for name, of_type in nodes.items():
            left_out |= {f"{name}.{at}": why for at, why in of_type.choice.left_out.items()}
    else:
        phrase, counts = parts[0][1], sources[0].phrase(len(arrays[EDGE][0]))
        # In other files only where they have another name there.
        own = _name_of_ids(chosen.rows.source)
        others = [part for part in (labels, split) if isinstance(part, Columns)]
        ids = "; ".join(
            [
                parts[0][0],
                *(
                    f"{_name_of_ids(other)} of {other.table.path.name}"
                    for other in others
                    if _name_of_ids(other) != own
                ),
            ]
        )
        left_out |= chosen.choice.left_out
    left_out |= _unused(labels, f"not a label, by its name or {learnt.label.key('column')}")
    left_out |= _unused(split, "not the split")
    for source in sources:
        left_out |= _unread(source, is_typed)
    summary = DataSummary(
        ids=ids,
        features=phrase,
        labels=targets.phrase,
        edges=counts,
        split=splits.phrase,
        left_out=left_out | bad.left_out,
    )
    common: dict[str, Any] = {
        "dataset": options.name,
        "labels": targets.labels,
        "num_classes": targets.num_classes,
        "task": targets.task,
        "splits": splits.nodes,
        "class_names": targets.class_names,
        "labelled": labelled,
        "metric": metric,
        "summary": summary,
    }
    if is_typed:
        ends = {name: EdgeData(found[0], found[1]) for name, found in arrays.items()}
        return HeteroGraphData(
            nodes=made, edges=ends, target=target, reverse=spec.reverse, **common
        )
    src, dst, *weight = arrays[EDGE]
    return GraphData(
        num_nodes=made[target].num_nodes,
        src=src,
        dst=dst,
        features=made[target].features,
        edge_weight=weight[0] if weight else None,
        node_ids=made[target].ids,
        feature_names=made[target].feature_names,
        preprocessing=made[target].preprocessing,
        **common,
    )


def _opened(
    spec: GraphSpec, paths: Paths, options: FilesConfig, bad: BadRows, *, labelled: bool
) -> dict[str, Table]:
    """All tables by their places; arrays of the edges of a graph of one type are opened later.

    Raises:
        UserError: One cannot be read, or columns are named that are not there: all of them.
    """
    tables: dict[str, Table] = {}
    problems: list[Problem] = []

    def check(asked: Iterable[tuple[str, str]], *there: Table) -> None:
        problems.extend(unknown_names(asked, there))

    columns_of_types = chain(*(part.header for part in spec.types.values()))
    for part in (*spec.nodes.values(), *spec.mixed_nodes):
        if part.files:
            if part.name is None:
                named = (part.id, part.type, *TYPE_NAMES, *columns_of_types)
                part = replace(part, header=tuple(name for name in named if name))
            tables[part.place] = open_nodes(paths[part.place], part, options, bad)
    mixed = [tables[part.place] for part in spec.mixed_nodes]
    for part in (*spec.nodes.values(), *spec.types.values()):
        if labelled and part.label.files:
            tables[part.label.place] = open_labels(paths[part.label.place], part, options, bad)
        if labelled and part.split.files and not is_array_file(paths[part.split.place][0]):
            files = paths[part.split.place]
            opened = [open_table(file, part.split, options, bad) for file in files]
            tables[part.split.place] = Table.of_files(opened)
        within = [tables[part.place]] if part.place in tables else mixed
        own = {
            word: tables[one.place]
            for word, one in (("label", part.label), ("split", part.split))
            if one.place in tables
        }
        for asked in part.asked(labelled=labelled):
            # What is left out may be a column of the labels.
            shared = asked[0] == part.label.key("ignore")
            check([asked], *within, *(own.values() if shared else ()))
        if labelled and not part.split.parts:
            check(part.label.asked(), *([own["label"]] if "label" in own else within))
            if "split" in own or not part.split.files:
                check(
                    part.split.asked(),
                    *([own["split"]] if "split" in own else [*within, *own.values()]),
                )
        for word, table in own.items():
            one = part.label if word == "label" else part.split
            if one.id not in (None, NO_ID):
                check([(one.key("id"), one.id)], table)
    for part in spec.mixed_nodes:
        check(part.asked(), tables[part.place])
    for edges in spec.edges:
        if spec.schema is not None or not is_array_file(paths[edges.place][0]):
            tables[edges.place] = open_edges(paths[edges.place], edges, options, bad)
            check(edges.asked(), tables[edges.place])
    if problems:
        raise spec.error(problems)
    return tables


def _node_types(
    spec: GraphSpec,
    tables: Mapping[str, Table],
    options: FilesConfig,
    bad: BadRows,
    *,
    labelled: bool,
) -> tuple[dict[NodeType, NodeSpec], dict[NodeType, Table]]:
    """What is said of each node type, and the tables of those that have one.

    Raises:
        UserError: A type is in two tables, or one is named that is not there.
    """
    specs = dict(spec.nodes)
    found = {name: tables[part.place] for name, part in specs.items() if part.files}
    for mixed in spec.mixed_nodes:
        for name, (table, part) in nodes_by_type(
            tables[mixed.place], mixed, spec.types, options, bad
        ).items():
            if name in specs:
                raise UserError(
                    f"{spec.schema}: node type {name} is in two tables of nodes.",
                    "Give the tables as files of one entry.",
                )
            specs[name], found[name] = part, table
    bad.report()
    # Of a table with a column of types, only now they are known.
    named = [(part.place, name) for name, part in spec.types.items()]
    named += [(part.place, name) for part in spec.edges for name in (part.edge_type or ())[::2]]
    named += [
        (f"{part.key('foreign_keys')}.{column}", other)
        for part in specs.values()
        for column, other in part.foreign_keys.items()
    ]
    for key, name in named:
        if name not in specs:
            raise _unknown_type(key, name, specs)
    problems = [
        problem
        for name, part in spec.types.items()
        for asked in (
            part.asked(labelled=labelled),
            *(own.asked() for own in (part.label, part.split) if labelled and not own.files),
        )
        for problem in unknown_names(asked, [found[name]])
    ]
    if problems:
        raise spec.error(problems)
    return specs, found


def _unknown_type(key: str, name: NodeType, known: Mapping[NodeType, object]) -> UserError:
    return UserError(
        f"{key}={name}: there is no such node type; there are {', '.join(known)}.",
        meant_or(name, known, "Name one of them."),
    )


def _target(
    spec: GraphSpec,
    specs: Mapping[NodeType, NodeSpec],
    tables: Mapping[NodeType, Table],
    wanted: NodeType | None,
    *,
    labelled: bool,
) -> NodeType:
    """The node type to learn."""
    given = [name for name, part in specs.items() if part.label.is_given]
    usual = []
    for name, table in tables.items():
        names = table.arrays if isinstance(table, ArrayTable) else table.names
        ignored = {column.lower() for column in (*specs[name].ignore, *specs[name].unused)}
        if {column.lower() for column in names} & {*COLUMN_NAMES["label"]} - ignored:
            usual.append(name)
    if wanted is not None:
        if wanted not in specs:
            raise _unknown_type("task.target", wanted, specs)
        if labelled and wanted not in (*given, *usual):
            raise UserError(
                f"task.target={wanted}: the node type has no label.",
                f"Name the column of its labels as nodes.{wanted}.label.",
            )
        return wanted
    found = given or usual
    if len(found) == 1:
        return found[0]
    if not found:
        raise UserError(
            f"{spec.schema}: no node type has a label.",
            "Name its column: `author: {…, label: area}`"
            if labelled
            else "Say which node type is predicted, with task.target.",
        )
    raise UserError(
        f"{spec.schema}: several node types have labels: {', '.join(found)}.",
        f"Choose one with task.target={found[0]}.",
    )


def _nodes_of_edges(
    spec: GraphSpec,
    specs: Mapping[NodeType, NodeSpec],
    nodes: Mapping[NodeType, _Nodes],
    sources: Sequence[EdgeSource],
    options: FilesConfig,
) -> dict[NodeType, _Nodes]:
    """The nodes of the types that have no table: the ids at the ends of their edges.

    Raises:
        UserError: A type has none.
    """
    without = [name for name in specs if name not in nodes]
    collector = IdCollector(options.decimal)
    for source in sources if without else ():
        collect_ids(source, without, list(specs), collector)
    for of_type in nodes.values():
        for column, other in of_type.spec.foreign_keys.items():
            if other in without:
                is_written = of_type.rows.source.table.unit == "line"
                collector.add(other, foreign_ids(of_type.rows, column), is_written=is_written)
    found = {}
    for name in without:
        ids = collector.ids(name)
        if not len(ids):
            raise UserError(
                f"{spec.schema}: node type {name} has no table, and no edge has a node of it.",
                f"Give nodes.{name}.files, or edges with a node of it.",
            )
        table = table_in_memory(spec.schema or Path(), pa.table({"id": ids}))
        columns = Columns(table, {"id": 0}, ())
        index = NodeIndex(ids, len(ids), kind=name, home=None)
        found[name] = _Nodes(specs[name], FeatureChoice(columns, ()), columns.read(), index)
    return found


def _refuse_statistics(spec: NodeSpec) -> None:
    """Raise a UserError where features need what a model's run does not say."""
    for word in ("standardize", "categorical"):
        if getattr(spec, word):
            raise UserError(
                f"{spec.key(word)}: the model was trained without it.",
                "Prepare the features as those that the model was trained on.",
            )
    if spec.missing not in ("refuse", "zero"):
        key = spec.key("missing")
        raise UserError(
            f"{key}={spec.missing}: the model was trained without it.",
            f"Use {key}=zero, or fill in the missing values.",
        )


def _chosen_metric(asked: str, task: LabelKind) -> str:
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


def _names(columns: object, what: str) -> dict[str, str]:
    """Names of columns of labels or splits, with what they hold."""
    if not isinstance(columns, Columns) or not has_names(columns.table):
        return {}
    table = columns.table
    others = [place for role, place in columns.places.items() if role != "id"]
    reason = f"{table.path.name} has {what} of this name"
    return {table.names[place]: reason for place in (*columns.numbers, *others)}


def _unused(columns: object, reason: str) -> dict[str, str]:
    """Columns of the labels or the split file that are not used."""
    if not isinstance(columns, Columns) or is_array_file(columns.table.path):
        return {}
    table, used = columns.table, {*columns.places.values(), *columns.numbers}
    unused = [place for place in range(len(table.names)) if place not in used]
    return {f"{table.shown(place)} of {table.path.name}": reason for place in unused}


def _unread(source: EdgeSource, is_typed: bool) -> dict[str, str]:
    """Columns of edges that are not used."""
    if is_typed:
        place = source.spec.place.removeprefix("edges.")
        return {f"{place}.{name}": EDGES_ALONE for name in source.unread()}
    weight = "a weight only by dataset.weight_column={}"
    return {
        f"{name} of {source.columns.table.path.name}": weight.format(name)
        if name.lower() in WEIGHT_NAMES
        else "edges have ends and a weight only"
        for name in source.unread()
    }


def _phrases(nodes: _Nodes, made: NodeData, labelled: bool) -> tuple[str, str]:
    """Where the ids of a node type are from, and its features."""
    columns, fitted = nodes.rows.source, made.preprocessing
    if not nodes.spec.files and not nodes.spec.unused:
        ids = nodes.index.home
    else:
        ids = f"{_name_of_ids(columns)} of {columns.table.path.name}"
        place = columns.places.get("id")
        if place is not None and is_pandas_index(columns.table.names[place]):
            ids += ", a pandas index"
    if not nodes.choice.order:
        return ids, "none, learnt rows"
    return ids, describe_features(nodes.rows, fitted, nodes.spec.missing, fitted=labelled)


def _name_of_ids(columns: Columns) -> str:
    """Where the ids of a table's rows are, in words."""
    place = columns.places.get("id")
    return "row numbers" if place is None else f"column {columns.table.shown(place)}"
