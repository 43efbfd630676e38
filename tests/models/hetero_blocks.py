"""Blocks of small typed graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gnntrain.data.graph import EdgeType, Graph, NodeType
from gnntrain.sampling.base import SampleKey
from gnntrain.sampling.block import Block, Hop
from tests.sampling.graphs import sampler_of, seeds_of


def edge_index_dict(graph: Graph) -> dict[EdgeType, Tensor]:
    """PyG's `edge_index` of each edge type."""
    found = {}
    for edge_type, edges in graph.edges.items():
        num_dst = graph.schema.num_nodes[edge_type[2]]
        ends = np.repeat(np.arange(num_dst), np.diff(edges.indptr))
        found[edge_type] = torch.from_numpy(np.stack([edges.indices, ends]).astype(np.int64))
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
    graph: Graph, seeds: Sequence[int], num_layers: int, fan_out: int = -1
) -> tuple[dict[NodeType, Tensor], list[Hop]]:
    """The nodes by type (seeds first) and the blocks that `num_layers` layers need for the seeds;
    with a `fan_out` that many in-edges of each relation are drawn."""
    sampler = sampler_of(graph.fused, [fan_out] * num_layers)
    sample = sampler.sample(seeds_of(seeds, graph.fused), SampleKey(0, 0, 0))
    return dict(sample.nodes), [*sample.hops]
