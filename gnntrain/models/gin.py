"""Graph isomorphism network (Xu et al., 2019)."""

from __future__ import annotations

from typing import ClassVar, Unpack

from torch import Tensor
from torch_geometric.nn import MLP as PyGMLP
from torch_geometric.nn import GINConv

from gnntrain.compute.features import LazyFeatures
from gnntrain.config.types import OneOrMore
from gnntrain.models.aggregate import Aggregation, aggregate, sampling_scale
from gnntrain.models.base import ACTIVATIONS, GNN, Scaffold
from gnntrain.sampling.block import Block

_INNER_NORMS = {
    "none": (None, None),
    "batch": ("batch_norm", {"allow_single_element": True}),
    "layer": ("layer_norm", {"mode": "node"}),
}


class GIN(GNN):
    """h_v ← MLP((1 + ε) h_v + Σ h_u over the in-neighbours u).

    Sampled in-neighbours give an unbiased estimate of the sum. Edge weights are not used. The
    inner MLP has the scaffold's norm and activation between its layers.

    Args:
        in_channels: Width of the input rows.
        out_channels: Width of the outputs.
        train_eps: Learn ε, the weight of a node's own value; otherwise it is 0.
        mlp_layers: Linear layers of each convolution's MLP.
        **scaffold: See `GNN`.
    """

    config_defaults: ClassVar[Scaffold] = {"norm": "layer"}
    uses_degree = True
    aggregates_rows = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        train_eps: bool = False,
        mlp_layers: OneOrMore = 2,
        **scaffold: Unpack[Scaffold],
    ) -> None:
        norm, norm_kwargs = _INNER_NORMS[scaffold.get("norm", "none")]
        activation = ACTIVATIONS[scaffold.get("activation", "relu")]

        def make_conv(before: int, after: int, _is_output: bool) -> GINConv:
            mlp = PyGMLP(
                [before, *[after] * mlp_layers],
                act=activation(),
                norm=norm,
                norm_kwargs=norm_kwargs,
            )
            return GINConv(mlp, train_eps=train_eps)

        super().__init__(make_conv, in_channels, out_channels, **scaffold)

    def combine(
        self,
        i: int,
        z: Tensor | LazyFeatures,
        h_dst: Tensor,
        z_dst: Tensor,  # noqa: ARG002
        block: Block,
    ) -> Tensor:
        conv = self.conv(i)
        total = aggregate(z, Aggregation(block, scale=sampling_scale(block)))
        out: Tensor = conv.nn(total + (1 + conv.eps) * h_dst)
        return out
