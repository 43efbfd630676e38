"""Graph attention network (Veličković et al., 2018)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gnntrain.compute.reference import by_head
from gnntrain.config.types import NonNegative, OneOrMore, Share
from gnntrain.models import plain
from gnntrain.models.attention import attend
from gnntrain.models.conv import GNN, Blocks, HeteroConv, SourceKey, Sources
from gnntrain.sampling.block import Block, BlockNeeds


class BlockGATConv(HeteroConv, plain.GATLayer):
    """Σ α_uv W x_u + b over the in-neighbours u and v itself."""

    needs = BlockNeeds()

    def transform(self, x: Tensor, key: SourceKey) -> Tensor:  # noqa: ARG002
        """W x, and then a column a head: a source's part of the score, a_src · W x.

        `[rows, F]` → `[rows, H·C + H]`: one product with (W ‖ a_src W) gives both.
        """
        lin = self.lin if self.lin_src is None else self.lin_src
        return F.linear(x, torch.cat([lin.weight, self._score_weight(lin, self.att_src)]))

    def on_blocks(self, blocks: Blocks, sources: Sources, h_dst: Tensor) -> Tensor:
        (block,), (z,) = blocks.values(), sources.values()
        out, _ = self.attend(block.cached("self_loops", block.with_self_loops), z, h_dst)
        bias: Tensor = self.bias
        return (out if self.concat else by_head(out, self.heads).mean(1)) + bias

    def attend(self, block: Block, z: Any, x_dst: Tensor) -> tuple[Tensor, Tensor]:
        """See `attention.attend`; `z` is from `transform`, `x_dst` the layer's input for the
        destinations."""
        lin = self.lin if self.lin_dst is None else self.lin_dst
        return attend(
            block,
            z,
            target=F.linear(x_dst, self._score_weight(lin, self.att_dst)),
            slope=self.negative_slope,
            dropout=self.dropout if self.training else 0.0,
        )

    def _score_weight(self, lin: Any, att: Tensor) -> Tensor:
        """The product of a (`[1, H, C]`) and W by head, `[H, F]`."""
        weight = lin.weight.view(self.heads, self.out_channels, -1)
        # Not by einsum: DDP warns of the strides of its gradient where there is one head.
        return torch.matmul(att.view(self.heads, 1, -1), weight).squeeze(1)


class GAT(GNN):
    """h_v ← Σ α_uv W h_u + b over the in-neighbours u and v itself.

    α is the softmax of leaky_relu(a_src · W h_u + a_dst · W h_v) over these.
    Each node attends to itself exactly once; self loops in the data are ignored. The heads are
    concatenated to `hidden_channels`, but averaged in the layer that gives the outputs. Edge
    weights are not used.

    Args:
        heads: Attention heads of a hidden layer; must divide hidden_channels.
        output_heads: Attention heads of the last layer; their outputs are averaged.
        attention_dropout: Share of the attention weights to drop in training.
        negative_slope: Slope of the attention's leaky ReLU below zero.
    """

    conv_class = BlockGATConv
    config_defaults: ClassVar[dict[str, Any]] = {"activation": "elu"}

    heads: OneOrMore = 8
    output_heads: OneOrMore = 1
    attention_dropout: Share = 0.0
    negative_slope: NonNegative = 0.2
