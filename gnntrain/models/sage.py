"""GraphSAGE (Hamilton et al., 2017)."""

from __future__ import annotations

from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor

from gnntrain.data.graph import EdgeType, NodeType
from gnntrain.models import plain
from gnntrain.models.conv import GNN, LinearConv


class BlockSAGEConv(LinearConv, plain.SAGELayer):
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

    conv_class = BlockSAGEConv

    aggregator: Literal["mean", "max", "sum"] = "mean"
    root_weight: bool = True
    normalize: bool = False
