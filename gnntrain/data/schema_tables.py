"""The tables of a typed graph: opened, and where one holds several node types, taken apart."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnntrain.config import FilesConfig
from gnntrain.config.graph_schema import ColumnFile, EdgeTable, MixedNodeTable, NodeColumns
from gnntrain.data.array_files import FEATURE_ARRAYS, ArrayTable, load_all, open_arrays
from gnntrain.data.bad_rows import BadRows
from gnntrain.data.columns import TEXT, is_missing_mark
from gnntrain.data.file_columns import (
    COLUMN_NAMES,
    NO_ID,
    USUAL_NAMES,
    find_column,
    find_id,
    is_array_file,
    named_column,
    open_table,
    place_of,
)
from gnntrain.data.graph import NodeType
from gnntrain.data.tables import Columns, Table, listed
from gnntrain.errors import UserError

_logger = logging.getLogger("gnntrain")

# Keys of tables as a configuration calls them, and as a schema does.
_WORDS = {
    "id_column": "id",
    "label_column": "label",
    "labels": "label",
    "split_column": "split",
    "feature_columns": "features",
    "source_column": "source",
    "target_column": "target",
    **{key: key for key in ("categorical", "ignore", "missing", "standardize", "features")},
    **{key: key for key in ("type", "source_type", "target_type", "foreign_keys")},
}
_KEY = rf"dataset\.({'|'.join(_WORDS)})\b"
TYPE_NAMES = ("type", "node_type", "label")
_EMPTY = "it has no value in this type's rows"


Part = NodeColumns | MixedNodeTable | EdgeTable | ColumnFile
"""A part of a schema that names columns."""


@contextmanager
def keys_of(place: str, paths: Iterable[Path]) -> Iterator[None]:
    """Have the messages of errors name the keys of a schema: `nodes.author.id`.

    Args:
        place: The table's key.
        paths: The files; their names stay as they are, whatever is in them.
    """
    try:
        yield
    except UserError as error:
        names = {re.escape(name) for path in paths for name in (str(path), path.name)}
        either = re.compile("|".join([*sorted(names, key=len, reverse=True), _KEY]))
        texts = (
            either.sub(lambda at: f"{place}.{_WORDS[at[1]]}" if at[1] else at[0], text or "")
            for text in (error.message, error.hint)
        )
        raise UserError(*texts) from error


def columns_asked(key: str, part: Part, *, labelled: bool) -> Iterator[tuple[str, str]]:
    """The columns, or patterns of them, that a part of a schema names, each with its key.

    Args:
        key: The part's key.
        part: The part.
        labelled: False: without those that a graph to predict on need not have.
    """
    others = {"files", "file", "missing", "standardize", "types"}
    if isinstance(part, NodeColumns) and not labelled:
        others |= {"features", "categorical", "ignore", "label", "split"}
    for name, value in part:
        given = (value,) if isinstance(value, str) else value
        if name not in others and isinstance(given, tuple | Mapping):
            yield from ((f"{key}.{name}", column) for column in given if column != NO_ID)


def names_in(*parts: Part) -> list[str]:
    """The columns, or patterns of them, that parts of a schema name."""
    return [name for part in parts for _, name in columns_asked("", part, labelled=True)]


@dataclass(frozen=True)
class NodeSource:
    """A node type and its table, before the rows are read.

    Attributes:
        name: The node type.
        columns: What the schema says of it.
        table: Its table; None: the ids come from the edges.
        config: How the table is read.
        left_out: Names of columns that are no features, each with the reason.
    """

    name: NodeType
    columns: NodeColumns
    table: Table | None
    config: FilesConfig
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Its key in the schema."""
        return f"nodes.{self.name}"


def open_nodes(
    paths: Sequence[Path], config: FilesConfig, bad: BadRows, names: Iterable[str]
) -> Table:
    """Files of nodes as one table; `names` are columns that the schema names.

    Raises:
        UserError: One cannot be read, or has other columns than the first.
    """
    if is_array_file(paths[0]):
        return open_arrays(paths[0], load_all(paths), FEATURE_ARRAYS, config)
    known = USUAL_NAMES.union(name.lower() for name in names)
    return Table.of_files([open_table(path, config, bad, known) for path in paths])


def node_source(
    name: NodeType,
    columns: NodeColumns,
    id_column: str | None,
    table: Table | None,
    config: FilesConfig,
) -> NodeSource:
    """A node type that has files of its own, or none."""
    config = config_of(config, columns, id_column)
    if table is not None and id_column is None and not find_column(table, "id", None):
        found = next((at for at in table.names if at.lower() in ids_called(name)), None)
        config = config.model_copy(update={"id_column": found})
    return NodeSource(name, columns, table, config)


