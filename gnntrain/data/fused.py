"""The in-edges of all types in two arrays, which a sampler reads in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

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
        offsets = slice(self.first_offset[number], self.first_offset[number + 1])
        edges = slice(self.first_edge[number], self.first_edge[number + 1])
        return self.indptr[offsets], self.indices[edges]

    @classmethod
    def of(cls, edges: Mapping[EdgeType, Edges], num_nodes: Mapping[NodeType, int]) -> FusedCSC:
        """Join the CSC of each edge type; copies them, unless there is one alone."""
        parts = list(edges.values())
        if len(parts) == 1:
            only = parts[0]
            return cls.cut(tuple(edges), num_nodes, [len(only)], only.indptr, only.indices)
        indptr = [np.asarray(part.indptr, np.int64) for part in parts]
        indices = [part.indices for part in parts]
        return cls.cut(
            tuple(edges),
            num_nodes,
            [len(part) for part in parts],
            _joined(indptr or [np.empty(0, np.int64)]),
            _joined(indices or [np.empty(0, np.int32)]),
        )


def _joined(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
