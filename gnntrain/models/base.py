"""What all models share: the order of their layers, computed on blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pprint import pformat
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import EDGE, NODE, GraphSchema, NodeType
from gnntrain.models.conv import HeteroConv, InputRows, LinearConv, Rows, first_rows, in_memory
from gnntrain.models.dropout import Dropout
from gnntrain.models.embedding import EmbeddingTable, LearntRows
from gnntrain.models.plain import Layers, LayerTypes, TypedConv
from gnntrain.sampling.block import Block, BlockNeeds, Hop

_WIDTH = 80


@dataclass
class PyGModel:
    """A plain PyG model with the same outputs as a model of ours.

    Attributes:
        name: The class or function of `module` that it is known as.
        weights: Its state dict.
        code: Python that makes `model`; PyG's layers are `pyg.NAME`.
        copied: The classes of `plain` that the code needs.
        arguments: Of the class or function; for people to read.
        inputs: Arguments of its `forward`; `edge_weight` only where the graph has weights.
        module: A plug-in's, from which the code needs `name`.
    """

    name: str
    weights: dict[str, Tensor]
    code: str
    copied: Sequence[Any] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ("x", "edge_index")
    module: str = "torch_geometric.nn"


def call(name: str, *arguments: str, **keywords: Any) -> str:
    """A call as Python, of arguments as Python and of keywords, with short ones side by side."""
    values = (f"{key}={pformat(value, sort_dicts=False)}" for key, value in keywords.items())
    lines = [f"{name}("]
    for argument in (*arguments, *values):
        if len(lines) == 1 or len(lines[-1]) + len(argument) > _WIDTH:
            lines.append("   ")
        lines[-1] += f" {argument},"
    return "\n".join([*lines, ")"])


class HeteroGNN(Layers):
    """The `Layers` of typed graphs, computed block by block or layer by layer.

    A layer is a convolution (`HeteroConv`), then `update`. Exact inference (`training.layerwise`)
    calls `start` for all nodes, by chunks, then for each layer and type `HeteroConv.on_blocks`
    stage by stage, `finish`, `update`, and of the target's rows `jk_update`, and `readout`.

    `make_conv` makes a layer's convolution; `out_channels` is the width of the outputs (logits);
    for the options see `Layers`, and `gnntrain.config.models`.

    Attributes:
        config_defaults: Shared options with another default for this model.
        uses_graph: Whether the model reads edges; also used by the checks of a configuration.
        is_hetero: Whether it computes on the blocks of typed graphs; likewise, and therefore
            repeated in a model's own class.
        jk_channels: Width of the state of `jk_update`; 0: no state.
    """

    config_defaults: ClassVar[dict[str, Any]] = {}
    uses_graph: ClassVar[bool] = True
    is_hetero: ClassVar[bool] = True
    make_dropout, make_table = Dropout, EmbeddingTable  # of `Layers`

    def __init__(
        self,
        make_conv: Callable[[LayerTypes], nn.Module],
        schema: GraphSchema,
        out_channels: int,
        **options: Any,
    ) -> None:
        self.options = options | {"is_typed": self.is_hetero}
        super().__init__(make_conv, schema, out_channels, **self.options)
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
        if len(blocks) != self.num_layers:
            raise ValueError(f"{len(blocks)} blocks for {self.num_layers} layers")
        target, state = self.schema.target, None
        h: Mapping[NodeType, InputRows]
        h = {t: self._input(t, x, n_id.get(t)) for t in self.num_inputs}
        for i, block in enumerate(blocks):
            h = out = self.layer(i, h, block)
            state = self.jk_update(i, state, out[target][: blocks[-1].num_dst[target]])
        outputs: Tensor = self.readout(state)
        return outputs

    @property
    def needs(self) -> BlockNeeds:
        """The fields of a mini-batch that the model reads. Of one type, the first layer takes lazy
        features only if `start` would not change them."""
        needs = self.conv(0).needs
        return replace(needs, rows=needs.rows and (self.is_hetero or self._is_unchanged(NODE)))

    def start(self, node_type: NodeType, rows: Tensor) -> Tensor:
        """See `Layers`; in the weights' type (not under autocast)."""
        if not torch.is_autocast_enabled(rows.device.type):
            rows = rows.to(next(self.parameters()).dtype)
        return super().start(node_type, rows)

    def conv(self, i: int) -> HeteroConv:
        """Layer `i`'s convolution."""
        conv = self.convs[i]
        assert isinstance(conv, HeteroConv)
        return conv

    def pyg_model(self) -> PyGModel:
        """The same model as plain PyG, for `gnntrain export`, by its layers' `pyg_layer`. Gradients
        flow from the weights. UserError: PyG has no such model.

        A plug-in does not inherit it, since its additions would be missing: it defines its own,
        which may call this one, or of one type `GNN.basic_gnn`.
        """
        state = self.state_dict(keep_vars=True)
        weights = {name: w for name, w in state.items() if not name.startswith("convs.")}
        convs = []
        for i in range(self.num_layers):
            arguments, of_conv = self.conv(i).pyg_layer()
            weights |= {f"convs.{i}.{name}": weight for name, weight in of_conv.items()}
            convs.append(call("TypedConv", **arguments))
        name = "HeteroConv" if "aggr" in arguments else arguments["conv"]
        code, copied = self._layers_of(f"[{', '.join(convs)}]"), [LayerTypes, Layers, TypedConv]
        return PyGModel(name, weights, code, copied=copied, inputs=("x_dict", "edge_index_dict"))

    def _layers_of(self, convs: str) -> str:
        """Python that makes a model of `Layers` of such convolutions."""
        schema = f"types.SimpleNamespace(**{pformat(vars(self.schema), sort_dicts=False)})"
        arguments = f"lambda _, convs=iter({convs}): next(convs)", schema, f"{self.out_channels}"
        return f"model = {call('Layers', *arguments, **self.options)}"

    def _is_unchanged(self, node_type: NodeType, dtype: torch.dtype = torch.float32) -> bool:
        """Whether `start` leaves the rows of a type as they are, if they are of this dtype."""
        is_dropped = self.training and self.input_dropout.p > 0
        is_exact = next(self.parameters()).dtype == dtype
        return is_exact and not (is_dropped or node_type in self.projections)

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

    def layer(self, i: int, h: Mapping[NodeType, InputRows], block: Hop) -> dict[NodeType, Tensor]:
        """Layer `i`'s output for the destinations of `block`, from the rows of its sources."""
        conv, node_types = self.conv(i), self.computed[i]
        is_relu = self.act_and_norm == {"act": "relu", "norm": None} and not self.residuals
        if is_relu and isinstance(conv, LinearConv) and not self.is_output(i):
            # ReLU and dropout alone follow: the convolution's operator computes them, too.
            return conv.on_hop(h, block, node_types, self.dropout.p if self.training else 0.0)
        outputs = {}
        for t, out in conv.on_hop(h, block, node_types).items():
            own = h[t]
            if self.residuals and not isinstance(own, LearntRows):
                own = first_rows(own, len(out))
            outputs[t] = self.update(i, t, out, own)
        return outputs


