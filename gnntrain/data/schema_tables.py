"""The tables of a typed graph: opened, and where one holds several node types, taken apart."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnntrain.config import FilesConfig
from gnntrain.config.graph_schema import ColumnFile, MixedNodeTable, NodeColumns
from gnntrain.data.array_files import FEATURE_ARRAYS, ArrayTable, load_arrays, open_arrays
from gnntrain.data.bad_rows import BadRows
from gnntrain.data.columns import TEXT, is_missing_mark
from gnntrain.data.file_columns import (
    COLUMN_NAMES,
    USUAL_NAMES,
    find_column,
    find_id,
    is_array_file,
    listed,
    named_column,
    open_table,
    place_of,
)
from gnntrain.data.graph import AnyArray, NodeType
from gnntrain.data.neo4j_header import Neo4jHeader, neo4j_header
from gnntrain.data.stacked_table import StackedTable, TablePart
from gnntrain.data.tables import Columns, Table
from gnntrain.data.text_table import TextTable
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
    **{key: key for key in ("type", "source_type", "target_type", "time", "foreign_keys")},
}
_KEY = re.compile(rf"dataset\.({'|'.join(_WORDS)})\b")
TYPE_NAMES = ("type", "node_type", "label")
_EMPTY = "it has no value in this type's rows"


@contextmanager
def keys_of(place: str) -> Iterator[None]:
    """Have the messages of errors name the keys of a schema: `nodes.author.id`.

    Args:
        place: The table's key.
    """
    try:
        yield
    except UserError as error:
        texts = (
            _KEY.sub(lambda key: f"{place}.{_WORDS[key[1]]}", text or "")
            for text in (error.message, error.hint)
        )
        raise UserError(*texts) from error


@dataclass(frozen=True)
class NodeSource:
    """A node type and its table, before the rows are read.

    Attributes:
        name: The node type.
        columns: What the schema says of it.
        table: Its table; None: the ids come from the edges.
        config: How the table is read.
        left_out: Names of columns that are no features, each with the reason.
        space: Neo4j's space of its ids; "" where none is named.
    """

    name: NodeType
    columns: NodeColumns
    table: Table | None
    config: FilesConfig
    left_out: Mapping[str, str] = field(default_factory=dict)
    space: str = ""

    @property
    def key(self) -> str:
        """Its key in the schema."""
        return f"nodes.{self.name}"


def open_files(
    paths: Sequence[Path],
    config: FilesConfig,
    opened: Callable[[Path, FilesConfig], Table],
) -> tuple[Table, Neo4jHeader | None]:
    """Several files of the same columns as one table, and their header if it is Neo4j's.

    Args:
        paths: The files.
        config: How they are read.
        opened: Opens one.

    Raises:
        UserError: One cannot be read, or has other columns than the first.
    """
    first = opened(paths[0], config)
    header = neo4j_header(first.names)
    if header is None and isinstance(first, TextTable):
        # Perhaps it was taken for a row, since no name in it is a usual one.
        named = opened(paths[0], config.model_copy(update={"header": True}))
        header = neo4j_header(named.names)
        first = first if header is None else named
    tables = [first]
    for path in paths[1:]:
        headless = config.model_copy(update={"header": False})
        table = opened(path, config)
        if header is not None and table.names != first.names:
            table = opened(path, headless)
            if len(table.names) == len(first.names):
                table.names = first.names
        if table.names != first.names:
            raise UserError(
                f"{path} has the columns {listed(table.names)}; {paths[0]} has "
                f"{listed(first.names)}.",
                "Files of one table need the same columns in the same order.",
            )
        tables.append(table)
    if header is not None:
        for table in tables:
            table.names, table.lists = header.names, header.lists
    return (first if len(tables) == 1 else StackedTable(tables)), header


def _open_nodes(
    paths: Sequence[Path], config: FilesConfig, bad: BadRows, names: Iterable[str | None]
) -> tuple[Table, Neo4jHeader | None]:
    """Files of nodes as one table; `names` are columns that the schema names.

    Raises:
        UserError: One cannot be read, or has other columns than the first.
    """
    if is_array_file(paths[0]):
        arrays = load_arrays(paths[0])
        if len(paths) > 1:
            several = [load_arrays(path) for path in paths]
            arrays = {name: _joined(paths, name, several) for name in arrays}
        return open_arrays(paths[0], arrays, FEATURE_ARRAYS, config), None
    known = USUAL_NAMES.union(name.lower() for name in names if name is not None)
    return open_files(paths, config, lambda path, how: open_table(path, how, bad, known))


def _joined(paths: Sequence[Path], name: str, files: Sequence[Mapping[str, AnyArray]]) -> AnyArray:
    """An array that is in several files, part by part."""
    for path, arrays in zip(paths, files, strict=True):
        if name not in arrays or arrays[name].shape[1:] != files[0][name].shape[1:]:
            raise UserError(
                f"{path} has not the array {name!r} that {paths[0]} has, or another width.",
                "Files of one type need the same arrays.",
            )
    return np.concatenate([arrays[name] for arrays in files])


def node_source(
    name: NodeType,
    columns: NodeColumns,
    id_column: str | None,
    paths: Sequence[Path],
    config: FilesConfig,
    bad: BadRows,
) -> NodeSource:
    """A node type that has files of its own, or none."""
    config = config_of(config, columns, id_column)
    if not paths:
        return NodeSource(name, columns, None, config)
    of_type = ids_called(name)
    with keys_of(f"nodes.{name}"):
        table, header = _open_nodes(paths, config, bad, (*of_type, *names_in(columns)))
    if header is None:
        if id_column is None and not find_column(table, "id", None):
            found = next((at for at in table.names if at.lower() in of_type), None)
            config = config.model_copy(update={"id_column": found})
        return NodeSource(name, columns, table, config)
    if id_column is None and "ID" in header.roles:
        config = config.model_copy(update={"id_column": header.names[header.roles["ID"]]})
    left_out = _neo4j_columns(table, header, columns)
    config = _without(config, left_out)
    return NodeSource(name, columns, table, config, left_out, header.spaces.get("ID", ""))


def ids_called(node_type: NodeType) -> tuple[str, ...]:
    """Names that say that a column holds ids of a node type, in lower case."""
    name = node_type.lower()
    return f"{name}_id", f"{name}id", f"id_{name}"


def _neo4j_columns(table: Table, header: Neo4jHeader, columns: NodeColumns) -> dict[str, str]:
    """Columns that Neo4j's header calls something else than numbers, if the schema does not."""
    named = _named(table, columns)
    found = {place: f"Neo4j's {kind}" for place, kind in header.texts.items()}
    if "LABEL" in header.roles:
        found[header.roles["LABEL"]] = "Neo4j's labels"
    return {table.names[at]: reason for at, reason in found.items() if at not in named}


