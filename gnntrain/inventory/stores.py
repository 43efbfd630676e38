"""The graph stores of a folder, with their sizes and when each was last used."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gnntrain.data.store_cleaning import FoundStore
from gnntrain.data.store_meta import StoreError, read_meta
from gnntrain.reporting.text import counted, format_bytes

HEADER = ("store", "data set", "nodes", "edges", "features", "type", "size", "last used")
NONE_YET = "None yet: `gnntrain prepare dataset=NAME` builds one, training does too."


def store_rows(stores: Sequence[FoundStore]) -> list[list[str]]:
    """A row a store, under `HEADER`."""
    return [
        [
            store.path.name,
            "(never finished)" if store.is_leftover else store.dataset,
            *_sizes(store),
            format_bytes(store.num_bytes),
            f"{datetime.fromtimestamp(store.last_used):%Y-%m-%d %H:%M}",
        ]
        for store in stores
    ]


def _sizes(store: FoundStore) -> list[str]:
    """Nodes, edges, features (of the target type) and their type; unknown of a store that cannot be
    used."""
    try:
        meta = read_meta(store.path)
    except StoreError:
        return ["-"] * 4
    num_nodes = sum(kind.num_nodes for kind in meta.node_types)
    num_edges = sum(kind.num_edges for kind in meta.edge_types)
    numbers = (num_nodes, num_edges, meta.graph_schema.num_features[meta.target])
    return [*(f"{number:,}" for number in numbers), meta.arrays["features_0"].dtype]


def total(found: Sequence[FoundStore]) -> str:
    """How many stores, and their size: `3 stores, 1.21 GiB`."""
    size = format_bytes(sum(store.num_bytes for store in found))
    return f"{counted(len(found), 'store')}, {size}"
