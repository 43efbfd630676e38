"""Graph attention network (Veličković et al., 2018)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Unpack

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn

from gnntrain.compute.reference import by_head
from gnntrain.config.types import Divides, NonNegative, OneOrMore, Share
from gnntrain.errors import UserError
from gnntrain.models.attention import attend
from gnntrain.models.base import GNN, Scaffold
from gnntrain.models.conv import BlockConv, Rows, SourceKey
from gnntrain.models.pyg_model import PyGModel
from gnntrain.sampling.block import Block


class BlockGATConv(BlockConv, pyg.GATConv):  # type: ignore[misc]  # PyG's classes carry no types
    """Σ α_uv W x_u + b over the in-neighbours u and v itself."""

    has_transform = True

    def transform(self, x: Tensor, key: SourceKey | None = None) -> Tensor:  # noqa: ARG002
        """W x, and then a column a head: a source's part of the score, a_src · W x.

        `[rows, F]` → `[rows, H·C + H]`: one product with (W ‖ a_src W) gives both.
        """
        weight, score = self._weights(
            self.lin if self.lin_src is None else self.lin_src, self.att_src
        )
        return F.linear(x, torch.cat([weight.flatten(0, 1), score]))

    def propagate_block(self, block: Block, z: Rows, x_dst: Tensor) -> Tensor:
        assert isinstance(z, Tensor)  # of `transform`
        out, _ = self.attend(block, z, x_dst, adds_loops=True)
        bias: Tensor = self.bias
        return (out if self.concat else by_head(out, self.heads).mean(1)) + bias

    def attend(
        self, block: Block, z: Tensor, x_dst: Tensor, *, adds_loops: bool
    ) -> tuple[Tensor, Tensor]:
        """See `attention.attend`; `z` is from `transform`, `x_dst` the layer's input for the
        destinations."""
        return attend(
            block,
            z,
            target=self.score_dst(x_dst),
            adds_loops=adds_loops,
            slope=self.negative_slope,
            dropout=self.dropout if self.training else 0.0,
        )

    def score_dst(self, x_dst: Tensor) -> Tensor:
        """A destination's part of the score, a_dst · W x: `[num_dst, H]`."""
        _, weight = self._weights(self.lin if self.lin_dst is None else self.lin_dst, self.att_dst)
        return F.linear(x_dst, weight)

    def _weights(self, lin: Any, att: Tensor) -> tuple[Tensor, Tensor]:
        """W as `[H, C, F]`, and the product of a (`[1, H, C]`) with it, `[H, F]`."""
        weight: Tensor = lin.weight.view(self.heads, self.out_channels, -1)
        # Not by einsum: DDP warns of the strides of its gradient where there is one head.
        return weight, torch.matmul(att.view(self.heads, 1, -1), weight).squeeze(1)


def head_width(channels: int, heads: int) -> int:
    """The width of one of `heads` concatenated heads.

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
        output_heads: Attention heads of the last layer; their outputs are averaged.
        attention_dropout: Share of the attention weights to drop in training.
        negative_slope: Slope of the attention's leaky ReLU below zero.
        **scaffold: See `GNN`.
    """

    config_defaults: ClassVar[Scaffold] = {"activation": "elu"}
    conv_class: ClassVar[type[Any]] = BlockGATConv

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
        def make_conv(before: int, after: int, is_output: bool) -> nn.Module:
            conv: nn.Module = self.conv_class(
                before,
                after if is_output else head_width(after, heads),
                heads=output_heads if is_output else heads,
                concat=not is_output,
                negative_slope=negative_slope,
                dropout=attention_dropout,
            )
            return conv

        super().__init__(make_conv, in_channels, out_channels, **scaffold)

    def pyg_model(self) -> PyGModel:
        return self.pyg_gat("GATConv")

    def pyg_gat(self, conv_name: str, **arguments: Any) -> PyGModel:
        """PyG's `GAT`, with these arguments; `conv_name` is the class of its convolutions."""
        first: Any = self.convs[0]
        last: Any = self.convs[-1]
        slope, dropout = first.negative_slope, first.dropout
        made = self.basic_gnn("GAT", **arguments, heads=first.heads, negative_slope=slope)
        changes = []
        if last.heads != first.heads:
            # PyG's GAT has as many heads in its last layer as elsewhere.
            changes.append(
                f"model.convs[-1] = {conv_name}({last.in_channels}, {last.out_channels}, "
                f"heads={last.heads}, concat=False, negative_slope={slope})"
            )
        if changes or dropout != self.dropout.p:
            changes += ["for conv in model.convs:", f"    conv.dropout = {dropout}"]
        return replace(made, changes=changes, imports=[*made.imports, conv_name])
