"""Graph convolutional network (Kipf & Welling, 2017), normalised by whole-graph degrees."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import torch_geometric.nn as pyg
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.models.aggregate import Aggregation, aggregate, sampling_scale
from gnntrain.models.aggregate_linear import AggregateLinear
from gnntrain.models.base import GNN, Scaffold
from gnntrain.models.conv import BlockConv
from gnntrain.models.pyg_model import PyGModel
from gnntrain.sampling.block import Block, BlockNeeds


class BlockGCNConv(BlockConv, pyg.GCNConv):  # type: ignore[misc]  # PyG's classes carry no types
    """Σ_{u ≠ v} n_v w_uv n_u W x_u + n_v² l_v W x_v + b, with n and l of `Block.norm`."""

    needs = BlockNeeds(norm=True, weight=True, degree=True, rows=True)

    @property
    def has_transform(self) -> bool:
        return bool(self.in_channels > self.out_channels)

    def transform(self, x: Tensor) -> Tensor:
        z: Tensor = self.lin(x) if self.has_transform else x
        return z

    def linear(self, block: Block) -> AggregateLinear:
        return AggregateLinear(_aggregation(block), self.lin.weight, None, self.bias)

    def propagate_block(
        self,
        block: Block,
        z: Tensor | LazyFeatures,
        x_dst: Tensor,  # noqa: ARG002
        z_dst: Tensor,  # noqa: ARG002
    ) -> Tensor:
        rows = aggregate(z, _aggregation(block))
        out: Tensor = (rows if self.has_transform else self.lin(rows)) + self.bias
        return out


def _aggregation(block: Block) -> Aggregation:
    if block.norm is None:
        raise ValueError("GCN needs blocks that carry the norm of their source nodes")
    norm, dst = block.norm, slice(block.dst_offset, block.dst_offset + block.num_dst)
    loop_weight = None
    if norm.ndim == 2:
        loop_weight, norm = norm[dst, 1], norm[:, 0].contiguous()
    norm_dst = norm[dst]
    loop = norm_dst.square()
    scale = sampling_scale(block)
    return Aggregation(
        block,
        weight=block.weight,
        source_scale=norm,
        scale=norm_dst if scale is None else norm_dst * scale,
        loop=loop if loop_weight is None else loop * loop_weight,
        skip_loops=True,
    )


class GCN(GNN):
    """h_v ← Σ_{u ≠ v} n_v w_uv n_u W h_u + n_v² l_v W h_v + b, n_v = 1/√(l_v + Σ_{u ≠ v} w_uv).

    The n of every node (`Block.norm`) come from the whole graph's degrees, so that a mini-batch
    with all neighbours gives the full graph's answer; sampled in-neighbours give an unbiased
    estimate of the sum. Each node has one self loop: of several in the data the last one, with its
    weight l_v; else one of weight 1.

    Args:
        in_channels: Width of the input rows.
        out_channels: Width of the outputs.
        **scaffold: See `GNN`.
    """

    def __init__(self, in_channels: int, out_channels: int, **scaffold: Unpack[Scaffold]) -> None:
        def make_conv(before: int, after: int, _is_output: bool) -> BlockGCNConv:
            return BlockGCNConv(before, after)

        super().__init__(make_conv, in_channels, out_channels, **scaffold)

    def pyg_model(self) -> PyGModel:
        return replace(self.basic_gnn("GCN"), inputs=("x", "edge_index", "edge_weight"))
