"""Graph attention network (Veličković et al., 2018)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GATConv

from gnntrain.compute.features import LazyFeatures
from gnntrain.config.types import Divides, NonNegative, OneOrMore, Share
from gnntrain.errors import UserError
from gnntrain.models.attention import attend, by_head, sum_softmax
from gnntrain.models.base import GNN, Scaffold
from gnntrain.sampling.block import Block


def head_width(channels: int, heads: int) -> int:
    """How wide each of `heads` concatenated heads is.

    Raises:
        UserError: `heads` does not divide `channels`.
    """
    if channels % heads:
        raise UserError(
            f"model.heads={heads} does not divide model.hidden_channels={channels}",
            "hidden_channels is the width of all heads together: make it a multiple of heads",
        )
    return channels // heads


class GAT(GNN):
    """h_v ← Σ α_uv W h_u + b over the in-neighbours u and v itself.

    α is the softmax of leaky_relu(a_src · W h_u + a_dst · W h_v) over these.
    Each node attends to itself exactly once; self loops in the data are ignored. The heads are
    concatenated to `hidden_channels`, but averaged in the layer that gives the outputs. Edge
    weights are not used.

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
        def make_conv(before: int, after: int, is_output: bool) -> GATConv:
            width = after if is_output else head_width(after, heads)
            count = output_heads if is_output else heads
            return GATConv(
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
        """W h and, as one more column a head, a source's part of the score, a_src · W h.

        `[rows, F]` → `[rows, H·(C + 1)]`: one product with (W ‖ a_src W) gives both, and the part
        of the score is there wherever the row is.
        """
        weight, score = self._weights(i, self.conv(i).att_src)
        return F.linear(h, torch.cat([weight, score.unsqueeze(1)], dim=1).flatten(0, 1))

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
        _, score_weight = self._weights(i, conv.att_dst)
        score_dst = F.linear(h_dst, score_weight)
        score_src = by_head(z, conv.heads)[..., -1]
        loop_src = by_head(z_dst, conv.heads)[..., -1]
        slope, dropout = conv.negative_slope, conv.dropout if self.training else 0.0
        loop = F.leaky_relu(loop_src + score_dst, slope)
        weights = sum_softmax(block, score_src, score_dst, loop, slope)
        out = attend(block, z, z_dst, weights, dropout)[..., :-1]
        bias: Tensor = conv.bias
        return (out.flatten(1) if conv.concat else out.mean(1)) + bias

    def _weights(self, i: int, att: Tensor) -> tuple[Tensor, Tensor]:
        """W as `[H, C, F]`, and the product of a (`[1, H, C]`) with it, `[H, F]`."""
        conv = self.conv(i)
        weight = conv.lin.weight.view(conv.heads, conv.out_channels, -1)
        return weight, torch.einsum("hc,hcf->hf", att.squeeze(0), weight)
