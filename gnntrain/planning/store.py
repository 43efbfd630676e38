"""The graph that is planned for: opened, or built where that takes little."""

from __future__ import annotations

from pathlib import Path

from gnntrain.config import DatasetConfig, FilesConfig, SyntheticConfig
from gnntrain.config.published import PUBLISHED, GraphSize
from gnntrain.data.build import OpenedStore
from gnntrain.data.store_meta import META_FILE
from gnntrain.data.store_place import free_bytes
from gnntrain.errors import UserError
from gnntrain.reporting.text import format_bytes
from gnntrain.run_store import prepare_store, store_folder

_LITTLE = 256 * 2**20


def open_small_or_built(dataset: DatasetConfig) -> OpenedStore:
    """Open the data set's store, building it first where it is small.

    Raises:
        UserError: It is not built yet, and large.
    """
    folder = store_folder(dataset)
    if (folder / META_FILE).is_file():
        return prepare_store(dataset)
    needed = expected_bytes(dataset)
    if needed <= _LITTLE:
        return prepare_store(dataset)
    parent = folder.parent
    while not parent.exists():
        parent = parent.parent
    free = free_bytes(parent)
    place = f"it will take about {format_bytes(needed)}, and {format_bytes(free)} are free there"
    hint = f"Run `gnntrain prepare dataset={dataset.option} ...` with the same dataset keys first."
    if free < needed:
        hint = "Set dataset.store_dir to a folder on a larger disk, then run `gnntrain prepare`."
    raise UserError(
        f"the graph store of {dataset.name} is not built yet, and a plan draws from it; "
        f"{place} ({folder.parent})",
        hint,
    )


def expected_bytes(dataset: DatasetConfig) -> int:
    """About the size of a store that is not there, from what is known of its data set."""
    if isinstance(dataset, FilesConfig):
        given = (dataset.data, dataset.edges, dataset.features, dataset.labels, dataset.split)
        return sum(Path(path).stat().st_size for path in given if isinstance(path, str))
    if isinstance(dataset, SyntheticConfig):
        num_edges = dataset.num_edges
        if num_edges is None:
            num_edges = round(dataset.avg_degree * dataset.num_nodes)
        size = GraphSize(dataset.num_nodes, num_edges, dataset.num_features, dataset.num_classes)
    else:
        published = PUBLISHED.get(dataset.name)
        if published is None:  # an installed package's
            return 0
        size = published.size
        if published.edges_once or dataset.to_undirected:
            size = size._replace(num_edges=2 * size.num_edges)
    width = 4 if dataset.feature_dtype == "float32" else 2
    a_node = width * size.num_features + 8 + 4 + 4 + 8  # offset, label, norm, split
    return size.num_nodes * a_node + 4 * size.num_edges
