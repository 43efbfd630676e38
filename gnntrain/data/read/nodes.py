"""From the user's own node ids to 0 … num_nodes − 1, lists of them, and tables of several node
types."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal, InvalidOperation
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnntrain.config import FilesConfig
from gnntrain.config.graph_spec import TYPE_NAMES, NodeSpec, node_spec
from gnntrain.data.array_files import ArrayTable
from gnntrain.data.graph import AnyArray, Graph, Int64Array
from gnntrain.data.names import COLUMN_NAMES
from gnntrain.data.read.columns import find_column, find_id, id_column, named_column, place_of
from gnntrain.data.summary import first_names
from gnntrain.data.table_files import table_in_memory
from gnntrain.data.tables import BadRows, Columns, Rows, Table, unreadable
from gnntrain.data.values import (
    TEXT,
    from_numpy,
    is_missing_mark,
    is_repeated,
    to_floats,
    to_int64,
    to_plain,
    whole_numbers,
    without_zero_fractions,
)
from gnntrain.errors import UserError


class NodeIndex:
    """Turns the user's node ids (see `to_plain`; each once, None: 0, 1, …) into node numbers.

    Ids are compared as whole numbers if all ids of the nodes are such (7, or 7.0 as pandas writes
    it), else as texts: 007 and 7 are two nodes. In messages a node is called `kind`, and `home` is
    what defines the nodes; None: the edges, which can name no other node.
    """

    def __init__(
        self,
        ids: pa.Array | None,
        num_nodes: int,
        kind: str = "node",
        home: str | None = "the features file",
        decimal: str = ".",
    ) -> None:
        self.num_nodes, self.kind, self.home = num_nodes, kind, home or "the edges"
        self._ids = None if ids is None or _count_from_0(ids) else ids
        self._keys = None
        if self._ids is not None:
            keys = _keys(self._ids, decimal)
            self._keys = None if _count_from_0(keys) else keys
        nodes = "nodes" if kind == "node" else f"nodes of type {kind}"
        defines = f"{self.home.replace('the ', 'The ', 1)} defines the {nodes} ({self.shown()})"
        self.hint = f"{defines}; no other file may add any." if home else ""

    @property
    def num_hashed(self) -> int:
        """Number of ids that each call of `find` hashes first: many at once are faster."""
        return 0 if self._keys is None else self.num_nodes

    def node_ids(self) -> AnyArray | None:
        """The ids as a store keeps them: int64 or UTF-8 bytes; None if they are 0, 1, …."""
        if self._ids is None:
            return None
        ids: AnyArray = self._ids.to_numpy(zero_copy_only=False)
        return utf8(ids) if self._ids.type == TEXT else ids

    def shown(self) -> str:
        """The first ids, for messages."""
        first = range(self.num_nodes)[:3] if self._ids is None else self._ids[:3].to_pylist()
        return ", ".join(map(str, first)) + (", …" if self.num_nodes > 3 else "")

    def unknown(self, text: str) -> str:
        """Why a row with an unknown node is bad: its id, and the one that may be meant."""
        other = self.written_otherwise(text)
        which = f", which has {other!r}: write it alike in both" if other else ""
        return f"{self.kind} {text!r} is not in {self.home}{which}"

    def written_otherwise(self, text: str) -> str | None:
        """The id of a node that is the same number as an unknown id: 007 for 7."""
        try:
            value, number = float(text), Decimal(text.strip())
        except (ValueError, InvalidOperation):
            return None
        if self._ids is not None and self._ids.type == TEXT:
            near = self._ids.filter(pc.equal(to_floats(self._ids), value)).to_pylist()
            return next((name for name in near if Decimal(name) == number), None)
        name = f"{number:.0f}" if abs(value) < 2.0**63 else ""
        return name if name and Decimal(name) == number and self.knows(name) else None

    def find(self, ids: pa.Array, decimal: str = ".") -> Int64Array:
        """Node numbers of ids of any type, −1 for those that are missing or unknown."""
        ids = self._comparable(ids, decimal)
        if self._keys is None:
            is_known = pc.and_(pc.greater_equal(ids, 0), pc.less(ids, self.num_nodes))
            found = pc.if_else(is_known, ids, None)
        else:
            found = pc.index_in(ids, self._keys, skip_nulls=True)
        return np.asarray(found.fill_null(-1).to_numpy(), np.int64)

    def locate(self, rows: Rows, bad: BadRows) -> Rows:
        """The rows that speak of a known node, each of another, with their `nodes`."""
        if "id" in rows.columns:
            rows = rows.drop(rows.is_missing("id"), bad, "the node id is missing")
            rows = replace(rows, nodes=self.find(rows.columns["id"], rows.source.table.decimal))
            place = rows.source.places["id"]
            why = lambda row: self.unknown(row[place])  # noqa: E731
            rows = rows.drop(rows.nodes < 0, bad, why, self.hint)
            return drop_repeated(rows, pa.array(rows.nodes), bad)
        if rows.end != self.num_nodes:
            raise UserError(
                f"{rows.path} has {rows.end} rows and no node ids, but there are "
                f"{self.num_nodes} nodes.",
                "Give it one row a node, or a column of node ids.",
            )
        return replace(rows, nodes=rows.rows)

    def knows(self, text: str, decimal: str = ".") -> bool:
        """Whether an id, as written in a file, is a node's."""
        node = self._comparable(pa.array([text], TEXT), decimal)[0]
        if self._keys is None or not node.is_valid:
            return bool(node.is_valid and 0 <= node.as_py() < self.num_nodes)
        return bool(pc.index(self._keys, node).as_py() >= 0)

    def _comparable(self, ids: pa.Array, decimal: str) -> pa.Array:
        if self._keys is not None and self._keys.type == TEXT:
            return to_plain(ids).cast(TEXT)
        return to_int64(ids, decimal)


