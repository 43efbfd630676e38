"""GraphSAGE (Hamilton et al., 2017)."""

from __future__ import annotations

from typing import Any, Literal

import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor

from gnntrain.data.graph import EdgeType, NodeType
from gnntrain.models.conv import GNN, LinearConv, PyGModel


class BlockSAGEConv(LinearConv, pyg.SAGEConv):  # type: ignore[misc]  # PyG's classes carry no types
    """lin_l(aggregate of x_u over the in-neighbours u) + lin_r(x_v)."""

    is_one_relation = True
    reduce = property(lambda self: self.aggr)
    is_linear = property(lambda self: self.aggr != "max" and not self.normalize)

    def relation_weight(self, edge_type: EdgeType) -> Tensor:  # noqa: ARG002
        weight: Tensor = self.lin_l.weight
        return weight

    def root(self, node_type: NodeType) -> tuple[Any, Tensor]:  # noqa: ARG002
        return (self.lin_r.weight if self.root_weight else None), self.lin_l.bias

    def finish(self, node_type: NodeType, total: Tensor | None, h_dst: Tensor) -> Tensor:
        out = super().finish(node_type, total, h_dst)
        return F.normalize(out, dim=-1) if self.normalize else out


class SAGE(GNN):
    """h_v ← lin_l(aggregate of h_u over the in-neighbours u) + lin_r(h_v).

    The paper's W · (h_v ‖ aggregate) is the same: W is lin_r's and lin_l's weights side by side.
    The mean-aggregator W · mean(h_u) without the node itself is `root_weight=False`. Of a sum,
    sampled in-neighbours give an unbiased estimate. Edge weights are not used.

    Args:
        aggregator: How to aggregate the neighbours' values.
        root_weight: Add the node's own value, through its own weights (lin_r).
        normalize: Scale each layer's output to length 1, but not the model's outputs.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        aggregator: Literal["mean", "max", "sum"] = "mean",
        root_weight: bool = True,
        normalize: bool = False,
        **scaffold: Any,
    ) -> None:
        def make_conv(before: int, after: int, is_output: bool) -> BlockSAGEConv:
            normalizes = normalize and not is_output  # a single output would be its sign
            shared = {"aggr": aggregator, "root_weight": root_weight}
            return BlockSAGEConv(before, after, normalize=normalizes, **shared)

        super().__init__(make_conv, in_channels, out_channels, **scaffold)

    def pyg_model(self) -> PyGModel:
        first: Any = self.convs[0]
        last: Any = self.convs[-1]
        is_other = last.normalize != first.normalize
        changes = ["model.convs[-1].normalize = False"] if is_other else []
        options = {name: getattr(first, name) for name in ("aggr", "root_weight", "normalize")}
        return self.basic_gnn("GraphSAGE", changes=changes, **options)
