"""What all models of typed graphs share: the order of their layers, and the stages of a layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypedDict

import torch
from torch import Tensor, nn
from torch_geometric.nn import Linear
from torch_geometric.nn.module_dict import ModuleDict

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import EdgeType, GraphSchema, NodeType
from gnntrain.models.base import (
    Activation,
    Norm,
    act_and_norm,
    in_memory,
    make_activation,
    make_norm,
)
from gnntrain.models.dropout import Dropout
from gnntrain.models.embedding import EmbeddingTable, LearntRows
from gnntrain.models.pyg_hetero import PyGLayer, typed_pyg_model
from gnntrain.models.pyg_model import PyGModel
from gnntrain.sampling.block import Block, BlockNeeds, Hop

Rows = Tensor | LazyFeatures
"""Rows of nodes, in memory or read in place."""

InputRows = Rows | LearntRows
"""The rows that a layer of a mini-batch reads."""

SourceKey = NodeType | EdgeType
"""Which transformed rows an edge type aggregates: those of its source type, or its own."""


@dataclass(frozen=True)
class LayerTypes:
    """The types and widths of one layer.

    Attributes:
        in_channels: Width of the layer's input, by the node types that it reads.
        out_channels: Width of its output.
        node_types: The node types whose rows it computes.
        edge_types: The edge types into these, in the graph's order.
        is_output: Whether it gives the model's outputs.
        one_hot: The node types whose input is one-hot. Such an input times a matrix is a row of the
            matrix: the node's row in the table holds, side by side, those of all the matrices.
    """

    in_channels: Mapping[NodeType, int]
    out_channels: int
    node_types: tuple[NodeType, ...]
    edge_types: tuple[EdgeType, ...]
    is_output: bool
    one_hot: tuple[NodeType, ...] = ()

    def into(self, node_type: NodeType) -> tuple[EdgeType, ...]:
        """The edge types whose destinations are of `node_type`."""
        return tuple(edge for edge in self.edge_types if edge[2] == node_type)


class HeteroConv(nn.Module):
    """One layer's convolution: the rows of each node type from those of its in-neighbours.

    Destinations of one type are computed in *stages*. A stage is a group of edge types whose
    messages are computed together: all of them where a softmax covers all in-neighbours (HGT), one
    edge type at a time where the messages need source rows of its own (R-GAT). The rows of the
    stages are added.

    Attributes:
        aggregates_input: Whether `message` takes the layer's input also where `source` names
            transformed rows: the product then follows a linear aggregation.
        takes_lazy: Whether `message` takes lazy rows.
        sources_hold_dst: Whether `message` reads the destinations' rows among those of the sources.
        reads_own: Whether `message` or `finish` reads `h_dst`.
    """

    aggregates_input: ClassVar[bool] = False
    takes_lazy: bool = True
    sources_hold_dst: bool = False
    reads_own: bool = True

    @property
    def needs(self) -> BlockNeeds:
        """The fields of a block that it reads."""
        return BlockNeeds()

    def columns(self, key: SourceKey) -> slice:
        """Which columns of the layer's input an edge type reads of its sources, or a node type of
        its destinations' own rows (`h_dst`)."""
        del key
        return slice(None)

    def stages(self, node_type: NodeType) -> Sequence[Sequence[EdgeType]]:
        """The edge types into `node_type` by stage; none without edges into it."""
        raise NotImplementedError

    def source(self, edge_type: EdgeType) -> SourceKey | None:
        """Which transformed rows the edge type aggregates: those of its source type (shared with
        others), its own, or None: the layer's input, see `columns`."""
        raise NotImplementedError

    def transform(self, key: SourceKey, rows: Tensor) -> Tensor:
        """Transformed rows of source nodes: `[n, F]` → `[n, …]`; `key` is from `source`, and the
        rows have its `columns`."""
        raise NotImplementedError

    def message(
        self, blocks: Mapping[EdgeType, Block], sources: Mapping[EdgeType, Rows], h_dst: Tensor
    ) -> Tensor:
        """The rows of one stage for some destinations.

        Args:
            blocks: The in-edges, by the edge types of the stage.
            sources: The rows that each edge type aggregates, see `source`.
            h_dst: `[num_dst, …]`, the layer's input for the destinations, see `columns`.

        Returns:
            `[num_dst, …]`, to be added to those of other stages.
        """
        raise NotImplementedError

    def finish(self, node_type: NodeType, total: Tensor | None, h_dst: Tensor) -> Tensor:
        """The convolution's output for destinations of one type.

        Args:
            node_type: Their type.
            total: The sum of the stages; None: no edge leads to this type.
            h_dst: See `message`.
        """
        raise NotImplementedError

    def forward(
        self, h: Mapping[NodeType, InputRows], block: Hop, node_types: Sequence[NodeType]
    ) -> dict[NodeType, Tensor]:
        """The outputs for all destinations of some types of a mini-batch.

        Args:
            h: The layer's input for the sources, by the node types that it reads.
            block: The destinations of each type are its first sources.
            node_types: The types.
        """
        given = {t: r.table(r.nodes) if isinstance(r, LearntRows) else r for t, r in h.items()}
        transformed: dict[SourceKey, Tensor] = {}

        def source(edge_type: EdgeType) -> Rows:
            rows = _columns(given[edge_type[0]], self.columns(edge_type))
            edges, key = block.edges[edge_type], self.source(edge_type)
            # The transform narrows the rows, but multiplies those of all sources.
            if key is None or (self.aggregates_input and edges.num_src > 2 * edges.num_dst):
                return rows
            if key not in transformed:
                transformed[key] = self.transform(key, in_memory(rows))
            return transformed[key]

        out = {}
        for t in node_types:
            own = _columns(given[t], self.columns(t))
            h_dst, total = _first_rows(own, block.num_dst[t]), None
            for stage in self.stages(t):
                blocks = {edge: block.edges[edge] for edge in stage}
                part = self.message(blocks, {edge: source(edge) for edge in stage}, h_dst)
                total = part if total is None else total + part
            out[t] = self.finish(t, total, h_dst)
        return out

    def pyg_layer(self) -> PyGLayer:
        """The same layer by PyG, for `gnntrain export`.

        Raises:
            UserError: PyG has no such layer.
        """
        raise NotImplementedError


