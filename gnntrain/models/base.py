"""What all models share: the order of their layers, and the stages of one layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn.module_dict import ModuleDict
from torch_geometric.nn.resolver import activation_resolver, normalization_resolver

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import EDGE, NODE, GraphSchema, NodeType
from gnntrain.models.conv import (
    HeteroConv,
    InputRows,
    LayerTypes,
    LinearConv,
    Rows,
    first_rows,
    in_memory,
)
from gnntrain.models.dropout import Dropout
from gnntrain.models.embedding import EmbeddingTable, LearntRows
from gnntrain.models.plain import with_residuals
from gnntrain.models.pyg_model import PyGModel, typed_pyg_model
from gnntrain.sampling.block import Block, BlockNeeds, Hop

Norm = Literal["none", "batch", "layer"]
Activation = Literal["relu", "elu", "gelu", "leaky_relu", "none"]
JumpingKnowledge = Literal["none", "cat", "max"]

_PYG_NORMS: dict[Norm, dict[str, Any]] = {
    "none": {"norm": None},
    # A batch of one row has no variance, an empty one no mean: use the running statistics.
    "batch": {"norm": "batch_norm", "norm_kwargs": {"allow_single_element": True}},
    "layer": {"norm": "layer_norm", "norm_kwargs": {"mode": "node"}},
}


class _Options(TypedDict, total=False):
    hidden_channels: int
    num_layers: int
    dropout: float
    input_dropout: float
    norm: Norm
    activation: Activation
    residual: bool


class Scaffold(_Options, total=False):
    """The options that every model of one type of nodes and edges takes, see `HeteroGNN`."""

    jk: JumpingKnowledge


class HeteroScaffold(_Options, total=False):
    """The options that every model of typed graphs takes, see `HeteroGNN`."""

    project_inputs: bool
    embedding_channels: int | None


class HeteroGNN(nn.Module):
    """A stack of convolutions of typed graphs, computed block by block or layer by layer.

    Layer i computes the rows of the node types that reach the target type in the layers after it
    (`node_types_after(i)`): a convolution (`HeteroConv`), then norm, activation, residual and
    dropout (`update`), each with the parameters of the node type. There are parameters for these
    types alone, so that every step uses all of them. Jumping knowledge is computed layer by layer:
    `jk_update` adds the target's rows to a state, and `readout` turns the last state into outputs.
    Exact inference (`training.layerwise`) calls `start` for all nodes, by chunks, then for each
    layer and type `HeteroConv.on_blocks` stage by stage, `finish`, `update`, and `jk_update`.

    Args:
        make_conv: Makes a layer's convolution.
        schema: The types of the graph.
        out_channels: Width of the outputs (logits).
        hidden_channels, num_layers, dropout, input_dropout, norm, activation, residual, jk,
            project_inputs, embedding_channels: See `gnntrain.config.models`. The layer that gives
            the outputs has no norm, activation and dropout; with `jk` that is a linear map `lin`,
            and all convolutions are `hidden_channels` wide. `residual` comes after the activation,
            through a linear map where widths differ.
        one_hot: The first layer's input of types without features is one-hot, see `LayerTypes`;
            gives the number of matrices for a number of edge types out of a type. None: their input
            are embeddings.

    Attributes:
        config_defaults: Shared options with another default for this model.
        uses_graph: Whether the model reads edges; also used by the checks of a configuration.
        is_hetero: Whether it computes on the blocks of typed graphs; likewise, and therefore
            repeated in a model's own class.
        tables: The embedding table of each type without features.
        num_inputs: By node type, the width of the rows that `start` takes.
        jk_channels: Width of the state of `jk_update`; 0: no state.
        act_and_norm: `activation` and `norm` as arguments of PyG's models.
    """

    config_defaults: ClassVar[Any] = {}
    uses_graph: ClassVar[bool] = True
    is_hetero: ClassVar[bool] = True

    def __init__(
        self,
        make_conv: Callable[[LayerTypes], Any],
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
        jk: JumpingKnowledge = "none",
        project_inputs: bool = True,
        embedding_channels: int | None = None,
        one_hot: Callable[[int], int] | None = None,
    ) -> None:
        super().__init__()
        self.schema, self.out_channels, self.jk = schema, out_channels, jk
        self.hidden_channels, self.num_layers = hidden_channels, num_layers
        self.jk_channels = {"none": 0, "cat": out_channels, "max": hidden_channels}[jk]
        act = None if activation == "none" else activation
        self.act_and_norm = {"act": act, **_PYG_NORMS[norm]}
        # ReLU and dropout alone follow a convolution, which may compute them, too.
        self._is_plain = act == "relu" and norm == "none" and not residual
        # The node types that layers read: of the inputs, then after each layer.
        needed = [{schema.target}]
        for _ in range(num_layers):
            sources = {edge[0] for edge in schema.edge_types if edge[2] in needed[0]}
            needed.insert(0, needed[0] | sources)
        self._needed = [tuple(t for t in schema.node_types if t in types) for types in needed]
        self.num_inputs: dict[NodeType, int] = {}
        self.one_hot = one_hot is not None
        self.tables, self.projections = ModuleDict(), ModuleDict()
        for t in self.node_types_after(-1):
            width, parts, is_fit = schema.num_features[t], 1, False
            if width == 0:
                width = embedding_channels or hidden_channels
                if one_hot is not None:
                    after = self.node_types_after(0)
                    num_edge_types = sum(e[0] == t and e[2] in after for e in schema.edge_types)
                    parts = one_hot(num_edge_types) + (t in after)
                    width = parts * (hidden_channels if num_layers > 1 else out_channels)
                self.tables[t] = EmbeddingTable(schema.num_nodes[t], width, parts)
                is_fit = self.one_hot or width == hidden_channels
            self.num_inputs[t] = width
            if project_inputs and not is_fit:
                self.projections[t] = nn.Linear(width, hidden_channels)
        self.convs, self.norms, self.residuals = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for i in range(num_layers):
            types = self._layer_types(i)
            width = types.out_channels
            self.convs.append(make_conv(types))
            if not types.is_output:
                kind, options = _PYG_NORMS[norm]["norm"], _PYG_NORMS[norm].get("norm_kwargs", {})
                make = partial(normalization_resolver, kind, width, **options)
                norms = {t: make() or nn.Identity() for t in types.node_types}
                self.norms.append(self._registered(norms))
            if residual:  # the first convolution has that of one-hot inputs
                linears: dict[NodeType, nn.Module] = {
                    t: nn.Identity() if before == width else nn.Linear(before, width)
                    for t, before in types.in_channels.items()
                    if t in types.node_types and t not in types.one_hot
                }
                self.residuals.append(self._registered(linears))
        self.act = activation_resolver(act) if act is not None else nn.Identity()
        self.dropout, self.input_dropout = Dropout(dropout), Dropout(input_dropout)
        if jk != "none":
            self.lin = nn.Linear((num_layers if jk == "cat" else 1) * hidden_channels, out_channels)

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
        target = self.schema.target
        h: Mapping[NodeType, InputRows] = {
            t: self._input(t, x, n_id.get(t)) for t in self.node_types_after(-1)
        }
        state: Tensor | None = None
        for i, block in enumerate(blocks):
            h = out = self.layer(i, h, block)
            state = self.jk_update(i, state, out[target][: blocks[-1].num_dst[target]])
        assert state is not None
        return self.readout(state)

    @property
    def needs(self) -> BlockNeeds:
        """The fields of a mini-batch that the model reads.

        Of one type, the first layer takes lazy features only if `start` would not change them.
        """
        needs = self.conv(0).needs
        rows = needs.rows and (self.is_hetero or self._is_unchanged(NODE))
        return replace(needs, rows=rows)

    def node_types_after(self, i: int) -> tuple[NodeType, ...]:
        """The node types whose rows are needed after layer `i`; of `i` −1, as inputs."""
        return self._needed[i + 1]

    def is_projected(self, node_type: NodeType) -> bool:
        """Whether `start` maps the rows of a type to another width."""
        return node_type in self.projections

    def start(self, node_type: NodeType, rows: Tensor) -> Tensor:
        """The first layer's input for nodes of one type, of their features or table's rows: in the
        weights' type (not under autocast)."""
        if not torch.is_autocast_enabled(rows.device.type):
            rows = rows.to(next(self.parameters()).dtype)
        rows = self.input_dropout(rows)
        if self.is_projected(node_type):
            rows = self.act(self.projections[node_type](rows))
        return rows

    def layer(self, i: int, h: Mapping[NodeType, InputRows], block: Hop) -> dict[NodeType, Tensor]:
        """Layer `i`'s output for the destinations of `block`, from the rows of its sources, by the
        node types that the layer reads."""
        conv, node_types = self.conv(i), self.node_types_after(i)
        if self._is_plain and isinstance(conv, LinearConv) and not self.is_output(i):
            return conv.on_hop(h, block, node_types, self.dropout.p if self.training else 0.0)
        outputs = conv.on_hop(h, block, node_types)
        return {t: self.update(i, t, out, h[t]) for t, out in outputs.items()}

    def conv(self, i: int) -> HeteroConv:
        """Layer `i`'s convolution."""
        conv = self.convs[i]
        assert isinstance(conv, HeteroConv)
        return conv

    def is_output(self, i: int) -> bool:
        """Whether layer `i` gives the model's outputs."""
        return i == self.num_layers - 1 and self.jk == "none"

    def update(self, i: int, node_type: NodeType, out: Tensor, h_dst: InputRows) -> Tensor:
        """Norm, activation, residual and dropout: layer `i`'s output for destinations of a type,
        from that of its convolution and the layer's input for these, perhaps with further nodes
        after them."""
        is_output = self.is_output(i)
        if not is_output:
            out = self.act(_by_type(self.norms[i], node_type)(out))
        if self.residuals and not self._is_one_hot(i, node_type):
            assert not isinstance(h_dst, LearntRows)  # see `_input`
            own = first_rows(h_dst, len(out))
            out = out + _by_type(self.residuals[i], node_type)(own)
        return out if is_output else self.dropout(out)

    def jk_update(self, i: int, state: Tensor | None, h: Tensor) -> Tensor:
        """The state of jumping knowledge after layer `i`, `[rows, jk_channels]`, from the state
        before (None for the first layer) and the layer's output; without jumping knowledge `h`."""
        if self.jk == "none":
            return h
        if self.jk == "max":
            return h if state is None else torch.maximum(state, h)
        # lin(h_0 ‖ h_1 ‖ …) is a sum with one part of the weights a layer.
        weight = self.lin.weight[:, i * h.shape[1] : (i + 1) * h.shape[1]]
        own = F.linear(h, weight).to(weight.dtype)  # a sum of layers: not in autocast's type
        return own + self.lin.bias if state is None else state + own

    def readout(self, state: Tensor) -> Tensor:
        """The outputs of the final state."""
        out: Tensor = self.lin(state) if self.jk == "max" else state
        return out

    @property
    def embedding_channels(self) -> int:
        """Width of the target's rows that enter the last layer: the last convolution, or `lin`."""
        if self.jk == "none":
            return self._layer_types(self.num_layers - 1).in_channels[self.schema.target]
        return self.lin.in_features

    def pyg_model(self) -> PyGModel:
        """The same model as plain PyG, for `gnntrain export`, by its layers' `pyg_layer`.

        A plug-in does not inherit it, since its additions would be missing: it defines its own,
        which may call this one, or of one type `GNN.basic_gnn`. Gradients flow from the weights.

        Raises:
            UserError: PyG has no such model with these options.
        """
        return typed_pyg_model(self)

    def _registered(self, modules: dict[NodeType, nn.Module]) -> nn.Module:
        """Modules by node type; of one type the module itself, as in PyG's `BasicGNN`."""
        return ModuleDict(modules) if self.is_hetero else modules[NODE]

    def _is_unchanged(self, node_type: NodeType, dtype: torch.dtype = torch.float32) -> bool:
        """Whether `start` leaves the rows of a type as they are, if they are of this dtype."""
        is_dropped = self.training and self.input_dropout.p > 0
        is_exact = next(self.parameters()).dtype == dtype
        return is_exact and not (is_dropped or self.is_projected(node_type))

    def _input(
        self, node_type: NodeType, x: Mapping[NodeType, Rows], nodes: Tensor | None
    ) -> InputRows:
        """The first layer's input for nodes of one type; not copied if `start` does not change it
        and no residual reads it."""
        if node_type in self.tables:
            table: Any = self.tables[node_type]
            if self._is_unchanged(node_type, table.weight.dtype) and not self.residuals:
                return LearntRows(table, nodes)
            return self.start(node_type, table(nodes))
        rows, takes_lazy = x[node_type], self.conv(0).needs.rows
        if isinstance(rows, LazyFeatures) and takes_lazy and self._is_unchanged(node_type):
            return rows
        return self.start(node_type, in_memory(rows))

    def _layer_types(self, i: int) -> LayerTypes:
        node_types, is_output = self.node_types_after(i), self.is_output(i)
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


