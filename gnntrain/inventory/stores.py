"""The graph stores of a folder, with their sizes and when each was last used."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gnntrain.data.array_folder import StoreError
from gnntrain.data.store import StoreMeta
from gnntrain.data.stores import FoundStore
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
        meta = StoreMeta.read(store.path)
    except StoreError:
        return ["-"] * 4
    num_features = meta.graph_schema.num_features[meta.target]
    numbers = (sum(meta.num_nodes), sum(meta.num_edges), num_features)
    return [*(f"{number:,}" for number in numbers), meta.arrays["features_0"].dtype]


def total(found: Sequence[FoundStore]) -> str:
    """How many stores, and their size: `3 stores, 1.21 GiB`."""
    size = format_bytes(sum(store.num_bytes for store in found))
    return f"{counted(len(found), 'store')}, {size}"
