"""The size of a graph that is not prepared, as far as it is known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnntrain.config import DatasetConfig, FilesConfig
from gnntrain.data.build import OpenedStore
from gnntrain.data.read.files import FilesBuilder
from gnntrain.data.store import META_FILE
from gnntrain.errors import UserError
from gnntrain.inventory.datasets import known_size
from gnntrain.paths import free_bytes
from gnntrain.reporting.tables import Section, pairs
from gnntrain.reporting.text import format_bytes, shown_path
from gnntrain.run_store import prepare_store, store_folder

_LITTLE = 256 * 2**20


@dataclass(frozen=True)
class Unprepared:
    """A graph whose store is not there, and too large to be built for a plan."""

    dataset: DatasetConfig
    store: Path

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON; sizes are about right."""
        size = known_size(self.dataset)
        return {
            "dataset": self.dataset.name,
            "is_prepared": False,
            **({} if size is None else size._asdict()),
            "store": str(self.store),
            "store_bytes": expected_bytes(self.dataset),
            "free_bytes": free_bytes(self.store),
        }

    def section(self) -> Section:
        """All that is known."""
        size, free = known_size(self.dataset), format_bytes(free_bytes(self.store))
        rows = [] if size is None else [(k[4:], f"{n:,}") for k, n in size._asdict().items()]
        needed = format_bytes(expected_bytes(self.dataset))
        rows += [("store", f"about {needed}, not built: {shown_path(self.store)}"), ("free", free)]
        return Section(f"{self.dataset.name}, as published", [pairs(rows)])

    def refusal(self) -> UserError:
        """Why nothing more can be said, and how to go on."""
        hint = f"Run `gnntrain prepare dataset={self.dataset.option} ...` with the same keys first."
        if free_bytes(self.store) < expected_bytes(self.dataset):
            hint = "Set dataset.store_dir=DIR to a folder on a larger disk, then run `prepare`."
        return UserError(
            f"the graph store of {self.dataset.name} is not built yet, and a dry run reads it", hint
        )


def open_small_or_built(dataset: DatasetConfig) -> OpenedStore | Unprepared:
    """Open the data set's store; build it first where it is small."""
    folder = store_folder(dataset)
    if (folder / META_FILE).is_file() or expected_bytes(dataset) <= _LITTLE:
        return prepare_store(dataset)
    return Unprepared(dataset, folder)


def expected_bytes(dataset: DatasetConfig) -> int:
    """About the bytes of a store before it is there."""
    if isinstance(dataset, FilesConfig):
        return sum(path.stat().st_size for path in FilesBuilder(dataset).paths)
    size = known_size(dataset)
    if size is None:  # an installed package's
        return 0
    width = 4 if dataset.feature_dtype == "float32" else 2
    a_node = width * size.num_features + 8 + 4 + 4 + 8  # offset, label, norm, split
    return size.num_nodes * a_node + 4 * size.num_edges
