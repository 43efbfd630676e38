"""Blocks of small typed graphs, built the slow and obvious way, one edge at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gnntrain.data.graph import EdgeType, Graph, NodeType
from gnntrain.sampling.block import Block, Hop


def in_neighbours(graph: Graph, edge_type: EdgeType, node: int) -> list[int]:
    """The sources of a node's in-edges of one type."""
    edges = graph.edges[edge_type]
    found: list[int] = edges.indices[edges.indptr[node] : edges.indptr[node + 1]].tolist()
    return found


def edge_index_dict(graph: Graph) -> dict[EdgeType, Tensor]:
    """PyG's `edge_index` of each edge type."""
    found = {}
    for edge_type in graph.edges:
        num_dst = graph.schema.num_nodes[edge_type[2]]
        pairs = [
            (source, node)
            for node in range(num_dst)
            for source in in_neighbours(graph, edge_type, node)
        ]
        found[edge_type] = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).t()
    return found


def full_hetero_block(graph: Graph) -> Hop:
    """All nodes of each type as sources and destinations."""
    sizes = graph.schema.num_nodes
    edges = {}
    for edge_type, found in graph.edges.items():
        indptr, indices = torch.from_numpy(found.indptr), torch.from_numpy(found.indices)
        edges[edge_type] = Block(indptr, indices.long(), sizes[edge_type[0]])
    return Hop(edges, sizes, sizes)


def hetero_seed_blocks(
    graph: Graph,
    seeds: Sequence[int],
    num_layers: int,
    fan_out: int | None = None,
    draw: torch.Generator | None = None,
) -> tuple[dict[NodeType, Tensor], list[Hop]]:
    """The nodes by type (seeds first) and the blocks that `num_layers` layers need for the seeds.

    With a `fan_out` that many in-edges of each relation are drawn, and the blocks carry the whole
    degrees.
    """
    nodes: dict[NodeType, list[int]] = {t: [] for t in graph.nodes}
    nodes[graph.target] = list(seeds)
    blocks = []
    for _ in range(num_layers):
        num_dst = {t: len(found) for t, found in nodes.items()}
        kept: dict[EdgeType, list[list[int]]] = {}
        for edge_type in graph.edges:
            kept[edge_type] = []
            for node in nodes[edge_type[2]][: num_dst[edge_type[2]]]:
                sources = in_neighbours(graph, edge_type, node)
                if fan_out is not None and len(sources) > fan_out:
                    chosen = torch.randperm(len(sources), generator=draw)[:fan_out]
                    sources = [sources[i] for i in chosen.tolist()]
                kept[edge_type].append(sources)
        for (source_type, _, _), found in kept.items():
            known = nodes[source_type]
            known += sorted({source for sources in found for source in sources} - set(known))
        edges = {
            edge_type: _block(graph, edge_type, found, nodes, is_sampled=fan_out is not None)
            for edge_type, found in kept.items()
        }
        num_src = {t: len(found) for t, found in nodes.items()}
        blocks.append(Hop(edges, num_dst, num_src))
    ids = {t: torch.tensor(found, dtype=torch.int64) for t, found in nodes.items()}
    return ids, blocks[::-1]


def _block(
    graph: Graph,
    edge_type: EdgeType,
    kept: list[list[int]],
    nodes: dict[NodeType, list[int]],
    *,
    is_sampled: bool,
) -> Block:
    source_type, _, node_type = edge_type
    numbers = {node: i for i, node in enumerate(nodes[source_type])}
    degrees = [len(in_neighbours(graph, edge_type, v)) for v in nodes[node_type][: len(kept)]]
    return Block(
        indptr=torch.tensor([0, *map(len, kept)]).cumsum(0),
        indices=torch.tensor([numbers[v] for found in kept for v in found], dtype=torch.int64),
        num_src=len(numbers),
        degree=torch.tensor(degrees, dtype=torch.float32) if is_sampled else None,
    )
