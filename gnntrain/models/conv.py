"""Models on blocks: convolutions of typed graphs, or of one relation, and stacks of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from inspect import get_annotations
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.operator import Sum
from gnntrain.compute.reference import exact_type
from gnntrain.data.graph import EDGE, NODE, EdgeType, GraphSchema, NodeType
from gnntrain.models import aggregate as agg
from gnntrain.models.dropout import Dropout
from gnntrain.models.dropout import dropout as drop
from gnntrain.models.embedding import EmbeddingTable, LearntRows
from gnntrain.models.plain import Layers, LayerTypes
from gnntrain.sampling.block import Block, BlockNeeds, Hop

Rows = Tensor | LazyFeatures
"""Rows of nodes, in memory or read in place."""

Blocks = Mapping[EdgeType, Block]
Sources = Mapping[EdgeType, Rows]
"""Of the edge types of a stage: their blocks, and the rows that they aggregate."""

SourceKey = NodeType | EdgeType
"""Which transformed rows an edge type aggregates: those of its source type, or its own."""


class HeteroConv:
    """A mixin: one layer's rows of each node type from those of its in-neighbours.

    Destinations of one type are computed in *stages*, whose rows are added: groups of edge types
    with a common softmax (HGT), or one edge type at a time. Of a graph of one type there is one
    stage of one block. A convolution of PyG computes on it with the parameters and options that it
    has; `conv(x, edge_index)` is still PyG's own message passing. A subclass must not have the name
    of its base: PyG looks up a class's source by name.

    Attributes:
        needs: The fields of a block that it reads; `rows`: whether it takes lazy features.
        is_joint: Whether all edge types into a node type are one stage.
        gives_layer: Whether `on_blocks` is the whole layer, in one operator, without `h_dst`.
    """

    needs: BlockNeeds = BlockNeeds(rows=True)
    is_joint: bool = False
    gives_layer: bool = False

    def columns(self, key: SourceKey) -> slice:  # noqa: ARG002
        """Which columns of the layer's input an edge type reads of its sources, or a node type of
        its destinations' own rows (`h_dst`)."""
        return slice(None)

    def stages(self, edge_types: Sequence[EdgeType]) -> Sequence[Sequence[EdgeType]]:
        """The edge types into one node type, by stage."""
        return [edge_types] if self.is_joint and edge_types else [(edge,) for edge in edge_types]

    def source(self, edge_type: EdgeType) -> SourceKey | None:
        """Which transformed rows the edge type aggregates: those of its source type (shared with
        others), its own, or None: the layer's input, see `columns`."""
        return edge_type

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

    def on_hop(self, h: Mapping[NodeType, Any], hop: Hop, of: Sequence[NodeType]) -> list[Tensor]:
        """The outputs for all destinations, of the types `of`, in a mini-batch, from the layer's
        input for the sources, `Rows` or `LearntRows` by the node types that it reads."""
        inputs = {t: r.table(r.nodes) if isinstance(r, LearntRows) else r for t, r in h.items()}
        transformed: dict[SourceKey, Tensor] = {}
        outputs = []
        for t in of:
            h_dst = first_rows(_columns(inputs[t], self.columns(t)), hop.num_dst[t])
            total = None
            for stage in self.stages([*hop.into(t)]):
                blocks = {edge: hop.edges[edge] for edge in stage}
                sources = {}
                for edge in stage:
                    key, rows = self.source(edge), _columns(inputs[edge[0]], self.columns(edge))
                    if key is not None:
                        if key not in transformed:
                            transformed[key] = self.transform(in_memory(rows), key)
                        rows = transformed[key]
                    sources[edge] = rows
                part = self.on_blocks(blocks, sources, h_dst)
                total = part if total is None else total + part
            outputs.append(self.finish(t, total, h_dst))
        return outputs


