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
from gnntrain.data.array_files import ArrayTable, load_all
from gnntrain.data.bad_rows import BadRows
from gnntrain.data.graph import (
    EDGE,
    NODE,
    SPLITS,
    EdgeData,
    GraphData,
    HeteroGraphData,
    NodeData,
    NodeType,
)
from gnntrain.data.preprocessing import AnyPreprocessing, Preprocessing, of_one_type
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
from gnntrain.data.read.splits import SplitArrays, Splits, SplitSource, split_nodes
from gnntrain.data.summary import EDGES_ALONE, DataSummary
from gnntrain.data.table_files import table_in_memory
from gnntrain.data.tables import Columns, Rows, Table
from gnntrain.errors import UserError
from gnntrain.metrics import DEFAULT_METRICS, metrics_for

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig

Sources = Mapping[str, Sequence[Path] | Table | SplitArrays]
"""By the places of a `GraphSpec`: files, or tables and arrays in memory."""


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
    sources: Sources,
    options: FilesConfig,
    bad: BadRows,
    *,
    labelled: bool,
    preprocessing: AnyPreprocessing | None = None,
    is_published: bool = False,
) -> HeteroGraphData:
    """Read the tables and arrays of a graph.

    Args:
        spec: Which tables and columns hold what.
        sources: Their files, or the tables.
        options: How text is read, how splits are drawn, the task and its metric.
        bad: Takes the bad rows.
        labelled: False: labels and splits are neither needed nor read.
        preprocessing: What makes the features of a model that was trained on another graph, of a
            typed one by node type; None: it is learnt from these tables.
        is_published: Whether this is a data set whose labels are known to be labels; it may have
            no features, and its splits are those of `random_split`.

    Raises:
        UserError: A file cannot be read, or there are bad rows that are to be errors.
    """
    is_typed = spec.schema is not None
    of_model: Mapping[NodeType, Preprocessing] | None = None
    if is_typed:
        of_model = None if isinstance(preprocessing, Preprocessing) else preprocessing
    elif (of_nodes := of_one_type(preprocessing, bad.source)) is not None:
        of_model = {NODE: of_nodes}
    tables = _open_tables(spec, sources, options, bad, labelled=labelled)
    specs, node_tables = _node_types(spec, tables, options, bad, labelled=labelled)
    edge_sources: list[EdgeSource] = []
    target = NODE
    if is_typed:
        edge_sources = [edge_source(tables[edges.place], edges) for edges in spec.edges]
        target = _target(spec, specs, node_tables, options.target, labelled=labelled)

    # Labels and splits that are not in the table of the nodes: their columns are no features.
    learnt = specs[target]
    labels: Columns | None = None
    split: SplitSource | None = None
    if learnt.label.place in tables:
        labels = label_columns(tables[learnt.label.place], learnt, options)
    if learnt.split.place in tables:
        split = split_columns(tables[learnt.split.place], learnt)
    elif labelled and learnt.split.parts:
        places = {name: f"{learnt.split.place}.{name}" for name in learnt.split.parts}
        split = {name: _files(sources[place]) for name, place in places.items()}
    elif labelled and learnt.split.files:
        given = sources[learnt.split.place]
        if not isinstance(given, SplitArrays):
            given = SplitArrays(_files(given)[0], load_all(_files(given)))
        split = given

    # The nodes of each type that has a table, then of those that edges alone name.
    nodes: dict[NodeType, _Nodes] = {}
    for name, table in node_tables.items():
        part, elsewhere, split_elsewhere = specs[name], dict[str, str](), False
        if name == target:
            elsewhere = {**_names(labels, "labels"), **_names(split, "splits")}
            split_elsewhere = split is not None or (labels is not None and has_split(labels))
        fitted = None if of_model is None else of_model.get(name)
        columns = columns_of_nodes(
            table, part, split_elsewhere=split_elsewhere, preprocessing=fitted
        )
        if name == target and labelled and labels is None and not isinstance(table, ArrayTable):
            # First, or the labels are called a feature that holds text.
            label_columns_within(table, part, options)
        required = not (is_typed or is_published)
        choice = choose_features(
            columns, part, elsewhere, fitted, strict=labelled, required=required
        )
        choice, rows = read_nodes(choice, part, bad, required=required)
        is_file = not (is_typed or isinstance(sources[part.place], Table))
        index = NodeIndex(
            rows.columns.get("id"),
            len(rows),
            kind=name if is_typed else "node",
            home="the features file " * is_file + rows.path.name,
            decimal=options.decimal,
            id_key=part.key("id"),
        )
        nodes[name] = _Nodes(part, choice, rows, index)
        if not labelled and of_model is None:
            _refuse_statistics(part)
    if is_typed:
        bad.report()
        nodes |= _nodes_of_edges(spec, specs, nodes, edge_sources, options)
        nodes = {name: nodes[name] for name in specs}

    chosen = nodes[target]
    if labelled:
        targets = read_targets(
            labels, chosen.rows, chosen.index, learnt, options, bad, ask=not is_published
        )
        splits = split_nodes(
            *(split, targets, chosen.rows, chosen.index, learnt, options, bad),
            is_published=is_published,
        )
    else:
        targets = no_targets(chosen.rows, chosen.index)
        splits = Splits({name: np.empty(0, np.int64) for name in SPLITS}, "")
    metric = DEFAULT_METRICS[targets.task]
    if labelled and options.metric != "auto":
        metric = options.metric
        if metric not in metrics_for(targets.task):
            raise UserError(
                f"dataset.metric={metric}: the labels make a {targets.task} task.",
                f"Choose one of {', '.join(metrics_for(targets.task))}, or leave "
                "dataset.metric=auto.",
            )

    lists = EdgeLists({name: of_type.index for name, of_type in nodes.items()})
    for edges in () if is_typed else spec.edges:
        edge_table = tables.get(edges.place)
        if edge_table is None:
            edge_table = open_edges(_files(sources[edges.place]), edges, options, bad)
        edge_sources.append(edge_source(edge_table, edges, chosen.index))
    for source in edge_sources:
        read_edges(source, lists, bad)
    for name, of_type in nodes.items():
        for column, other in of_type.spec.foreign_keys.items():
            read_foreign_key(of_type.rows, column, (name, column, other), lists, bad)
    edge_arrays = lists.arrays()
    bad.report()

    made: dict[NodeType, NodeData] = {}
    for name, of_type in nodes.items():
        made[name] = NodeData(of_type.index.num_nodes, ids=of_type.index.node_ids())
        if of_type.choice.order:
            # Statistics are those of the training split; other types have none: of all rows.
            train = splits.nodes["train"] if name == target else np.arange(len(of_type.rows))
            fitted = None if of_model is None else of_model.get(name)
            features, fitted = make_features(
                of_type.rows, of_type.choice, train, of_type.spec, fitted
            )
            made[name].features, made[name].preprocessing = features, fitted
            if fitted is not None and fitted.has_names:
                made[name].feature_names = fitted.feature_names
    in_memory = isinstance(sources.get(learnt.place), Table)
    if labelled and targets.task in ("multiclass", "binary") and not in_memory:
        categorical, train = chosen.choice.categorical, splits.nodes["train"]
        warn_of_label_leaks(chosen.rows, categorical, targets.labels, train, learnt)
    common: dict[str, Any] = {
        "dataset": options.name,
        "labels": targets.labels,
        "num_classes": targets.num_classes,
        "task": targets.task,
        "splits": splits.nodes,
        "class_names": targets.class_names,
        "labelled": labelled,
        "metric": metric,
    }
    if is_typed:
        ends = {name: EdgeData(found[0], found[1]) for name, found in edge_arrays.items()}
        graph = HeteroGraphData(
            nodes=made, edges=ends, target=target, reverse=spec.reverse, **common
        )
    else:
        src, dst, *weight = edge_arrays[EDGE]
        graph = GraphData(
            num_nodes=made[NODE].num_nodes,
            src=src,
            dst=dst,
            features=made[NODE].features,
            edge_weight=weight[0] if weight else None,
            node_ids=made[NODE].ids,
            feature_names=made[NODE].feature_names,
            preprocessing=made[NODE].preprocessing,
            **common,
        )
    summary = _summary(graph, nodes, labels, split, edge_sources, is_typed=is_typed)
    left_out = {**summary.left_out, **bad.left_out}
    graph.summary = summary.model_copy(
        update={"labels": targets.phrase, "split": splits.phrase, "left_out": left_out}
    )
    return graph


