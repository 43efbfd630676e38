"""GATv2 (Brody et al., 2022): attention that depends on both ends of an edge."""

from __future__ import annotations

from typing import Annotated, ClassVar, Unpack

import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GATv2Conv

from gnntrain.compute.features import LazyFeatures
from gnntrain.config.types import Divides, NonNegative, OneOrMore, Share
from gnntrain.models.attention import attend, edge_softmax, pair_score
from gnntrain.models.base import GNN, Scaffold
from gnntrain.models.gat import head_width
from gnntrain.sampling.block import Block


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
        def make_conv(before: int, after: int, is_output: bool) -> GATv2Conv:
            width = after if is_output else head_width(after, heads)
            count = output_heads if is_output else heads
            return GATv2Conv(
                before,
                width,
                heads=count,
                concat=not is_output,
                negative_slope=negative_slope,
                dropout=attention_dropout,
            )

        super().__init__(make_conv, in_channels, out_channels, **scaffold)

    def has_transform(self, i: int) -> bool:  # noqa: ARG002
        return True

    def transform(self, i: int, h: Tensor) -> Tensor:
        z: Tensor = self.conv(i).lin_l(h)
        return z

    def combine(
        self,
        i: int,
        z: Tensor | LazyFeatures,
        h_dst: Tensor,
        z_dst: Tensor,
        block: Block,
    ) -> Tensor:
        assert isinstance(z, Tensor)  # of `transform`
        conv = self.conv(i)
        right: Tensor = conv.lin_r(h_dst)
        att = conv.att.squeeze(0)
        score = pair_score(block, z, right, att, conv.negative_slope)
        pair = F.leaky_relu(z_dst + right, conv.negative_slope).view(-1, *att.shape)
        dropout = conv.dropout if self.training else 0.0
        weights = edge_softmax(block, score, (pair * att).sum(-1))
        out = attend(block, z, z_dst, weights, dropout)
        bias: Tensor = conv.bias
        return (out.flatten(1) if conv.concat else out.mean(1)) + bias
