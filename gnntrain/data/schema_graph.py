"""Reads the typed graph of `dataset.schema`: nodes and ids, then labels, splits and edges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gnntrain.config.graph_schema import (
    ColumnFile,
    SplitFiles,
    schema_error,
)
from gnntrain.config.problems import meant_or
from gnntrain.data.array_files import ArrayTable
from gnntrain.data.bad_rows import BadRows
from gnntrain.data.drawn_splits import Splits, no_splits
from gnntrain.data.file_columns import (
    columns_of_nodes,
    find_id,
    is_array_file,
    place_of,
    unknown_names,
)
from gnntrain.data.file_feature_columns import FeatureChoice, choose_features
from gnntrain.data.file_features import describe_features, make_features
from gnntrain.data.file_graph import (
    chosen_metric,
    name_of_ids,
    names_of,
    read_nodes,
    refuse_statistics,
)
from gnntrain.data.file_splits import SplitSource, split_nodes
from gnntrain.data.file_target_columns import (
    has_split,
    label_columns,
    open_labels,
    split_columns,
)
from gnntrain.data.file_targets import Targets, no_targets, read_targets
from gnntrain.data.graph import (
    EdgeData,
    EdgeType,
    HeteroGraphData,
    Int64Array,
    IntArray,
    NodeData,
    NodeType,
)
from gnntrain.data.label_leaks import warn_of_label_leaks
from gnntrain.data.node_index import NodeIndex
from gnntrain.data.preprocessing import Preprocessing
from gnntrain.data.schema_edges import (
    EdgeLists,
    EdgeSource,
    IdCollector,
    collect_ids,
    edge_source,
    foreign_ids,
    mixed_edge_source,
    open_edges,
    read_edges_of_type,
    read_foreign_key,
    read_mixed_edges,
)
from gnntrain.data.schema_files import SchemaFiles, keyed
from gnntrain.data.schema_tables import (
    TYPE_NAMES,
    NodeSource,
    Part,
    columns_asked,
    config_of,
    has_usual_label,
    ids_called,
    keys_of,
    mixed_sources,
    names_in,
    node_source,
    open_nodes,
)
from gnntrain.data.summary import EDGES_ALONE, DataSummary
from gnntrain.data.table_files import table_in_memory
from gnntrain.data.tables import Columns, Rows, Table
from gnntrain.errors import UserError

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig


@dataclass(frozen=True)
class _Nodes:
    """The nodes of a type, read.

    Attributes:
        source: Their table.
        choice: The columns of features.
        rows: A row a node.
        index: From ids to numbers.
    """

    source: NodeSource
    choice: FeatureChoice
    rows: Rows
    index: NodeIndex


def read_typed_graph(
    config: FilesConfig,
    files: SchemaFiles,
    *,
    labelled: bool,
    preprocessing: Mapping[NodeType, Preprocessing] | None = None,
) -> HeteroGraphData:
    """Read the tables of a schema.

    Args:
        config: How they are read.
        files: The schema and its files.
        labelled: False: labels and splits are neither needed nor read.
        preprocessing: What makes the features of a model that was trained on another graph, by
            node type; None: it is learnt from these files.

    Raises:
        UserError: A file cannot be read, or (with `bad_rows=error`) has bad rows.
    """
    bad = BadRows(config.bad_rows)
    reader = _Reader(config, files, bad, labelled, preprocessing)
    return reader.read()


@dataclass
class _Reader:
    config: FilesConfig
    files: SchemaFiles
    bad: BadRows
    labelled: bool
    preprocessing: Mapping[NodeType, Preprocessing] | None
    nodes: dict[NodeType, _Nodes] = field(default_factory=dict)
    opened: dict[str, Table] = field(default_factory=dict)  # tables by their keys in the schema

    def read(self) -> HeteroGraphData:
        self._open()
        sources = self._node_sources()
        self._refuse_unknown_types(sources)
        edges = self._edge_sources()
        target = self._target(sources)
        labels, split = self._label_files(sources[target])
        in_table = split if isinstance(split, Columns) else None
        elsewhere = {**names_of(labels, "labels"), **names_of(in_table, "splits")}
        has_own_split = split is not None or (labels is not None and has_split(labels))
        for name, source in sources.items():
            if source.table is not None:
                is_target = name == target
                self._read_nodes(
                    source, elsewhere if is_target else {}, is_target and has_own_split
                )
        self.bad.report()
        self._nodes_of_edges(sources, edges)
        self.nodes = {name: self.nodes[name] for name in sources}
        chosen = self.nodes[target]
        targets, splits, metric = self._targets(chosen, labels, split)
        lists = self._edges(edges)
        self.bad.report()
        made, fitted = self._features(chosen, splits)
        if self.labelled and targets.task in ("multiclass", "binary"):
            categorical, train = chosen.choice.categorical, splits.nodes["train"]
            warn_of_label_leaks(chosen.rows, categorical, targets.labels, train)
        return HeteroGraphData(
            dataset=self.config.name,
            nodes=made,
            edges={name: EdgeData(*ends) for name, ends in lists.items()},
            target=target,
            labels=targets.labels,
            num_classes=targets.num_classes,
            task=targets.task,
            splits=splits.nodes,
            class_names=targets.class_names,
            labelled=self.labelled,
            metric=metric,
            summary=self._summary(targets, splits, edges, lists, fitted),
            reverse=self.files.tables.reverse,
        )

    def _keys_of(self, place: str) -> AbstractContextManager[None]:
        return keys_of(place, chain(*self.files.paths.values()))

    def _open(self) -> None:
        """Open all tables, and check the names of columns against their headers.

        Raises:
            UserError: A table cannot be read, or the schema names columns that are not there.
        """
        tables, paths, config, bad = self.files.tables, self.files.paths, self.config, self.bad
        parts: list[tuple[str, Part]] = []
        for name, nodes in tables.nodes.items():
            if nodes.files is not None:
                key, how = f"nodes.{name}", config_of(config, nodes, nodes.id)
                asked: Iterable[str] = (*ids_called(name), *names_in(nodes))
                with self._keys_of(key):
                    self.opened[key] = open_nodes(paths[key], how, bad, asked)
                parts.append((key, nodes))
        for key, mixed in keyed("nodes", tables.mixed_nodes):
            with self._keys_of(key):
                how = config.model_copy(update={"id_column": mixed.id})
                asked = (*TYPE_NAMES, *names_in(mixed, *tables.types.values()))
                self.opened[key] = open_nodes(paths[key], how, bad, asked)
            parts.append((key, mixed))
        of_several = [self.opened[key] for key, _ in keyed("nodes", tables.mixed_nodes)]
        for name, columns in {**tables.nodes, **tables.types}.items():
            for what in ("label", "split") if self.labelled else ():
                key, given = f"nodes.{name}.{what}", getattr(columns, what)
                if not isinstance(given, ColumnFile):
                    continue
                if what == "label" or not is_array_file(paths[key][0]):
                    how = _config_of_file(config_of(config, columns, None), what, given)
                    with self._keys_of(f"nodes.{name}"):
                        self.opened[key] = open_labels(paths[key], how, bad)
                    parts.append((key, given))
        edges = [(f"edges.{'/'.join(ends)}", ends, table) for ends, table in tables.edges.items()]
        several = [(key, None, table) for key, table in keyed("edges", tables.mixed_edges)]
        for key, edge_type, table in (*edges, *several):
            with self._keys_of(key):
                self.opened[key] = open_edges(edge_type, table, paths[key], config, bad)
            parts.append((key, table))
        self._refuse_unknown_names(
            *((key, part, [self.opened[key]]) for key, part in parts),
            *((f"nodes.types.{name}", part, of_several) for name, part in tables.types.items()),
        )

    def _refuse_unknown_names(self, *parts: tuple[str, Part, Sequence[Table]]) -> None:
        """Raise a UserError that tells all names of columns that are not in their tables."""
        problems = [
            problem
            for key, part, tables in parts
            for problem in unknown_names(columns_asked(key, part, labelled=self.labelled), tables)
        ]
        if problems:
            raise schema_error(self.files.path, problems)

    def _node_sources(self) -> dict[NodeType, NodeSource]:
        tables = self.files.tables
        found = {
            name: node_source(name, table, table.id, self.opened.get(f"nodes.{name}"), self.config)
            for name, table in tables.nodes.items()
        }
        for key, mixed in keyed("nodes", tables.mixed_nodes):
            with self._keys_of(key):
                sources = mixed_sources(
                    key, mixed, tables.types, self.opened[key], self.config, self.bad
                )
            for source in sources:
                if source.name in found:
                    raise UserError(
                        f"{self.files.path}: node type {source.name} is in two tables of nodes.",
                        "Give the tables as files of one entry.",
                    )
                found[source.name] = source
        self.bad.report()
        # Of several tables with a column of types, only now.
        self._refuse_unknown_names(
            *(
                (f"nodes.types.{name}", columns, [table])
                for name, columns in tables.types.items()
                if name in found and (table := found[name].table) is not None
            )
        )
        return found

    def _refuse_unknown_types(self, known: Mapping[NodeType, NodeSource]) -> None:
        """Types that the schema names: of a table with a column of types only now known."""
        tables = self.files.tables
        named = [(f"nodes.types.{name}", name) for name in tables.types]
        named += [(f"edges.{'/'.join(ends)}", name) for ends in tables.edges for name in ends[::2]]
        named += [
            (f"{source.key}.foreign_keys.{column}", other)
            for source in known.values()
            for column, other in source.columns.foreign_keys.items()
        ]
        for key, name in named:
            if name not in known:
                raise _unknown_type(key, name, known)

    def _edge_sources(self) -> list[EdgeSource]:
        tables, found = self.files.tables, []
        for edge_type, edges in tables.edges.items():
            key = f"edges.{'/'.join(edge_type)}"
            with self._keys_of(key):
                found.append(edge_source(key, edge_type, edges, self.opened[key], self.config))
        for key, mixed in keyed("edges", tables.mixed_edges):
            with self._keys_of(key):
                found.append(mixed_edge_source(key, mixed, self.opened[key], self.config))
        return found

    def _target(self, sources: Mapping[NodeType, NodeSource]) -> NodeType:
        """The node type to learn."""
        labelled = [name for name, source in sources.items() if source.columns.label is not None]
        wanted = self.config.target
        if wanted is not None:
            if wanted not in sources:
                raise _unknown_type("task.target", wanted, sources)
            if self.labelled and wanted not in labelled and not has_usual_label(sources[wanted]):
                raise UserError(
                    f"task.target={wanted}: the node type has no label.",
                    f"Name the column of its labels as nodes.{wanted}.label.",
                )
            return wanted
        labelled = labelled or [name for name in sources if has_usual_label(sources[name])]
        if len(labelled) == 1:
            return labelled[0]
        if not labelled:
            raise UserError(
                f"{self.files.path}: no node type has a label.",
                "Name its column: `author: {…, label: area}`"
                if self.labelled
                else "Say which node type is predicted, with task.target.",
            )
        raise UserError(
            f"{self.files.path}: several node types have labels: {', '.join(labelled)}.",
            f"Choose one with task.target={labelled[0]}.",
        )

    def _label_files(self, source: NodeSource) -> tuple[Columns | None, SplitSource | None]:
        """The files of labels and splits of the target type."""
        if not self.labelled:
            return None, None
        with self._keys_of(source.key):
            return self._labels(source), self._split(source)

    def _labels(self, source: NodeSource) -> Columns | None:
        given = source.columns.label
        if not isinstance(given, ColumnFile):
            return None
        table = self.opened[f"{source.key}.label"]
        return label_columns(table, _config_of_file(source.config, "label", given))

    def _split(self, source: NodeSource) -> SplitSource | None:
        given, key = source.columns.split, f"{source.key}.split"
        if isinstance(given, SplitFiles):
            names = [name for name, file in given if file is not None]
            return {name: self.files.paths[f"{key}.{name}"] for name in names}
        if not isinstance(given, ColumnFile):
            return None
        if key not in self.opened:
            return self.files.paths[key]
        return split_columns(self.opened[key], _config_of_file(source.config, "split", given))

    def _read_nodes(
        self, source: NodeSource, elsewhere: Mapping[str, str], split_elsewhere: bool
    ) -> None:
        table, config = source.table, source.config
        assert table is not None
        made_by = (self.preprocessing or {}).get(source.name)
        with self._keys_of(source.key):
            if isinstance(table, ArrayTable):
                places = () if source.columns.features == () else list(table.main)
                columns = Columns(table, find_id(table, config), places)
            else:
                keys = [place_of(table, "foreign_keys", key) for key in source.columns.foreign_keys]
                columns = columns_of_nodes(
                    table,
                    config,
                    split_elsewhere=split_elsewhere,
                    preprocessing=made_by,
                    others=keys,
                )
            choice = choose_features(
                columns, config, elsewhere, made_by, strict=self.labelled, required=False
            )
            choice = _with_reasons(choice, source.left_out)
            choice, rows = read_nodes(choice, config, self.bad, required=False)
            if not self.labelled and self.preprocessing is None:
                refuse_statistics(config)
        index = NodeIndex(
            rows.columns.get("id"),
            len(rows),
            kind=source.name,
            home=rows.path.name,
            decimal=config.decimal,
        )
        self.nodes[source.name] = _Nodes(source, choice, rows, index)

    def _nodes_of_edges(
        self, sources: Mapping[NodeType, NodeSource], edges: Sequence[EdgeSource]
    ) -> None:
        """The nodes of the types that have no table."""
        without = {name: source for name, source in sources.items() if source.table is None}
        collector = IdCollector(self.config.decimal)
        for given in edges if without else ():
            collect_ids(given, without, list(sources), collector)
        for nodes in self.nodes.values():
            for column, other in nodes.source.columns.foreign_keys.items():
                if other in without:
                    is_written = nodes.rows.source.table.unit == "line"
                    ids = foreign_ids(nodes.rows, column)
                    collector.add(other, ids, is_written=is_written)
        for name, source in without.items():
            self._add_ids(source, collector.ids(name))

    def _add_ids(self, source: NodeSource, ids: pa.Array) -> None:
        if not len(ids):
            raise UserError(
                f"{self.files.path}: node type {source.name} has no table, and no edge has a node "
                "of it.",
                f"Give nodes.{source.name}.files, or edges with a node of it.",
            )
        table = table_in_memory(self.files.path, pa.table({"id": ids}))
        columns = Columns(table, {"id": 0}, ())
        index = NodeIndex(ids, len(ids), kind=source.name, home=None)
        self.nodes[source.name] = _Nodes(source, FeatureChoice(columns, ()), columns.read(), index)

    def _targets(
        self,
        nodes: _Nodes,
        labels: Columns | None,
        split: SplitSource | None,
    ) -> tuple[Targets, Splits, str]:
        if not self.labelled:
            return no_targets(nodes.rows, nodes.index), no_splits(), "accuracy"
        config = nodes.source.config
        with self._keys_of(nodes.source.key):
            targets = read_targets(labels, nodes.rows, nodes.index, config, self.bad)
            splits = split_nodes(split, targets, nodes.rows, nodes.index, config, self.bad)
        return targets, splits, chosen_metric(self.config.metric, targets.task)

    def _edges(self, edges: Sequence[EdgeSource]) -> dict[EdgeType, tuple[IntArray, IntArray]]:
        indexes = {name: nodes.index for name, nodes in self.nodes.items()}
        lists = EdgeLists(indexes)
        for source in edges:
            with self._keys_of(source.key):
                if source.edge_type is not None:
                    read_edges_of_type(source, source.edge_type, indexes, lists, self.bad)
                else:
                    read_mixed_edges(source, indexes, lists, self.bad)
        for name, nodes in self.nodes.items():
            for column, other in nodes.source.columns.foreign_keys.items():
                edge_type = (name, column, other)
                read_foreign_key(nodes.rows, column, edge_type, indexes[other], lists, self.bad)
        return lists.lists()

    def _features(
        self, target: _Nodes, splits: Splits
    ) -> tuple[dict[NodeType, NodeData], dict[NodeType, Preprocessing | None]]:
        made, fitted = {}, {}
        for name, nodes in self.nodes.items():
            # Statistics are those of the training split; other types have none, and all rows count.
            train = splits.nodes["train"] if nodes is target else np.arange(len(nodes.rows))
            made[name] = self._node_data(nodes, train)
            fitted[name] = made[name].preprocessing
        return made, fitted

    def _node_data(self, nodes: _Nodes, train: Int64Array) -> NodeData:
        ids = nodes.index.node_ids()
        if not nodes.choice.order:
            return NodeData(nodes.index.num_nodes, ids=ids)
        made_by = (self.preprocessing or {}).get(nodes.source.name)
        with self._keys_of(nodes.source.key):
            features, fitted = make_features(
                nodes.rows, nodes.choice, train, nodes.source.config, made_by
            )
        names = fitted.feature_names if fitted is not None and fitted.has_names else None
        return NodeData(nodes.index.num_nodes, features, ids, names, fitted)

    def _summary(
        self,
        targets: Targets,
        splits: Splits,
        sources: Sequence[EdgeSource],
        edges: Mapping[EdgeType, tuple[IntArray, IntArray]],
        fitted: Mapping[NodeType, Preprocessing | None],
    ) -> DataSummary:
        ids, features = [], []
        left_out = dict(self.bad.left_out)
        for name, nodes in self.nodes.items():
            table, missing = nodes.source.table, nodes.source.config.missing
            where = "" if table is None else f"{name_of_ids(nodes.rows.source)} of "
            ids.append(f"{name}: {where}{nodes.index.home}")
            if nodes.choice.order:
                phrase = describe_features(nodes.rows, fitted[name], missing, fitted=self.labelled)
                features.append(f"{name}: {phrase}")
            else:
                features.append(f"{name}: none, learnt rows")
            left_out |= {f"{name}.{at}": why for at, why in nodes.choice.left_out.items()}
        for source in sources:
            place = source.key.removeprefix("edges.")
            left_out |= {f"{place}.{name}": EDGES_ALONE for name in source.unread()}
        counts = [f"{len(src):,} {'/'.join(name)}" for name, (src, _) in edges.items()]
        return DataSummary(
            ids="; ".join(ids),
            features="; ".join(features),
            labels=targets.phrase,
            edges=", ".join(counts),
            split=splits.phrase,
            left_out=left_out,
        )


def _config_of_file(config: FilesConfig, key: str, given: ColumnFile) -> FilesConfig:
    """How a file of labels or splits is read."""
    column = given.column if key == "label" or given.column is None else given.column[0]
    changes = {"id_column": given.id, f"{key}_column": column, "ignore": ()}
    return config.model_copy(update=changes)


def _with_reasons(choice: FeatureChoice, reasons: Mapping[str, str]) -> FeatureChoice:
    """The choice, whose columns that are left out have these reasons or the schema's words."""
    words = {"dataset.feature_columns": "features", "dataset.ignore": "ignore"}
    known = {}
    for name, reason in choice.left_out.items():
        key, _, rest = reason.partition(" ")
        known[name] = reasons.get(name, f"{words.get(key, key)} {rest}")
    return replace(choice, left_out=known)


def _unknown_type(key: str, name: NodeType, known: Mapping[NodeType, object]) -> UserError:
    return UserError(
        f"{key}={name}: there is no such node type; there are {', '.join(known)}.",
        meant_or(name, known, "Name one of them."),
    )
