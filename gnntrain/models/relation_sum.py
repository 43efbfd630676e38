"""What R-GCN and GraphSAGE of typed graphs share: the sum of a linear map for each relation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from gnntrain.data.graph import EdgeType, NodeType
from gnntrain.models.aggregate import Aggregation, Reduce, aggregate, sampling_scale
from gnntrain.models.embedding import LearntRows
from gnntrain.models.hetero import HeteroConv, InputRows, LayerTypes, Rows, SourceKey
from gnntrain.models.relation_linear import RelationLinear, RelationTerm, relation_linear
from gnntrain.sampling.block import Block, BlockNeeds, Hop


class Root(NamedTuple):
    """The linear map of a destination's own row.

    Attributes:
        weight: `[out, in]`.
        bias: `[out]`.
    """

    weight: Tensor
    bias: Tensor


class RelationSumConv(HeteroConv):
    """Σ_r W_r · (reduction of x_u over the in-neighbours u of relation r) + W_0 x_v + b.

    Args:
        types: The types and widths of the layer.
        reduce: The reduction. Of a sum, sampled in-neighbours give an unbiased estimate.
    """

    aggregates_input = True

    def __init__(self, types: LayerTypes, reduce: Reduce) -> None:
        super().__init__()
        self.types, self.reduce = types, reduce

    def relation_weight(self, edge_type: EdgeType) -> Tensor:
        """W_r, `[out, in]`, for the columns that the edge type reads."""
        raise NotImplementedError

    def root(self, node_type: NodeType) -> Root:
        """W_0 and b for destinations of a type, for the columns that it reads."""
        raise NotImplementedError

    def linear(self, edge_type: EdgeType, rows: Tensor) -> Tensor:
        """The products of W_r and the rows."""
        return F.linear(rows, self.relation_weight(edge_type))

    def forward(
        self, h: Mapping[NodeType, InputRows], block: Hop, node_types: Sequence[NodeType]
    ) -> dict[NodeType, Tensor]:
        narrows = any(map(self.source, self.types.edge_types))
        is_whole = sum(block.num_src.values()) <= 2 * sum(block.num_dst.values())
        if self.reduce == "max" or (narrows and is_whole):
            return super().forward(h, block, node_types)
        places = {t: place for place, t in enumerate(h)}
        parts = [self._part(t, block, places) for t in node_types]
        rows = [r.table.in_place(r.nodes) if isinstance(r, LearntRows) else r for r in h.values()]
        outputs = relation_linear(rows, parts)
        return dict(zip(node_types, outputs, strict=True))

    def _part(
        self, node_type: NodeType, block: Hop, places: Mapping[NodeType, int]
    ) -> RelationLinear:
        terms = [
            RelationTerm(
                places[edge_type[0]],
                self._aggregation(block.edges[edge_type]),
                self.relation_weight(edge_type),
                self.columns(edge_type),
            )
            for edge_type in self.types.into(node_type)
        ]
        num_dst, root = block.num_dst[node_type], self.root(node_type)
        return RelationLinear(terms, places[node_type], num_dst, *root, self.columns(node_type))

    def _aggregation(self, block: Block) -> Aggregation:
        scale = sampling_scale(block) if self.reduce == "sum" else None
        return Aggregation(block, self.reduce, scale=scale)

    def _width(self, edge_type: EdgeType) -> int:
        """The number of columns that the edge type reads."""
        return len(range(self.types.in_channels[edge_type[0]])[self.columns(edge_type)])

    @property
    def needs(self) -> BlockNeeds:
        return BlockNeeds(degree=self.reduce == "sum")

    def stages(self, node_type: NodeType) -> Sequence[Sequence[EdgeType]]:
        return [(edge_type,) for edge_type in self.types.into(node_type)]

    def source(self, edge_type: EdgeType) -> SourceKey | None:
        narrows = self._width(edge_type) > self.types.out_channels
        return edge_type if narrows and self.reduce != "max" else None

    def transform(self, key: SourceKey, rows: Tensor) -> Tensor:
        assert isinstance(key, tuple)
        return self.linear(key, rows)

    def message(
        self,
        blocks: Mapping[EdgeType, Block],
        sources: Mapping[EdgeType, Rows],
        h_dst: Tensor,  # noqa: ARG002
    ) -> Tensor:
        ((edge_type, block),) = blocks.items()
        rows = aggregate(sources[edge_type], self._aggregation(block))
        is_transformed = rows.shape[1] != self._width(edge_type)
        return rows if is_transformed else self.linear(edge_type, rows)

    def finish(self, node_type: NodeType, total: Tensor | None, h_dst: Tensor) -> Tensor:
        own = F.linear(h_dst, *self.root(node_type))
        return own if total is None else total + own