def _named(table: Table, columns: NodeColumns) -> set[int]:
    """Places of the columns that the schema names one by one."""
    return {place for name in names_in(columns) for place in named_column(table, name)}


def names_in(columns: NodeColumns) -> list[str]:
    """The columns that the schema names one by one."""
    names = [*(columns.features or ()), *columns.categorical, *columns.foreign_keys]
    names += columns.label if isinstance(columns.label, tuple) else ()
    return names + ([columns.split] if isinstance(columns.split, str) else [])


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


def _without(config: FilesConfig, left_out: Mapping[str, str]) -> FilesConfig:
    return config.model_copy(update={"ignore": (*config.ignore, *left_out)})


def mixed_sources(
    key: str,
    mixed: MixedNodeTable,
    types: Mapping[NodeType, NodeColumns],
    paths: Sequence[Path],
    config: FilesConfig,
    bad: BadRows,
) -> list[NodeSource]:
    """The node types of a table with a column of types.

    Raises:
        UserError: It cannot be read, or its columns of ids and types are not known.
    """
    config = config.model_copy(update={"id_column": mixed.id})
    with keys_of(key):
        names = [name for of_type in types.values() for name in names_in(of_type)]
        table, header = _open_nodes(paths, config, bad, (*TYPE_NAMES, mixed.type, *names))
        if isinstance(table, ArrayTable):
            raise UserError(
                f"{key}: {table.path} holds arrays, which have no column of types.",
                "Give a table (CSV, Parquet), or an entry for each node type.",
            )
        type_place = _type_place(key, table, mixed.type, header)
        if header is not None and mixed.id is None and "ID" in header.roles:
            config = config.model_copy(update={"id_column": header.names[header.roles["ID"]]})
        found = find_id(table, config, {type_place})
        if not found:
            raise UserError(
                f"{table.path}: it is not plain which column holds the node ids; it has "
                f"{listed(table.names)}.",
                f"Set {key}.id.",
            )
    id_name = table.names[found["id"]]
    sources = []
    for name, part, empty in _parts(table, type_place, header, mixed, bad):
        columns = types.get(name, NodeColumns())
        view = config_of(config, columns, id_name)
        left_out = {} if header is None else _neo4j_columns(table, header, columns)
        named = _named(table, columns)
        left_out |= {table.names[at]: _EMPTY for at in empty if at not in named}
        left_out[table.names[type_place]] = "it holds the node types"
        space = "" if header is None else header.spaces.get("ID", "")
        sources.append(NodeSource(name, columns, part, _without(view, left_out), left_out, space))
    return sources