def _files(source: Sequence[Path] | Table | SplitArrays) -> Sequence[Path]:
    assert not isinstance(source, Table | SplitArrays)
    return source


def _open_tables(
    spec: GraphSpec, sources: Sources, options: FilesConfig, bad: BadRows, *, labelled: bool
) -> dict[str, Table]:
    """All tables by their places.

    Not the arrays of a split, nor the files of arrays of the edges of a graph of one type: those
    are read after its nodes, of which they may leave little memory.

    Raises:
        UserError: One cannot be read, or columns are named that are not there: all of them.
    """
    tables = {place: source for place, source in sources.items() if isinstance(source, Table)}
    problems: list[Problem] = []

    def check(asked: Iterable[tuple[str, str]], *there: Table) -> None:
        problems.extend(unknown_names(asked, there))

    columns_of_types = chain(*(part.header for part in spec.types.values()))
    for part in (*spec.nodes.values(), *spec.mixed_nodes):
        if part.files and part.place not in tables:
            if part.name is None:
                named = (part.id, part.type, *TYPE_NAMES, *columns_of_types)
                part = replace(part, header=tuple(name for name in named if name))
            tables[part.place] = open_nodes(_files(sources[part.place]), part, options, bad)
    mixed = [tables[part.place] for part in spec.mixed_nodes]
    for part in (*spec.nodes.values(), *spec.types.values()):
        within = [tables[part.place]] if part.place in tables else mixed
        label, split = part.label, part.split
        if labelled and label.files and label.place not in tables:
            tables[label.place] = open_labels(_files(sources[label.place]), part, options, bad)
        if labelled and split.files and not isinstance(sources[split.place], SplitArrays):
            files = _files(sources[split.place])
            if not is_array_file(files[0]):
                opened = [open_table(file, split, options, bad) for file in files]
                tables[split.place] = Table.of_files(opened)
        of_labels = [tables[label.place]] if label.place in tables else []
        of_split = [tables[split.place]] if split.place in tables else []
        for asked in part.asked(labelled=labelled):
            # What is left out may be a column of the labels.
            is_shared = asked[0] == label.key("ignore")
            check([asked], *within, *(of_labels + of_split if is_shared else ()))
        if labelled and not split.parts:
            check(label.asked(), *(of_labels or within))
            if of_split or not split.files:
                check(split.asked(), *(of_split or [*within, *of_labels]))
        for own, there in ((label, of_labels), (split, of_split)):
            if there and own.id is not None and own.id != NO_ID:
                check([(own.key("id"), own.id)], *there)
    for part in spec.mixed_nodes:
        check(part.asked(), tables[part.place])
    for edges in spec.edges:
        if edges.place in tables:
            continue
        files = _files(sources[edges.place])
        if spec.schema is not None or not is_array_file(files[0]):
            tables[edges.place] = open_edges(files, edges, options, bad)
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
        by_type = nodes_by_type(tables[mixed.place], mixed, spec.types, options, bad)
        for name, (table, part) in by_type.items():
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
    for part in specs.values():
        key = part.key("foreign_keys")
        named += [(f"{key}.{column}", other) for column, other in part.foreign_keys.items()]
    for key, name in named:
        if name not in specs:
            raise _unknown_type(key, name, specs)
    problems: list[Problem] = []
    for name, part in spec.types.items():
        asked = [*part.asked(labelled=labelled)]
        for own in (part.label, part.split):
            asked += own.asked() if labelled and not own.files else ()
        problems += unknown_names(asked, [found[name]])
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
                f"Name the column of its labels as nodes.{wanted}.label; of an object, give it y.",
            )
        return wanted
    found = given or usual
    if not found and not labelled and len(specs) == 1:
        found = list(specs)
    if len(found) == 1:
        return found[0]
    if not found:
        raise UserError(
            f"{spec.schema}: no node type has a label.",
            "Name its column in the schema, `author: {…, label: area}`; give y to a node type of "
            "an object."
            if labelled
            else f"Set task.target to one of {', '.join(specs)}.",
        )
    raise UserError(
        f"{spec.schema}: several node types have labels: {', '.join(found)}.",
        f"Choose one with task.target={found[0]}.",
    )


