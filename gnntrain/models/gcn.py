"""Graph convolutional network (Kipf & Welling, 2017), normalised by whole-graph degrees."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnntrain.compute.ops import Sum
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

    def total(self, block: Block, dtype: torch.dtype) -> Sum:  # noqa: ARG002
        assert block.norm is not None  # see `needs`
        norm, dst = block.norm, slice(block.dst_offset, block.dst_offset + block.num_dst)
        loop_weight: Tensor | float = 1.0
        if norm.ndim == 2:
            loop_weight, norm = norm[dst, 1], norm[:, 0].contiguous()
        norm_dst, scale = norm[dst], sampling_scale(block)
        scale = norm_dst if scale is None else norm_dst * scale
        loop = norm_dst.square() * loop_weight
        return Sum(block.weight, norm, scale, loop, skip_own=True)


class GCN(GNN):
    """h_v ← Σ_{u ≠ v} n_v w_uv n_u W h_u + n_v² l_v W h_v + b, n_v = 1/√(l_v + Σ_{u ≠ v} w_uv).

    The n of every node (`Block.norm`) come from the whole graph's degrees, so that a mini-batch
    with all neighbours gives the full graph's answer; sampled in-neighbours give an unbiased
    estimate of the sum. Each node has one self loop: of several in the data the last one, with its
    weight l_v; else one of weight 1.
    """

    conv_class = BlockGCNConv
