"""The size of a graph that is not prepared, as far as it is known."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gnntrain.config import DatasetConfig, FilesConfig
from gnntrain.config.published import GraphSize
from gnntrain.data.build import OpenedStore
from gnntrain.data.store_meta import META_FILE
from gnntrain.errors import UserError
from gnntrain.inventory.datasets import known_size
from gnntrain.inventory.machine import free_bytes
from gnntrain.reporting.text import format_bytes
from gnntrain.run_store import prepare_store, store_folder

_LITTLE = 256 * 2**20


@dataclass(frozen=True)
class KnownSize:
    """A graph that is not prepared.

    Attributes:
        dataset: Name of the data set.
        graph: Published nodes, edges, features and classes; None for a user's own files.
        store: Directory of the store that is not there.
        store_bytes: About the bytes that it will take.
        free_bytes: Bytes that are free there.
    """

    dataset: str
    graph: GraphSize | None
    store: str
    store_bytes: int
    free_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        graph = {} if self.graph is None else self.graph._asdict()
        return {**asdict(self), "graph": graph, "is_prepared": False}

    def refusal(self, option: str) -> UserError:
        """Why nothing more can be said, and how to go on."""
        hint = f"Run `gnntrain prepare dataset={option} ...` with the same dataset keys first."
        if self.free_bytes < self.store_bytes:
            hint = (
                "Set dataset.store_dir to a folder on a larger disk, then run `gnntrain prepare`."
            )
        return UserError(
            f"the graph store of {self.dataset} is not built yet, and a dry run reads it; it will "
            f"take about {format_bytes(self.store_bytes)}, and {format_bytes(self.free_bytes)} "
            f"are free there ({Path(self.store).parent})",
            hint,
        )


def open_or_estimate(dataset: DatasetConfig) -> OpenedStore | KnownSize:
    """Open the data set's store; build it first where it is small, else say what is known."""
    folder = store_folder(dataset)
    needed = expected_bytes(dataset)
    if (folder / META_FILE).is_file() or needed <= _LITTLE:
        return prepare_store(dataset)
    name, free = dataset.name, free_bytes(folder)
    return KnownSize(name, known_size(dataset), str(folder), needed, free)


def expected_bytes(dataset: DatasetConfig) -> int:
    """About the bytes of a store before it is there."""
    if isinstance(dataset, FilesConfig):
        given = (dataset.data, dataset.edges, dataset.features, dataset.labels, dataset.split)
        return sum(Path(path).stat().st_size for path in given if isinstance(path, str))
    size = known_size(dataset)
    if size is None:
        return 0
    width = 4 if dataset.feature_dtype == "float32" else 2
    a_node = width * size.num_features + 8 + 4 + 4 + 8  # offset, label, norm, split
    return size.num_nodes * a_node + 4 * size.num_edges
