"""Edges from tables and arrays, by the user's own ids or, in a table of nodes, by foreign keys.

**Which columns are the ends?** `EdgeSpec.source` and `target`; else two columns that are called
like the node types at the ends; else the two of a usual pair of names (`source` and `target`, `src`
and `dst`, `from` and `to`, …); else the only two columns, the weight and an index that pandas wrote
left aside. Of three columns without names, the first two are the ends if they hold node ids and the
third does not. Anything else is asked about.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnntrain.config.graph_spec import EdgeSpec, ids_called
from gnntrain.config.problems import did_you_mean
from gnntrain.data.array_files import Arrays, ArrayTable, load_arrays, pick, unpack_edges
from gnntrain.data.graph import AnyArray, EdgeType, Int64Array, IntArray, NodeType, index_dtype
from gnntrain.data.names import (
    NODE_ARRAYS,
    PAIR_ARRAYS,
    SPLIT_ARRAYS,
    WEIGHT_ARRAYS,
    Role,
    is_pandas_index,
)
from gnntrain.data.read.columns import is_array_file, named_column, open_table, place_of
from gnntrain.data.read.nodes import NodeIndex
from gnntrain.data.table_files import GRAPHML_SUFFIX, open_graphml
from gnntrain.data.tables import BadRows, Columns, Record, Rows, Table, listed
from gnntrain.data.values import TEXT, from_texts, is_missing_mark, to_plain, without_zero_fractions
from gnntrain.errors import UserError

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig

PAIRS_OF_ENDS = (
    *(("source", "target"), ("src", "dst"), ("from", "to"), ("head", "tail"), ("u", "v")),
    *(("source_id", "target_id"), ("src_id", "dst_id"), ("from_id", "to_id")),
    *(("from_node", "to_node"), ("node1", "node2"), ("node_1", "node_2"), ("id1", "id2")),
    *(("id_1", "id_2"), (":start_id", ":end_id")),
)
"""Names of the source's and the target's column, in lower case."""
# A single letter may be a node's id at the top of a list.
_HEADER_NAMES = frozenset(name for name in chain(*PAIRS_OF_ENDS) if len(name) > 1)
_ENDS: tuple[Role, Role] = ("source", "target")
WEIGHT_NAMES = (*WEIGHT_ARRAYS, "w")
_MOST_ROWS = 1 << 24  # of edges at a time: about 1 GiB of ids that are texts
_FEW_IDS = 1 << 22
_RELATION_NAMES = ("relation", "type", "predicate", "rel", "edge_type")


@dataclass(frozen=True)
class EdgeSource:
    """A table of edges before its rows are read.

    Attributes:
        spec: What is said of it.
        columns: The ends are its roles "source" and "target", weights its numbers; relation and
            types are its `others`.
        relation: Place of the column of relations.
        types: Places of the columns of the node types at the ends.
    """

    spec: EdgeSpec
    columns: Columns
    relation: int = 0
    types: Mapping[Role, int] = field(default_factory=dict)

    def unread(self) -> list[str]:
        """Names of columns without a use, and of arrays but for those that nodes have."""
        table, used = self.columns.table, self.columns.all_places
        places = [place for place in range(len(table.names)) if place not in used]
        arrays = table.arrays if isinstance(table, ArrayTable) else {}
        known = {*table.names, *NODE_ARRAYS, *chain(*SPLIT_ARRAYS.values())}
        return [*map(table.shown, places), *(name for name in arrays if name not in known)]

    def phrase(self, num_edges: int) -> str:
        """Of a graph with one table of edges, see `DataSummary.edges`."""
        shown, columns = self.columns.table.shown, self.columns
        ends = " ".join(
            f"{word} column {shown(columns.places[end])}"
            for word, end in zip(("from", "to"), _ENDS, strict=True)
        )
        weight = f"weight column {shown(columns.numbers[0])}" if columns.numbers else "no weight"
        return f"{num_edges:,} of {columns.table.path.name}{columns.table.note}, {ends}; {weight}"

    def type_at(self, end: Role, candidates: Sequence[NodeType]) -> NodeType | None:
        """The node type of all its edges at one end, if it is one of these and known."""
        if self.spec.edge_type is not None:
            return self.spec.edge_type[0 if end == "source" else 2]
        return candidates[0] if len(candidates) == 1 and end not in self.types else None


def open_edges(paths: Sequence[Path], spec: EdgeSpec, options: FilesConfig, bad: BadRows) -> Table:
    """Files of edges as one table.

    Raises:
        UserError: One cannot be read, has one column only, or other columns than the first.
    """
    edge_type = spec.edge_type
    called = [*_called(edge_type[0]), *_called(edge_type[2])] if edge_type else _RELATION_NAMES
    tables: list[Table] = []
    for path in paths:
        if is_array_file(path):
            # Both ends of a square matrix are nodes of one type.
            is_square = edge_type is not None and edge_type[0] == edge_type[2]
            arrays = unpack_edges(path, load_arrays(path), square=is_square)
            tables.append(_table_of_arrays(path, arrays, spec))
        elif path.suffix.lower() == GRAPHML_SUFFIX:
            tables.append(open_graphml(path, "edges"))
        else:
            table = open_table(path, spec.header, options, bad, _HEADER_NAMES.union(called))
            if len(table.names) < 2:
                raise UserError(f"{path} has only one column.", "It needs two: source and target.")
            tables.append(table)
    return Table.of_files(tables)


def edge_source(table: Table, spec: EdgeSpec, index: NodeIndex | None = None) -> EdgeSource:
    """The columns of a table of edges.

    Args:
        table: The table.
        spec: What is said of it.
        index: The nodes of the only type, by which two of three columns without names are seen to
            be the ends; only then edges have weights.

    Raises:
        UserError: It has no column of a name that is asked for, or does not say which columns are
            which.
    """
    relation, types, weights = 0, dict[Role, int](), list[int]()
    called: tuple[int | None, int | None] = (None, None)
    others: list[int] = []
    if index is not None:
        weight = spec.weight
        if weight is None and isinstance(table, ArrayTable):
            # Whoever calls an array so means PyG's; of a table it may be any column.
            weight = next((name for name in WEIGHT_ARRAYS if name in table.names), None)
        weights = [] if weight is None else [place_of(table, spec.key("weight"), weight)]
    elif spec.edge_type is None:
        relation = _relation_place(table, spec)
        for end, wanted in zip(_ENDS, (spec.source_type, spec.target_type), strict=True):
            if wanted is not None:
                types[end] = place_of(table, spec.key(f"{end}_type"), wanted)
        others = list(dict.fromkeys((relation, *types.values())))
    elif spec.edge_type[0] != spec.edge_type[2]:
        called = _ends_called(table, spec.edge_type)
    unused = [at for at, name in enumerate(table.names) if index is None and name in WEIGHT_ARRAYS]
    source, target = _find_ends(table, spec, [*weights, *unused, *others], called, index)
    columns = Columns(table, {"source": source, "target": target}, weights, others)
    return EdgeSource(spec, columns, relation, types)


def _called(node_type: NodeType) -> tuple[str, ...]:
    """Names that say that a column holds an end of this type, in lower case."""
    return (*ids_called(node_type), node_type.lower())


def _ends_called(table: Table, edge_type: EdgeType) -> tuple[int | None, int | None]:
    """The columns that are called like the node types at both ends, or like their ids."""
    names = [column.lower() for column in table.names]
    first, second = (
        next((names.index(word) for word in _called(name) if word in names), None)
        for name in edge_type[::2]
    )
    return (None, None) if first is None or second is None else (first, second)


def _find_ends(
    table: Table,
    spec: EdgeSpec,
    others: Sequence[int],
    called: tuple[int | None, int | None],
    index: NodeIndex | None,
) -> tuple[int, int]:
    """Places of the columns of the sources and the targets.

    Args:
        table: The edges.
        spec: Their names.
        others: Places of columns with another use, such as the weight.
        called: Places of columns that are called like the node types.
        index: See `edge_source`.

    Raises:
        UserError: It is not plain which columns they are.
    """
    names = [name.lower() for name in table.names]
    found = [
        (names.index(source), names.index(target))
        for source, target in PAIRS_OF_ENDS
        if source in names and target in names
    ]
    rest = [
        place
        for place, name in enumerate(names)
        if place not in others
        and name not in WEIGHT_NAMES
        and not is_pandas_index(table.names[place])
    ]
    if not found and len(names) == 2 and not _has_other_use(names):
        found = [(0, 1)]
    if not found and len(rest) == 2 and not _has_other_use([names[place] for place in rest]):
        found = [(rest[0], rest[1])]
    if not found and index is not None and _are_ends_and_weight(table, index):
        found = [(0, 1)]
    source, target = found[0] if len(found) == 1 else (None, None)
    if called != (None, None):
        source, target = called
    if spec.source is not None:
        source = place_of(table, spec.key("source"), spec.source)
    if spec.target is not None:
        target = place_of(table, spec.key("target"), spec.target)
    if source is None or target is None or source == target:
        raise UserError(
            f"{table.path}: it is not plain which columns are the ends of an edge; it has "
            f"{listed(table.names)}.",
            f"Set {spec.key('source')} and {spec.key('target')}.",
        )
    return source, target


def _has_other_use(names: Sequence[str]) -> bool:
    """Whether one of two columns is called a weight, or like the other end of an edge."""
    source, target = names
    targets, sources = {pair[1] for pair in PAIRS_OF_ENDS}, {pair[0] for pair in PAIRS_OF_ENDS}
    return source in targets or target in sources or not {*names}.isdisjoint(WEIGHT_NAMES)


def _are_ends_and_weight(table: Table, index: NodeIndex) -> bool:
    """Whether of three columns without names the first two hold node ids, and the third does not.

    The first rows decide.
    """
    if table.names != ("0", "1", "2"):
        return False
    first = next(Columns(table, {"source": 0, "target": 1, "id": 2}, ()).batches()).columns
    source, target, third = (index.find(first[role]) for role in ("source", "target", "id"))
    return bool((source >= 0).all() and (target >= 0).all() and not (third >= 0).all())


def _relation_place(table: Table, spec: EdgeSpec) -> int:
    if spec.type is not None:
        return place_of(table, spec.key("type"), spec.type)
    names = [name.lower() for name in table.names]
    for usual in _RELATION_NAMES:
        if usual in names:
            return names.index(usual)
    raise UserError(
        f"{table.path} has no column called relation or type (it has {listed(table.names)}).",
        f"Name the column of relations as {spec.key('type')}, or give each edge type an entry of "
        "its own: author/writes/paper.",
    )


def _table_of_arrays(path: Path, arrays: Arrays, spec: EdgeSpec) -> ArrayTable:
    """Arrays of edges as columns, pairs `[2, num_edges]` or `[num_edges, 2]` as two of them."""
    weight_names = {spec.weight, *WEIGHT_ARRAYS}
    weights = {name: array for name, array in arrays.items() if name in weight_names}
    others = {name: array for name, array in arrays.items() if name not in weights}
    pairs = pick(others, PAIR_ARRAYS) if len(others) != 1 else next(iter(others.values()))
    if pairs is None:
        named = {spec.source, spec.target, *chain(*PAIRS_OF_ENDS)}
        ends = {name: array for name, array in others.items() if name in named}
        columns = ends or {name: array for name, array in others.items() if array.ndim == 1}
    else:
        columns = dict(zip(PAIRS_OF_ENDS[0], _both_ends(path, pairs), strict=True))
    columns |= {name: array.reshape(-1) for name, array in weights.items()}
    _refuse_wrong_columns(path, columns, weights)
    return ArrayTable(path, columns, arrays={n: a for n, a in arrays.items() if a is not pairs})


def _refuse_wrong_columns(path: Path, columns: Arrays, weights: Arrays) -> None:
    if len({array.shape for array in columns.values()}) != 1:
        found = ", ".join(f"{name} {list(array.shape)}" for name, array in columns.items())
        raise UserError(
            f"{path}: the arrays are not one value an edge each: {found or 'there are none'}.",
            "Call the arrays source and target, or give them as one called edge_index.",
        )
    for name, array in columns.items():
        if name in weights and array.dtype.kind not in "biuf":
            raise UserError(f"{path}: the weights are not one number an edge.")
        if name not in weights and array.dtype.kind == "b":
            raise UserError(
                f"{path}: the edges are truth values, not node ids.",
                "List the edges of an adjacency matrix as pairs of nodes.",
            )


def _both_ends(path: Path, pairs: AnyArray) -> tuple[AnyArray, AnyArray]:
    """The ends of `[2, num_edges]` or `[num_edges, 2]`; two by two is taken as the former."""
    if pairs.ndim != 2 or 2 not in pairs.shape:
        raise UserError(
            f"{path}: shape {list(pairs.shape)} instead of [2, num_edges] or [num_edges, 2]."
        )
    return (pairs[0], pairs[1]) if pairs.shape[0] == 2 else (pairs[:, 0], pairs[:, 1])


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
    only = {end: source.type_at(end, candidates) for end in _ENDS}
    ends = [end for end in _ENDS if end in source.types or only[end] in wanted]
    is_written = source.columns.table.unit == "line"
    for batch in source.columns.batches() if ends else ():
        for end in ends:
            ids, name = batch.columns[end], only[end]
            if name is not None:
                collector.add(name, ids, is_written=is_written)
                continue
            for name, mask in _by_value(batch.columns[source.types[end]]):
                if name in wanted:
                    collector.add(name, ids.filter(pa.array(mask)), is_written=is_written)


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
        self.indexes = indexes
        self._parts: dict[EdgeType, list[tuple[AnyArray, ...]]] = {}

    def add(self, edge_type: EdgeType, src: Int64Array, dst: Int64Array, *weight: AnyArray) -> None:
        """Add edges, by the numbers of their nodes."""
        ends = ((edge_type[0], src), (edge_type[2], dst))
        narrow = (
            nodes.astype(index_dtype(self.indexes[name].num_nodes), copy=False)
            for name, nodes in ends
        )
        self._parts.setdefault(edge_type, []).append((*narrow, *weight))

    def arrays(self) -> dict[EdgeType, tuple[IntArray, ...]]:
        """Sources, destinations and, where there are some, weights of each edge type."""
        arrays: dict[EdgeType, tuple[IntArray, ...]] = {}
        for edge_type, parts in self._parts.items():
            columns = [list(column) for column in zip(*parts, strict=True)]
            parts.clear()
            whole = []
            while columns:  # each column's parts are freed before the next is joined
                first, *others = columns.pop(0)
                whole.append(np.concatenate([first, *others]) if others else first)
                del first, others
            arrays[edge_type] = tuple(whole)
        self._parts.clear()
        return arrays


def read_edges(source: EdgeSource, lists: EdgeLists, bad: BadRows) -> None:
    """Read a table of edges; of one type, a batch of rows at a time, as many as nodes.

    Raises:
        UserError: The file cannot be read.
    """
    edge_type, columns, indexes = source.spec.edge_type, source.columns, lists.indexes
    if edge_type is None:
        _read_mixed_edges(source, lists, bad)
        return
    nodes = dict(zip(_ENDS, (indexes[edge_type[0]], indexes[edge_type[2]]), strict=True))
    most_hashed = max(nodes[end].num_hashed for end in _ENDS)
    if isinstance(columns.table, ArrayTable) and not most_hashed:
        numbers = _node_numbers(columns, columns.table, nodes)
        if numbers is not None:
            lists.add(edge_type, *numbers)
            return
    none = np.empty(0, np.int64)
    lists.add(edge_type, none, none, *[np.empty(0, np.float32)] * len(columns.numbers))
    unknown_end = partial(_unknown_end, columns, nodes)
    for batch in columns.batches(min(most_hashed, _MOST_ROWS)):
        src, dst = (nodes[end].find(batch.columns[end], columns.table.decimal) for end in _ENDS)
        known = (src >= 0) & (dst >= 0)
        wrong = [
            nodes[end] for end, found in zip(_ENDS, (src, dst), strict=True) if (found < 0).any()
        ]
        hint = " ".join(dict.fromkeys(index.hint for index in wrong if index.hint))
        bad.add(columns.table, batch.rows[~known], unknown_end, hint)
        if not columns.numbers:
            lists.add(edge_type, src[known], dst[known])
            continue
        usable = (np.isfinite(batch.matrix) & (batch.matrix >= 0)).all(axis=1)
        bad.add(columns.table, batch.rows[known & ~usable], partial(_wrong_weight, columns))
        usable &= known
        weight = batch.matrix[usable].reshape(-1)
        lists.add(edge_type, src[usable], dst[usable], weight)


def _node_numbers(
    columns: Columns, table: ArrayTable, nodes: Mapping[Role, NodeIndex]
) -> tuple[AnyArray, ...] | None:
    """Arrays that hold numbers of nodes, and weights, as they are; None where a row may be bad.

    A graph in memory needs no look-up of its ids, nor a second copy of its edges in parts.
    """
    found = [table.column(columns.places[end]) for end in _ENDS]
    for end, array in zip(_ENDS, found, strict=True):
        if array.dtype.kind not in "iu":
            return None
        if len(array) and (array.min() < 0 or array.max() >= nodes[end].num_nodes):
            return None
    for place in columns.numbers:
        weight = table.column(place).astype(np.float32)
        if not (np.isfinite(weight).all() and (weight >= 0).all()):
            return None
        found.append(weight)
    return tuple(found)


def _unknown_end(columns: Columns, nodes: Mapping[Role, NodeIndex], record: Record) -> str:
    for end in _ENDS:
        field = record[columns.places[end]]
        if not field.strip():
            return f"the {end} node is missing"
        if not nodes[end].knows(field, columns.table.decimal):
            return nodes[end].unknown(field)
    return "its nodes are unknown"


def _wrong_weight(columns: Columns, record: Record) -> str:
    return f"weight {record[columns.numbers[0]]!r} is not a number from 0 on"


def _read_mixed_edges(source: EdgeSource, lists: EdgeLists, bad: BadRows) -> None:
    """Read a table of several edge types.

    Raises:
        UserError: An id is there in several node types, and no column says which is meant.
    """
    columns, indexes = source.columns, lists.indexes
    hashed = max(index.num_hashed for index in indexes.values())
    for batch in columns.batches(min(hashed, _MOST_ROWS)):
        types, numbers = {}, {}
        for end in _ENDS:
            types[end], numbers[end] = _find_end(source, end, indexes, batch)
        relations = _trimmed(batch.columns[source.relation]).dictionary_encode()
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
        for name, mask in _by_value(batch.columns[source.types[end]]):
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
                f"Name the column of the node's type as {source.spec.key(f'{end}_type')}, or give "
                "each edge type an entry of its own.",
            )
        types[found >= 0], numbers[found >= 0] = place, found[found >= 0]
    return types, numbers


def _why_unknown(source: EdgeSource, indexes: Mapping[NodeType, NodeIndex], record: Record) -> str:
    decimal = source.columns.table.decimal
    for end in _ENDS:
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
    rows: Rows, column: str, edge_type: EdgeType, lists: EdgeLists, bad: BadRows
) -> None:
    """Read a column of a node table that names a node of another type; an empty field is no edge.

    Args:
        rows: The nodes, in the order of their numbers.
        column: The column's name.
        edge_type: Type of the edges.
        lists: Takes the edges.
        bad: Takes the rows with an unknown node.
    """
    index, ids = lists.indexes[edge_type[2]], foreign_ids(rows, column)
    found = index.find(ids, rows.source.table.decimal)
    place = named_column(rows.source.table, column)[0]
    unknown = (found < 0) & ids.is_valid().to_numpy(zero_copy_only=False)
    why = lambda record: index.unknown(record[place])  # noqa: E731
    bad.add(rows.source.table, rows.rows[unknown], why, index.hint)
    lists.add(edge_type, np.flatnonzero(found >= 0), found[found >= 0])


def foreign_ids(rows: Rows, column: str) -> pa.Array:
    """The ids in a column of a node table; null where there is none."""
    table = rows.source.table
    ids = rows.columns[named_column(table, column)[0]]
    if ids.type != TEXT:
        return to_plain(ids)  # of floats, NaN is none
    return pc.if_else(is_missing_mark(ids), pa.scalar(None, TEXT), ids)