def _nodes_of_edges(
    spec: GraphSpec,
    specs: Mapping[NodeType, NodeSpec],
    nodes: Mapping[NodeType, _Nodes],
    edge_sources: Sequence[EdgeSource],
    options: FilesConfig,
) -> dict[NodeType, _Nodes]:
    """The nodes of the types that have no table: the ids at the ends of their edges.

    Raises:
        UserError: A type has none.
    """
    without = [name for name in specs if name not in nodes]
    collector = IdCollector(options.decimal)
    for source in edge_sources if without else ():
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


def _names(columns: object, what: str) -> dict[str, str]:
    """Names of columns of labels or splits, with what they hold."""
    if not isinstance(columns, Columns) or not has_names(columns.table):
        return {}
    table = columns.table
    others = [place for role, place in columns.places.items() if role != "id"]
    reason = f"{table.path.name} has {what} of this name"
    return {table.names[place]: reason for place in (*columns.numbers, *others)}


def _summary(
    graph: HeteroGraphData,
    nodes: Mapping[NodeType, _Nodes],
    labels: Columns | None,
    split: SplitSource | None,
    edge_sources: Sequence[EdgeSource],
    *,
    is_typed: bool,
) -> DataSummary:
    """Where ids, features and edges are from, and the columns that are not used."""

    def name_of_ids(columns: Columns) -> str:
        place = columns.places.get("id")
        return "row numbers" if place is None else f"column {columns.table.shown(place)}"

    ids, features, left_out = dict[str, str](), dict[str, str](), dict[str, str]()
    for name, of_type in nodes.items():
        own, spec = of_type.rows.source, of_type.spec
        ids[name] = of_type.index.home
        if spec.files or spec.unused:
            ids[name] = f"{name_of_ids(own)} of {own.table.path.name}"
            place = own.places.get("id")
            if place is not None and is_pandas_index(own.table.names[place]):
                ids[name] += ", a pandas index"
        features[name] = "none, learnt rows"
        if of_type.choice.order:
            fitted = graph.nodes[name].preprocessing
            features[name] = describe_features(
                of_type.rows, fitted, spec.missing, fitted=graph.labelled
            )
        prefix = f"{name}." * is_typed
        left_out |= {f"{prefix}{at}": why for at, why in of_type.choice.left_out.items()}
    # Of the files of labels and splits.
    label_key = nodes[graph.target].spec.label.key("column")
    not_a_label = f"not a label, by its name or {label_key}"
    others = {not_a_label: labels, "not the split": split}
    for reason, columns in others.items():
        if not isinstance(columns, Columns):
            continue
        table = columns.table
        if not is_typed and name_of_ids(columns) != name_of_ids(nodes[NODE].rows.source):
            ids[NODE] += f"; {name_of_ids(columns)} of {table.path.name}"
        if not is_array_file(table.path):
            used = {*columns.places.values(), *columns.numbers}
            unused = [place for place in range(len(table.names)) if place not in used]
            left_out |= {f"{table.shown(place)} of {table.path.name}": reason for place in unused}
    for source in edge_sources:
        for name in source.unread():
            if is_typed:
                left_out[f"{source.spec.place.removeprefix('edges.')}.{name}"] = EDGES_ALONE
                continue
            reason = "edges have ends and a weight only"
            if name.lower() in WEIGHT_NAMES:
                reason = f"a weight only by dataset.weight_column={name}"
            left_out[f"{name} of {source.columns.table.path.name}"] = reason
    counts = {"/".join(name): len(edges.src) for name, edges in graph.edges.items()}
    if not is_typed:
        (count,) = counts.values()
        edges = edge_sources[0].phrase(count)
        return DataSummary(ids=ids[NODE], features=features[NODE], edges=edges, left_out=left_out)
    return DataSummary(
        ids="; ".join(f"{name}: {phrase}" for name, phrase in ids.items()),
        features="; ".join(f"{name}: {phrase}" for name, phrase in features.items()),
        edges=", ".join(f"{count:,} {name}" for name, count in counts.items()),
        left_out=left_out,
    )