def _type_place(key: str, table: Table, wanted: str | None, header: Neo4jHeader | None) -> int:
    if wanted is not None:
        with keys_of(key):
            return place_of(table, "type", wanted)
    if header is not None and "LABEL" in header.roles:
        return header.roles["LABEL"]
    names = [name.lower() for name in table.names]
    for usual in TYPE_NAMES:
        if usual in names:
            return names.index(usual)
    raise UserError(
        f"{table.path} has no column called type (it has {listed(table.names)}).",
        f"Name the column of node types as {key}.type, or give each node type an entry of its own.",
    )


def _parts(
    table: Table,
    type_place: int,
    header: Neo4jHeader | None,
    mixed: MixedNodeTable,
    bad: BadRows,
) -> Iterator[tuple[NodeType, TablePart, list[int]]]:
    """Each type's rows, and the columns that are empty there."""
    places = range(len(table.names))
    rows = Columns(table, {}, (), places).read()
    types = _types_of_rows(rows.others[type_place], header, mixed, table)
    missing = np.asarray(types.is_null().to_numpy(zero_copy_only=False), bool)
    rows = rows.drop(missing, bad, lambda _: "the node type is missing")
    encoded = types.drop_null().dictionary_encode()
    codes = encoded.indices.to_numpy()
    for code, name in enumerate(encoded.dictionary.to_pylist()):
        part = rows.keep(codes == code)
        empty = [place for place in places if _is_empty(part.others[place])]
        yield name, TablePart(table, part.others, part.rows), empty


def _types_of_rows(
    column: pa.Array, header: Neo4jHeader | None, mixed: MixedNodeTable, table: Table
) -> pa.Array:
    """The node type of each row: of several labels the first that `types` has, else the first."""
    texts = pc.utf8_trim_whitespace(column.cast(TEXT))
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, TEXT), texts)
    if header is None or "LABEL" not in header.roles:
        return texts
    encoded = texts.dictionary_encode()
    several: Counter[str] = Counter()
    chosen = []
    for labels in encoded.dictionary.to_pylist():
        names = [name.strip() for name in labels.split(";") if name.strip()]
        chosen.append(next((name for name in names if name in mixed.types), names[0]))
        if len(names) > 1:
            several[f"{labels} as {chosen[-1]}"] += 1
    if several:
        _logger.warning(
            "%s: some nodes have several labels; each is read as of one type: %s. The key types "
            "says which labels come first.",
            table.path,
            ", ".join(several),
        )
    return pa.array(chosen, TEXT).take(encoded.indices)


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
