"""GraphSAGE (Hamilton et al., 2017) with weights of its own for each relation of a typed graph."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from gnntrain.data.graph import EdgeType, NodeType
from gnntrain.models import plain
from gnntrain.models.conv import HeteroGNN, LinearConv


class BlockHeteroSAGEConv(plain.HeteroSAGELayer, LinearConv):
    def relation_weight(self, edge_type: EdgeType) -> Tensor:
        conv: Any = self.convs[edge_type]
        weight: Tensor = conv.lin_l.weight / self.divisors[edge_type[2]]
        return weight

    def root(self, node_type: NodeType) -> tuple[Any, Tensor]:
        if node_type in self.lins:
            linear: Any = self.lins[node_type]
            return linear.weight, linear.bias
        # The maps of all relations multiply the same row: one product with their sum.
        convs: list[Any] = [self.convs[edge_type] for edge_type in self.types.into(node_type)]
        parts = [conv.lin_r.weight for conv in convs], [conv.lin_l.bias for conv in convs]
        weight, bias = (sum(part) / self.divisors[node_type] for part in parts)
        return weight, bias


class HeteroSAGE(HeteroGNN):
    """h_v ← sum or mean over the relations r of lin_l_r(aggregate of h_u) + lin_r_r(h_v).

    The same as PyG's `HeteroConv` of a `SAGEConv` for each relation. Edge weights are not used.

    Args:
        aggregator: How to aggregate the neighbours' values of a relation.
        relation_aggregator: How to aggregate the relations.
    """

    conv_class = BlockHeteroSAGEConv

    aggregator: Literal["mean", "max", "sum"] = "mean"
    relation_aggregator: Literal["sum", "mean"] = "sum"
