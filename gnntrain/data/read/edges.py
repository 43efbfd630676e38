"""Edges from tables and arrays, by the user's own ids or, in a table of nodes, by foreign keys.

**Which columns are the ends?** `EdgeSpec.source` and `target`; else two columns that are called
like the node types at the ends; else the two of a usual pair of names (`source` and `target`, `src`
and `dst`, `from` and `to`, …); else the only two columns, the weight and an index that pandas wrote
left aside. Of three columns without names, the first two are the ends if they hold node ids and the
third does not. Anything else is asked about.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from gnntrain.config import FilesConfig
from gnntrain.config.graph_spec import EdgeSpec, ids_called
from gnntrain.config.problems import did_you_mean
from gnntrain.data.array_files import (
    Arrays,
    ArrayTable,
    edges_of,
    is_array_file,
    load_arrays,
    pick,
    saved_matrix,
)
from gnntrain.data.graph import AnyArray, EdgeData, EdgeType, Int64Array, NodeType, index_dtype
from gnntrain.data.names import (
    NODE_ARRAYS,
    PAIR_ARRAYS,
    SPLIT_ARRAYS,
    WEIGHT_ARRAYS,
    Role,
    is_pandas_index,
)
from gnntrain.data.read.columns import place_of
from gnntrain.data.read.nodes import NodeIndex
from gnntrain.data.summary import first_names
from gnntrain.data.table_files import GRAPHML_SUFFIX, open_graphml, open_table
from gnntrain.data.tables import BadRows, Columns, Record, Rows, Table
from gnntrain.data.values import TEXT, from_texts, is_missing_mark, to_plain, without_zero_fractions
from gnntrain.errors import UserError

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
_Candidates = Mapping[Role, Mapping[NodeType, NodeIndex]]
_RELATION_NAMES = ("relation", "type", "predicate", "rel", "edge_type")


@dataclass(frozen=True)
class EdgeSource:
    """A table of edges before its rows are read.

    The ends are the roles "source" and "target" of `columns`, weights its numbers; of a table of
    several edge types, the columns `relation` and `types`, at the ends, are its `others`.
    """

    spec: EdgeSpec
    columns: Columns
    relation: int = 0
    types: Mapping[Role, int] = field(default_factory=dict)

    def unread(self) -> list[str]:
        """Names of columns without a use, and of arrays but for those that nodes have."""
        table = self.columns.table
        arrays = table.arrays if isinstance(table, ArrayTable) else {}
        known = {*table.names, *NODE_ARRAYS, *chain(*SPLIT_ARRAYS.values())}
        return [*self.columns.unread(), *(name for name in arrays if name not in known)]

    def phrase(self, num_edges: int) -> str:
        """Of a graph with one table of edges, see `DataSummary.edges`."""
        shown, columns = self.columns.table.shown, self.columns
        source, target = (shown(columns.places[end]) for end in _ENDS)
        weight = f"weight column {shown(columns.numbers[0])}" if columns.numbers else "no weight"
        name = f"{columns.table.path.name}{columns.table.note}"
        return f"{num_edges:,} of {name}, from column {source} to column {target}; {weight}"

    def types_at(self, end: Role, node_types: Iterable[NodeType]) -> Sequence[NodeType]:
        """The node types that the nodes at one end may be of."""
        if self.spec.edge_type is None:
            return list(node_types)
        return [self.spec.edge_type[0 if end == "source" else 2]]

    def rows_by_type(self, end: Role, batch: Rows) -> Iterator[tuple[NodeType, AnyArray]]:
        """Each node type in the column of types of an end, with the mask of its rows."""
        types = to_plain(batch.columns[self.types[end]].cast(TEXT)).dictionary_encode()
        codes = types.indices.fill_null(-1).to_numpy()
        for code, name in enumerate(types.dictionary.to_pylist()):
            yield name, codes == code


def open_edges(paths: Sequence[Path], spec: EdgeSpec, options: FilesConfig, bad: BadRows) -> Table:
    """Files of edges as one table."""
    usual = _HEADER_NAMES.union(_RELATION_NAMES)
    if spec.edge_type is not None:
        usual = _HEADER_NAMES.union(*map(_called, spec.edge_type[::2]))
    tables: list[Table] = []
    for path in paths:
        if is_array_file(path):
            # Both ends of a square matrix are nodes of one type.
            is_square = spec.edge_type is not None and spec.edge_type[0] == spec.edge_type[2]
            arrays = load_arrays([path])
            if (matrix := saved_matrix(path, arrays)) is not None:
                arrays = edges_of(matrix, path, square=is_square)
            tables.append(table_of_arrays(path, arrays, spec))
        elif path.suffix.lower() == GRAPHML_SUFFIX:
            tables.append(open_graphml(path, "edges"))
        else:
            table = open_table([path], spec.header, options, bad, usual)
            if len(table.names) < 2:
                raise UserError(f"{path} has only one column.", "It needs two: source and target.")
            tables.append(table)
    return Table.of_files(tables)


def _called(node_type: NodeType) -> tuple[str, ...]:
    """Names that say that a column holds an end of this type, in lower case."""
    return (*ids_called(node_type), node_type.lower())


def table_of_arrays(path: Path, arrays: Arrays, spec: EdgeSpec) -> ArrayTable:
    """Arrays of edges as columns: pairs `[2, num_edges]` or `[num_edges, 2]` as two of them."""
    weights = {name: arrays[name] for name in arrays if name in (spec.weight, *WEIGHT_ARRAYS)}
    others = {name: array for name, array in arrays.items() if name not in weights}
    pairs = pick(others, PAIR_ARRAYS) if len(others) != 1 else next(iter(others.values()))
    if pairs is None:
        named = {spec.source, spec.target, *chain(*PAIRS_OF_ENDS)}
        ends = {name: array for name, array in others.items() if name in named}
        ends = ends or {name: array for name, array in others.items() if array.ndim == 1}
    elif pairs.ndim != 2 or 2 not in pairs.shape:
        raise UserError(
            f"{path}: shape {list(pairs.shape)} instead of [2, num_edges] or [num_edges, 2].",
            "Give edge_index of shape [2, num_edges], sources first.",
        )
    else:  # two by two is taken as the former
        ends = dict(zip(PAIRS_OF_ENDS[0], pairs if len(pairs) == 2 else pairs.T, strict=True))
    columns = ends | {name: array.reshape(-1) for name, array in weights.items()}
    are_numbers = all(weight.dtype.kind in "biuf" for weight in weights.values())
    if len({array.shape for array in columns.values()}) != 1 or not are_numbers:
        given = {name: arrays.get(name, array) for name, array in columns.items()}
        shapes = ", ".join(f"{name} {one.dtype} {list(one.shape)}" for name, one in given.items())
        raise UserError(
            f"{path}: the arrays are not one value an edge each: {shapes or 'there are none'}.",
            "Call the ends source and target, or give them as one array called edge_index; a "
            "weight is one number an edge.",
        )
    if any(array.dtype.kind == "b" for array in ends.values()):
        raise UserError(
            f"{path}: the edges are truth values, not node ids.",
            "List the edges of an adjacency matrix as pairs of nodes.",
        )
    return ArrayTable(path, columns, arrays={n: a for n, a in arrays.items() if a is not pairs})


def edge_source(
    table: Table, spec: EdgeSpec, indexes: Mapping[NodeType, NodeIndex], *, weighted: bool
) -> EdgeSource:
    """The columns of a table of edges; `indexes` are the nodes of the types that have a table."""
    names, edge_type = [name.lower() for name in table.names], spec.edge_type

    def column(word: str, usual: Sequence[str] = ()) -> int | None:
        """The column that the specification names, or the first one with a usual name."""
        wanted = getattr(spec, word)
        if wanted is not None:
            return place_of(table, spec.key(word), wanted)
        return next((names.index(name) for name in usual if name in names), None)

    relation, types = None, dict[Role, int]()
    if edge_type is None:
        relation = column("type", _RELATION_NAMES)
        if relation is None:
            raise UserError(
                f"{table.path} has no column called relation or type (it has "
                f"{first_names(table.names)}).",
                f"Name the column of relations as {spec.key('type')}, or give each edge type an "
                "entry of its own: author/writes/paper.",
            )
        named = {end: column(f"{end}_type") for end in _ENDS}
        types = {end: place for end, place in named.items() if place is not None}
    # Whoever calls an array so means PyG's; of a table it may be any column.
    usual_weights = WEIGHT_ARRAYS if isinstance(table, ArrayTable) else ()
    weight = column("weight", usual_weights) if weighted else None
    numbers = [] if weight is None else [weight]
    others = [] if relation is None else list(dict.fromkeys((relation, *types.values())))

    # The ends, by the usual names or by those of the node types; or the only two columns.
    pairs = [(names.index(s), names.index(t)) for s, t in PAIRS_OF_ENDS if {s, t} <= {*names}]
    taken = {*numbers, *others, *(at for at, name in enumerate(names) if name in WEIGHT_NAMES)}
    rest = [at for at, name in enumerate(table.names) if not is_pandas_index(name)]
    rest = [0, 1] if len(names) == 2 else [at for at in rest if at not in taken]
    if not pairs and len(rest) == 2 and taken.isdisjoint(rest):
        sources, targets = zip(*PAIRS_OF_ENDS, strict=True)
        if names[rest[0]] not in targets and names[rest[1]] not in sources:
            pairs = [(rest[0], rest[1])]
    if not pairs and table.names == ("0", "1", "2") and edge_type is not None:
        # Of three columns without names, the first rows tell whether the third is the weight.
        first = next(Columns(table, {"source": 0, "target": 1, "id": 2}, ()).batches()).columns

        def are_nodes(role: Role, node_type: NodeType) -> bool:
            index = indexes.get(node_type)
            return index is not None and bool((index.find(first[role]) >= 0).all())

        is_weight = not any(are_nodes("id", name) for name in edge_type[::2])
        if is_weight and are_nodes("source", edge_type[0]) and are_nodes("target", edge_type[2]):
            pairs = [(0, 1)]
    ends: tuple[int | None, int | None] = pairs[0] if len(pairs) == 1 else (None, None)
    if edge_type is not None and edge_type[0] != edge_type[2]:
        by_type = [
            next((names.index(word) for word in _called(name) if word in names), None)
            for name in edge_type[::2]
        ]
        ends = ends if None in by_type else (by_type[0], by_type[1])
    named_ends = column("source"), column("target")
    src, dst = (end if name is None else name for end, name in zip(ends, named_ends, strict=True))
    if src is None or dst is None or src == dst:
        raise UserError(
            f"{table.path}: it is not plain which columns are the ends of an edge; it has "
            f"{first_names(table.names)}.",
            f"Set {spec.key('source')} and {spec.key('target')}.",
        )
    columns = Columns(table, {"source": src, "target": dst}, numbers, others)
    return EdgeSource(spec, columns, relation or 0, types)


class IdCollector:
    """The ids of node types that have no table: those at the ends of edges."""

    def __init__(self, decimal: str) -> None:
        self._decimal = decimal
        self._parts: dict[NodeType, list[pa.Array]] = {}
        self._texts: set[NodeType] = set()  # types of ids that are texts, even where all are digits

    def add(self, node_type: NodeType, ids: pa.Array, table: Table) -> None:
        """Add ids that stand in a table."""
        ids = to_plain(ids).drop_null()
        if ids.type == TEXT and table.unit != "line":
            self._texts.add(node_type)
        parts = self._parts.setdefault(node_type, [])
        parts.append(pc.unique(ids))
        # Repeated ids are dropped before they fill the memory.
        if sum(map(len, parts)) > max(_FEW_IDS, 2 * len(parts[0])):
            parts[:] = [self._different(node_type)]

    def add_ends(
        self, source: EdgeSource, wanted: Collection[NodeType], node_types: Collection[NodeType]
    ) -> None:
        """Add the ids at the ends of a table's edges, of the node types that are wanted."""
        at_ends = {end: source.types_at(end, node_types) for end in _ENDS}
        # Of several types without a column of types, an id tells none.
        only = {end: names[0] for end, names in at_ends.items() if len(names) == 1}
        ends = [end for end in _ENDS if end in source.types or only.get(end) in wanted]
        for batch in source.columns.batches() if ends else ():
            for end in ends:
                if end not in source.types:
                    self.add(only[end], batch.columns[end], source.columns.table)
                    continue
                for name, mask in source.rows_by_type(end, batch):
                    if name in wanted:
                        ids = batch.columns[end].filter(pa.array(mask))
                        self.add(name, ids, source.columns.table)

    def _different(self, node_type: NodeType) -> pa.Array:
        """Each id once: texts if some are, else int64."""
        parts = self._parts.get(node_type, [])
        kind = TEXT if TEXT in {part.type for part in parts} else pa.int64()
        return pc.unique(pa.concat_arrays([pa.array([], kind), *(p.cast(kind) for p in parts)]))

    def ids(self, node_type: NodeType) -> pa.Array:
        """All different ids of a type in ascending order: int64 if all are whole numbers."""
        ids = self._different(node_type)
        if ids.type == TEXT and node_type not in self._texts:
            numbers = from_texts(without_zero_fractions(ids, self._decimal))
            ids = ids if numbers.type == TEXT else pc.unique(numbers).drop_null()
        return ids.take(pc.sort_indices(ids))


