"""Graph isomorphism network (Xu et al., 2019)."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from gnntrain.compute.operator import Sum
from gnntrain.config.types import OneOrMore
from gnntrain.data.graph import EdgeType
from gnntrain.models import plain
from gnntrain.models.aggregate import aggregate, sampling_scale
from gnntrain.models.conv import GNN, Blocks, HeteroConv, Sources
from gnntrain.sampling.block import BlockNeeds


class BlockGINConv(HeteroConv, plain.GINLayer):
    """MLP((1 + ε) x_v + Σ x_u over the in-neighbours u)."""

    needs = BlockNeeds(degree=True, rows=True)

    def source(self, edge_type: EdgeType) -> None:
        """The layer's input."""

    def on_blocks(self, blocks: Blocks, sources: Sources, h_dst: Tensor) -> Tensor:
        (block,), (x,) = blocks.values(), sources.values()
        total = aggregate(x, block, Sum(scale=sampling_scale(block)))
        out: Tensor = self.nn(total + (1 + self.eps) * h_dst)
        return out


class GIN(GNN):
    """h_v ← MLP((1 + ε) h_v + Σ h_u over the in-neighbours u).

    Sampled in-neighbours give an unbiased estimate of the sum. Edge weights are not used. The
    inner MLP is `hidden_channels` wide, with `norm` and `activation` between its layers.

    Args:
        train_eps: Learn epsilon, the extra weight of a node's own value; false: it is 0.
        mlp_layers: Linear layers of each convolution's MLP.
    """

    conv_class = BlockGINConv
    config_defaults: ClassVar[dict[str, Any]] = {"norm": "layer"}

    train_eps: bool = False
    mlp_layers: OneOrMore = 2
