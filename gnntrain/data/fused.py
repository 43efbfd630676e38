"""The in-edges of all types in two arrays, which a sampler reads in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
        indptr: int64 `[Σ (num_dst + 1)]`; the offsets of a type count from its first edge. A NumPy
            array; a tensor where a GPU samples.
        indices: int32 or int64 `[num_edges]`, sources; ascending for each destination. Likewise.
        first_offset: int64 `[R + 1]`: where each edge type begins in `indptr`, and the end.
        first_edge: int64 `[R + 1]`: where each edge type begins in `indices`, and the end.
    """

    edge_types: tuple[EdgeType, ...]
    num_nodes: Mapping[NodeType, int]
    indptr: Any
    indices: Any
    first_offset: Int64Array
    first_edge: Int64Array

    @classmethod
    def cut(
        cls,
        edge_types: Sequence[EdgeType],
        num_nodes: Mapping[NodeType, int],
        num_edges: Sequence[int],
        indptr: Int64Array,
        indices: IntArray,
    ) -> FusedCSC:
        """The two arrays, with the sizes of the types that say where each type begins.

        Args:
            edge_types: See the attribute.
            num_nodes: See the attribute.
            num_edges: Number of edges of each type.
            indptr: See the attribute.
            indices: See the attribute.
        """
        return cls(
            edge_types=tuple(edge_types),
            num_nodes=dict(num_nodes),
            indptr=indptr,
            indices=indices,
            first_offset=np.cumsum([0, *(num_nodes[name[2]] + 1 for name in edge_types)]),
            first_edge=np.cumsum([0, *num_edges]),
        )

    def part(self, number: int) -> tuple[Int64Array, IntArray]:
        """The offsets and sources of one edge type, as views: a CSC of its own."""
        if len(self.edge_types) == 1:
            return self.indptr, self.indices
        offsets = slice(self.first_offset[number], self.first_offset[number + 1])
        edges = slice(self.first_edge[number], self.first_edge[number + 1])
        return self.indptr[offsets], self.indices[edges]

    @classmethod
    def of(cls, edges: Mapping[EdgeType, Edges], num_nodes: Mapping[NodeType, int]) -> FusedCSC:
        """Join the CSC of each edge type; copies them, unless there is one alone."""
        num_edges = [len(part) for part in edges.values()]
        indptr = [part.indptr for part in edges.values()] or [np.empty(0, np.int64)]
        indices = [part.indices for part in edges.values()] or [np.empty(0, np.int32)]
        if len(edges) == 1:
            return cls.cut(tuple(edges), num_nodes, num_edges, indptr[0], indices[0])
        joined = np.concatenate(indptr, dtype=np.int64), np.concatenate(indices)
        return cls.cut(tuple(edges), num_nodes, num_edges, *joined)
