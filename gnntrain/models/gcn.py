"""Graph convolutional network (Kipf & Welling, 2017), normalised by whole-graph degrees."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnntrain.compute.operator import Sum
from gnntrain.data.graph import EdgeType, NodeType
from gnntrain.models import plain
from gnntrain.models.aggregate import sampling_scale
from gnntrain.models.conv import GNN, LinearConv
from gnntrain.sampling.block import Block, BlockNeeds


class BlockGCNConv(LinearConv, plain.GCNLayer):
    """Σ_{u ≠ v} n_v w_uv n_u W x_u + n_v² l_v W x_v + b, with n and l of `Block.norm`."""

    is_one_relation = True
    reduce = "sum"
    needs = BlockNeeds(norm=True, weight=True, degree=True, rows=True)

    def relation_weight(self, edge_type: EdgeType) -> Tensor:  # noqa: ARG002
        weight: Tensor = self.lin.weight
        return weight

    def root(self, node_type: NodeType) -> tuple[Any, Tensor]:  # noqa: ARG002
        return None, self.bias

    def total(self, block: Block, dtype: torch.dtype) -> tuple[Block, Sum]:  # noqa: ARG002
        found: tuple[Block, Sum] = block.cached("gcn", lambda: _normalised(block))
        return found


def _normalised(block: Block) -> tuple[Block, Sum]:
    """The block with self loops, and the sum over it."""
    assert block.norm is not None  # see `BlockGCNConv.needs`
    norm, dst = block.norm, slice(block.dst_offset, block.dst_offset + block.num_dst)
    loop_weight = None
    if norm.ndim == 2:
        loop_weight, norm = norm[dst, 1], norm[:, 0].contiguous()
    scale, sampled = norm[dst], sampling_scale(block)
    if sampled is not None:  # A self loop is never left out.
        loop_weight = (1 if loop_weight is None else loop_weight) / sampled
        scale = scale * sampled
    block = block.with_self_loops(loop_weight)
    return block, Sum(block.weight, norm, scale)


class GCN(GNN):
    """h_v ← Σ_{u ≠ v} n_v w_uv n_u W h_u + n_v² l_v W h_v + b, n_v = 1/√(l_v + Σ_{u ≠ v} w_uv).

    The n of every node (`Block.norm`) come from the whole graph's degrees, so that a mini-batch
    with all neighbours gives the full graph's answer; sampled in-neighbours give an unbiased
    estimate of the sum. Each node has one self loop: of several in the data the last one, with its
    weight l_v; else one of weight 1.
    """

    conv_class = BlockGCNConv
