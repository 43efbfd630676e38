"""A list of nodes by the user's own ids, read from a file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from gnntrain.data.graph import Graph, Int64Array
from gnntrain.data.names import COLUMN_NAMES
from gnntrain.data.read.columns import id_column
from gnntrain.data.read.nodes import NodeIndex
from gnntrain.data.table_files import table_in_memory
from gnntrain.data.tables import BadRows, Columns, unreadable
from gnntrain.data.values import TEXT, from_numpy, to_plain
from gnntrain.errors import UserError


def read_nodes(path: Path, store: Graph) -> Int64Array:
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
