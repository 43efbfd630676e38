"""GATv2 (Brody et al., 2022): attention that depends on both ends of an edge."""

from __future__ import annotations

from typing import Annotated, ClassVar, Unpack

import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.config.types import Divides, NonNegative, OneOrMore, Share
from gnntrain.models.attention import attend, edge_softmax, pair_score
from gnntrain.models.base import GNN, Scaffold
from gnntrain.models.conv import BlockConv
from gnntrain.models.gat import head_width
from gnntrain.sampling.block import Block


class BlockGATv2Conv(BlockConv, pyg.GATv2Conv):  # type: ignore[misc]  # PyG's classes carry no types
    """Σ α_uv W_l x_u + b over the in-neighbours u and v itself."""

    has_transform = True

    def transform(self, x: Tensor) -> Tensor:
        z: Tensor = self.lin_l(x)
        return z

    def propagate_block(
        self, block: Block, z: Tensor | LazyFeatures, x_dst: Tensor, z_dst: Tensor
    ) -> Tensor:
        assert isinstance(z, Tensor)  # of `transform`
        right: Tensor = self.lin_r(x_dst)
        att = self.att.squeeze(0)
        score = pair_score(block, z, right, att, self.negative_slope)
        pair = F.leaky_relu(z_dst + right, self.negative_slope).view(-1, *att.shape)
        weights = edge_softmax(block, score, (pair * att).sum(-1))
        out = attend(block, z, z_dst, weights, self.dropout if self.training else 0.0)
        bias: Tensor = self.bias
        return (out.flatten(1) if self.concat else out.mean(1)) + bias


class GATv2(GNN):
    """h_v ← Σ α_uv W_l h_u + b over the in-neighbours u and v itself.

    α is the softmax of a · leaky_relu(W_l h_u + W_r h_v) over these.
    The hidden vector of an edge is computed by bounded chunks of edges and again in the backward
    pass. All else is as in `GAT`.

    Args:
        in_channels: Width of the input rows.
        out_channels: Width of the outputs.
        heads: Attention heads of a hidden layer; must divide hidden_channels.
        output_heads: Attention heads of the last layer, averaged.
        attention_dropout: Share of attention weights dropped in training.
        negative_slope: Slope of the attention's leaky ReLU below zero.
        **scaffold: See `GNN`.
    """

    config_defaults: ClassVar[Scaffold] = {"activation": "elu"}

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        heads: Annotated[OneOrMore, Divides("hidden_channels")] = 8,
        output_heads: OneOrMore = 1,
        attention_dropout: Share = 0.0,
        negative_slope: NonNegative = 0.2,
        **scaffold: Unpack[Scaffold],
    ) -> None:
        def make_conv(before: int, after: int, is_output: bool) -> BlockGATv2Conv:
            width = after if is_output else head_width(after, heads)
            count = output_heads if is_output else heads
            return BlockGATv2Conv(
                before,
                width,
                heads=count,
                concat=not is_output,
                negative_slope=negative_slope,
                dropout=attention_dropout,
            )

        super().__init__(make_conv, in_channels, out_channels, **scaffold)
