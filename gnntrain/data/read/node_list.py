"""A list of nodes by the user's own ids, read from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from gnntrain.data.graph import Graph, Int64Array
from gnntrain.data.names import COLUMN_NAMES
from gnntrain.data.read.columns import id_column
from gnntrain.data.read.nodes import NodeIndex
from gnntrain.data.tables import BadRows, unreadable
from gnntrain.data.values import TEXT, from_numpy, to_plain
from gnntrain.errors import UserError

_NUM_SHOWN = 3


def read_nodes(path: Path, store: Graph) -> Int64Array:
    """The nodes that a file names, in its order.

    Plain text (.txt) has an id a line; a table (CSV, TSV, Parquet) has them in its column `id`,
    `node_id`, `node` or `nid`, or else in its first one; an array (npy, npz, pt) is of ids.
    """
    if path.suffix.lower() == ".txt":  # an id may hold blanks and commas
        try:
            lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise unreadable(path, error) from error
        lines = [line for line in lines if line]
        if lines and lines[0].lower() in COLUMN_NAMES["id"]:
            del lines[0]
        ids = pa.array(lines, TEXT)
    else:
        bad = BadRows("error", str(path))
        ids = id_column([path], bad).read().columns["id"]
        bad.report()
    if not len(ids):
        raise UserError(f"{path} names no node.", "Give one id a line.")
    own = None if store.node_ids is None else to_plain(from_numpy(store.node_ids))
    index = NodeIndex(own, len(store.target_nodes), home="the graph")
    nodes = index.find(ids)
    wrong = np.flatnonzero(nodes < 0)
    if len(wrong):
        texts = ids.take(wrong[:_NUM_SHOWN]).cast(TEXT).to_pylist()
        rows = [
            f"row {row + 1}: {index.unknown(text or '')}"
            for row, text in zip(wrong.tolist(), texts, strict=False)
        ]
        raise UserError(
            f"{path}: {len(wrong)} of its {len(nodes)} ids are no nodes of the graph: "
            f"{'; '.join(rows)}{'; …' * (len(wrong) > _NUM_SHOWN)}.",
            f"The graph's nodes are {index.shown()}. A first line that names the column says id.",
        )
    return nodes