def _keys(ids: pa.Array, decimal: str) -> pa.Array:
    """Ids as they are compared: int64 if all are whole numbers that differ, else texts."""
    if ids.type != TEXT:
        return ids
    for part in (ids[:100], ids):  # of names, the first ones tell
        numbers = whole_numbers(without_zero_fractions(part, decimal))
        if numbers is None or is_repeated(numbers).any():
            return ids
    return numbers


def _count_from_0(ids: pa.Array) -> bool:
    return ids.type != TEXT and bool((ids.to_numpy() == np.arange(len(ids))).all())


def drop_repeated(rows: Rows, ids: pa.Array, bad: BadRows, hint: str = "") -> Rows:
    """The rows whose id was not there further up."""
    return rows.drop(is_repeated(ids), bad, "node {} is there already", hint, "id")


def utf8(texts: AnyArray) -> AnyArray:
    """Texts as a store keeps them: bytes of one length, as long as the longest needs."""
    encoded: AnyArray = np.char.encode(texts.astype(str), "utf-8")
    return encoded


def nodes_by_type(
    table: Table,
    mixed: NodeSpec,
    options: FilesConfig,
    bad: BadRows,
) -> dict[str, tuple[Table, NodeSpec]]:
    """The rows of each node type of a table with a column of types, and what is said of them."""
    if isinstance(table, ArrayTable):
        raise UserError(
            f"{mixed.place}: {table.path} holds arrays, which have no column of types.",
            "Give a table (CSV, Parquet), or an entry for each node type.",
        )
    usual = find_column(table, "id", usual=TYPE_NAMES).get("id")
    if mixed.type is not None:
        usual = place_of(table, mixed.key("type"), mixed.type)
    if usual is None:
        raise UserError(
            f"{table.path} has no column called type (it has {first_names(table.names)}).",
            f"Name the column of node types as {mixed.key('type')}, or give each node type an "
            "entry of its own.",
        )
    ids = find_id(table, mixed, mixed, {usual})
    if not ids:
        raise UserError(
            f"{table.path}: it is not plain which column holds the node ids; it has "
            f"{first_names(table.names)}.",
            f"Set {mixed.key('id')}.",
        )
    places = range(len(table.names))
    rows = Columns(table, {}, (), places).read()
    column = to_plain(rows.columns[usual].cast(TEXT))
    missing = np.asarray(column.is_null().to_numpy(zero_copy_only=False), bool)
    rows = rows.drop(missing, bad, "the node type is missing")
    encoded = column.drop_null().dictionary_encode()
    codes = encoded.indices.to_numpy()
    found: dict[str, tuple[Table, NodeSpec]] = {}
    for code, name in enumerate(encoded.dictionary.to_pylist()):
        part = rows.keep(codes == code)
        spec = mixed.types.get(name) or node_spec(name, f"{mixed.place}.types.{name}", options)
        asked = [column for _, column in (*spec.asked(), *spec.label.asked(), *spec.split.asked())]
        named = {place for column in asked for place in named_column(table, column)}
        unused = {
            table.names[place]: "it has no value in this type's rows"
            for place in places
            if place not in named and _is_empty(part.columns[place])
        }
        unused[table.names[usual]] = "it holds the node types"
        spec = replace(spec, id=table.names[ids["id"]], unused=unused)
        found[name] = table.part({place: part.columns[place] for place in places}, part.rows), spec
    return found


def _is_empty(column: pa.Array) -> bool:
    if column.null_count == len(column):
        return True
    return column.type == TEXT and bool(pc.all(is_missing_mark(column)).as_py())


def listed_nodes(path: Path, store: Graph) -> Int64Array:
    """The nodes that a file names, in its order.

    Plain text (.txt) has an id a line; a table (CSV, TSV, Parquet) has them in its column `id`,
    `node_id`, `node` or `nid`, or else in its first one; an array (npy, npz, pt) is of ids.
    """
    bad = BadRows("error", str(path))
    if path.suffix.lower() == ".txt":  # an id may hold blanks and commas
        try:
            lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise unreadable(path, error) from error
        lines = [line for line in lines if line]
        if lines and lines[0].lower() in COLUMN_NAMES["id"]:
            del lines[0]
        columns = Columns(table_in_memory(path, pa.table({"id": pa.array(lines, TEXT)})), {"id": 0})
    else:
        columns = id_column([path], bad)
    rows = columns.read()
    bad.report()
    if not len(rows):
        raise UserError(f"{path} names no node.", "Give one id a line.")
    own = None if store.node_ids is None else to_plain(from_numpy(store.node_ids))
    index = NodeIndex(own, len(store.target_nodes), home="the graph")
    nodes = index.find(rows.columns["id"])
    hint = f"The graph's nodes are {index.shown()}. A first line that names the column says id."
    rows.drop(nodes < 0, bad, lambda row: index.unknown(row[columns.places["id"]]), hint)
    bad.report()
    return nodes
