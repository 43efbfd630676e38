"""GraphSAGE (Hamilton et al., 2017) with weights of its own for each relation of a typed graph."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.nn.module_dict import ModuleDict

from gnntrain.data.graph import EdgeType, GraphSchema, NodeType
from gnntrain.models.aggregate import Reduce
from gnntrain.models.conv import HeteroGNN, LinearConv
from gnntrain.models.plain import LayerTypes


class BlockHeteroSAGEConv(LinearConv, nn.Module):
    """Sum or mean over the relations r of lin_l_r(aggregate of x_u) + lin_r_r(x_v).

    The parameters are those of PyG's `HeteroConv` of a `SAGEConv` for each relation. A node type
    without edges into it has a linear layer. `is_mean`: the relations are averaged, else summed.
    """

    def __init__(self, types: LayerTypes, aggregator: Reduce, is_mean: bool) -> None:
        super().__init__()
        self.types, self.reduce, self.is_mean = types, aggregator, is_mean
        widths, after, self.convs = types.in_channels, types.out_channels, ModuleDict()
        for edge in types.edge_types:
            both = widths[edge[0]], widths[edge[2]]
            self.convs[edge] = pyg.SAGEConv(both, after, aggr=aggregator)
        alone = [t for t in types.node_types if not types.into(t)]
        self.lins = ModuleDict({t: nn.Linear(widths[t], after) for t in alone})

    def relation_weight(self, edge_type: EdgeType) -> Tensor:
        return self._shared(edge_type[2], self.convs[edge_type].lin_l.weight)

    def root(self, node_type: NodeType) -> tuple[Any, Tensor]:
        if node_type in self.lins:
            linear: Any = self.lins[node_type]
            return linear.weight, linear.bias
        # The maps of all relations multiply the same row: one product with their sum.
        convs: list[Any] = [self.convs[edge_type] for edge_type in self.types.into(node_type)]
        parts = [conv.lin_r.weight for conv in convs], [conv.lin_l.bias for conv in convs]
        weight, bias = (self._shared(node_type, sum(part)) for part in parts)
        return weight, bias

    def _shared(self, node_type: NodeType, weight: Any) -> Tensor:
        """Divided by the number of relations, if they are averaged."""
        shared: Tensor = weight / (len(self.types.into(node_type)) if self.is_mean else 1)
        return shared


class HeteroSAGE(HeteroGNN):
    """h_v ← sum or mean over the relations r of lin_l_r(aggregate of h_u) + lin_r_r(h_v).

    The same as PyG's `HeteroConv` of a `SAGEConv` for each relation. Edge weights are not used.

    Args:
        aggregator: How to aggregate the neighbours' values of a relation.
        relation_aggregator: How to aggregate the relations.
    """

    is_hetero = True

    def __init__(
        self,
        schema: GraphSchema,
        out_channels: int,
        *,
        aggregator: Literal["mean", "max", "sum"] = "mean",
        relation_aggregator: Literal["sum", "mean"] = "sum",
        **scaffold: Any,
    ) -> None:
        is_mean = relation_aggregator == "mean"
        make = partial(BlockHeteroSAGEConv, aggregator=aggregator, is_mean=is_mean)
        super().__init__(make, schema, out_channels, **scaffold)
