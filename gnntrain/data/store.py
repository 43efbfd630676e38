"""The form of a graph on disk: a directory of memory-mapped arrays, described by `meta.json`."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from gnntrain.data.graph import (
    SPLITS,
    AnyArray,
    EdgeType,
    FeatureDtype,
    FusedCSC,
    FusedEdges,
    Graph,
    Int64Array,
    Nodes,
    NodeType,
)
from gnntrain.data.store_meta import (
    ArrayMeta,
    GraphMeta,
    StoreMeta,
    hold,
    map_folder,
    note_use,
    read_meta,
    verify,
)


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class StoredGraph(Graph):
    """A graph on disk, cheap to open: every array is a read-only view of mapped pages.

    Pickled, it is its path: the other process maps the same files.

    Attributes:
        path: The store's directory.
        meta: The content of its `meta.json`.
    """

    path: Path
    meta: StoreMeta

    @classmethod
    def open(cls, path: Path, *, check: bool = True) -> StoredGraph:
        """Map the store at `path`, without reading its arrays.

        Args:
            path: The store's directory.
            check: Verify all checksums if a file was touched since they were last verified.
                False in worker processes, whose parent has just done so.

        Raises:
            StoreError: Something is missing, damaged, or of another format version.
        """
        path = Path(path).absolute()
        meta = read_meta(path)
        with hold(path) as holding:
            arrays = map_folder(path, meta, check=check)
            if check:
                note_use(path)
            num_nodes = [kind.num_nodes for kind in meta.node_types]
            num_edges = [kind.num_edges for kind in meta.edge_types]
            splits = {name: arrays[f"split_{name}"] for name in SPLITS}
            graph = cls(
                nodes=nodes_of(meta, meta.arrays, arrays, splits),
                edges=edges_of(meta, arrays, num_nodes, num_edges),
                target=meta.target,
                dataset=meta.dataset,
                task=meta.task,
                metric=meta.metric,
                num_classes=meta.num_classes,
                class_names=names_of(arrays.get("class_names")),
                ogb_name=meta.ogb_name,
                summary=meta.summary,
                path=path,
                meta=meta,
            )
            weakref.finalize(graph, holding.pop_all().close)
        return graph

    def verify(self) -> None:
        """Compare every byte with the checksums; raises `StoreError` at a difference."""
        verify(self.path, self.meta)

    @property
    def content_digest(self) -> str:
        """See `StoreMeta.content_digest`."""
        return self.meta.content_digest

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays together."""
        return sum(array.bytes for array in self.meta.arrays.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.path,)


def _reopen(path: Path) -> StoredGraph:
    return StoredGraph.open(path, check=False)


def nodes_of(
    meta: GraphMeta,
    described: Mapping[str, ArrayMeta],
    arrays: Mapping[str, AnyArray],
    splits: Mapping[str, Int64Array],
) -> dict[NodeType, Nodes]:
    """The nodes of each type in the folder of a store or of a part; `splits` are the target's."""
    return {
        kind.name: Nodes(
            features=arrays[f"features_{number}"],
            feature_dtype=cast(FeatureDtype, described[f"features_{number}"].dtype),
            labels=arrays["labels"] if kind.name == meta.target else None,
            splits=splits if kind.name == meta.target else {},
            ids=arrays.get(f"node_ids_{number}"),
            feature_names=kind.feature_names,
        )
        for number, kind in enumerate(meta.node_types)
    }


def edges_of(
    meta: GraphMeta,
    arrays: Mapping[str, AnyArray],
    num_nodes: Sequence[int],
    num_edges: Sequence[int],
) -> FusedEdges:
    """The edges of each type in the folder of a store or of a part, that has so many nodes and
    edges of each type."""
    sizes = {kind.name: number for kind, number in zip(meta.node_types, num_nodes, strict=True)}
    names: list[EdgeType] = [kind.name for kind in meta.edge_types]
    csc = FusedCSC.cut(names, sizes, num_edges, arrays["indptr"], arrays["indices"])
    return FusedEdges(csc, arrays.get("edge_weight"), arrays.get("gcn_norm"))


def names_of(names: AnyArray | None) -> list[str] | list[int] | None:
    """The names of classes, stored as int64 or bytes (UTF-8), as Python's."""
    if names is None:
        return None
    texts = np.char.decode(names, "utf-8") if names.dtype.kind == "S" else names
    return cast(list[str] | list[int], texts.tolist())
