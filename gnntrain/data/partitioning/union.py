"""A typed graph as a graph of one type: what is cut into parts are all nodes, by all edges."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

from gnntrain.data.graph import (
    EDGE,
    NODE,
    Edges,
    Graph,
    IntArray,
    Nodes,
    NodeType,
    index_dtype,
)
from gnntrain.data.partitioning.kernels import PartIndex, join_edges


@contextmanager
def union_of(graph: Graph, folder: Path) -> Iterator[Graph]:
    """The nodes of all types, type by type, and the edges of all types; without features.

    Args:
        graph: A graph. One of a single type is returned as it is.
        folder: Where the edges are written meanwhile: `index_dtype` an edge.
    """
    if not graph.is_hetero:
        yield graph
        return
    firsts = first_numbers(graph)
    num_nodes, num_edges = graph.num_nodes, graph.num_edges
    indptr = np.zeros(num_nodes + 1, np.int64)
    for (_, _, destination), edges in graph.edges.items():
        degrees = indptr[1:][firsts[destination] :][: len(graph.nodes[destination])]
        degrees += np.diff(edges.indptr)
    np.cumsum(indptr, out=indptr)
    with TemporaryFile(dir=folder) as file:
        dtype = index_dtype(num_nodes)
        file.truncate(max(1, num_edges * dtype.itemsize))
        joined: IntArray = np.memmap(file, dtype, "r+", shape=max(1, num_edges))[:num_edges]
        ends = indptr[:-1].copy()
        for (source, _, destination), edges in graph.edges.items():
            own = ends[firsts[destination] :][: len(graph.nodes[destination])]
            join_edges(edges.indptr, edges.indices, firsts[source], own, joined)
        first = firsts[graph.target]
        splits = {name: ids + first for name, ids in graph.target_nodes.splits.items()}
        nodes = Nodes(np.empty((num_nodes, 0), np.float32), splits=splits)
        yield Graph({NODE: nodes}, {EDGE: Edges(indptr, joined)}, dataset=graph.dataset)


def first_numbers(graph: Graph) -> dict[NodeType, int]:
    """The number of the first node of each type among the nodes of all types."""
    sizes = [len(nodes) for nodes in graph.nodes.values()]
    firsts = np.cumsum([0, *sizes])[:-1].tolist()
    return dict(zip(graph.nodes, firsts, strict=True))


def by_type(graph: Graph, part_of: PartIndex) -> dict[NodeType, PartIndex]:
    """The parts of the nodes of each type, from those of the nodes of all types."""
    ends = [*first_numbers(graph).values(), graph.num_nodes]
    slices = (part_of[first:stop] for first, stop in pairwise(ends))
    return dict(zip(graph.nodes, slices, strict=True))
