"""The form of a graph on disk: a directory of memory-mapped arrays, described by `meta.json`."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
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
from gnntrain.data.store_meta import HeteroStoreMeta, StoreMeta, TypedMeta, read_meta


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


Arrays = Mapping[str, AnyArray]


def _nodes_and_edges(
    meta: StoreMeta, arrays: Arrays
) -> tuple[dict[NodeType, Nodes], dict[EdgeType, Edges]]:
    if isinstance(meta, HeteroStoreMeta):
        nodes = typed_nodes(meta, arrays, cast(FeatureDtype, meta.feature_dtype))
        nodes[meta.target] = replace(nodes[meta.target], splits=_splits(arrays))
        num_nodes = [kind.num_nodes for kind in meta.node_types]
        num_edges = [kind.num_edges for kind in meta.edge_types]
        return nodes, typed_edges(meta, arrays, num_nodes, num_edges)
    only = Nodes(
        features=arrays["features"],
        feature_dtype=cast(FeatureDtype, meta.feature_dtype),
        labels=arrays["labels"],
        splits=_splits(arrays),
        ids=arrays.get("node_ids"),
        feature_names=meta.feature_names,
    )
    weight = arrays.get("edge_weight")
    edges = Edges(arrays["indptr"], arrays["indices"], weight, arrays["gcn_norm"])
    return {NODE: only}, {EDGE: edges}


def typed_nodes(
    types: TypedMeta, arrays: Arrays, feature_dtype: FeatureDtype
) -> dict[NodeType, Nodes]:
    """The nodes of each type of a typed graph's store, or part, without splits."""
    return {
        kind.name: Nodes(
            features=arrays[f"features_{number}"],
            feature_dtype=feature_dtype,
            labels=arrays["labels"] if kind.name == types.target else None,
            ids=arrays.get(f"node_ids_{number}"),
            feature_names=kind.feature_names,
        )
        for number, kind in enumerate(types.node_types)
    }


def typed_edges(
    types: TypedMeta, arrays: Arrays, num_nodes: Sequence[int], num_edges: Sequence[int]
) -> dict[EdgeType, Edges]:
    """The edges of each type of a typed graph's store, or of a part.

    Args:
        types: The types.
        arrays: `indptr`, `indices`, `gcn_norm`.
        num_nodes: Destination nodes of each type.
        num_edges: Edges of each type.
    """
    sizes = {kind.name: number for kind, number in zip(types.node_types, num_nodes, strict=True)}
    names = [kind.name for kind in types.edge_types]
    csc = FusedCSC.cut(names, sizes, num_edges, arrays["indptr"], arrays["indices"])
    edges = FusedEdges(csc)
    if "gcn_norm" in arrays:  # a graph of one edge type within one node type
        return {name: replace(of, gcn_norm=arrays["gcn_norm"]) for name, of in edges.items()}
    return edges


def _splits(arrays: Arrays) -> dict[str, AnyArray]:
    return {name: arrays[f"split_{name}"] for name in SPLITS}


def _reopen(path: Path) -> StoredGraph:
    return StoredGraph.open(path, check=False)


def names_of(names: AnyArray | None) -> list[str] | list[int] | None:
    """The names of classes, stored as int64 or bytes (UTF-8), as Python's."""
    if names is None:
        return None
    texts = np.char.decode(names, "utf-8") if names.dtype.kind == "S" else names
    return cast(list[str] | list[int], texts.tolist())