class EdgeLists:
    """Collects edges by type."""

    def __init__(self, indexes: Mapping[NodeType, NodeIndex]) -> None:
        self.indexes = indexes
        self._parts: dict[EdgeType, list[tuple[AnyArray, ...]]] = {}

    def add(self, edge_type: EdgeType, src: Int64Array, dst: Int64Array, *weight: AnyArray) -> None:
        """Add edges, by the numbers of their nodes."""
        narrow = (
            nodes.astype(index_dtype(self.indexes[name].num_nodes), copy=False)
            for name, nodes in ((edge_type[0], src), (edge_type[2], dst))
        )
        self._parts.setdefault(edge_type, []).append((*narrow, *weight))

    def edges(self) -> dict[EdgeType, EdgeData]:
        """The edges of each type; nothing is kept of them."""
        whole = {}
        for edge_type in [*self._parts]:
            columns = [list(column) for column in zip(*self._parts.pop(edge_type), strict=True)]
            arrays = []
            while columns:
                parts = columns.pop(0)  # those of the column before are freed
                arrays.append(np.concatenate(parts) if len(parts) > 1 else parts[0])
            src, dst, *weight = arrays
            whole[edge_type] = EdgeData(src, dst, weight[0] if weight else None)
        return whole


def read_edges(source: EdgeSource, lists: EdgeLists, bad: BadRows) -> None:
    """Read a table of edges, a batch of rows at a time, as many as nodes."""
    edge_type, columns, indexes = source.spec.edge_type, source.columns, lists.indexes
    table, has_weight = columns.table, bool(columns.numbers)
    # By the end of an edge, the node types that its nodes may be of.
    candidates: _Candidates = {
        end: {name: indexes[name] for name in source.types_at(end, indexes)} for end in _ENDS
    }
    most_hashed = max(index.num_hashed for end in _ENDS for index in candidates[end].values())
    if edge_type is not None:
        none = np.empty(0, np.int64)
        lists.add(edge_type, none, none, *[np.empty(0, np.float32)] * has_weight)
    why_unknown = partial(_why_unknown, source, candidates)
    for batch in columns.batches(min(most_hashed, _MOST_ROWS)):
        (src_types, src), (dst_types, dst) = (
            _find_end(source, end, candidates[end], batch) for end in _ENDS
        )
        is_known = (src >= 0) & (dst >= 0)
        hints = {
            next(iter(candidates[end].values())).hint: None
            for end, nodes in zip(_ENDS, (src, dst), strict=True)
            if len(candidates[end]) == 1 and (nodes < 0).any()
        }
        if edge_type is None:
            relations = to_plain(batch.columns[source.relation].cast(TEXT)).dictionary_encode()
            relation = relations.indices.fill_null(-1).to_numpy()
            is_known &= relation >= 0
        bad.add(table, batch.rows[~is_known], why_unknown, " ".join(filter(None, hints)))
        if has_weight:
            usable = (np.isfinite(batch.matrix) & (batch.matrix >= 0)).all(axis=1)
            wrong_weight = lambda record: (  # noqa: E731
                f"weight {record[columns.numbers[0]]!r} is not a number from 0 on"
            )
            bad.add(table, batch.rows[is_known & ~usable], wrong_weight)
            is_known &= usable
        weight = [batch.matrix[is_known].reshape(-1)] * has_weight
        if edge_type is not None:
            lists.add(edge_type, src[is_known], dst[is_known], *weight)
            continue
        names, types = list(indexes), (src_types, relation, dst_types)
        known = pd.Series(np.flatnonzero(is_known))
        for (first, between, last), rows in known.groupby([codes[is_known] for codes in types]):
            of_rows = names[first], relations.dictionary[between].as_py(), names[last]
            lists.add(of_rows, src[rows], dst[rows])