class LinearConv(HeteroConv):
    """A mixin: Σ_r W_r · (reduction of x_u over the in-neighbours u of relation r) + W_0 x_v + b.

    Attributes:
        types: The types and widths of the layer; of one relation `in_channels`, `out_channels`.
        reduce: The reduction. Of a sum, sampled in-neighbours give an unbiased estimate.
        is_one_relation: Whether it is a convolution of PyG, of nodes of one type.
        is_linear: Whether the layer is a linear map of the aggregates.
    """

    is_one_relation: ClassVar[bool] = False
    types: LayerTypes
    in_channels: int
    out_channels: int
    reduce: agg.Reduce
    needs = property(lambda self: BlockNeeds(rows=True, degree=self.reduce == "sum"))
    is_linear = property(lambda self: self.reduce != "max")
    gives_layer = property(
        lambda self: self.is_one_relation and self.is_linear and self.source(EDGE) is None
    )

    def relation_weight(self, edge_type: EdgeType) -> Tensor:
        """W_r, `[out, in]`, for the columns that the edge type reads."""
        raise NotImplementedError

    def root(self, node_type: NodeType) -> tuple[Any, Tensor]:
        """W_0, `[out, in]`, of one relation perhaps None, and b, `[out]`, for destinations of a
        type, for the columns that it reads."""
        raise NotImplementedError

    def total(self, block: Block, dtype: torch.dtype) -> tuple[Block, Sum]:
        """The sum or mean over a block of rows of a type, and the edges that it is over."""
        is_mean = self.reduce == "mean"
        scale = block.edges.shares(exact_type(dtype)) if is_mean else agg.sampling_scale(block)
        return block, Sum(scale=scale)

    def aggregated(self, source: Rows, block: Block) -> Tensor:
        """The aggregates of a block's in-neighbours, `[num_dst, F]`."""
        dtype = (source if isinstance(source, Tensor) else source.rows).dtype
        over = (block, None) if self.reduce == "max" else self.total(block, dtype)
        return agg.aggregate(source, *over)

    def on_hop(
        self,
        h: Mapping[NodeType, Any],
        hop: Hop,
        of: Sequence[NodeType],
        dropout: float | None = None,
    ) -> list[Tensor]:
        """See `HeteroConv`; with a `dropout` probability, of one relation, ReLU and dropout
        follow."""
        # The transform narrows the rows, but multiplies those of all sources, in memory.
        narrows = any(self.source(edge) for t in of for edge in hop.into(t))
        is_whole = sum(hop.num_src.values()) <= 2 * sum(hop.num_dst.values())
        is_read = any(isinstance(rows, LazyFeatures) for rows in h.values())
        if not self.is_linear or (narrows and is_whole and not is_read):
            outputs = super().on_hop(h, hop, of)
            return outputs if dropout is None else [drop(F.relu(rows), dropout) for rows in outputs]
        rows = [r.table.in_place(r.nodes) if isinstance(r, LearntRows) else r for r in h.values()]
        parts = [self._sum(t, hop.into(t), h, hop.num_dst[t]) for t in of]
        return [*agg.linear_sums(rows, parts, dropout)]

    def _sum(
        self, node_type: NodeType, blocks: Blocks, h: Mapping[NodeType, Any], num_dst: int
    ) -> agg.LinearSum:
        (weight, bias), inputs = self.root(node_type), [*h]
        own = agg.LinearTerm(inputs.index(node_type), weight, self.columns(node_type))
        terms = [] if weight is None else [own]
        for edge, block in blocks.items():
            weight, source = self.relation_weight(edge), inputs.index(edge[0])
            block, total = self.total(block, weight.dtype)
            kept, is_constant = None, isinstance(h[edge[0]], LazyFeatures)
            # Compiled code must not change anything outside.
            if is_constant and block.aggregates is not None and not torch.compiler.is_compiling():
                kept = block.aggregates.setdefault(self, {})
            terms.append(agg.LinearTerm(source, weight, self.columns(edge), block, total, kept))
        return agg.LinearSum(terms, num_dst, bias)

    def widths(self, edge_type: EdgeType) -> tuple[int, int]:
        """Of the rows that W_r multiplies, and of the products."""
        if self.is_one_relation:
            return self.in_channels, self.out_channels
        columns = range(self.types.in_channels[edge_type[0]])[self.columns(edge_type)]
        return len(columns), self.types.out_channels

    def source(self, edge_type: EdgeType) -> SourceKey | None:
        before, after = self.widths(edge_type)
        return edge_type if self.reduce != "max" and before > after else None

    def transform(self, x: Tensor, key: SourceKey) -> Tensor:
        return F.linear(x, self.relation_weight(key))  # type: ignore[arg-type]  # from `source`

    def on_blocks(self, blocks: Blocks, sources: Sources, h_dst: Tensor) -> Tensor:  # noqa: ARG002
        ((edge, block),) = blocks.items()
        if self.gives_layer:
            part = self._sum(edge[2], blocks, {edge[2]: sources[edge]}, block.num_dst)
            return agg.linear_sums([*sources.values()], [part])[0]
        rows = self.aggregated(sources[edge], block)
        return self.transform(rows, edge) if self.source(edge) is None else rows

    def finish(self, node_type: NodeType, total: Tensor | None, h_dst: Tensor) -> Tensor:
        if total is not None and self.gives_layer:
            return total
        weight, bias = self.root(node_type)
        own = bias if weight is None else F.linear(h_dst, weight, bias)
        return own if total is None else total + own


