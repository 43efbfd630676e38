"""Relational graph attention network (Busbridge et al., 2019), for typed graphs."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch_geometric.nn.module_dict import ModuleDict

from gnntrain.compute.reference import by_head
from gnntrain.config.types import Divides, NonNegative, OneOrMore, Share
from gnntrain.data.graph import EdgeType, GraphSchema, NodeType
from gnntrain.errors import UserError
from gnntrain.models import conv
from gnntrain.models.attention import relation_shares
from gnntrain.models.conv import Blocks, SourceKey, Sources
from gnntrain.models.gat import BlockGATConv, head_options
from gnntrain.models.plain import LayerTypes


class BlockRGATConv(conv.HeteroConv, nn.Module):
    """Σ_r Σ α_uv W_r x_u over the in-neighbours u of each relation r, + W_0 x_v + b.

    W_0 and b are by node type: `roots`, linear layers. `relations` has the parameters of a
    `GATConv` for each edge type, made with `options`. If `is_joint`, one softmax covers the
    in-neighbours of all relations.
    """

    has_transform = True

    def __init__(self, types: LayerTypes, is_joint: bool, **options: Any) -> None:
        super().__init__()
        self.types, self.is_joint, self.concat = types, is_joint, options["concat"]
        before, self.relations = types.in_channels, ModuleDict()
        self.heads, self.options = options["heads"], dict[EdgeType, dict[str, Any]]()
        for edge in types.edge_types:
            source, target = before[edge[0]], before[edge[2]]
            width = source if source == target else (source, target)
            fixed = {"add_self_loops": False, "bias": False}
            self.options[edge] = {"in_channels": width, **options, **fixed}
            self.relations[edge] = BlockGATConv(**self.options[edge])
        roots = {t: conv.glorot_linear(before[t], types.out_channels) for t in types.node_types}
        self.roots = ModuleDict(roots)

    def transform(self, x: Tensor, key: SourceKey) -> Tensor:
        out: Tensor = self.relations[key].transform(x, key)
        return out

    def on_blocks(self, blocks: Blocks, sources: Sources, h_dst: Tensor) -> Tensor:
        parts, sums = [], []
        for edge, block in blocks.items():
            part, log_sum = self.relations[edge].attend(block, sources[edge], h_dst, loops=False)
            parts.append(by_head(part, self.heads))
            sums.append(log_sum)
        rows = torch.stack(parts)
        total = (rows * relation_shares(sums) if self.is_joint else rows).sum(0)
        return total.flatten(1) if self.concat else total.mean(1)

    def finish(self, node_type: NodeType, total: Tensor | None, h_dst: Tensor) -> Tensor:
        own: Tensor = self.roots[node_type](h_dst)
        return own if total is None else total + own

    def pyg_layer(self) -> conv.PyGLayer:
        if self.is_joint:
            raise UserError(
                "PyG has no attention across the relations of R-GAT (model.across_relations=true).",
                "Train with model.across_relations=false; `gnntrain predict` uses it as it is.",
            )
        weights = self.relations.state_dict(prefix="convs.", keep_vars=True)
        own = {t: (root.weight, root.bias) for t, root in self.roots.items()}
        return conv.pyg_layer("GATConv", self.options, weights, own, aggr="sum")


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

    is_hetero = True

    def __init__(
        self,
        schema: GraphSchema,
        out_channels: int,
        *,
        heads: Annotated[OneOrMore, Divides("hidden_channels")] = 4,
        output_heads: OneOrMore = 1,
        across_relations: bool = False,
        attention_dropout: Share = 0.0,
        negative_slope: NonNegative = 0.2,
        **scaffold: Any,
    ) -> None:
        def make_conv(types: LayerTypes) -> BlockRGATConv:
            options = head_options(types.out_channels, types.is_output, heads, output_heads)
            shared = {"negative_slope": negative_slope, "dropout": attention_dropout}
            return BlockRGATConv(types, across_relations, **options, **shared)

        super().__init__(make_conv, schema, out_channels, **scaffold)
