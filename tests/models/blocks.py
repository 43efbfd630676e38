"""Small graphs and their blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gnntrain.sampling.base import SampleKey
from gnntrain.sampling.block import Block
from tests.sampling.graphs import blocks_of, cpu_sampler, csc, seeds_of


@dataclass(frozen=True)
class Graph:
    """Edges `edge_index[0] → edge_index[1]`, sorted by destination; their weights or None."""

    num_nodes: int
    edge_index: Tensor
    weight: Tensor | None = None

    def in_edges(self, node: int) -> list[int]:
        """Numbers of the edges that end at `node`."""
        return (self.edge_index[1] == node).nonzero().flatten().tolist()

    @property
    def norm(self) -> Tensor:
        """1 / √(total weight of a node's in-edges with one self loop); and the loops' weights."""
        total, loop = torch.zeros(self.num_nodes), torch.ones(self.num_nodes)
        for edge, (src, dst) in enumerate(self.edge_index.t().tolist()):
            weight = 1.0 if self.weight is None else float(self.weight[edge])
            if src == dst:
                loop[dst] = weight
            else:
                total[dst] += weight
        norm = (loop + total).rsqrt()
        return norm if bool((loop == 1).all()) else torch.stack([norm, loop], dim=1)


def graph_of(num_nodes: int, edges: Sequence[tuple[int, int]], weighted: bool = False) -> Graph:
    """The graph with these (source, destination) edges."""
    pairs = torch.tensor(sorted(edges, key=lambda edge: edge[1]), dtype=torch.int64)
    edge_index = pairs.view(-1, 2).t().contiguous()
    weight = torch.rand(edge_index.shape[1]) + 0.5 if weighted else None
    return Graph(num_nodes, edge_index, weight)


def rough_graph(
    num_nodes: int = 40, num_edges: int = 160, weighted: bool = False, seed: int = 0
) -> Graph:
    """Random edges, and all that real data has: isolated nodes, loops, duplicates, a hub."""
    draw = torch.Generator().manual_seed(seed)
    nodes = num_nodes - 5  # the last five stay isolated but for one loop
    pairs = torch.randint(0, nodes, (num_edges, 2), generator=draw).tolist()
    edges = [(src, dst) for src, dst in pairs if src != dst]
    edges += edges[:8]
    edges += [(src, 3) for src in range(nodes) if src != 3]
    edges += [(node, node) for node in (0, 3, 7, num_nodes - 1)]
    return graph_of(num_nodes, edges, weighted)


def full_block(
    graph: Graph, start: int = 0, stop: int | None = None, index: torch.dtype = torch.int64
) -> Block:
    """All in-edges of the destinations `[start, stop)`, with all nodes as sources."""
    destinations = list(range(start, graph.num_nodes if stop is None else stop))
    kept = [graph.in_edges(node) for node in destinations]
    flat = [edge for edges in kept for edge in edges]
    indptr = torch.tensor([0, *[len(edges) for edges in kept]]).cumsum(0)
    return Block(
        indptr=indptr.to(index),
        indices=graph.edge_index[0, flat].to(index),
        num_src=graph.num_nodes,
        dst_offset=start,
        weight=None if graph.weight is None else graph.weight[flat],
        norm=graph.norm,
    )


def seed_blocks(
    graph: Graph, seeds: Sequence[int], num_layers: int, fan_out: int = -1, step: int = 0
) -> tuple[Tensor, list[Block]]:
    """The nodes (seeds first) and the blocks that `num_layers` layers need for the seeds.

    With a `fan_out` that many in-edges are drawn, others in each step, and the blocks carry the
    whole degrees.
    """
    edges = csc(graph.num_nodes, *graph.edge_index.numpy())
    sampler = cpu_sampler(edges, [fan_out] * num_layers, edge_ids=True)
    sample, degrees = sampler.sample(seeds_of(seeds), SampleKey(0, 0, step)), np.diff(edges[0])
    (nodes,), blocks = sample.nodes.values(), []
    for block in reversed(blocks_of(sample)):
        known = torch.from_numpy(degrees).float()[nodes[: block.num_dst]]
        weight = None if graph.weight is None else graph.weight[block.edge_ids]
        norm = graph.norm[nodes[: block.num_src]]
        degree = None if fan_out == -1 else known
        blocks.append(replace(block, weight=weight, degree=degree, norm=norm))
    return nodes, blocks


def name_of(case: object) -> str:
    """The id of a test's parameter: a class, or options."""
    if isinstance(case, type):
        return case.__name__
    if isinstance(case, dict):
        return "-".join(f"{key}={value}" for key, value in case.items()) or "defaults"
    return str(case)