def in_memory(x: Any) -> Tensor:
    """`Rows`, or `LearntRows`, as a tensor."""
    if isinstance(x, LearntRows):
        return x.table(x.nodes)  # type: ignore[no-any-return]
    if isinstance(x, LazyFeatures):  # in autocast's type, to which a product would convert them
        return x.whole(agg.autocast_type(x.device, torch.float32))
    return x  # type: ignore[no-any-return]


def first_rows(rows: Rows, number: int) -> Tensor:
    """The rows `0 … number − 1`."""
    if isinstance(rows, LazyFeatures):
        return rows.read(0, number)
    return rows if number == len(rows) else rows[:number]  # the gradient of a slice is a copy


def _columns(rows: Rows, which: slice) -> Rows:
    if which == slice(None):
        return rows
    return rows.columns(which) if isinstance(rows, LazyFeatures) else rows[:, which]


class HeteroGNN(Layers):
    """The `Layers` of typed graphs, computed block by block; by `training.layerwise` for all nodes,
    layer by layer: `start`, then of each layer `on_blocks` by stage, `finish`, `update`, and of the
    target's rows `jk_update`, and `readout`.

    For the options that all models share see `Layers`. Those of a model are the annotated
    attributes of its class, with their defaults; its convolutions take them.

    Attributes:
        conv_class: Makes a `HeteroConv` of a layer's `LayerTypes` and the model's options.
        option_defaults: The model's options.
        config_defaults: Shared options with another default for this model.
        uses_graph: Whether the model reads edges.
        is_hetero: Whether it computes on the blocks of typed graphs.
        jk_channels: Width of the state of `jk_update`; 0: no state.
    """

    conv_class: ClassVar[Callable[..., Any]]
    option_defaults: ClassVar[dict[str, Any]] = {}
    config_defaults: ClassVar[dict[str, Any]] = {}
    uses_graph: ClassVar[bool] = True
    is_hetero: ClassVar[bool] = True
    make_dropout, make_table = Dropout, EmbeddingTable  # of `Layers`
    convs: Any  # of `HeteroConv`

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        kinds = get_annotations(cls).items()
        names = {name for name, kind in kinds if "ClassVar" not in str(kind)}
        values = {k: v for k, v in vars(cls).items() if k in names | cls.option_defaults.keys()}
        cls.option_defaults = cls.option_defaults | values

    def __init__(self, schema: GraphSchema, out_channels: int, **options: Any) -> None:
        self.options = self.option_defaults | options | {"is_typed": self.is_hetero}
        super().__init__(type(self).conv_class, schema, out_channels, **self.options)
        for name in self.option_defaults:
            setattr(self, name, self.options[name])
        self.jk_channels = {"none": 0, "cat": out_channels, "max": self.hidden_channels}[self.jk]

    def forward(  # type: ignore[override]  # on blocks
        self,
        x: Mapping[NodeType, Rows],
        n_id: Mapping[NodeType, Tensor],
        blocks: Sequence[Hop],
    ) -> Tensor:
        """The outputs of the seeds, the destinations of the target type in the last block: float
        `[num_seeds, out_channels]`.

        Args:
            x: Features of each node type that has some, `[blocks[0].num_src[t], num_features[t]]`.
            n_id: int64 by node type, ids within the type: which rows of the embedding tables. A
                type that is missing here has all its nodes in the batch, in order.
            blocks: One a layer, the innermost first.
        """
        target, state = self.schema.target, None
        h: dict[NodeType, Any] = {}
        for t in self.num_inputs:
            is_learnt = t in self.tables
            h[t] = LearntRows(self.tables[t], n_id.get(t)) if is_learnt else x[t]
            # The first layer may read in place what no step before it changes.
            if not self._is_unchanged(t) or (is_learnt and self.residuals):
                h[t] = self.start(t, in_memory(h[t]))
        for i, block in zip(range(self.num_layers), blocks, strict=True):
            h = self.layer(i, h, block)
            state = self.jk_update(i, state, h[target][: blocks[-1].num_dst[target]])
        outputs: Tensor = self.readout(state)
        return outputs

    def layer(self, i: int, h: Mapping[NodeType, Any], block: Hop) -> dict[NodeType, Tensor]:
        """Layer `i`'s output for the destinations of `block`, from the rows of its sources, `Rows`
        or `LearntRows`."""
        conv, node_types = self.convs[i], self.computed[i]
        outputs: dict[NodeType, Tensor] = {}
        is_relu = (self.act_and_norm["act"], self.act_and_norm["norm"]) == ("relu", None)
        is_relu = is_relu and not self.residuals
        if is_relu and isinstance(conv, LinearConv) and not (self.is_hetero or self.is_output(i)):
            # ReLU and dropout alone follow: the convolution's operator computes them, too.
            out = conv.on_hop(h, block, node_types, self.dropout.p if self.training else 0.0)
            return dict(zip(node_types, out, strict=True))
        for t, rows in zip(node_types, conv.on_hop(h, block, node_types), strict=True):
            h_dst = first_rows(h[t], len(rows)) if self.residuals else None
            outputs[t] = self.update(i, t, rows, h_dst)
        return outputs

    @property
    def needs(self) -> BlockNeeds:
        """The fields of a mini-batch that the model reads. Of one type, the first layer takes lazy
        features only if `start` would not change them."""
        needs: BlockNeeds = self.convs[0].needs
        return replace(needs, rows=needs.rows and (self.is_hetero or self._is_unchanged(NODE)))

    def _is_unchanged(self, node_type: NodeType) -> bool:
        """Whether `start` leaves the rows of a type as they are."""
        is_dropped = self.training and self.input_dropout.p > 0
        return not (is_dropped or node_type in self.projections)


