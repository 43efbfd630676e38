"""Aggregation over a block's edges as loops in plain torch, and random blocks to try it on."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from gnntrain.compute.operator import Sum
from gnntrain.sampling.block import Block
from tests.models.blocks import full_block, graph_of

INDEX_TYPES = [torch.int32, torch.int64]

HUB = 70  # edges: more than any kernel takes at a time


def edge_list(block: Block) -> list[tuple[int, int]]:
    """(destination, source) of every edge in order."""
    bounds = block.indptr.tolist()
    return [
        (dst, int(block.indices[edge]))
        for dst in range(block.num_dst)
        for edge in range(bounds[dst], bounds[dst + 1])
    ]


def slow_aggregate(x: Tensor, block: Block, total: Sum | None) -> Tensor:
    """The formula of `Sum`, or of the maximum, one edge after the other."""
    given = Sum() if total is None else total
    rows: list[list[Tensor]] = [[] for _ in range(block.num_dst)]
    for edge, (dst, src) in enumerate(edge_list(block)):
        factor = x.new_ones(())
        if given.edge_weight is not None:
            factor = factor * given.edge_weight[edge]
        if given.source_scale is not None:
            factor = factor * given.source_scale[src]
        rows[dst].append(x[src] * factor)
    out = []
    for dst, found in enumerate(rows):
        stack = torch.stack(found) if found else x.new_zeros(1, x.shape[1])
        row = stack.amax(0) if total is None else stack.sum(0)
        out.append(row if given.scale is None else row * given.scale[dst])
    return torch.stack(out) if out else x.new_zeros(0, x.shape[1])


@st.composite
def blocks(draw: st.DrawFn, max_offset: int = 8) -> Block:
    """Blocks with isolated nodes, self loops, duplicate edges, and perhaps a hub."""
    num_src = draw(st.integers(1, 8))
    offset = draw(st.integers(0, min(num_src, max_offset)))
    num_dst = draw(st.integers(0, num_src - offset))
    node = st.integers(0, num_src - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=30))
    if draw(st.booleans()):
        hub = draw(node)
        edges += [(hub, i % num_src) for i in range(HUB)] + [(i % num_src, hub) for i in range(HUB)]
    index = draw(st.sampled_from(INDEX_TYPES))
    return full_block(graph_of(num_src, edges), offset, offset + num_dst, index)


@st.composite
def sums(draw: st.DrawFn, max_offset: int = 8) -> tuple[Block, Sum | None]:
    """A block with a sum over it, or none: the maximum."""
    block = draw(blocks(max_offset))
    if draw(st.integers(0, 2)) == 0:
        return block, None

    def maybe(size: int) -> Tensor | None:
        return torch.rand(size, dtype=torch.float64) if draw(st.booleans()) else None

    return block, Sum(maybe(block.num_edges), maybe(block.num_src), maybe(block.num_dst))