MakeHeteroConv = Callable[[LayerTypes], HeteroConv]


class HeteroScaffold(TypedDict, total=False):
    """The options that every model of typed graphs takes, see `HeteroGNN`."""

    hidden_channels: int
    num_layers: int
    dropout: float
    input_dropout: float
    norm: Norm
    activation: Activation
    residual: bool
    project_inputs: bool
    embedding_channels: int | None


class HeteroGNN(nn.Module):
    """A stack of convolutions of typed graphs, computed block by block or layer by layer.

    Layer i computes the rows of the node types that reach the target type in the layers after it
    (`node_types_after(i)`): a convolution (`HeteroConv`), then norm, activation, residual and
    dropout (`update`), each with the parameters of the node type. There are parameters for these
    types alone, so that every step uses all of them. Exact inference for all nodes of all types is

        for each node type t in node_types_after(-1):              # by chunks of rows
            h[t] = start(t, features of t, or the rows of tables[t])
        for each layer i and its convolution:
            for each node type t in node_types_after(i):
                own = h[t][:, columns(t)]
                for each stage and its edge types, each with a source z[e]:   # `HeteroConv.source`
                    for each range [a, b) of destinations:
                        total[a:b] += message(blocks, z, own[a:b])
                new[t] = update(i, t, finish(t, total, own), h[t])
            h = new
        outputs = h[target]

    Args:
        make_conv: Makes a layer's convolution.
        schema: The types of the graph.
        out_channels: Width of the outputs (logits).
        hidden_channels: Width between layers.
        num_layers: Number of convolutions, at least 1.
        dropout: Probability, after every layer but the last.
        input_dropout: Probability, on features and rows of embedding tables.
        norm: "batch" or "layer" normalisation after every convolution but the last.
        activation: Applied after the normalisation.
        residual: Add a layer's input to its output after the activation, through a linear map
            where the widths differ.
        project_inputs: Map the features of each type to `hidden_channels` by a linear layer and
            the activation, before the first convolution; else that takes the widths as they are.
        embedding_channels: Width of the embedding tables; None: `hidden_channels`.
        one_hot: The first layer's input of types without features is one-hot, see `LayerTypes`;
            gives the number of matrices for a number of edge types out of a type. None: their input
            are embeddings.

    Attributes:
        config_defaults, uses_graph: See `GNN`.
        is_hetero: Likewise; a model's own class repeats it, where it is read without an import.
        tables: The embedding table of each type without features.
        num_inputs: By node type, the width of the rows that `start` takes.
    """

    config_defaults: ClassVar[HeteroScaffold] = {}
    uses_graph: ClassVar[bool] = True
    is_hetero: ClassVar[bool] = True

    def __init__(
        self,
        make_conv: MakeHeteroConv,
        schema: GraphSchema,
        out_channels: int,
        *,
        hidden_channels: int = 128,
        num_layers: int = 2,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        norm: Norm = "none",
        activation: Activation = "relu",
        residual: bool = False,
        project_inputs: bool = True,
        embedding_channels: int | None = None,
        one_hot: Callable[[int], int] | None = None,
    ) -> None:
        super().__init__()
        self.schema, self.out_channels = schema, out_channels
        self.hidden_channels, self.num_layers = hidden_channels, num_layers
        self._needed = _needed_types(schema, num_layers)
        self.num_inputs: dict[NodeType, int] = {}
        self.one_hot = one_hot is not None
        self.tables, self.projections = ModuleDict(), ModuleDict()
        for node_type in self.node_types_after(-1):
            width, parts = schema.num_features[node_type], 1
            has_features = width > 0
            if one_hot is not None and not has_features:
                parts = self._num_matrices(node_type, one_hot)
                width = parts * (hidden_channels if num_layers > 1 else out_channels)
            elif not has_features:
                width = embedding_channels or hidden_channels
            self.num_inputs[node_type] = width
            if not has_features:
                table = EmbeddingTable(schema.num_nodes[node_type], width, parts)
                self.tables[node_type] = table
            is_fit = not has_features and (self.one_hot or width == hidden_channels)
            if project_inputs and not is_fit:
                self.projections[node_type] = nn.Linear(width, hidden_channels)
        self.convs, self.norms, self.residuals = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for i in range(num_layers):
            types = self._layer_types(i)
            self.convs.append(make_conv(types))
            if not types.is_output:
                norms = {t: make_norm(norm, hidden_channels) for t in types.node_types}
                self.norms.append(ModuleDict(norms))
            if residual:
                self.residuals.append(ModuleDict(_residuals(types)))
        self.act = make_activation(activation)
        self.act_and_norm = act_and_norm(activation, norm)
        self.dropout, self.input_dropout = Dropout(dropout), Dropout(input_dropout)

    def forward(
        self,
        x: Mapping[NodeType, Rows],
        n_id: Mapping[NodeType, Tensor],
        blocks: Sequence[Hop],
    ) -> Tensor:
        """Compute the outputs of the seeds, the destinations of the target type in the last block.

        Args:
            x: Features of each node type that has some, `[blocks[0].num_src[t], num_features[t]]`.
            n_id: int64 by node type, ids within the type: which rows of the embedding tables. A
                type that is missing here has all its nodes in the batch, in order.
            blocks: One a layer, the innermost first.

        Returns:
            float `[num_seeds, out_channels]`.
        """
        if len(blocks) != self.num_layers:
            raise ValueError(f"{len(blocks)} blocks for {self.num_layers} layers")
        h: Mapping[NodeType, InputRows] = {
            t: self._input(t, x, n_id.get(t)) for t in self.node_types_after(-1)
        }
        for i, block in enumerate(blocks):
            h = out = self.layer(i, h, block)
        return out[self.schema.target]

    @property
    def needs(self) -> BlockNeeds:
        """The fields of a mini-batch that the model reads."""
        needs = [self.conv(i).needs for i in range(self.num_layers)]
        return BlockNeeds(rows=True, degree=any(need.degree for need in needs))

    def node_types_after(self, i: int) -> tuple[NodeType, ...]:
        """The node types whose rows are needed after layer `i`; of `i` −1, as inputs."""
        return self._needed[i + 1]

    def is_projected(self, node_type: NodeType) -> bool:
        """Whether `start` maps the rows of a type to another width."""
        return node_type in self.projections

    def start(self, node_type: NodeType, rows: Tensor) -> Tensor:
        """The first layer's input for nodes of one type, of their features or table's rows."""
        if not torch.is_autocast_enabled(rows.device.type):
            rows = rows.to(next(self.parameters()).dtype)
        rows = self.input_dropout(rows)
        if self.is_projected(node_type):
            rows = self.act(self.projections[node_type](rows))
        return rows

    def layer(self, i: int, h: Mapping[NodeType, InputRows], block: Hop) -> dict[NodeType, Tensor]:
        """Layer `i`'s output for the destinations of `block`.

        Args:
            i: The layer.
            h: The rows of the sources, by the node types that the layer reads.
            block: The destinations of each type are its first sources.
        """
        outputs = self.conv(i)(h, block, self.node_types_after(i))
        return {t: self.update(i, t, out, h[t]) for t, out in outputs.items()}

    def conv(self, i: int) -> HeteroConv:
        """Layer `i`'s convolution."""
        conv = self.convs[i]
        assert isinstance(conv, HeteroConv)
        return conv

    def update(self, i: int, node_type: NodeType, out: Tensor, h_dst: InputRows) -> Tensor:
        """Norm, activation, residual and dropout: layer `i`'s output.

        Args:
            i: The layer.
            node_type: The type of the destinations.
            out: Output of its convolution.
            h_dst: The layer's input for the destinations, perhaps for further nodes after them.
        """
        is_output = i == self.num_layers - 1
        if not is_output:
            out = self.act(_by_type(self.norms[i], node_type)(out))
        if self.residuals and not self._is_one_hot(i, node_type):
            assert not isinstance(h_dst, LearntRows)  # see `_input`
            own = _first_rows(h_dst, len(out))
            out = out + _by_type(self.residuals[i], node_type)(own)
        return out if is_output else self.dropout(out)

    @property
    def embedding_channels(self) -> int:
        """Width of the target's rows that enter the last layer."""
        return self._layer_types(self.num_layers - 1).in_channels[self.schema.target]

    def pyg_model(self) -> PyGModel | None:
        """See `GNN.pyg_model`; a subclass may call `typed_pyg_model`."""
        return None

    @torch.no_grad()
    def typed_pyg_model(self) -> PyGModel:
        """The model as plain PyG, by `HeteroConv.pyg_layer`."""
        return typed_pyg_model(self)

    def _input(
        self, node_type: NodeType, x: Mapping[NodeType, Rows], nodes: Tensor | None
    ) -> InputRows:
        """The first layer's input for nodes of one type; not copied if `start` does not change it
        and no residual reads it."""
        is_changed = self.is_projected(node_type) or (self.training and self.input_dropout.p > 0)
        if node_type in self.tables:
            table = self.tables[node_type]
            unread = not (is_changed or self.residuals)
            return LearntRows(table, nodes) if unread else self.start(node_type, table(nodes))
        rows, is_exact = x[node_type], next(self.parameters()).dtype == torch.float32
        if isinstance(rows, LazyFeatures) and is_exact and not is_changed:
            return rows
        return self.start(node_type, in_memory(rows))

    def _layer_types(self, i: int) -> LayerTypes:
        node_types, is_output = self.node_types_after(i), i == self.num_layers - 1
        widths = {
            t: self.num_inputs[t] if i == 0 and not self.is_projected(t) else self.hidden_channels
            for t in self.node_types_after(i - 1)
        }
        edge_types = tuple(edge for edge in self.schema.edge_types if edge[2] in node_types)
        out_channels = self.out_channels if is_output else self.hidden_channels
        one_hot = tuple(t for t in widths if self._is_one_hot(i, t))
        return LayerTypes(widths, out_channels, node_types, edge_types, is_output, one_hot)

    def _is_one_hot(self, i: int, node_type: NodeType) -> bool:
        """Whether layer `i`'s input of a type is one-hot, see `LayerTypes`."""
        return i == 0 and self.one_hot and node_type in self.tables

    def _num_matrices(self, node_type: NodeType, one_hot: Callable[[int], int]) -> int:
        """How many matrices of the first layer a one-hot input is multiplied by."""
        after = self.node_types_after(0)
        edges = [e for e in self.schema.edge_types if e[0] == node_type and e[2] in after]
        return one_hot(len(edges)) + (node_type in after)


