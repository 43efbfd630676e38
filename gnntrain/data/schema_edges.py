"""The edges of a typed graph: tables of one edge type or of several, and foreign keys."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnntrain.config import FilesConfig
from gnntrain.config.graph_schema import EdgeTable, MixedEdgeTable
from gnntrain.config.problems import did_you_mean
from gnntrain.data.array_files import WEIGHT_ARRAYS
from gnntrain.data.bad_rows import BadRows, Record
from gnntrain.data.columns import (
    TEXT,
    from_texts,
    is_missing_mark,
    to_plain,
    without_zero_fractions,
)
from gnntrain.data.file_columns import named_column, place_of
from gnntrain.data.file_edges import (
    ENDS,
    MOST_ROWS,
    edge_table,
    find_ends,
    known_edges,
    unread_arrays,
)
from gnntrain.data.graph import AnyArray, EdgeType, Int64Array, IntArray, NodeType, index_dtype
from gnntrain.data.node_index import NodeIndex
from gnntrain.data.schema_tables import ids_called, names_in
from gnntrain.data.tables import Columns, Role, Rows, Table, listed
from gnntrain.errors import UserError

_FEW_IDS = 1 << 22
_RELATION_NAMES = ("relation", "type", "predicate", "rel", "edge_type")


@dataclass(frozen=True)
class EdgeSource:
    """A table of edges before its rows are read.

    Attributes:
        key: Its key in the schema.
        columns: The ends are its roles "source" and "target"; relation and types are its `others`.
        edge_type: The type of all its edges; None: `relation` says it.
        relation: Place of the column of relations.
        types: Places of the columns of the node types at the ends.
    """

    key: str
    columns: Columns
    edge_type: EdgeType | None = None
    relation: int = 0
    types: Mapping[Role, int] = field(default_factory=dict)

    def unread(self) -> list[str]:
        """Names of columns and arrays without a use."""
        table, used = self.columns.table, self.columns.all_places
        places = [place for place in range(len(table.names)) if place not in used]
        return [*map(table.shown, places), *unread_arrays(table)]

    def type_at(self, end: Role) -> NodeType | None:
        """The node type of all its edges at one end, if it is one."""
        if self.edge_type is None:
            return None
        return self.edge_type[0] if end == "source" else self.edge_type[2]


def edge_source(
    key: str, edge_type: EdgeType, edges: EdgeTable, table: Table, config: FilesConfig
) -> EdgeSource:
    """The table of one edge type.

    Raises:
        UserError: It does not say which columns are the ends.
    """
    source, _, target = edge_type
    unread = _weights(table)
    names = None
    if source != target:
        names = (_ends_called(table, source), _ends_called(table, target))
    ends = _ends(table, edges, config, unread, names)
    return EdgeSource(key, Columns(table, ends, ()), edge_type)


def mixed_edge_source(
    key: str, edges: MixedEdgeTable, table: Table, config: FilesConfig
) -> EdgeSource:
    """A table of edges with a column of relations.

    Raises:
        UserError: It does not say which columns are which.
    """
    relation = _relation_place(key, table, edges.type)
    given: dict[Role, str | None] = {"source": edges.source_type, "target": edges.target_type}
    types = {
        end: place_of(table, f"{end}_type", name) for end, name in given.items() if name is not None
    }
    unread = [*_weights(table), relation, *types.values()]
    ends = _ends(table, edges, config, unread)
    others = list(dict.fromkeys((relation, *types.values())))
    columns = Columns(table, ends, (), others)
    return EdgeSource(key, columns, None, relation, types)


def open_edges(
    edge_type: EdgeType | None,
    edges: EdgeTable,
    paths: Sequence[Path],
    config: FilesConfig,
    bad: BadRows,
) -> Table:
    """The files of edges, of one type or (None) of several, as one table.

    Raises:
        UserError: One cannot be read, or has other columns than the first.
    """
    usual = (
        _RELATION_NAMES if edge_type is None else [*_called(edge_type[0]), *_called(edge_type[2])]
    )
    square = edge_type is not None and edge_type[0] == edge_type[2]
    names = {name.lower() for name in (*names_in(edges), *usual) if not name.isdecimal()}
    return Table.of_files(
        [edge_table(path, config, bad, names=names, square=square) for path in paths]
    )


def _weights(table: Table) -> list[int]:
    """Places of columns of weights, which no model of typed graphs reads."""
    return [place for place, name in enumerate(table.names) if name in WEIGHT_ARRAYS]


def _ends_called(table: Table, name: NodeType) -> int | None:
    """The column that is called like a node type, or like its id."""
    names = [column.lower() for column in table.names]
    return next((names.index(word) for word in _called(name) if word in names), None)


def _called(node_type: NodeType) -> tuple[str, ...]:
    """Names that say that a column holds an end of this type, in lower case."""
    return (*ids_called(node_type), node_type.lower())


def _ends(
    table: Table,
    edges: EdgeTable,
    config: FilesConfig,
    others: Sequence[int],
    called: tuple[int | None, int | None] | None = None,
) -> dict[Role, int]:
    """The columns of both ends: named, called like the types, or found as usual."""
    wanted = [edges.source, edges.target]
    found = called or (None, None)
    if None in found:
        found = (None, None)
    names = [
        given if given is not None or place is None else table.names[place]
        for given, place in zip(wanted, found, strict=True)
    ]
    changes = {"source_column": names[0], "target_column": names[1]}
    source, target = find_ends(table, config.model_copy(update=changes), others)
    return {"source": source, "target": target}


def _relation_place(key: str, table: Table, wanted: str | None) -> int:
    if wanted is not None:
        return place_of(table, "type", wanted)
    names = [name.lower() for name in table.names]
    for usual in _RELATION_NAMES:
        if usual in names:
            return names.index(usual)
    raise UserError(
        f"{table.path} has no column called relation or type (it has {listed(table.names)}).",
        f"Name the column of relations as {key}.type, or give each edge type an entry of its own: "
        "author/writes/paper.",
    )


class _DifferentIds:
    """Different ids of many batches; repeated ones are dropped before they fill the memory."""

    def __init__(self) -> None:
        self._parts: list[pa.Array] = []
        self._num_ids = 0
        self._most = _FEW_IDS

    def add(self, ids: pa.Array) -> None:
        """Add ids, int64 or texts."""
        self._parts.append(pc.unique(ids))
        self._num_ids += len(self._parts[-1])
        if self._num_ids > self._most:
            self._parts = [self.all(pa.int64())]
            self._num_ids = len(self._parts[0])
            self._most = max(_FEW_IDS, 2 * self._num_ids)

    def all(self, kind: pa.DataType) -> pa.Array:
        """Each id once: texts if some are; of type `kind` where there are none."""
        kinds = {part.type for part in self._parts}
        kind = kind if not kinds else TEXT if TEXT in kinds else pa.int64()
        parts = [part.cast(kind) for part in self._parts]
        return pc.unique(pa.concat_arrays([pa.array([], kind), *parts]))


@dataclass
class IdCollector:
    """The ids of node types that have no table: those at the ends of edges."""

    decimal: str = "."
    _texts: dict[NodeType, _DifferentIds] = field(default_factory=dict)
    _others: dict[NodeType, _DifferentIds] = field(default_factory=dict)

    def add(self, node_type: NodeType, ids: pa.Array, *, is_written: bool) -> None:
        """Add ids; `is_written` where they are fields of a text, and may be numbers."""
        if is_written and ids.type == TEXT:
            trimmed = pc.utf8_trim_whitespace(ids)
            known = trimmed.filter(pc.fill_null(pc.not_equal(trimmed, ""), fill_value=False))
            self._texts.setdefault(node_type, _DifferentIds()).add(known)
        else:
            self._others.setdefault(node_type, _DifferentIds()).add(to_plain(ids).drop_null())

    def ids(self, node_type: NodeType) -> pa.Array:
        """All different ids of a type in ascending order: int64 if all are whole numbers."""
        written = self._texts.get(node_type, _DifferentIds()).all(TEXT)
        other = self._others.get(node_type, _DifferentIds()).all(pa.int64())
        numbers = without_zero_fractions(written, self.decimal)
        read = from_texts(numbers) if len(written) else other[:0]
        if TEXT in (read.type, other.type):
            read, other = written, other.cast(TEXT)
        found = pc.unique(pa.concat_arrays([read, other])).drop_null()
        return found.take(pc.sort_indices(found))


def collect_ids(
    source: EdgeSource,
    wanted: Collection[NodeType],
    candidates: Sequence[NodeType],
    collector: IdCollector,
) -> None:
    """Add the ids at the ends of a table's edges.

    Args:
        source: The table.
        wanted: The node types whose ids are asked for.
        candidates: The node types that an end without a column of types may be of.
        collector: Takes the ids.
    """
    ends: list[Role] = [
        end for end in ENDS if end in source.types or _only_type(source, end, candidates) in wanted
    ]
    if not ends:
        return
    columns = source.columns
    is_written = columns.table.unit == "line"
    for batch in columns.batches():
        for end in ends:
            ids, only = batch.columns[end], _only_type(source, end, candidates)
            if only is not None and end not in source.types:
                collector.add(only, ids, is_written=is_written)
                continue
            for name, mask in _by_value(batch.others[source.types[end]]):
                if name in wanted:
                    collector.add(name, ids.filter(pa.array(mask)), is_written=is_written)


def _only_type(source: EdgeSource, end: Role, candidates: Sequence[NodeType]) -> NodeType | None:
    fixed = source.type_at(end)
    return candidates[0] if fixed is None and len(candidates) == 1 else fixed


def _by_value(column: pa.Array) -> Iterator[tuple[str, AnyArray]]:
    """Each value of a column of texts, with the mask of its rows; missing values are left out."""
    encoded = _trimmed(column).dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy()
    for code, name in enumerate(encoded.dictionary.to_pylist()):
        yield name, codes == code


def _trimmed(column: pa.Array) -> pa.Array:
    texts = pc.utf8_trim_whitespace(column.cast(TEXT))
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, TEXT), texts)


class EdgeLists:
    """Collects edges by type.

    Args:
        indexes: The nodes of each type.
    """

    def __init__(self, indexes: Mapping[NodeType, NodeIndex]) -> None:
        self._indexes = indexes
        self._parts: dict[EdgeType, list[tuple[IntArray, IntArray]]] = {}

    def add(self, edge_type: EdgeType, src: Int64Array, dst: Int64Array) -> None:
        """Add edges, by the numbers of their nodes."""
        ends = ((edge_type[0], src), (edge_type[2], dst))
        narrow = [
            nodes.astype(index_dtype(self._indexes[name].num_nodes), copy=False)
            for name, nodes in ends
        ]
        self._parts.setdefault(edge_type, []).append((narrow[0], narrow[1]))

    def lists(self) -> dict[EdgeType, tuple[IntArray, IntArray]]:
        """Sources and destinations of each edge type."""
        found = {}
        for edge_type in list(self._parts):
            parts = self._parts.pop(edge_type)
            found[edge_type] = (
                np.concatenate([src for src, _ in parts]),
                np.concatenate([dst for _, dst in parts]),
            )
        return found


def read_edges_of_type(
    source: EdgeSource,
    edge_type: EdgeType,
    indexes: Mapping[NodeType, NodeIndex],
    lists: EdgeLists,
    bad: BadRows,
) -> None:
    """Read a table of one edge type."""
    ends: dict[Role, NodeIndex] = {
        "source": indexes[edge_type[0]],
        "target": indexes[edge_type[2]],
    }
    none = np.empty(0, np.int64)
    lists.add(edge_type, none, none)
    for src, dst, _ in known_edges(source.columns, ends, bad):
        lists.add(edge_type, src, dst)


def read_mixed_edges(
    source: EdgeSource,
    indexes: Mapping[NodeType, NodeIndex],
    lists: EdgeLists,
    bad: BadRows,
) -> None:
    """Read a table of several edge types.

    Args:
        source: The table.
        indexes: The nodes of each type.
        lists: Takes the edges.
        bad: Takes the bad rows.

    Raises:
        UserError: An id is there in several node types, and no column says which is meant.
    """
    columns = source.columns
    hashed = max(index.num_hashed for index in indexes.values())
    for batch in columns.batches(min(hashed, MOST_ROWS)):
        types, numbers = {}, {}
        for end in ENDS:
            types[end], numbers[end] = _find_end(source, end, indexes, batch)
        relations = _trimmed(batch.others[source.relation]).dictionary_encode()
        relation = relations.indices.fill_null(-1).to_numpy()
        known = (numbers["source"] >= 0) & (numbers["target"] >= 0) & (relation >= 0)
        bad.add(columns.table, batch.rows[~known], partial(_why_unknown, source, indexes))
        names = list(indexes), relations.dictionary, list(indexes)
        sizes = [len(of_end) for of_end in names]
        parts = (types["source"][known], relation[known], types["target"][known])
        codes = np.ravel_multi_index(parts, sizes)
        rows = np.flatnonzero(known)[np.argsort(codes, kind="stable")]
        found, counts = np.unique(codes, return_counts=True)
        for code, group in zip(found, np.split(rows, np.cumsum(counts)[:-1]), strict=False):
            first, between, last = np.unravel_index(code, sizes)
            edge_type = (names[0][first], names[1][int(between)].as_py(), names[2][last])
            lists.add(edge_type, numbers["source"][group], numbers["target"][group])


def _find_end(
    source: EdgeSource, end: Role, indexes: Mapping[NodeType, NodeIndex], batch: Rows
) -> tuple[Int64Array, Int64Array]:
    """The places in `indexes` of the types of nodes, and their numbers; −1 if unknown."""
    ids, decimal = batch.columns[end], source.columns.table.decimal
    types, numbers = np.full(len(ids), -1, np.int64), np.full(len(ids), -1, np.int64)
    if end in source.types:
        places = {name: place for place, name in enumerate(indexes)}
        for name, mask in _by_value(batch.others[source.types[end]]):
            if name in indexes:
                types[mask] = places[name]
                numbers[mask] = indexes[name].find(ids.filter(pa.array(mask)), decimal)
        return types, numbers
    for place, index in enumerate(indexes.values()):
        found = index.find(ids, decimal)
        twice = np.flatnonzero((found >= 0) & (numbers >= 0))
        if len(twice):
            first, second = list(indexes)[types[twice[0]]], list(indexes)[place]
            raise UserError(
                f"{source.columns.table.path}: node {str(ids[int(twice[0])])!r} is in {first} and "
                f"in {second}.",
                f"Name the column of the node's type as {source.key}.{end}_type, or give each edge "
                "type an entry of its own.",
            )
        types[found >= 0], numbers[found >= 0] = place, found[found >= 0]
    return types, numbers


def _why_unknown(source: EdgeSource, indexes: Mapping[NodeType, NodeIndex], record: Record) -> str:
    decimal = source.columns.table.decimal
    for end in ENDS:
        text = record[source.columns.places[end]]
        if not text.strip():
            return f"the {end} node is missing"
        known = dict(indexes)
        if end in source.types:
            name = record[source.types[end]].strip()
            if name not in known:
                hint = did_you_mean(name, known)
                return f"{name!r} is no node type" + (f" ({hint})" if hint else "")
            known = {name: known[name]}
        if not any(index.knows(text, decimal) for index in known.values()):
            if len(known) == 1:
                return next(iter(known.values())).unknown(text)
            others = {name: index.written_otherwise(text) for name, index in known.items()}
            alike = "".join(f"; {name} has {other!r}" for name, other in others.items() if other)
            alike += ": write it alike in both" * bool(alike)
            return f"node {text!r} is in none of {', '.join(known)}{alike}"
    return "the relation is missing"


def read_foreign_key(
    rows: Rows, column: str, edge_type: EdgeType, index: NodeIndex, lists: EdgeLists, bad: BadRows
) -> None:
    """Read a column of a node table that names a node of another type; an empty field is no edge.

    Args:
        rows: The nodes, in the order of their numbers.
        column: The column's name.
        edge_type: Type of the edges.
        index: The other type's nodes.
        lists: Takes the edges.
        bad: Takes the rows with an unknown node.
    """
    ids = foreign_ids(rows, column)
    found = index.find(ids, rows.source.table.decimal)
    place = named_column(rows.source.table, column)[0]
    unknown = (found < 0) & ids.is_valid().to_numpy(zero_copy_only=False)
    why = lambda record: index.unknown(record[place])  # noqa: E731
    bad.add(rows.source.table, rows.rows[unknown], why, index.hint)
    lists.add(edge_type, np.flatnonzero(found >= 0), found[found >= 0])


def foreign_ids(rows: Rows, column: str) -> pa.Array:
    """The ids in a column of a node table; null where there is none."""
    table = rows.source.table
    ids = rows.others[named_column(table, column)[0]]
    if ids.type != TEXT:
        return to_plain(ids)  # of floats, NaN is none
    return pc.if_else(is_missing_mark(ids), pa.scalar(None, TEXT), ids)
