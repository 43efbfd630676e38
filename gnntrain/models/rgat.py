"""Relational graph attention network (Busbridge et al., 2019), for typed graphs."""

from __future__ import annotations

from torch import Tensor

from gnntrain.config.types import NonNegative, OneOrMore, Share
from gnntrain.models import conv, plain
from gnntrain.models.attention import by_relation
from gnntrain.models.conv import Blocks, SourceKey, Sources
from gnntrain.models.gat import BlockGATConv


class BlockRGATConv(plain.RGATLayer, conv.HeteroConv):
    make_relation = BlockGATConv

    def transform(self, x: Tensor, key: SourceKey) -> Tensor:
        out: Tensor = self.relations[key].transform(x, key)
        return out

    def on_blocks(self, blocks: Blocks, sources: Sources, h_dst: Tensor) -> Tensor:
        attended = [
            self.relations[edge].attend(block, sources[edge], h_dst)
            for edge, block in blocks.items()
        ]
        total = by_relation(attended, self.heads).sum(0)
        return total.flatten(1) if self.concat else total.mean(1)


class RGAT(conv.HeteroGNN):
    """h_v ← Σ_r Σ α_uv W_r h_u over the in-neighbours u of each relation r, + W_0 h_v + b.

    α is the softmax of leaky_relu(a_src · W_r h_u + a_dst · W_r h_v) over the in-neighbours of a
    relation, or of all relations, with a_src and a_dst of relation r; W_0 and b are by node type.
    The heads are concatenated to `hidden_channels`, but averaged in the layer that gives the
    outputs. Edge weights are not used.

    Args:
        heads: Attention heads of a hidden layer; must divide hidden_channels.
        output_heads: Attention heads of the last layer; their outputs are averaged.
        across_relations: One softmax over the in-neighbours of all relations (ARGAT); false: one
            for each relation (WIRGAT).
        attention_dropout: Share of the attention weights to drop in training.
        negative_slope: Slope of the attention's leaky ReLU below zero.
    """

    conv_class = BlockRGATConv

    heads: OneOrMore = 4
    output_heads: OneOrMore = 1
    across_relations: bool = False
    attention_dropout: Share = 0.0
    negative_slope: NonNegative = 0.2
