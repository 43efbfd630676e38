"""Reads the graph of a `GraphSpec`: nodes and features first, then labels, splits and edges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gnntrain.config.graph_spec import NO_ID, GraphSpec, NodeSpec
from gnntrain.config.problems import Problem, meant_or
from gnntrain.data.array_files import ArrayTable, load_all
from gnntrain.data.graph import (
    EDGE,
    NODE,
    SPLITS,
    EdgeData,
    EdgeType,
    GraphData,
    HeteroGraphData,
    NodeData,
    NodeType,
)
from gnntrain.data.names import COLUMN_NAMES, is_pandas_index
from gnntrain.data.preprocessing import AnyPreprocessing, Preprocessing, of_one_type
from gnntrain.data.read.columns import (
    columns_of_nodes,
    has_split,
    is_array_file,
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
from gnntrain.data.read.nodes import NodeIndex, nodes_by_type, read_nodes
from gnntrain.data.read.splits import SplitArrays, Splits, SplitSource, split_nodes
from gnntrain.data.summary import EDGES_ALONE, DataSummary
from gnntrain.data.table_files import table_in_memory
from gnntrain.data.tables import BadRows, Columns, Rows, Table
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
    known: Mapping[NodeType, Preprocessing] | None = None
    if spec.schema is not None:
        known = None if isinstance(preprocessing, Preprocessing) else preprocessing
    elif (of_nodes := of_one_type(preprocessing, bad.source)) is not None:
        known = {NODE: of_nodes}
    reader = _Reader(spec, sources, options, bad, labelled, is_published, known or {})
    return reader.read(may_learn=labelled or known is not None)


@dataclass(frozen=True)
class _Reader:
    """Reads one graph, see `read_graph`; `known` is the preprocessing of a model by node type."""

    spec: GraphSpec
    sources: Sources
    options: FilesConfig
    bad: BadRows
    labelled: bool
    is_published: bool
    known: Mapping[NodeType, Preprocessing]

    @property
    def is_typed(self) -> bool:
        return self.spec.schema is not None

    def read(self, *, may_learn: bool) -> HeteroGraphData:
        """The graph; `may_learn`: whether preprocessing may be learnt from it."""
        spec, options, bad, labelled = self.spec, self.options, self.bad, self.labelled
        tables = self.open_tables()
        specs, node_tables = self.node_types(tables)
        edge_sources: list[EdgeSource] = []
        target = NODE
        if self.is_typed:
            edge_sources = [edge_source(tables[edges.place], edges) for edges in spec.edges]
            target = self.target(specs, node_tables)

        # Labels and splits that are not in the table of the nodes.
        learnt = specs[target]
        labels: Columns | None = None
        split: SplitSource | None = None
        if learnt.label.place in tables:
            labels = label_columns(tables[learnt.label.place], learnt, options)
        if learnt.split.place in tables:
            split = split_columns(tables[learnt.split.place], learnt)
        elif labelled and learnt.split.parts:
            places = {name: f"{learnt.split.place}.{name}" for name in learnt.split.parts}
            split = {name: self.files(place) for name, place in places.items()}
        elif labelled and learnt.split.files:
            given = self.sources[learnt.split.place]
            split = given if isinstance(given, SplitArrays) else None
            if split is None:
                files = self.files(learnt.split.place)
                split = SplitArrays(files[0], load_all(files))

        # The nodes of each type that has a table, then of those that edges alone name.
        nodes: dict[NodeType, _Nodes] = {}
        for name, table in node_tables.items():
            others = (labels, split) if name == target else (None, None)
            nodes[name] = self.nodes_of_table(
                table, name, specs[name], *others, is_target=name == target
            )
            if not may_learn:
                _refuse_statistics(specs[name])
        if self.is_typed:
            bad.report()
            nodes |= self.nodes_of_edges(specs, nodes, edge_sources)
            nodes = {name: nodes[name] for name in specs}

        chosen = nodes[target]
        targets = no_targets(chosen.rows, chosen.index)
        splits = Splits({name: np.empty(0, np.int64) for name in SPLITS}, "")
        metric = "auto"
        if labelled:
            of_target = chosen.rows, chosen.index, learnt, options, bad
            targets = read_targets(labels, *of_target, ask=not self.is_published)
            splits = split_nodes(split, targets, *of_target, is_published=self.is_published)
            metric, metrics = options.metric, metrics_for(targets.task)
            if metric not in ("auto", *metrics):
                raise UserError(
                    f"dataset.metric={metric}: the labels make a {targets.task} task.",
                    f"Choose one of {', '.join(metrics)}, or leave dataset.metric=auto.",
                )

        lists = EdgeLists({name: of_type.index for name, of_type in nodes.items()})
        for edges in () if self.is_typed else spec.edges:
            edge_table = tables.get(edges.place)
            if edge_table is None:
                edge_table = open_edges(self.files(edges.place), edges, options, bad)
            edge_sources.append(edge_source(edge_table, edges, chosen.index))
        for source in edge_sources:
            read_edges(source, lists, bad)
        for name, of_type in nodes.items():
            for column, other in of_type.spec.foreign_keys.items():
                read_foreign_key(of_type.rows, column, (name, column, other), lists, bad)
        edge_data: dict[EdgeType, EdgeData] = {}
        for edge_type, (src, dst, *weight) in lists.arrays().items():
            edge_data[edge_type] = EdgeData(src, dst, weight[0] if weight else None)
        bad.report()

        node_data: dict[NodeType, NodeData] = {}
        for name, of_type in nodes.items():
            data = NodeData(of_type.index.num_nodes, ids=of_type.index.node_ids())
            if of_type.choice.order:
                # Statistics are those of the training split; other types have none: of all rows.
                train = splits.nodes["train"] if name == target else np.arange(len(of_type.rows))
                data.features, data.preprocessing = make_features(
                    of_type.rows, of_type.choice, train, of_type.spec, self.known.get(name)
                )
                if data.preprocessing is not None and data.preprocessing.has_names:
                    data.feature_names = data.preprocessing.feature_names
            node_data[name] = data
        is_of_files = not isinstance(self.sources.get(learnt.place), Table)
        if labelled and is_of_files and targets.task in ("multiclass", "binary"):
            categorical, train = chosen.choice.categorical, splits.nodes["train"]
            warn_of_label_leaks(chosen.rows, categorical, targets.labels, train, learnt)

        summary = self.summary(nodes, node_data, edge_data, labels, split, edge_sources, learnt)
        left_out = {**summary.left_out, **bad.left_out}
        phrases = {"labels": targets.phrase, "split": splits.phrase, "left_out": left_out}
        common: dict[str, Any] = {
            "dataset": options.name,
            "labels": targets.labels,
            "num_classes": targets.num_classes,
            "task": targets.task,
            "splits": splits.nodes,
            "class_names": targets.class_names,
            "labelled": labelled,
            "metric": DEFAULT_METRICS[targets.task] if metric == "auto" else metric,
            "summary": summary.model_copy(update=phrases),
        }
        if self.is_typed:
            return HeteroGraphData(
                nodes=node_data, edges=edge_data, target=target, reverse=spec.reverse, **common
            )
        only_nodes, only_edges = node_data[NODE], edge_data[EDGE]
        return GraphData(
            num_nodes=only_nodes.num_nodes,
            src=only_edges.src,
            dst=only_edges.dst,
            edge_weight=only_edges.weight,
            features=only_nodes.features,
            node_ids=only_nodes.ids,
            feature_names=only_nodes.feature_names,
            preprocessing=only_nodes.preprocessing,
            **common,
        )

    def files(self, place: str) -> Sequence[Path]:
        """The files of a place that has no table in memory."""
        source = self.sources[place]
        assert not isinstance(source, Table | SplitArrays)
        return source

    def open_tables(self) -> dict[str, Table]:
        """All tables by their places.

        Not the arrays of a split, nor the files of arrays of the edges of a graph of one type:
        those are read after its nodes, of which they may leave little memory.

        Raises:
            UserError: One cannot be read, or columns are named that are not there: all of them.
        """
        spec, sources, options, bad = self.spec, self.sources, self.options, self.bad
        labelled = self.labelled
        tables = {place: source for place, source in sources.items() if isinstance(source, Table)}
        problems: list[Problem] = []

        def check(asked: Iterable[tuple[str, str]], *there: Table) -> None:
            problems.extend(unknown_names(asked, there))

        for part in (*spec.nodes.values(), *spec.mixed_nodes):
            if part.files and part.place not in tables:
                tables[part.place] = open_nodes(self.files(part.place), part, options, bad)
        mixed = [tables[part.place] for part in spec.mixed_nodes]
        for part in (*spec.nodes.values(), *spec.types.values()):
            within = [tables[part.place]] if part.place in tables else mixed
            label, split = part.label, part.split
            if labelled and label.files and label.place not in tables:
                tables[label.place] = open_labels(self.files(label.place), part, options, bad)
            if labelled and split.files and not isinstance(sources[split.place], SplitArrays):
                files = self.files(split.place)
                if not is_array_file(files[0]):
                    opened = [open_table(file, split.header, options, bad) for file in files]
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
            files = self.files(edges.place)
            if spec.schema is not None or not is_array_file(files[0]):
                tables[edges.place] = open_edges(files, edges, options, bad)
                check(edges.asked(), tables[edges.place])
        if problems:
            raise spec.error(problems)
        return tables

    def node_types(
        self, tables: Mapping[str, Table]
    ) -> tuple[dict[NodeType, NodeSpec], dict[NodeType, Table]]:
        """What is said of each node type, and the tables of those that have one.

        Raises:
            UserError: A type is in two tables, or one is named that is not there.
        """
        spec, labelled = self.spec, self.labelled
        specs = dict(spec.nodes)
        found = {name: tables[part.place] for name, part in specs.items() if part.files}
        for mixed in spec.mixed_nodes:
            by_type = nodes_by_type(tables[mixed.place], mixed, self.options, self.bad)
            for name, (table, part) in by_type.items():
                if name in specs:
                    raise UserError(
                        f"{spec.schema}: node type {name} is in two tables of nodes.",
                        "Give the tables as files of one entry.",
                    )
                specs[name], found[name] = part, table
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
        problems: list[Problem] = []
        for name, part in spec.types.items():
            asked = [*part.asked(labelled=labelled)]
            for own in (part.label, part.split):
                asked += own.asked() if labelled and not own.files else ()
            problems += unknown_names(asked, [found[name]])
        if problems:
            raise spec.error(problems)
        return specs, found

    def target(
        self, specs: Mapping[NodeType, NodeSpec], tables: Mapping[NodeType, Table]
    ) -> NodeType:
        """The node type to learn."""
        wanted, schema, labelled = self.options.target, self.spec.schema, self.labelled
        hint = "Name its column in the schema, `author: {…, label: area}`; of an object, give it y."
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
                raise UserError(f"task.target={wanted}: the node type has no label.", hint)
            return wanted
        found = given or usual or list(specs if len(specs) == 1 and not labelled else ())
        if len(found) == 1:
            return found[0]
        if found:
            raise UserError(
                f"{schema}: several node types have labels: {', '.join(found)}.",
                f"Choose one with task.target={found[0]}.",
            )
        if not labelled:
            hint = f"Set task.target to one of {', '.join(specs)}."
        raise UserError(f"{schema}: no node type has a label.", hint)

    def nodes_of_table(
        self,
        table: Table,
        name: NodeType,
        spec: NodeSpec,
        labels: Columns | None,
        split: SplitSource | None,
        *,
        is_target: bool,
    ) -> _Nodes:
        """The nodes of a table.

        Args:
            table: The table.
            name: Their type.
            spec: What is said of them.
            labels: Of the target, columns of labels that are elsewhere.
            split: Of the target, splits that are elsewhere.
            is_target: Whether they are those to learn.
        """
        if is_target and self.labelled and labels is None and not isinstance(table, ArrayTable):
            # First, or the labels are called a feature that holds text.
            label_columns_within(table, spec, self.options)
        elsewhere: dict[str, str] = {}  # columns that are no features
        for columns, what in ((labels, "labels"), (split, "splits")):
            if isinstance(columns, Columns) and has_names(columns.table):
                other = columns.table
                places = [place for role, place in columns.places.items() if role != "id"]
                reason = f"{other.path.name} has {what} of this name"
                elsewhere |= {other.names[at]: reason for at in (*columns.numbers, *places)}
        of_model, required = self.known.get(name), not (self.is_typed or self.is_published)
        split_elsewhere = split is not None or (labels is not None and has_split(labels))
        columns = columns_of_nodes(
            table, spec, split_elsewhere=split_elsewhere, preprocessing=of_model
        )
        choice = choose_features(
            columns, spec, elsewhere, of_model, strict=self.labelled, required=required
        )
        choice, rows = read_nodes(choice, spec, self.bad, required=required)
        is_file = not (self.is_typed or isinstance(self.sources[spec.place], Table))
        index = NodeIndex(
            rows.columns.get("id"),
            len(rows),
            kind=name if self.is_typed else "node",
            home="the features file " * is_file + rows.path.name,
            decimal=self.options.decimal,
            id_key=spec.key("id"),
        )
        return _Nodes(spec, choice, rows, index)

    def nodes_of_edges(
        self,
        specs: Mapping[NodeType, NodeSpec],
        nodes: Mapping[NodeType, _Nodes],
        edge_sources: Sequence[EdgeSource],
    ) -> dict[NodeType, _Nodes]:
        """The nodes of the types that have no table: the ids at the ends of their edges.

        Raises:
            UserError: A type has none.
        """
        schema = self.spec.schema or Path()
        without = [name for name in specs if name not in nodes]
        collector = IdCollector(self.options.decimal)
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
                    f"{schema}: node type {name} has no table, and no edge has a node of it.",
                    f"Give nodes.{name}.files, or edges with a node of it.",
                )
            table = table_in_memory(schema, pa.table({"id": ids}))
            columns = Columns(table, {"id": 0}, ())
            index = NodeIndex(ids, len(ids), kind=name, home=None)
            found[name] = _Nodes(specs[name], FeatureChoice(columns, ()), columns.read(), index)
        return found

    def summary(
        self,
        nodes: Mapping[NodeType, _Nodes],
        node_data: Mapping[NodeType, NodeData],
        edge_data: Mapping[EdgeType, EdgeData],
        labels: Columns | None,
        split: SplitSource | None,
        edge_sources: Sequence[EdgeSource],
        learnt: NodeSpec,
    ) -> DataSummary:
        """Where ids, features and edges are from, and the columns that are not used."""
        is_typed = self.is_typed

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
                fitted = node_data[name].preprocessing
                features[name] = describe_features(
                    of_type.rows, fitted, spec.missing, fitted=self.labelled
                )
            prefix = f"{name}." * is_typed
            left_out |= {f"{prefix}{at}": why for at, why in of_type.choice.left_out.items()}
        # Of the files of labels and splits.
        not_a_label = f"not a label, by its name or {learnt.label.key('column')}"
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
                left_out |= {
                    f"{table.shown(place)} of {table.path.name}": reason for place in unused
                }
        for source in edge_sources:
            for name in source.unread():
                if is_typed:
                    left_out[f"{source.spec.place.removeprefix('edges.')}.{name}"] = EDGES_ALONE
                    continue
                reason = "edges have ends and a weight only"
                if name.lower() in WEIGHT_NAMES:
                    reason = f"a weight only by dataset.weight_column={name}"
                left_out[f"{name} of {source.columns.table.path.name}"] = reason
        counts = {"/".join(name): len(edges.src) for name, edges in edge_data.items()}
        if not is_typed:
            (count,) = counts.values()
            edges = edge_sources[0].phrase(count)
            return DataSummary(
                ids=ids[NODE], features=features[NODE], edges=edges, left_out=left_out
            )
        return DataSummary(
            ids="; ".join(f"{name}: {phrase}" for name, phrase in ids.items()),
            features="; ".join(f"{name}: {phrase}" for name, phrase in features.items()),
            edges=", ".join(f"{count:,} {name}" for name, count in counts.items()),
            left_out=left_out,
        )


def _unknown_type(key: str, name: NodeType, known: Mapping[NodeType, object]) -> UserError:
    return UserError(
        f"{key}={name}: there is no such node type; there are {', '.join(known)}.",
        meant_or(name, known, "Name one of them."),
    )


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
