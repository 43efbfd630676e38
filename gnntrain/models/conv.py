"""Convolutions on blocks: of typed graphs, and of one relation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import Linear
from torch_geometric.nn.module_dict import ModuleDict

from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.ops import Sum
from gnntrain.compute.reference import exact_type
from gnntrain.data.graph import EDGE, EdgeType, NodeType
from gnntrain.models.aggregate import (
    LinearSum,
    LinearTerm,
    Reduce,
    aggregate,
    autocast_type,
    linear_sums,
    sampling_scale,
)
from gnntrain.models.dropout import dropout as drop
from gnntrain.models.embedding import LearntRows
from gnntrain.models.plain import LayerTypes
from gnntrain.sampling.block import Block, BlockNeeds, Hop

Rows = Tensor | LazyFeatures
"""Rows of nodes, in memory or read in place."""

Blocks = Mapping[EdgeType, Block]
Sources = Mapping[EdgeType, Rows]
"""Of the edge types of a stage: their blocks, and the rows that they aggregate."""

InputRows = Rows | LearntRows
"""The rows that a layer of a mini-batch reads."""

SourceKey = NodeType | EdgeType
"""Which transformed rows an edge type aggregates: those of its source type, or its own."""

PyGLayer = tuple[Mapping[str, Any], Mapping[str, Tensor]]
"""The arguments and the weights of a `plain.TypedConv` with the same outputs as a `HeteroConv`."""


class HeteroConv:
    """A mixin: one layer's rows of each node type from those of its in-neighbours.

    Destinations of one type are computed in *stages*, whose rows are added: groups of edge types
    with a common softmax (HGT), or one edge type at a time.

    Attributes:
        needs: The fields of a block that it reads; `rows`: whether it takes lazy features.
        is_one_relation: Whether it is a convolution of PyG, of nodes of one type; the sources' rows
            then hold the destinations'.
        has_transform: Whether each edge type aggregates rows of its own, see `source`.
        is_joint: Whether all edge types into a node type are one stage.
        is_linear: Whether it is a linear map of aggregates: `on_blocks` takes the layer's input
            also where `source` names transformed rows, and multiplies after the aggregation.
        gives_layer: Whether `on_blocks` is the whole layer, in one operator, without `h_dst`.
    """

    needs: BlockNeeds = BlockNeeds(rows=True)
    is_one_relation: ClassVar[bool] = False
    has_transform: ClassVar[bool] = False
    is_joint: bool = False
    is_linear: bool = False
    gives_layer: bool = False

    def columns(self, key: SourceKey) -> slice:  # noqa: ARG002
        """Which columns of the layer's input an edge type reads of its sources, or a node type of
        its destinations' own rows (`h_dst`)."""
        return slice(None)

    def stages(self, edge_types: Sequence[EdgeType]) -> Sequence[Sequence[EdgeType]]:
        """The edge types into one node type, by stage."""
        if self.is_joint and edge_types:
            return [edge_types]
        return [(edge_type,) for edge_type in edge_types]

    def source(self, edge_type: EdgeType) -> SourceKey | None:
        """Which transformed rows the edge type aggregates: those of its source type (shared with
        others), its own, or None: the layer's input, see `columns`."""
        return edge_type if self.has_transform else None

    def transform(self, x: Tensor, key: SourceKey) -> Tensor:
        """Transformed rows of source nodes: `[n, F]` → `[n, …]`; `key` is from `source`, and the
        rows have its `columns`."""
        raise NotImplementedError

    def on_blocks(self, blocks: Blocks, sources: Sources, h_dst: Tensor) -> Tensor:
        """The rows of one stage for some destinations, `[num_dst, …]`: from the blocks of its edge
        types, the rows that each aggregates (see `source`), and the destinations' own rows."""
        raise NotImplementedError

    def finish(self, node_type: NodeType, total: Tensor | None, h_dst: Tensor) -> Tensor:  # noqa: ARG002
        """The convolution's output for destinations of one type, from the sum of the stages (None:
        no edge leads to this type) and their own rows."""
        assert total is not None
        return total

    def on_hop(
        self, h: Mapping[NodeType, InputRows], hop: Hop, node_types: Sequence[NodeType]
    ) -> dict[NodeType, Tensor]:
        """The outputs for all destinations of some types of a mini-batch, from the layer's input
        for the sources, by the node types that it reads."""
        inputs = {t: r.table(r.nodes) if isinstance(r, LearntRows) else r for t, r in h.items()}
        transformed: dict[SourceKey, Tensor] = {}
        out = {}
        for t in node_types:
            h_dst = first_rows(_columns(inputs[t], self.columns(t)), hop.num_dst[t])
            total = None
            for stage in self.stages([*hop.into(t)]):
                sources = {}
                for edge in stage:
                    block, key = hop.edges[edge], self.source(edge)
                    sources[edge] = rows = _columns(inputs[edge[0]], self.columns(edge))
                    # The transform narrows the rows, but multiplies those of all sources.
                    multiplies_last = self.is_linear and block.num_src > 2 * block.num_dst
                    if key is not None and not multiplies_last:
                        if key not in transformed:
                            transformed[key] = self.transform(in_memory(rows), key)
                        sources[edge] = transformed[key]
                part = self.on_blocks({edge: hop.edges[edge] for edge in stage}, sources, h_dst)
                total = part if total is None else total + part
            out[t] = self.finish(t, total, h_dst)
        return out

    def pyg_layer(self) -> PyGLayer:
        """The same layer by PyG, for `gnntrain export`; UserError: it has none."""
        raise NotImplementedError