class GNN(HeteroGNN):
    """A `HeteroGNN` of one type of nodes and edges.

    The convolutions are subclasses of PyG's, and the parameters have the names of PyG's `BasicGNN`
    (`convs.0.lin_l.weight`, `norms.0.…`, `lin.weight`): the weights load into a plain PyG model of
    the same architecture, see `pyg_model`.

    `make_conv` makes a `BlockConv` or `LinearConv` of width in, width out, and whether it gives the
    model's outputs (logits).
    """

    is_hetero = False

    def __init__(
        self,
        make_conv: Callable[[int, int, bool], nn.Module],
        in_channels: int,
        out_channels: int,
        **scaffold: Any,
    ) -> None:
        def make(types: LayerTypes) -> nn.Module:
            return make_conv(types.in_channels[NODE], types.out_channels, types.is_output)

        schema = GraphSchema({NODE: 0}, {NODE: in_channels}, (EDGE,), NODE)
        super().__init__(make, schema, out_channels, project_inputs=False, **scaffold)
        self.in_channels = in_channels

    def on(self, schema: GraphSchema) -> HeteroGNN:
        """The same model, of the same parameters, with the names of the graph's types."""
        model = copy(self)
        model.schema, model.computed = schema, [(schema.target,)] * self.num_layers
        model.num_inputs = {schema.target: self.in_channels}
        return model

    def forward(self, x: Rows, blocks: Sequence[Block]) -> Tensor:  # type: ignore[override]
        """The outputs of the last block's destinations, float `[num_dst, out_channels]`, from
        `x`, float `[blocks[0].num_src, in_channels]`, or lazy features; a block a layer, the
        innermost first: the destinations of each are the sources of the next (`dst_offset` 0)."""
        hops = [Hop({EDGE: b}, {NODE: b.num_dst}, {NODE: b.num_src}) for b in blocks]
        return super().forward({NODE: x}, {}, hops)

    def basic_gnn(
        self,
        name: str,
        *,
        changes: Sequence[str] = (),
        inputs: tuple[str, ...] = ("x", "edge_index"),
        **arguments: Any,
    ) -> PyGModel:
        """PyG's `BasicGNN` of this name, with the options of this class and further arguments;
        `changes`: Python that changes `model`, made of `pyg`'s classes. See `PyGModel`."""
        arguments = {
            "in_channels": self.in_channels,
            "hidden_channels": self.hidden_channels,
            "num_layers": self.num_layers,
            "out_channels": self.out_channels,
            "dropout": self.dropout.p,
            **self.act_and_norm,
            **({} if self.jk == "none" else {"jk": self.jk}),
            **arguments,
        }
        lines, copied = [f"model = {call(f'pyg.{name}', **arguments)}", *changes], list[Any]()
        if self.residuals:
            lines.append(self._layers_of("model.convs"))
            copied = [LayerTypes, Layers]
        weights = self.state_dict(keep_vars=True)
        return PyGModel(name, weights, "\n".join(lines), copied, arguments, inputs)
