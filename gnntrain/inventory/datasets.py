"""The data sets, with their sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gnntrain.config import DATASET_NAMES, DatasetConfig, SyntheticConfig, SyntheticMAGConfig
from gnntrain.config.published import PUBLISHED, SYNTHETIC_MAG, SYNTHETIC_NAMES, GraphSize
from gnntrain.data.stores import FoundStore
from gnntrain.plugins import DATASETS, plugin_names
from gnntrain.reporting.text import counted

HEADER = ("data set", "nodes", "edges", "features", "classes", "prepared")
NOTE = "Sizes as PyG and OGB publish them; a stored graph may have an edge in both directions."


def dataset_names() -> tuple[str, ...]:
    """All data sets that can be chosen, those of other packages last."""
    return (*DATASET_NAMES, *plugin_names(DATASETS))


def dataset_rows(stores: Iterable[FoundStore]) -> list[list[str]]:
    """A row a data set, under `HEADER`."""
    names = dataset_names()
    # A user's own files may have any other name.
    used = (store.dataset for store in stores if not store.is_leftover)
    prepared = Counter(name if name in names else "files" for name in used)
    return [_row(name, prepared[name]) for name in names]


def _row(name: str, num_stores: int) -> list[str]:
    size = published_size(name)
    cells = ["-"] * 4 if size is None else [f"{number:,}" for number in size]
    return [name, *cells, counted(num_stores, "store") if num_stores else "-"]


def published_size(name: str) -> GraphSize | None:
    """The size of a published data set, or of a synthetic one by its defaults."""
    if name == SYNTHETIC_MAG:
        return known_size(SyntheticMAGConfig())
    if name in SYNTHETIC_NAMES:
        return known_size(SyntheticConfig.model_validate({"name": name}))
    return PUBLISHED[name].size if name in PUBLISHED else None


def known_size(dataset: DatasetConfig) -> GraphSize | None:
    """The size of a graph before it is stored; None: only its files or its package know it."""
    if isinstance(dataset, SyntheticConfig):
        num_edges = dataset.num_edges
        if num_edges is None:
            num_edges = round(dataset.avg_degree * dataset.num_nodes)
        return GraphSize(dataset.num_nodes, num_edges, dataset.num_features, dataset.num_classes)
    if isinstance(dataset, SyntheticMAGConfig):
        num_nodes, num_edges = (sum(n.values()) for n in (dataset.num_nodes, dataset.num_edges))
        return GraphSize(num_nodes, 2 * num_edges, dataset.num_features, dataset.num_classes)
    published = PUBLISHED.get(dataset.name)
    if published is None:
        return None
    if published.edges_once or dataset.to_undirected:
        return published.size._replace(num_edges=2 * published.size.num_edges)
    return published.size