def _find_end(
    source: EdgeSource, end: Role, candidates: Mapping[NodeType, NodeIndex], batch: Rows
) -> tuple[AnyArray, Int64Array]:
    """The places in `candidates` of the types of nodes, and their numbers; −1 if unknown."""
    table, ids = source.columns.table, batch.columns[end]
    names, indexes = list(candidates), list(candidates.values())
    if len(names) == 1 and end not in source.types:
        return np.zeros(len(ids), np.int8), indexes[0].find(ids, table.decimal)
    types, numbers = np.full(len(ids), -1, np.int64), np.full(len(ids), -1, np.int64)
    if end in source.types:
        for name, mask in source.rows_by_type(end, batch):
            if name in candidates:
                types[mask] = names.index(name)
                numbers[mask] = candidates[name].find(ids.filter(pa.array(mask)), table.decimal)
        return types, numbers
    for place, index in enumerate(indexes):
        nodes = index.find(ids, table.decimal)
        is_known = nodes >= 0
        twice = np.flatnonzero(is_known & (numbers >= 0))
        if len(twice):
            raise UserError(
                f"{table.path}: node {str(ids[int(twice[0])])!r} is in {names[types[twice[0]]]} "
                f"and in {names[place]}.",
                f"Name the column of the node's type as {source.spec.key(f'{end}_type')}, or give "
                "each edge type an entry of its own.",
            )
        types[is_known], numbers[is_known] = place, nodes[is_known]
    return types, numbers


