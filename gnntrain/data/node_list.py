"""A list of nodes by the user's own ids, read from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gnntrain.data.array_files import ARRAY_SUFFIXES, load_arrays, pick_or_only
from gnntrain.data.bad_rows import BadRows
from gnntrain.data.columns import Column, column_of_array
from gnntrain.data.graph import Graph, Int64Array
from gnntrain.data.node_index import NodeIndex
from gnntrain.data.node_rows import ID_ARRAYS, ID_NAMES
from gnntrain.data.tables import (
    PARQUET_SUFFIXES,
    TEXT_SUFFIXES,
    open_table,
    table_suffix,
    unreadable,
)
from gnntrain.errors import UserError

_NUM_SHOWN = 3


def index_of(store: Graph) -> NodeIndex:
    """From the ids that a graph's user gave its nodes to their numbers."""
    ids = store.node_ids
    return NodeIndex(None if ids is None else column_of_array(ids), store.num_nodes)


def read_nodes(path: Path, store: Graph) -> Int64Array:
    """The nodes that a file names, in its order.

    Args:
        path: Plain text (.txt) with an id a line; a table (CSV, TSV, Parquet) whose column `id`,
            `node_id`, `node` or `nid`, or else whose first one, holds the ids; or an array (npy,
            npz, pt) of ids.
        store: The graph.

    Raises:
        UserError: The file cannot be read, or names nodes that are none.
    """
    column = _ids(path)
    index = index_of(store)
    nodes = index.find(column)
    wrong = np.flatnonzero(nodes < 0)
    if len(wrong):
        texts = column.texts()
        first = ", ".join(f"{str(texts[i])!r} in row {i + 1}" for i in wrong[:_NUM_SHOWN])
        more = ", …" if len(wrong) > _NUM_SHOWN else ""
        names_column = "" if wrong[0] else " If its first line names the column, write id there."
        raise UserError(
            f"{path}: {len(wrong)} of its {len(nodes)} ids are no nodes of the graph "
            f"({first}{more}).",
            f"The graph's nodes are {index.shown()}.{names_column}",
        )
    if not len(nodes):
        raise UserError(f"{path} names no node.", "Give one id a line.")
    return nodes


def _ids(path: Path) -> Column:
    if path.suffix.lower() in ARRAY_SUFFIXES:
        array = pick_or_only(path, load_arrays(path), (*ID_ARRAYS, "node", "nodes"))
        if array.ndim != 1 or array.dtype.kind == "b":
            raise UserError(f"{path}: {array.dtype} {list(array.shape)} instead of a list of ids.")
        return column_of_array(array)
    if table_suffix(path) not in (*TEXT_SUFFIXES, *PARQUET_SUFFIXES):
        known = ", ".join((*TEXT_SUFFIXES, *PARQUET_SUFFIXES, *ARRAY_SUFFIXES))
        raise UserError(
            f"{path}: the suffix {path.suffix!r} does not say what the file is.",
            f"Name it with one of {known}.",
        )
    if path.suffix.lower() == ".txt":
        return _lines(path)
    bad = BadRows("error")
    table = open_table(path, "auto", ID_NAMES, bad)
    names = [name.lower() for name in table.names]
    place = next((names.index(name) for name in ID_NAMES if name in names), 0)
    rows = table.read((place,), ())
    try:
        bad.settle()
    except UserError as error:
        message = error.message.removeprefix("dataset=files: ")
        raise UserError(message, "Correct them: a row for each node.") from None
    return rows.columns[0]


def _lines(path: Path) -> Column:
    """A text's lines; an id may hold blanks and commas."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error
    ids = [line for line in lines if line]
    if ids and ids[0].lower() in ID_NAMES:
        del ids[0]
    return column_of_array(np.array(ids, str))
