"""The size of a graph that is not prepared, as far as it is known."""

from __future__ import annotations

from gnntrain.config import DatasetConfig, FilesConfig
from gnntrain.data.build import OpenedStore
from gnntrain.data.read.files import FilesBuilder
from gnntrain.data.store import META_FILE
from gnntrain.errors import UserError
from gnntrain.inventory.datasets import known_size
from gnntrain.paths import free_bytes
from gnntrain.reporting.text import format_bytes, shown_path
from gnntrain.run_store import prepare_store, store_folder

_LITTLE = 256 * 2**20


def open_small_or_built(dataset: DatasetConfig) -> OpenedStore:
    """Open the data set's store; build it first where it is small.

    Raises:
        UserError: It is large; with the published size of the graph.
    """
    folder, needed = store_folder(dataset), expected_bytes(dataset)
    if (folder / META_FILE).is_file() or needed <= _LITTLE:
        return prepare_store(dataset)
    hint = f"Run `gnntrain prepare dataset={dataset.option} ...` with the same keys first."
    if free_bytes(folder) < needed:
        hint = "Set dataset.store_dir=DIR to a folder on a larger disk, then run `prepare`."
    size = known_size(dataset)
    sizes = {} if size is None else size._asdict()
    published = "".join(f"{number:,} {name[4:]}, " for name, number in sizes.items())
    raise UserError(
        f"the graph store of {dataset.name} is not built yet, and a dry run reads it: {published}"
        f"about {format_bytes(needed)} for {shown_path(folder)}, where "
        f"{format_bytes(free_bytes(folder))} are free",
        hint,
    )


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