def _why_unknown(source: EdgeSource, candidates: _Candidates, record: Record) -> str:
    decimal = source.columns.table.decimal
    for end in _ENDS:
        text, indexes = record[source.columns.places[end]], candidates[end]
        if not text.strip():
            return f"the {end} node is missing"
        if end in source.types:
            name = record[source.types[end]].strip()
            if name not in indexes:
                hint = did_you_mean(name, indexes)
                return f"{name!r} is no node type" + (f" ({hint})" if hint else "")
            indexes = {name: indexes[name]}
        if any(index.knows(text, decimal) for index in indexes.values()):
            continue
        if len(indexes) == 1:
            return next(iter(indexes.values())).unknown(text)
        others = {name: index.written_otherwise(text) for name, index in indexes.items()}
        alike = "".join(f"; {name} has {other!r}" for name, other in others.items() if other)
        alike += ": write it alike in both" * bool(alike)
        return f"node {text!r} is in none of {', '.join(indexes)}{alike}"
    return "the relation is missing"


def read_foreign_key(rows: Rows, edge_type: EdgeType, lists: EdgeLists, bad: BadRows) -> None:
    """Read the column of nodes, called like the relation, that names a node of another type; an
    empty field is no edge."""
    _, column, other = edge_type
    table, index, ids = rows.source.table, lists.indexes[other], foreign_ids(rows, column)
    nodes = index.find(ids, table.decimal)
    unknown = (nodes < 0) & ids.is_valid().to_numpy(zero_copy_only=False)
    place = place_of(table, column, column)
    bad.add(table, rows.rows[unknown], lambda record: index.unknown(record[place]), index.hint)
    lists.add(edge_type, np.flatnonzero(nodes >= 0), nodes[nodes >= 0])


def foreign_ids(rows: Rows, column: str) -> pa.Array:
    """The ids in a column of a node table; null where there is none."""
    table = rows.source.table
    ids = rows.columns[place_of(table, column, column)]
    if ids.type != TEXT:
        return to_plain(ids)  # of floats, NaN is none
    return pc.if_else(is_missing_mark(ids), pa.scalar(None, TEXT), ids)
