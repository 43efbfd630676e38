"""Graph convolutional network (Kipf & Welling, 2017), normalised by whole-graph degrees."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor
from torch_geometric.nn import GCNConv

from gnntrain.compute.features import LazyFeatures
from gnntrain.models.aggregate import Aggregation, aggregate, sampling_scale
from gnntrain.models.aggregate_linear import AggregateLinear
from gnntrain.models.base import GNN, Scaffold, narrows
from gnntrain.sampling.block import Block


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
    aggregates_rows = True

    def __init__(self, in_channels: int, out_channels: int, **scaffold: Unpack[Scaffold]) -> None:
        def make_conv(before: int, after: int, _is_output: bool) -> GCNConv:
            return GCNConv(before, after)

        super().__init__(make_conv, in_channels, out_channels, **scaffold)

    def has_transform(self, i: int) -> bool:
        return narrows(self.conv(i).in_channels, self.conv(i).out_channels)

    def transform(self, i: int, h: Tensor) -> Tensor:
        z: Tensor = self.conv(i).lin(h) if self.has_transform(i) else h
        return z

    def linear(self, i: int, block: Block) -> AggregateLinear:
        conv = self.conv(i)
        return AggregateLinear(_aggregation(block), conv.lin.weight, None, conv.bias)

    def combine(
        self,
        i: int,
        z: Tensor | LazyFeatures,
        h_dst: Tensor,  # noqa: ARG002
        z_dst: Tensor,  # noqa: ARG002
        block: Block,
    ) -> Tensor:
        conv = self.conv(i)
        rows = aggregate(z, _aggregation(block))
        out: Tensor = (rows if self.has_transform(i) else conv.lin(rows)) + conv.bias
        return out


def _aggregation(block: Block) -> Aggregation:
    if block.norm is None:
        raise ValueError("GCN needs blocks that carry the norm of their source nodes")
    norm_dst = block.norm[block.dst_offset : block.dst_offset + block.num_dst]
    scale = sampling_scale(block)
    return Aggregation(
        block,
        weight=block.weight,
        source_scale=block.norm,
        scale=norm_dst if scale is None else norm_dst * scale,
        loop=norm_dst.square(),
        skip_loops=True,
    )