class GNN(HeteroGNN):
    """A `HeteroGNN` of one type of nodes and edges.

    The convolutions are subclasses of PyG's, and the parameters have the names of PyG's `BasicGNN`
    (`convs.0.lin_l.weight`, `norms.0.…`, `lin.weight`): the weights load into a plain PyG model of
    the same architecture, see `pyg_model`.

    Args:
        make_conv: (width in, width out, whether it gives the model's outputs) → convolution, a
            `BlockConv` or `LinearConv`.
        in_channels: Width of the input rows.
        out_channels: Width of the outputs (logits).
        **scaffold: See `HeteroGNN`.
    """

    is_hetero = False

    def __init__(
        self,
        make_conv: Callable[[int, int, bool], nn.Module],
        in_channels: int,
        out_channels: int,
        **scaffold: Unpack[Scaffold],
    ) -> None:
        def make(types: LayerTypes) -> nn.Module:
            return make_conv(types.in_channels[NODE], types.out_channels, types.is_output)

        schema = GraphSchema({NODE: 0}, {NODE: in_channels}, (EDGE,), NODE)
        super().__init__(make, schema, out_channels, project_inputs=False, **scaffold)
        self.in_channels = in_channels

    def on(self, schema: GraphSchema) -> HeteroGNN:
        """The same model, of the same parameters, with the names of the graph's types."""
        model = copy(self)
        model.schema, model._needed = schema, [(schema.target,)] * (self.num_layers + 1)
        model.num_inputs = {schema.target: self.in_channels}
        return model

    def forward(self, x: Rows, blocks: Sequence[Block]) -> Tensor:  # type: ignore[override]
        """Compute the outputs of the seeds, the destinations of the last block.

        Args:
            x: float `[blocks[0].num_src, in_channels]`, or lazy features.
            blocks: One a layer, the innermost first; the destinations of each are the sources of
                the next (`dst_offset` 0).

        Returns:
            float `[blocks[-1].num_dst, out_channels]`.
        """
        hops = [
            Hop({EDGE: block}, {NODE: block.num_dst}, {NODE: block.num_src}) for block in blocks
        ]
        return super().forward({NODE: x}, {}, hops)

    def basic_gnn(self, name: str, **arguments: Any) -> PyGModel:
        """PyG's `BasicGNN` of this name, with the options of this class and further arguments."""
        scaffold = {
            "in_channels": self.in_channels,
            "hidden_channels": self.hidden_channels,
            "num_layers": self.num_layers,
            "out_channels": self.out_channels,
            "dropout": self.dropout.p,
            **self.act_and_norm,
            **({} if self.jk == "none" else {"jk": self.jk}),
        }
        state = self.state_dict(keep_vars=True)
        made = PyGModel(name, scaffold | arguments, state, imports=[name])
        if not self.residuals:
            return made
        return replace(made, call=f"with_residuals({name})", copied=[with_residuals])


def _by_type(modules: nn.Module, node_type: NodeType) -> Any:
    return modules[node_type] if isinstance(modules, ModuleDict) else modules