class BlockConv(HeteroConv):
    """A mixin: computes a convolution of PyG, with its parameters and options, on the blocks of one
    relation.

    `conv(x, edge_index)` is still PyG's own message passing. On blocks it has two stages:
    `transform`, by row (unless `has_transform` is False), and `propagate_block`, over edges. A
    subclass must not have the name of its base: PyG looks up a class's source by name.
    """

    needs = BlockNeeds()
    is_one_relation = True

    def propagate_block(self, block: Block, z: Rows, x_dst: Tensor) -> Tensor:
        """Aggregate over a block's edges, and add the destination's own term: `[num_dst, width of
        the layer]` from `z`, `[num_src, …]`, of `transform` (without one the layer's input, perhaps
        lazy), and `x_dst`, `[num_dst, …]`, the layer's input for the destinations."""
        raise NotImplementedError

    def on_blocks(self, blocks: Blocks, sources: Sources, h_dst: Tensor) -> Tensor:
        (block,), (z,) = blocks.values(), sources.values()
        return self.propagate_block(block, z, h_dst)


Root = tuple[Any, Tensor]
"""The linear map of a destination's own row: weight `[out, in]` (of one relation perhaps None) and
bias `[out]`."""


class LinearConv(HeteroConv):
    """A mixin: Σ_r W_r · (reduction of x_u over the in-neighbours u of relation r) + W_0 x_v + b.

    Attributes:
        types: The types and widths of the layer; of one relation `in_channels`, `out_channels`.
        reduce: The reduction. Of a sum, sampled in-neighbours give an unbiased estimate.
    """

    types: LayerTypes
    in_channels: int
    out_channels: int
    reduce: Reduce
    needs = property(lambda self: BlockNeeds(rows=True, degree=self.reduce == "sum"))
    is_linear = property(lambda self: self.reduce != "max")
    gives_layer = property(
        lambda self: self.is_one_relation and self.is_linear and self.source(EDGE) is None
    )

    def relation_weight(self, edge_type: EdgeType) -> Tensor:
        """W_r, `[out, in]`, for the columns that the edge type reads."""
        raise NotImplementedError

    def root(self, node_type: NodeType) -> Root:
        """W_0 and b for destinations of a type, for the columns that it reads."""
        raise NotImplementedError

    def widths(self, edge_type: EdgeType) -> tuple[int, int]:
        """Of the rows that W_r multiplies, and of the products."""
        if self.is_one_relation:
            return self.in_channels, self.out_channels
        columns = range(self.types.in_channels[edge_type[0]])[self.columns(edge_type)]
        return len(columns), self.types.out_channels

    def total(self, block: Block, dtype: torch.dtype) -> Sum:
        """The sum or mean over a block of rows of a type."""
        is_mean = self.reduce == "mean"
        scale = block.edges.shares(exact_type(dtype)) if is_mean else sampling_scale(block)
        return Sum(*block.edges, scale=scale)

    def aggregated(self, source: Rows, block: Block) -> Tensor:
        """The aggregates of a block's in-neighbours, `[num_dst, F]`."""
        dtype = (source if isinstance(source, Tensor) else source.rows).dtype
        return aggregate(source, block, None if self.reduce == "max" else self.total(block, dtype))

    def on_hop(
        self,
        h: Mapping[NodeType, InputRows],
        hop: Hop,
        node_types: Sequence[NodeType],
        dropout: float | None = None,
    ) -> dict[NodeType, Tensor]:
        """See `HeteroConv`; with a `dropout` probability ReLU and dropout follow."""
        multiplies_last, is_single = self.is_linear, self.is_one_relation
        edges = [edge for t in node_types for edge in hop.into(t)]
        if multiplies_last and any(map(self.source, edges)):  # the transform narrows the rows
            is_read = is_single and any(isinstance(rows, LazyFeatures) for rows in h.values())
            is_whole = sum(hop.num_src.values()) <= 2 * sum(hop.num_dst.values())
            multiplies_last = is_read or not is_whole
        if multiplies_last:
            rows = [
                r.table.in_place(r.nodes) if isinstance(r, LearntRows) else r for r in h.values()
            ]
            parts = [self._part(t, hop.into(t), [*h], hop.num_dst[t]) for t in node_types]
            sums = linear_sums(rows, parts, dropout if is_single else None)
            outputs = dict(zip(node_types, sums, strict=True))
            if is_single:
                return outputs
        else:
            outputs = super().on_hop(h, hop, node_types)
        if dropout is None:
            return outputs
        return {t: drop(F.relu(rows), dropout) for t, rows in outputs.items()}

    def _part(
        self, node_type: NodeType, blocks: Blocks, inputs: Sequence[NodeType], num_dst: int
    ) -> LinearSum:
        weight, bias = self.root(node_type)
        own = LinearTerm(inputs.index(node_type), weight, self.columns(node_type))
        terms = [] if weight is None else [own]
        for edge, block in blocks.items():
            weight, source = self.relation_weight(edge), inputs.index(edge[0])
            total = self.total(block, weight.dtype)
            terms.append(LinearTerm(source, weight, self.columns(edge), block, total))
        return LinearSum(terms, num_dst, bias)

    def source(self, edge_type: EdgeType) -> SourceKey | None:
        before, after = self.widths(edge_type)
        return edge_type if self.reduce != "max" and before > after else None

    def transform(self, x: Tensor, key: SourceKey) -> Tensor:
        assert isinstance(key, tuple)  # from `source`
        return F.linear(x, self.relation_weight(key))

    def on_blocks(self, blocks: Blocks, sources: Sources, h_dst: Tensor) -> Tensor:  # noqa: ARG002
        ((edge_type, block),) = blocks.items()
        if self.gives_layer:
            node_type = edge_type[2]
            part = self._part(node_type, blocks, [node_type], block.num_dst)
            return linear_sums([*sources.values()], [part])[0]
        rows = self.aggregated(sources[edge_type], block)
        is_transformed = rows.shape[1] != self.widths(edge_type)[0]
        return rows if is_transformed else self.transform(rows, edge_type)

    def finish(self, node_type: NodeType, total: Tensor | None, h_dst: Tensor) -> Tensor:
        if total is not None and self.gives_layer:
            return total
        weight, bias = self.root(node_type)
        own = bias if weight is None else F.linear(h_dst, weight, bias)
        return own if total is None else total + own

    def pyg_layer(self) -> PyGLayer:
        widths, options, weights, own = self.types.in_channels, {}, {}, {}

        def whole(key: SourceKey, weight: Tensor) -> Tensor:
            """For all columns of the input: 0 for those that are not read."""
            width = widths[key if isinstance(key, str) else key[0]]
            start, stop, _ = self.columns(key).indices(width)
            return F.pad(weight, (start, width - stop))

        fixed = {"aggr": self.reduce, "root_weight": False, "bias": False}
        for edge in self.types.edge_types:
            before, after = (widths[edge[0]], widths[edge[2]]), self.types.out_channels
            options[edge] = {"in_channels": before, "out_channels": after, **fixed}
            name = f"convs.{ModuleDict.to_internal_key(edge)}.lin_l.weight"
            weights[name] = whole(edge, self.relation_weight(edge))
        for t in self.types.node_types:
            weight, bias = self.root(t)
            own[t] = whole(t, weight), bias
        return pyg_layer("SAGEConv", options, weights, own, aggr="sum")


