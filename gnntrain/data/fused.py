"""The in-edges of all types in two arrays, which a sampler reads in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gnntrain.data.graph import Edges, EdgeType, Int64Array, IntArray, NodeType


@dataclass(frozen=True, eq=False)
class FusedCSC:
    """The CSC of each edge type, one after the other.

    Of edge type r, with `offsets = indptr[first_offset[r]:]`, the in-neighbours of node v are
    `indices[first_edge[r] + offsets[v] : first_edge[r] + offsets[v + 1]]`, numbered within the
    source type.

    Attributes:
        edge_types: The edge types, in the order of the arrays.
        num_nodes: Number of nodes of each type.
        indptr: int64 `[Σ (num_dst + 1)]`; the offsets of a type count from its first edge.
        indices: int32 or int64 `[num_edges]`, sources; ascending for each destination.
        first_offset: int64 `[R + 1]`: where each edge type begins in `indptr`, and the end.
        first_edge: int64 `[R + 1]`: where each edge type begins in `indices`, and the end.
    """

    edge_types: tuple[EdgeType, ...]
    num_nodes: Mapping[NodeType, int]
    indptr: Int64Array
    indices: IntArray
    first_offset: Int64Array
    first_edge: Int64Array

    @classmethod
    def of(cls, edges: Mapping[EdgeType, Edges], num_nodes: Mapping[NodeType, int]) -> FusedCSC:
        """Join the CSC of each edge type; copies them."""
        parts = list(edges.values())
        indptr = [np.asarray(part.indptr, np.int64) for part in parts]
        indices = [part.indices for part in parts]
        return cls(
            edge_types=tuple(edges),
            num_nodes=dict(num_nodes),
            indptr=np.concatenate([np.empty(0, np.int64), *indptr]),
            indices=np.concatenate(indices) if indices else np.empty(0, np.int32),
            first_offset=np.cumsum([0, *map(len, indptr)]),
            first_edge=np.cumsum([0, *map(len, indices)]),
        )
