"""Reads the graph of a `GraphSpec`: nodes and features first, then labels, splits and edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from gnntrain.config import FilesConfig
from gnntrain.config.graph_spec import GraphSpec, NodeSpec
from gnntrain.config.problems import Problem, did_you_mean, shown
from gnntrain.data.array_files import ArrayTable, is_array_file, load_arrays
from gnntrain.data.graph import NODE, SPLITS, EdgeData, EdgeType, GraphData, NodeData, NodeType
from gnntrain.data.names import COLUMN_NAMES, is_pandas_index
from gnntrain.data.preprocessing import AnyPreprocessing, Preprocessing, by_node_type
from gnntrain.data.read.columns import (
    columns_of_nodes,
    label_columns,
    open_nodes,
    split_columns,
    unknown_names,
)
from gnntrain.data.read.edges import (
    WEIGHT_NAMES,
    EdgeLists,
    EdgeSource,
    IdCollector,
    edge_source,
    foreign_ids,
    open_edges,
    read_edges,
    read_foreign_key,
)
from gnntrain.data.read.features import NodeRows, describe_features, make_features, read_nodes
from gnntrain.data.read.labels import (
    SplitSource,
    Targets,
    read_targets,
    split_nodes,
    warn_of_label_leaks,
)
from gnntrain.data.read.nodes import NodeIndex, nodes_by_type
from gnntrain.data.summary import EDGES_ALONE, DataSummary
from gnntrain.data.table_files import open_table, table_in_memory
from gnntrain.data.tables import BadRows, Columns, Table
from gnntrain.errors import UserError
from gnntrain.metrics import DEFAULT_METRICS, metrics_for


def read_graph(
    spec: GraphSpec,
    files: Mapping[str, Sequence[Path]],
    options: FilesConfig,
    bad: BadRows,
    *,
    tables: Mapping[str, Table] | None = None,
    labelled: bool,
    preprocessing: AnyPreprocessing | None = None,
    is_published: bool = False,
) -> GraphData:
    """Read the tables and arrays of a graph.

    Args:
        files, tables: By the places of `spec`; tables are in memory.
        options: How text is read, how splits are drawn, the task and its metric.
        labelled: False: labels and splits are neither needed nor read.
        preprocessing: What makes the features of a model that was trained on another graph, of a
            typed one by node type; None: it is learnt from these tables.
        is_published: Whether this is a data set whose labels are known to be labels; it may have
            no features, and its splits are drawn by their number.

    Raises:
        UserError: A file cannot be read, or there are bad rows that are to be errors.
    """
    if spec.schema is None and isinstance(preprocessing, Mapping):
        raise UserError(
            f"The model was trained on a typed graph; {bad.source} has one type.",
            "Give a graph of the same node types and edge types: dataset.schema=graph.yaml, or a "
            "HeteroData.",
        )
    known = by_node_type(preprocessing)
    opened = dict(tables or {})
    return _Reader(spec, files, options, bad, labelled, is_published, known, opened).read()


@dataclass
class _Reader:
    """Reads one graph, see `read_graph`; the methods stand in the order of the reading.

    `known` is the preprocessing of a model by node type; `labels` and `split` are those that are
    not in the nodes' table.
    """

    spec: GraphSpec
    files: Mapping[str, Sequence[Path]]
    options: FilesConfig
    bad: BadRows
    labelled: bool
    is_published: bool
    known: Mapping[NodeType, Preprocessing]
    tables: dict[str, Table]
    specs: dict[NodeType, NodeSpec] = field(default_factory=dict)
    target: NodeType = NODE
    labels: Columns | None = None
    split: SplitSource | None = None
    nodes: dict[NodeType, NodeRows] = field(default_factory=dict)
    edges: list[EdgeSource] = field(default_factory=list)

    @property
    def is_typed(self) -> bool:
        return self.spec.schema is not None

    def read(self) -> GraphData:
        spec, options, bad, labelled = self.spec, self.options, self.bad, self.labelled
        self.open_tables()
        node_tables = self.find_types()
        if self.is_typed:
            self.target = self.find_target(node_tables)
        target = self.target
        learnt = self.specs[target]
        if learnt.label.place in self.tables:
            self.labels = label_columns(self.tables[learnt.label.place], learnt, options)
        if (own := self.tables.get(learnt.split.place)) is not None:
            self.split = own if isinstance(own, ArrayTable) else split_columns(own, learnt)
        elif labelled and learnt.split.parts:
            places = {name: f"{learnt.split.place}.{name}" for name in learnt.split.parts}
            self.split = {name: self.files[place] for name, place in places.items()}
        for name, table in node_tables.items():
            self.nodes[name] = self.nodes_of_table(name, table)
        bad.report()

        # Arrays of edges after the tables of nodes, which may leave little memory.
        indexes = {name: of_type.index for name, of_type in self.nodes.items()}
        for edges in spec.edges:
            edge_table = self.tables.get(edges.place)
            if edge_table is None:
                edge_table = open_edges(self.files[edges.place], edges, options, bad)
            self.edges.append(edge_source(edge_table, edges, indexes, weighted=not self.is_typed))
        self.read_nodes_of_edges()

        chosen = self.nodes[target]
        none = np.full(chosen.index.num_nodes, -1, np.int32)  # of a graph to predict on
        targets = Targets(none, 1, "multiclass", none >= 0, chosen.rows)
        splits, of_split = {name: np.empty(0, np.int64) for name in SPLITS}, ""
        metric = "auto"
        if labelled:
            targets = read_targets(self.labels, chosen, options, bad, ask=not self.is_published)
            splits, of_split = split_nodes(
                self.split, targets, chosen, options, bad, is_published=self.is_published
            )
            metric, metrics = options.metric, metrics_for(targets.task)
            if metric not in ("auto", *metrics):
                raise UserError(
                    f"dataset.metric={metric}: the labels make a {targets.task} task.",
                    f"Choose one of {', '.join(metrics)}, or leave dataset.metric=auto.",
                )

        lists = EdgeLists({name: of_type.index for name, of_type in self.nodes.items()})
        for source in self.edges:
            read_edges(source, lists, bad)
        for name, of_type in self.nodes.items():
            for column, other in of_type.spec.foreign_keys.items():
                read_foreign_key(of_type.rows, (name, column, other), lists, bad)
        edge_data = lists.edges()
        bad.report()

        node_data: dict[NodeType, NodeData] = {}
        for name, of_type in self.nodes.items():
            data = NodeData(of_type.index.num_nodes, ids=of_type.index.node_ids())
            if of_type.order:
                # Statistics are those of the training split; other types have none: of all rows.
                train = splits["train"] if name == target else np.arange(len(of_type.rows))
                of_model = self.known.get(name)
                data.features, data.preprocessing = make_features(of_type, train, of_model)
                if data.preprocessing is not None and data.preprocessing.has_names:
                    data.feature_names = data.preprocessing.feature_names
            node_data[name] = data
        if labelled and self.files and targets.task in ("multiclass", "binary"):
            warn_of_label_leaks(chosen, targets.labels, splits["train"])

        summary = self.summary(node_data, edge_data)
        left_out = {**summary.left_out, **bad.left_out}
        phrases = {"labels": targets.phrase, "split": of_split, "left_out": left_out}
        return GraphData(
            dataset=options.name,
            nodes=node_data,
            edges=edge_data,
            target=target,
            labels=targets.labels,
            num_classes=targets.num_classes,
            task=targets.task,
            splits=splits,
            class_names=targets.class_names,
            labelled=labelled,
            metric=DEFAULT_METRICS[targets.task] if metric == "auto" else metric,
            summary=summary.model_copy(update=phrases),
            reverse=spec.reverse,
        )

    def open_tables(self) -> None:
        """Open all tables, but for arrays of edges."""
        spec, options, bad, labelled = self.spec, self.options, self.bad, self.labelled
        tables = self.tables
        problems: list[Problem] = []

        for part in spec.node_tables:
            if part.files and part.place not in tables:
                tables[part.place] = open_nodes(self.files[part.place], part, part, options, bad)
        mixed = [] if spec.mixed is None else [tables[spec.mixed.place]]
        for part in (*spec.nodes.values(), *spec.types.values()):
            within = [tables[part.place]] if part.place in tables else mixed
            label, split = part.label, part.split
            if labelled and label.files and label.place not in tables:
                tables[label.place] = open_nodes(self.files[label.place], part, label, options, bad)
            if labelled and split.files and split.place not in tables:
                files = self.files[split.place]
                if is_array_file(files[0]):
                    none = np.empty((0, 0))
                    tables[split.place] = ArrayTable(files[0], {}, none, load_arrays(files))
                else:
                    tables[split.place] = open_table(files, split.header, options, bad)
            of_labels = [tables[label.place]] if label.place in tables else []
            of_split = [tables[split.place]] if split.place in tables else []
            for asked in part.asked(labelled=labelled):
                # What is left out may be a column of the labels.
                is_shared = asked[0] == label.key("ignore")
                there = [*within, *of_labels, *of_split] if is_shared else within
                problems += unknown_names([asked], there)
            if labelled and not split.parts:
                problems += unknown_names(label.asked(), of_labels or within)
                if of_split or not split.files:
                    there = of_split or [*within, *of_labels]
                    problems += unknown_names(split.asked(), there)
        if spec.mixed is not None:
            problems += unknown_names(spec.mixed.asked(), mixed)
        for edges in spec.edges:
            if edges.place not in tables and not is_array_file(self.files[edges.place][0]):
                tables[edges.place] = open_edges(self.files[edges.place], edges, options, bad)
                problems += unknown_names(edges.asked(), [tables[edges.place]])
        if problems:
            raise spec.error(problems)

    def find_types(self) -> dict[NodeType, Table]:
        """Find the node types; the tables of those that have one."""
        spec, specs = self.spec, self.specs
        specs |= spec.nodes
        tables = {name: self.tables[part.place] for name, part in specs.items() if part.files}
        if spec.mixed is not None:
            table = self.tables[spec.mixed.place]
            by_type = nodes_by_type(table, spec.mixed, self.options, self.bad)
            for name, (table, part) in by_type.items():
                specs[name], tables[name] = part, table
        self.bad.report()
        # Of a table with a column of types, only now they are known.
        named = [(part.place, name) for name, part in spec.types.items()]
        named += [(part.place, name) for part in spec.edges for name in (part.edge_type or ())[::2]]
        for part in specs.values():
            key = part.key("foreign_keys")
            named += [(f"{key}.{column}", other) for column, other in part.foreign_keys.items()]
        for key, name in named:
            if name not in specs:
                raise _unknown_type(key, name, specs)
        return tables

    def find_target(self, tables: Mapping[NodeType, Table]) -> NodeType:
        """The node type to learn: the one of `task.target`, or the only one that has labels."""
        wanted, schema, labelled = self.options.target, self.spec.schema, self.labelled
        hint = "Name its column in the schema, `author: {…, label: area}`; of an object, give it y."
        of_labels = ((name, part.label) for name, part in self.specs.items())
        named = [name for name, one in of_labels if one.files or one.column is not None]
        usual = []
        for name, table in tables.items():
            names = table.arrays if isinstance(table, ArrayTable) else table.names
            spec = self.specs[name]
            ignored = {column.lower() for column in (*spec.ignore, *spec.unused)}
            if {column.lower() for column in names} & {*COLUMN_NAMES["label"]} - ignored:
                usual.append(name)
        if wanted is not None:
            if wanted not in self.specs:
                raise _unknown_type("task.target", wanted, self.specs)
            if labelled and wanted not in (*named, *usual):
                raise UserError(f"task.target={wanted}: the node type has no label.", hint)
            return wanted
        may_be = named or usual or list(self.specs if len(self.specs) == 1 and not labelled else ())
        if len(may_be) == 1:
            return may_be[0]
        if may_be:
            raise UserError(
                f"{schema}: several node types have labels: {', '.join(may_be)}.",
                f"Choose one with task.target={may_be[0]}.",
            )
        if not labelled:
            hint = f"Set task.target to one of {', '.join(self.specs)}."
        raise UserError(f"{schema}: no node type has a label.", hint)

    def nodes_of_table(self, name: NodeType, table: Table) -> NodeRows:
        """The nodes of a type that has a table."""
        spec, of_model = self.specs[name], self.known.get(name)
        labels, split = (self.labels, self.split) if name == self.target else (None, None)
        is_learnt = name == self.target and self.labelled
        if is_learnt and labels is None and not isinstance(table, ArrayTable):
            # First, or the labels are called a feature that holds text.
            label_columns(table, spec, self.options, within=True)
        elsewhere: dict[str, str] = {}  # columns that are no features
        for columns, what in ((labels, "labels"), (split, "splits")):
            if isinstance(columns, Columns) and columns.table.has_names:
                other = columns.table
                places = [place for role, place in columns.places.items() if role != "id"]
                reason = f"{other.path.name} has {what} of this name"
                elsewhere |= {other.names[at]: reason for at in (*columns.numbers, *places)}
        split_elsewhere = split is not None or (
            labels is not None and not labels.places.keys() <= {"id", "label"}
        )
        columns = columns_of_nodes(
            table, spec, split_elsewhere=split_elsewhere, preprocessing=of_model
        )
        nodes = read_nodes(
            name,
            columns,
            spec,
            elsewhere,
            of_model,
            self.options,
            self.bad,
            required=not (self.is_typed or self.is_published),
        )
        # A model that was trained without preprocessing says no statistics.
        for word in (
            () if self.labelled or self.known else ("standardize", "categorical", "missing")
        ):
            if (value := getattr(spec, word)) and value not in ("refuse", "zero"):
                raise UserError(
                    f"{spec.key(word)}={shown(value)}: the model was trained without it.",
                    "Leave it out, and prepare the features as those the model was trained on.",
                )
        return nodes

    def read_nodes_of_edges(self) -> None:
        """Add the nodes of the types that have no table: the ids at the ends of their edges."""
        schema = self.spec.schema or Path()
        without = [name for name in self.specs if name not in self.nodes]
        collector = IdCollector(self.options.decimal)
        for source in self.edges if without else ():
            collector.add_ends(source, without, self.specs)
        for of_type in self.nodes.values():
            for column, other in of_type.spec.foreign_keys.items():
                if other in without:
                    rows = of_type.rows
                    collector.add(other, foreign_ids(rows, column), rows.source.table)
        for name in without:
            ids = collector.ids(name)
            if not len(ids):
                raise UserError(
                    f"{schema}: node type {name} has no table, and no edge has a node of it.",
                    f"Give nodes.{name}.files, or edges with a node of it.",
                )
            columns = Columns(table_in_memory(schema, pa.table({"id": ids})), {"id": 0})
            index = NodeIndex(ids, len(ids), name, None)
            self.nodes[name] = NodeRows(self.specs[name], columns.read(), index)
        self.nodes = {name: self.nodes[name] for name in self.specs}

    def summary(
        self, node_data: Mapping[NodeType, NodeData], edge_data: Mapping[EdgeType, EdgeData]
    ) -> DataSummary:
        """Where ids, features and edges are from, and the columns that are not used."""

        def name_of_ids(columns: Columns) -> str:
            place = columns.places.get("id")
            return "row numbers" if place is None else f"column {columns.table.shown(place)}"

        ids, features, left_out = list[str](), list[str](), dict[str, str]()
        for name, of_type in self.nodes.items():
            own, spec, of_ids = of_type.rows.source, of_type.spec, of_type.index.home
            if spec.files or spec.unused:
                of_ids = f"{name_of_ids(own)} of {own.table.path.name}"
                place = own.places.get("id")
                if place is not None and is_pandas_index(own.table.names[place]):
                    of_ids += ", a pandas index"
            of_features = "none, learnt rows"
            if of_type.order:
                made_by = node_data[name].preprocessing
                of_features = describe_features(of_type, made_by, fitted=self.labelled)
            ids.append(f"{name}: " * self.is_typed + of_ids)
            features.append(f"{name}: " * self.is_typed + of_features)
            prefix = f"{name}." * self.is_typed
            left_out |= {f"{prefix}{at}": why for at, why in of_type.left_out.items()}
        # Of the files of labels and splits.
        chosen = self.nodes[self.target]
        not_a_label = f"not a label, by its name or {chosen.spec.label.key('column')}"
        for reason, columns in {not_a_label: self.labels, "not the split": self.split}.items():
            if not isinstance(columns, Columns):
                continue
            file = columns.table.path
            if not self.is_typed and name_of_ids(columns) != name_of_ids(chosen.rows.source):
                ids.append(f"{name_of_ids(columns)} of {file.name}")
            for name in columns.unread() if not is_array_file(file) else ():
                left_out[f"{name} of {file.name}"] = reason
        for source in self.edges:
            for name in source.unread():
                if self.is_typed:
                    left_out[f"{source.spec.place.removeprefix('edges.')}.{name}"] = EDGES_ALONE
                    continue
                reason = "edges have ends and a weight only"
                if name.lower() in WEIGHT_NAMES:
                    reason = f"a weight only by dataset.weight_column={name}"
                left_out[f"{name} of {source.columns.table.path.name}"] = reason
        counts = {"/".join(name): len(edges.src) for name, edges in edge_data.items()}
        edges = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        if not self.is_typed:
            edges = self.edges[0].phrase(*counts.values())
        return DataSummary(
            ids="; ".join(ids), features="; ".join(features), edges=edges, left_out=left_out
        )


def _unknown_type(key: str, name: NodeType, known: Mapping[NodeType, object]) -> UserError:
    return UserError(
        f"{key}={name}: there is no such node type; there are {', '.join(known)}.",
        did_you_mean(name, known, "Name one of them."),
    )