def pyg_layer(
    conv: str,
    options: Mapping[Any, Any],
    weights: Mapping[str, Tensor],
    own: Mapping[NodeType, tuple[Tensor, Tensor]],
    **more: Any,
) -> PyGLayer:
    """A `TypedConv` of PyG's `conv`: its `options` and weights, and weight and bias of the linear
    maps of nodes' own rows."""
    named = {f"conv.{name}": weight for name, weight in weights.items()}
    for t, pair in own.items():
        key = ModuleDict.to_internal_key(t)
        named |= {f"own.{key}.{n}": w for n, w in zip(("weight", "bias"), pair, strict=True)}
    widths = {t: (weight.shape[1], weight.shape[0]) for t, (weight, _) in own.items()}
    return {"conv": conv, "options": dict(options), "own": widths, **more}, named


def glorot_linear(before: int, after: int) -> nn.Module:
    """A linear layer with Glorot-uniform weights and a bias of zeros."""
    made: nn.Module = Linear(before, after, weight_initializer="glorot", bias_initializer="zeros")
    return made


def in_memory(x: Rows) -> Tensor:
    """The rows as a tensor."""
    if isinstance(x, LazyFeatures):  # in autocast's type, to which a product would convert them
        return x.whole(autocast_type(x.device, torch.float32))
    return x


def first_rows(rows: Rows, number: int) -> Tensor:
    """The rows `0 … number − 1`."""
    if isinstance(rows, LazyFeatures):
        return rows.read(0, number)
    return rows if number == len(rows) else rows[:number]  # the gradient of a slice is a copy


def _columns(rows: Rows, which: slice) -> Rows:
    if which == slice(None):
        return rows
    return rows.columns(which) if isinstance(rows, LazyFeatures) else rows[:, which]
