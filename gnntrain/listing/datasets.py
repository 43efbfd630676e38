"""The data sets, with their sizes and the stores that are prepared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from gnntrain.config import DATASET_NAMES, SyntheticConfig
from gnntrain.config.names import SYNTHETIC_NAMES
from gnntrain.config.published import PUBLISHED, GraphSize
from gnntrain.data.store_meta import StoreError, StoreMeta, read_meta
from gnntrain.listing.kinds import Listing
from gnntrain.plugins import DATASETS, plugin_names
from gnntrain.reporting.text import counted, format_bytes, shown_path

_SOURCES = "Sizes as PyG and OGB publish them; a stored graph may have an edge in both directions."


def datasets(stores: Path) -> list[Listing]:
    """All data sets, and below them the stores in the folder `stores`."""
    prepared, broken = _prepared(stores)
    by_name = defaultdict(list)
    names = (*DATASET_NAMES, *plugin_names(DATASETS))
    for meta in prepared.values():
        # A user's own files may have any other name.
        by_name[meta.dataset if meta.dataset in names else "files"].append(meta)
    rows = [_row(name, by_name[name]) for name in names]
    header = ["data set", "nodes", "edges", "features", "classes", "prepared"]
    listing = Listing("data sets", header, rows, notes=[_SOURCES])
    return [listing, _stores(stores, prepared, broken)]


def _row(name: str, prepared: list[StoreMeta]) -> list[str]:
    size = _size(name)
    cells = [f"{number:,}" for number in size] if size is not None else ["-"] * 4
    return [name, *cells, counted(len(prepared), "store") if prepared else "-"]


def _size(name: str) -> GraphSize | None:
    """Published, or as the defaults make it; None for a user's own files or package."""
    if name in SYNTHETIC_NAMES:
        config = SyntheticConfig.model_validate({"name": name})
        num_edges = config.num_edges
        if num_edges is None:
            num_edges = round(config.avg_degree * config.num_nodes)
        return GraphSize(config.num_nodes, num_edges, config.num_features, config.num_classes)
    return PUBLISHED[name].size if name in PUBLISHED else None


def _prepared(stores: Path) -> tuple[dict[str, StoreMeta], dict[str, str]]:
    """The stores by folder name, and what is wrong with folders that cannot be used."""
    prepared: dict[str, StoreMeta] = {}
    broken: dict[str, str] = {}
    try:
        folders = sorted(path for path in stores.iterdir() if path.is_dir())
    except OSError:  # none was ever built
        return {}, {}
    for folder in folders:
        if folder.name.startswith("."):  # being built
            continue
        try:
            prepared[folder.name] = read_meta(folder)
        except StoreError as error:
            broken[folder.name] = error.reason
    return prepared, broken


def _stores(stores: Path, prepared: Mapping[str, StoreMeta], broken: Mapping[str, str]) -> Listing:
    rows = []
    for name, meta in prepared.items():
        nodes, edges = meta.node_types[0], meta.edge_types[0]
        size = sum(array.bytes for array in meta.arrays.values())
        rows.append(
            [
                name,
                f"{nodes.num_nodes:,}",
                f"{edges.num_edges:,}",
                str(nodes.num_features),
                meta.arrays["features"].dtype,
                format_bytes(size),
            ]
        )
    notes = [f"{name}: {reason}" for name, reason in broken.items()]
    if not rows:
        notes.insert(0, "None yet: `gnntrain prepare dataset=NAME` builds one, training does too.")
    header = ["store", "nodes", "edges", "features", "type", "size"]
    return Listing(f"prepared in {shown_path(stores)}", header, rows, notes=notes)
