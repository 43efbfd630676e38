"""GraphSAGE (Hamilton et al., 2017)."""

from __future__ import annotations

from typing import Literal, Unpack

import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import SAGEConv

from gnntrain.compute.features import LazyFeatures
from gnntrain.models.aggregate import Aggregation, aggregate, sampling_scale
from gnntrain.models.aggregate_linear import AggregateLinear
from gnntrain.models.base import GNN, Scaffold, narrows
from gnntrain.sampling.block import Block


class SAGE(GNN):
    """h_v ← lin_l(aggregate of h_u over the in-neighbours u) + lin_r(h_v).

    The paper's W · (h_v ‖ aggregate) is the same: W is lin_r's and lin_l's weights side by side.
    The mean-aggregator W · mean(h_u) without the node itself is `root_weight=False`. Of a sum,
    sampled in-neighbours give an unbiased estimate. Edge weights are not used.

    Args:
        in_channels: Width of the input rows.
        out_channels: Width of the outputs.
        aggregator: How the neighbours' values become one.
        root_weight: Let a node see its own value too, through its own weights (lin_r).
        normalize: Scale each layer's output to Euclidean length 1.
        **scaffold: See `GNN`.
    """

    aggregates_rows = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        aggregator: Literal["mean", "max", "sum"] = "mean",
        root_weight: bool = True,
        normalize: bool = False,
        **scaffold: Unpack[Scaffold],
    ) -> None:
        def make_conv(before: int, after: int, _is_output: bool) -> SAGEConv:
            return SAGEConv(
                before, after, aggr=aggregator, root_weight=root_weight, normalize=normalize
            )

        super().__init__(make_conv, in_channels, out_channels, **scaffold)
        self.aggregator = aggregator
        self.uses_degree = aggregator == "sum"

    def has_transform(self, i: int) -> bool:
        conv = self.conv(i)
        return self.aggregator != "max" and narrows(conv.in_channels, conv.out_channels)

    def transform(self, i: int, h: Tensor) -> Tensor:
        return F.linear(h, self.conv(i).lin_l.weight) if self.has_transform(i) else h

    def linear(self, i: int, block: Block) -> AggregateLinear | None:
        conv = self.conv(i)
        if self.aggregator == "max" or conv.normalize:
            return None
        root_weight = conv.lin_r.weight if conv.root_weight else None
        aggregation = self._aggregation(block)
        return AggregateLinear(aggregation, conv.lin_l.weight, root_weight, conv.lin_l.bias)

    def combine(
        self,
        i: int,
        z: Tensor | LazyFeatures,
        h_dst: Tensor,
        z_dst: Tensor,  # noqa: ARG002
        block: Block,
    ) -> Tensor:
        conv = self.conv(i)
        rows = aggregate(z, self._aggregation(block))
        out: Tensor = rows + conv.lin_l.bias if self.has_transform(i) else conv.lin_l(rows)
        if conv.root_weight:
            out = out + conv.lin_r(h_dst)
        return F.normalize(out, dim=-1) if conv.normalize else out

    def _aggregation(self, block: Block) -> Aggregation:
        scale = sampling_scale(block) if self.uses_degree else None
        return Aggregation(block, self.aggregator, scale=scale)
