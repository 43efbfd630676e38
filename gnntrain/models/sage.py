"""GraphSAGE (Hamilton et al., 2017)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, Unpack

import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.models.aggregate import Aggregation, aggregate, sampling_scale
from gnntrain.models.aggregate_linear import AggregateLinear
from gnntrain.models.base import GNN, Scaffold
from gnntrain.models.conv import BlockConv
from gnntrain.models.pyg_model import PyGModel
from gnntrain.sampling.block import Block, BlockNeeds


class BlockSAGEConv(BlockConv, pyg.SAGEConv):  # type: ignore[misc]  # PyG's classes carry no types
    """lin_l(aggregate of x_u over the in-neighbours u) + lin_r(x_v)."""

    @property
    def needs(self) -> BlockNeeds:
        return BlockNeeds(rows=True, degree=self.aggr == "sum")

    @property
    def has_transform(self) -> bool:
        return self.aggr != "max" and bool(self.in_channels > self.out_channels)

    def transform(self, x: Tensor) -> Tensor:
        return F.linear(x, self.lin_l.weight) if self.has_transform else x

    def linear(self, block: Block) -> AggregateLinear | None:
        if self.aggr == "max" or self.normalize:
            return None
        root_weight = self.lin_r.weight if self.root_weight else None
        lin_l = self.lin_l
        return AggregateLinear(self._aggregation(block), lin_l.weight, root_weight, lin_l.bias)

    def propagate_block(
        self,
        block: Block,
        z: Tensor | LazyFeatures,
        x_dst: Tensor,
        z_dst: Tensor,  # noqa: ARG002
    ) -> Tensor:
        rows = aggregate(z, self._aggregation(block))
        out: Tensor = rows + self.lin_l.bias if self.has_transform else self.lin_l(rows)
        if self.root_weight:
            out = out + self.lin_r(x_dst)
        return F.normalize(out, dim=-1) if self.normalize else out

    def _aggregation(self, block: Block) -> Aggregation:
        scale = sampling_scale(block) if self.aggr == "sum" else None
        return Aggregation(block, self.aggr, scale=scale)


class SAGE(GNN):
    """h_v ← lin_l(aggregate of h_u over the in-neighbours u) + lin_r(h_v).

    The paper's W · (h_v ‖ aggregate) is the same: W is lin_r's and lin_l's weights side by side.
    The mean-aggregator W · mean(h_u) without the node itself is `root_weight=False`. Of a sum,
    sampled in-neighbours give an unbiased estimate. Edge weights are not used.

    Args:
        in_channels: Width of the input rows.
        out_channels: Width of the outputs.
        aggregator: How to aggregate the neighbours' values.
        root_weight: Add the node's own value, through its own weights (lin_r).
        normalize: Scale each layer's output to length 1, but not the model's outputs.
        **scaffold: See `GNN`.
    """

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
        def make_conv(before: int, after: int, is_output: bool) -> BlockSAGEConv:
            return BlockSAGEConv(
                *(before, after),
                aggr=aggregator,
                root_weight=root_weight,
                normalize=normalize and not is_output,  # a single output would be its sign
            )

        super().__init__(make_conv, in_channels, out_channels, **scaffold)

    def pyg_model(self) -> PyGModel:
        first: Any = self.convs[0]
        last: Any = self.convs[-1]
        made = self.basic_gnn(
            "GraphSAGE", aggr=first.aggr, root_weight=first.root_weight, normalize=first.normalize
        )
        if last.normalize == first.normalize:
            return made
        return replace(made, changes=[f"model.convs[-1].normalize = {last.normalize}"])