def ids_called(node_type: NodeType) -> tuple[str, ...]:
    """Names that say that a column holds ids of a node type, in lower case."""
    name = node_type.lower()
    return f"{name}_id", f"{name}id", f"id_{name}"


def config_of(config: FilesConfig, columns: NodeColumns, id_column: str | None) -> FilesConfig:
    """How the table of a node type is read, as of a homogeneous graph."""
    label, split = columns.label, columns.split
    changes: dict[str, object] = {
        "id_column": id_column,
        "feature_columns": columns.features,
        "categorical": columns.categorical,
        "ignore": columns.ignore,
        "label_column": label.column if isinstance(label, ColumnFile) else label,
        "labels": label.file if isinstance(label, ColumnFile) else None,
        "split_column": split if isinstance(split, str) else None,
    }
    if columns.missing is not None:
        changes["missing"] = columns.missing
    if columns.standardize is not None:
        changes["standardize"] = columns.standardize
    return config.model_copy(update=changes)


def mixed_sources(
    key: str,
    mixed: MixedNodeTable,
    types: Mapping[NodeType, NodeColumns],
    table: Table,
    config: FilesConfig,
    bad: BadRows,
) -> list[NodeSource]:
    """The node types of a table with a column of types.

    Raises:
        UserError: It cannot be read, or its columns of ids and types are not known.
    """
    if isinstance(table, ArrayTable):
        raise UserError(
            f"{key}: {table.path} holds arrays, which have no column of types.",
            "Give a table (CSV, Parquet), or an entry for each node type.",
        )
    type_place = _type_place(key, table, mixed.type)
    found = find_id(table, config.model_copy(update={"id_column": mixed.id}), {type_place})
    if not found:
        raise UserError(
            f"{table.path}: it is not plain which column holds the node ids; it has "
            f"{listed(table.names)}.",
            f"Set {key}.id.",
        )
    id_name = table.names[found["id"]]
    sources = []
    for name, part, empty in _parts(table, type_place, bad):
        columns = types.get(name, NodeColumns())
        view = config_of(config, columns, id_name)
        named = {place for name in names_in(columns) for place in named_column(table, name)}
        left_out = {table.names[at]: _EMPTY for at in empty if at not in named}
        left_out[table.names[type_place]] = "it holds the node types"
        view = view.model_copy(update={"ignore": (*view.ignore, *left_out)})
        sources.append(NodeSource(name, columns, part, view, left_out))
    return sources


def _type_place(key: str, table: Table, wanted: str | None) -> int:
    if wanted is not None:
        return place_of(table, "type", wanted)
    names = [name.lower() for name in table.names]
    for usual in TYPE_NAMES:
        if usual in names:
            return names.index(usual)
    raise UserError(
        f"{table.path} has no column called type (it has {listed(table.names)}).",
        f"Name the column of node types as {key}.type, or give each node type an entry of its own.",
    )


def _parts(
    table: Table, type_place: int, bad: BadRows
) -> Iterator[tuple[NodeType, Table, list[int]]]:
    """Each type's rows, and the columns that are empty there."""
    places = range(len(table.names))
    rows = Columns(table, {}, (), places).read()
    types = pc.utf8_trim_whitespace(rows.others[type_place].cast(TEXT))
    types = pc.if_else(pc.equal(types, ""), pa.scalar(None, TEXT), types)
    missing = np.asarray(types.is_null().to_numpy(zero_copy_only=False), bool)
    rows = rows.drop(missing, bad, lambda _: "the node type is missing")
    encoded = types.drop_null().dictionary_encode()
    codes = encoded.indices.to_numpy()
    for code, name in enumerate(encoded.dictionary.to_pylist()):
        part = rows.keep(codes == code)
        empty = [place for place in places if _is_empty(part.others[place])]
        yield name, table.part(part.others, part.rows), empty


def _is_empty(column: pa.Array) -> bool:
    if column.null_count == len(column):
        return True
    return column.type == TEXT and bool(pc.all(is_missing_mark(column)).as_py())


def has_usual_label(source: NodeSource) -> bool:
    """Whether a type's table has a column or array called like a label."""
    table = source.table
    if table is None:
        return False
    names = table.arrays if isinstance(table, ArrayTable) else table.names
    ignored = {name.lower() for name in source.config.ignore}
    usual = set(COLUMN_NAMES["label"]) - ignored
    return any(name.lower() in usual for name in names)
