"""The form of a graph on disk: a directory of memory-mapped arrays, described by `meta.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from gnntrain.data.fused import FusedCSC
from gnntrain.data.graph import (
    EDGE,
    NODE,
    SPLITS,
    AnyArray,
    Edges,
    EdgeType,
    FeatureDtype,
    FusedEdges,
    Graph,
    Nodes,
    NodeType,
)
from gnntrain.data.store_files import (
    hold,
    is_sealed,
    map_array,
    note_use,
    verify,
)
from gnntrain.data.store_meta import HeteroStoreMeta, StoreMeta, read_meta


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
        arrays = {name: map_array(path, array) for name, array in meta.arrays.items()}
        if check and not is_sealed(path, meta):
            verify(path, meta)
        if check:
            note_use(path)
        nodes, edges = _nodes_and_edges(meta, arrays)
        graph = cls(
            nodes=nodes,
            edges=edges,
            target=meta.target if isinstance(meta, HeteroStoreMeta) else NODE,
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
        hold(path, while_alive=graph)
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


_Arrays = Mapping[str, AnyArray]


def _nodes_and_edges(
    meta: StoreMeta, arrays: _Arrays
) -> tuple[dict[NodeType, Nodes], dict[EdgeType, Edges]]:
    if isinstance(meta, HeteroStoreMeta):
        return _typed_nodes(meta, arrays), _typed_edges(meta, arrays)
    nodes = Nodes(
        features=arrays["features"],
        feature_dtype=cast(FeatureDtype, meta.feature_dtype),
        labels=arrays["labels"],
        splits=_splits(arrays),
        ids=arrays.get("node_ids"),
        feature_names=meta.feature_names,
    )
    weight = arrays.get("edge_weight")
    edges = Edges(arrays["indptr"], arrays["indices"], weight, arrays["gcn_norm"])
    return {NODE: nodes}, {EDGE: edges}


def _typed_nodes(meta: HeteroStoreMeta, arrays: _Arrays) -> dict[NodeType, Nodes]:
    nodes = {}
    for number, kind in enumerate(meta.node_types):
        features, is_target = f"features_{number}", kind.name == meta.target
        nodes[kind.name] = Nodes(
            features=arrays[features],
            feature_dtype=cast(FeatureDtype, meta.feature_dtype),
            labels=arrays["labels"] if is_target else None,
            splits=_splits(arrays) if is_target else {},
            ids=arrays.get(f"node_ids_{number}"),
            feature_names=kind.feature_names,
        )
    return nodes


def _typed_edges(meta: HeteroStoreMeta, arrays: _Arrays) -> dict[EdgeType, Edges]:
    edges = FusedEdges(
        FusedCSC.cut(
            [kind.name for kind in meta.edge_types],
            {kind.name: kind.num_nodes for kind in meta.node_types},
            [kind.num_edges for kind in meta.edge_types],
            arrays["indptr"],
            arrays["indices"],
        )
    )
    if "gcn_norm" in arrays:  # a graph of one edge type within one node type
        return {name: replace(of, gcn_norm=arrays["gcn_norm"]) for name, of in edges.items()}
    return edges


def _splits(arrays: _Arrays) -> dict[str, AnyArray]:
    return {name: arrays[f"split_{name}"] for name in SPLITS}


def _reopen(path: Path) -> StoredGraph:
    return StoredGraph.open(path, check=False)


def names_of(names: AnyArray | None) -> list[str] | list[int] | None:
    """The names of classes, stored as int64 or bytes (UTF-8), as Python's."""
    if names is None:
        return None
    texts = np.char.decode(names, "utf-8") if names.dtype.kind == "S" else names
    return cast(list[str] | list[int], texts.tolist())
