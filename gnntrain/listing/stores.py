"""The stores of a folder, with their sizes and when each was last used."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from gnntrain.data.store_cleaning import FoundStore, find_stores
from gnntrain.listing.kinds import Listing
from gnntrain.reporting.text import counted, format_bytes, shown_path


def stores(folder: Path) -> Listing:
    """All stores in `folder`, the last used first, and what killed builds left there."""
    found = find_stores(folder)
    if not found:
        note = "None yet: `gnntrain prepare dataset=NAME` builds one, training does too."
        return Listing(f"stores in {shown_path(folder)}", [], [], notes=[note])
    notes = [f"{total(found)} in all; `gnntrain clean` removes stores."]
    return Listing(f"stores in {shown_path(folder)}", HEADER, rows_of(found), 2, notes)


HEADER = ["store", "data set", "size", "last used"]


def rows_of(found: list[FoundStore]) -> list[list[str]]:
    """A row a store, under `HEADER`."""
    return [
        [
            store.path.name,
            "(never finished)" if store.is_leftover else store.dataset,
            format_bytes(store.num_bytes),
            f"{datetime.fromtimestamp(store.last_used):%Y-%m-%d %H:%M}",
        ]
        for store in found
    ]


def total(found: list[FoundStore]) -> str:
    """How many stores, and their size: `3 stores, 1.21 GiB`."""
    size = format_bytes(sum(store.num_bytes for store in found))
    return f"{counted(len(found), 'store')}, {size}"
