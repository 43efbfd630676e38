"""The graph stores of a folder, with their sizes and when each was last used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gnntrain.data.store_cleaning import FoundStore, find_stores
from gnntrain.data.store_meta import StoreError, StoreMeta, read_meta
from gnntrain.reporting.text import counted, format_bytes

HEADER = ("store", "data set", "nodes", "edges", "features", "type", "size", "last used")
NONE_YET = "None yet: `gnntrain prepare dataset=NAME` builds one, training does too."


@dataclass(frozen=True)
class ListedStore:
    """A store and its `meta.json`; None where it cannot be used."""

    found: FoundStore
    meta: StoreMeta | None

    @property
    def dataset(self) -> str:
        """Name of the data set; empty where it is not known."""
        return self.found.dataset


def list_stores(folder: Path) -> list[ListedStore]:
    """All stores in `folder`, the last used first, and what killed builds left there."""
    return [listed(found) for found in find_stores(folder)]


def listed(found: FoundStore) -> ListedStore:
    """A store with its `meta.json`."""
    try:
        return ListedStore(found, None if found.is_leftover else read_meta(found.path))
    except StoreError:
        return ListedStore(found, None)


def store_rows(stores: Sequence[ListedStore]) -> list[list[str]]:
    """A row a store, under `HEADER`."""
    return [
        [
            store.found.path.name,
            "(never finished)" if store.found.is_leftover else store.dataset,
            *_sizes(store.meta),
            format_bytes(store.found.num_bytes),
            f"{datetime.fromtimestamp(store.found.last_used):%Y-%m-%d %H:%M}",
        ]
        for store in stores
    ]


def _sizes(meta: StoreMeta | None) -> list[str]:
    if meta is None:
        return ["-"] * 4
    nodes, edges = meta.node_types[0], meta.edge_types[0]
    numbers = (nodes.num_nodes, edges.num_edges, nodes.num_features)
    return [*(f"{number:,}" for number in numbers), meta.arrays["features"].dtype]


def total(found: Sequence[FoundStore]) -> str:
    """How many stores, and their size: `3 stores, 1.21 GiB`."""
    size = format_bytes(sum(store.num_bytes for store in found))
    return f"{counted(len(found), 'store')}, {size}"