def glorot_linear(before: int, after: int) -> nn.Module:
    """A linear layer with Glorot-uniform weights and a bias of zeros."""
    made: nn.Module = Linear(before, after, weight_initializer="glorot", bias_initializer="zeros")
    return made


def _needed_types(schema: GraphSchema, num_layers: int) -> list[tuple[NodeType, ...]]:
    """The node types that layers read: of the inputs, then after each layer."""
    needed = [{schema.target}]
    for _ in range(num_layers):
        after = needed[0]
        needed.insert(0, after | {edge[0] for edge in schema.edge_types if edge[2] in after})
    return [tuple(t for t in schema.node_types if t in types) for types in needed]


def _columns(rows: Rows, which: slice) -> Rows:
    return rows.columns(which) if isinstance(rows, LazyFeatures) else rows[:, which]


def _first_rows(rows: Rows, number: int) -> Tensor:
    return rows.read(0, number) if isinstance(rows, LazyFeatures) else rows[:number]


def _residuals(types: LayerTypes) -> dict[str, nn.Module]:
    """A linear map of a node's input by type; the first convolution has that of one-hot inputs."""
    after = types.out_channels
    return {
        t: nn.Identity()
        if types.in_channels[t] == after
        else nn.Linear(types.in_channels[t], after)
        for t in types.node_types
        if t not in types.one_hot
    }


def _by_type(modules: nn.Module, node_type: NodeType) -> nn.Module:
    assert isinstance(modules, ModuleDict)
    found: nn.Module = modules[node_type]
    return found
