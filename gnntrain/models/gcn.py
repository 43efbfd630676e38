"""The graph convolutional network (Kipf and Welling, 2017)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor
from torch_geometric.nn import GCNConv

from gnntrain.loading.batch import Block
from gnntrain.models.aggregate import aggregate, sampling_scale, self_loops
from gnntrain.models.base import GNN, Scaffold, narrows


class GCN(GNN):
    """h_v ← Σ_{u ≠ v} n_v w_uv n_u W h_u + n_v² W h_v + b, with n_v = 1/√(1 + Σ_{u ≠ v} w_uv).

    The n of every node (`Block.norm`) come from the whole graph's degrees, so that a mini-batch
    with all neighbours gives the full graph's answer; sampled in-neighbours give an unbiased
    estimate of the sum. Each node has one self loop of weight 1; those in the data are ignored.

    Args:
        in_channels: Width of the input rows.
        out_channels: Width of the outputs.
        **scaffold: See `GNN`.
    """

    uses_norm = True
    uses_weight = True
    uses_degree = True

    def __init__(self, in_channels: int, out_channels: int, **scaffold: Unpack[Scaffold]) -> None:
        def make_conv(before: int, after: int, _is_output: bool) -> GCNConv:
            return GCNConv(before, after)

        super().__init__(make_conv, in_channels, out_channels, **scaffold)

    def has_transform(self, i: int) -> bool:
        return narrows(self.conv(i).in_channels, self.conv(i).out_channels)

    def transform(self, i: int, h: Tensor) -> Tensor:
        z: Tensor = self.conv(i).lin(h) if self.has_transform(i) else h
        return z

    def combine(self, i: int, z: Tensor, h_dst: Tensor, z_dst: Tensor, block: Block) -> Tensor:  # noqa: ARG002
        if block.norm is None:
            raise ValueError("GCN needs blocks that carry the norm of their source nodes")
        weight = block.norm[block.indices].masked_fill_(self_loops(block), 0)
        if block.weight is not None:
            weight *= block.weight
        norm_dst = block.norm[block.dst_offset : block.dst_offset + block.num_dst]
        scale = sampling_scale(block)
        scale = norm_dst if scale is None else norm_dst * scale
        neighbours = aggregate(block, z, weight=weight, scale=scale)
        loop = norm_dst.square().unsqueeze(1).to(z_dst.dtype)
        rows = torch.addcmul(neighbours, loop, z_dst)
        conv = self.conv(i)
        out: Tensor = (rows if self.has_transform(i) else conv.lin(rows)) + conv.bias
        return out