class GNN(HeteroGNN):
    """A `HeteroGNN` of one type of nodes and edges.

    The convolutions are subclasses of PyG's, and the parameters have the names of PyG's `BasicGNN`
    (`convs.0.lin_l.weight`, `norms.0.…`, `lin.weight`).
    """

    is_hetero = False

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        schema = GraphSchema({NODE: 0}, {NODE: in_channels}, (EDGE,), NODE)
        schema = schema if self.uses_graph else replace(schema, edge_types=())
        super().__init__(schema, out_channels, project_inputs=False, **options)
        self.in_channels = in_channels

    def on(self, schema: GraphSchema) -> HeteroGNN:
        """The same model, of the same parameters, with the names of the graph's types."""
        model = copy(self)
        model.schema = schema if self.uses_graph else replace(schema, edge_types=())
        model.computed = [(schema.target,)] * self.num_layers
        model.num_inputs = {schema.target: self.in_channels}
        return model

    def forward(self, x: Rows, blocks: Sequence[Block]) -> Tensor:  # type: ignore[override]
        """The outputs of the last block's destinations, float `[num_dst, out_channels]`, from
        `x`, float `[blocks[0].num_src, in_channels]`, or lazy features; a block a layer, the
        innermost first: the destinations of each are the sources of the next (`dst_offset` 0)."""
        hops = [Hop({EDGE: b}, {NODE: b.num_dst}, {NODE: b.num_src}) for b in blocks]
        return super().forward({NODE: x}, {}, hops)
