"""Models in torch and PyG alone; `gnntrain export` copies them into `model.py`."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, operator, index"

from __future__ import annotations

import types  # noqa: F401  # of the `schema` in an exported model
import warnings
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch_geometric.nn.module_dict import ModuleDict
from torch_geometric.nn.resolver import activation_resolver, normalization_resolver


class LayerTypes(NamedTuple):
    """The widths of one layer's input, by node type, and output; the node types that it computes,
    and the edge types into these, in the graph's order; and whether it gives the model's outputs.

    one_hot: the node types whose input is one-hot. Such an input times a matrix is a row of the
        matrix: the node's row in the table holds, side by side, those of all the matrices.
    """

    in_channels: dict[str, int]
    out_channels: int
    node_types: tuple[str, ...]
    edge_types: tuple[tuple[str, str, str], ...]
    is_output: bool
    one_hot: tuple[str, ...]

    def into(self, node_type: str) -> tuple[tuple[str, str, str], ...]:
        """The edge types whose destinations are of `node_type`."""
        return tuple(edge for edge in self.edge_types if edge[2] == node_type)


class Layers(torch.nn.Module):
    """A stack of convolutions, each followed by norm, activation, residual and dropout.

    Layer i computes the rows of the node types that reach the target type in the layers after it;
    there are parameters for these alone, by node type (with `is_typed` in dictionaries). The layer
    that gives the outputs has no norm, activation and dropout; with jk that is a linear map `lin`,
    and all convolutions are hidden_channels wide. A residual comes after the activation, through a
    linear map where widths differ. one_hot: node types without features have one-hot input, see
    `LayerTypes`: the number of matrices that all edge types share, or 0: each has its own.

    model(x, edge_index, more): features and edges; of typed graphs by type. `more` is edge_weight,
    or of typed graphs the nodes of a batch, int64 [num_nodes] of each type whose rows are learnt.
    None: all nodes of the graph of training, in order.
    """

    make_dropout: Any = torch.nn.Dropout
    make_table: Any = staticmethod(lambda nodes, width, _: torch.nn.Embedding(nodes, width))

    def __init__(
        self,
        make_conv: Any,
        schema: Any,
        out_channels: int,
        *,
        hidden_channels: int = 128,
        num_layers: int = 2,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        norm: str = "none",
        activation: str = "relu",
        residual: bool = False,
        jk: str = "none",
        project_inputs: bool = True,
        embedding_channels: int | None = None,
        one_hot: int | None = None,
        is_typed: bool = True,
    ) -> None:
        super().__init__()
        self.schema, self.is_typed, self.jk = schema, is_typed, jk
        self.hidden_channels, self.out_channels = hidden_channels, out_channels
        self.num_layers, act = num_layers, None if activation == "none" else activation
        self.act_and_norm: dict[str, Any] = {"act": act, "norm": None}
        if norm == "batch":  # a batch of one row has no variance: use the running statistics
            self.act_and_norm["norm"] = "batch_norm"
            self.act_and_norm["norm_kwargs"] = {"allow_single_element": True}
        elif norm == "layer":
            self.act_and_norm |= {"norm": "layer_norm", "norm_kwargs": {"mode": "node"}}
        self.act = activation_resolver(act) if act else torch.nn.Identity()
        self.dropout, self.input_dropout = map(self.make_dropout, (dropout, input_dropout))
        # The node types that layers read: of the inputs, then after each layer.
        needed = [{schema.target}]
        for _ in range(num_layers):
            sources = {edge[0] for edge in schema.edge_types if edge[2] in needed[0]}
            needed.insert(0, needed[0] | sources)
        read, *computed = [tuple(t for t in schema.num_nodes if t in each) for each in needed]
        self.computed: list[tuple[str, ...]] = computed  # the node types, by layer
        self.num_inputs: dict[str, int] = {}  # widths of the rows that enter, by node type
        self.tables, self.projections = ModuleDict(), ModuleDict()
        for t in read:
            width, is_fit = schema.num_features[t], False
            if width == 0:
                width, parts = embedding_channels or hidden_channels, 1
                if one_hot is not None:
                    parts = sum(e[0] == t and e[2] in computed[0] for e in schema.edge_types)
                    parts = (one_hot if one_hot and parts else parts) + (t in computed[0])
                    width = parts * (hidden_channels if num_layers > 1 else out_channels)
                self.tables[t] = self.make_table(schema.num_nodes[t], width, parts)
                is_fit = one_hot is not None or width == hidden_channels
            self.num_inputs[t] = width
            if project_inputs and not is_fit:
                self.projections[t] = torch.nn.Linear(width, hidden_channels)
        self.one_hot = () if one_hot is None else tuple(t for t in read if t in self.tables)
        widths = {t: hidden_channels if t in self.projections else self.num_inputs[t] for t in read}
        # Width of the target's rows that enter the last layer: the last convolution, or `lin`.
        self.embedding_channels = widths[schema.target] if num_layers == 1 else hidden_channels
        self.convs, self.norms, self.residuals = (torch.nn.ModuleList() for _ in range(3))
        for i, node_types in enumerate(computed):
            is_output, one_hot_types = self.is_output(i), self.one_hot if i == 0 else ()
            after = out_channels if is_output else hidden_channels
            edges = tuple(edge for edge in schema.edge_types if edge[2] in node_types)
            layer = LayerTypes(widths, after, node_types, edges, is_output, one_hot_types)
            self.convs.append(make_conv(layer))
            kind, options = (self.act_and_norm.get(key) for key in ("norm", "norm_kwargs"))
            norms, linears = dict[str, Any](), dict[str, Any]()
            for t in node_types:
                norm_layer = normalization_resolver(kind, after, **(options or {}))
                norms[t] = norm_layer or torch.nn.Identity()
                if residual and t not in one_hot_types:
                    is_same, same = widths[t] == after, torch.nn.Identity()
                    linears[t] = same if is_same else torch.nn.Linear(widths[t], after)
            if not is_output:
                self.norms.append(ModuleDict(norms) if is_typed else norms[schema.target])
            if residual:
                self.residuals.append(ModuleDict(linears) if is_typed else linears[schema.target])
            widths = dict.fromkeys(node_types, after)
        if jk != "none":
            self.embedding_channels = (num_layers if jk == "cat" else 1) * hidden_channels
            self.lin = torch.nn.Linear(self.embedding_channels, out_channels)

    def forward(self, x: Any, edge_index: Any, more: Any = None) -> Any:
        target, h, state = self.schema.target, {}, None
        for t in self.num_inputs:
            if t in self.tables:
                rows = self.tables[t].weight[slice(None) if more is None else more[t]]
            else:
                rows = x[t] if self.is_typed else x
            h[t] = self.start(t, rows)
        for i, conv in enumerate(self.convs):
            if self.is_typed:
                edges = [edge for edge in self.schema.edge_types if edge[2] in self.computed[i]]
                out = conv(h, {edge: edge_index[edge] for edge in edges})
            else:
                out = {target: conv(h[target], edge_index, more)}
            h = {t: self.update(i, t, rows, h[t]) for t, rows in out.items()}
            state = self.jk_update(i, state, h[target])
        return self.readout(state)

    def is_output(self, i: int) -> bool:
        """Whether layer `i` gives the model's outputs."""
        return i == self.num_layers - 1 and self.jk == "none"

    def start(self, node_type: str, rows: torch.Tensor) -> torch.Tensor:
        """The first layer's input for nodes of a type, of their features or learnt rows."""
        rows = self.input_dropout(rows)
        if node_type in self.projections:
            rows = self.act(self.projections[node_type](rows))
        return rows

    def update(self, i: int, node_type: str, out: Any, h_dst: Any) -> Any:
        """Layer `i`'s output for nodes of a type, [n, width], from that of its convolution and the
        layer's input for these, perhaps with further nodes after them."""
        if not self.is_output(i):
            norm = self.norms[i]
            out = self.act((norm[node_type] if self.is_typed else norm)(out))
        if self.residuals and (i > 0 or node_type not in self.one_hot):
            own = h_dst if len(h_dst) == len(out) else h_dst[: len(out)]
            residual = self.residuals[i]
            out = out + (residual[node_type] if self.is_typed else residual)(own)
        return out if self.is_output(i) else self.dropout(out)

    def jk_update(self, i: int, state: Any, h: torch.Tensor) -> Any:
        """The state of jumping knowledge after layer `i` from the state before (None for the first
        layer) and the layer's output; without jumping knowledge `h`."""
        if self.jk == "none":
            return h
        if self.jk == "max":
            return h if state is None else torch.maximum(state, h)
        # lin(h_0 ‖ h_1 ‖ …) is a sum with one part of the weights a layer.
        weight = self.lin.weight[:, i * h.shape[1] : (i + 1) * h.shape[1]]
        own = F.linear(h, weight).to(weight.dtype)  # a sum of layers: not in autocast's type
        return own + self.lin.bias if state is None else state + own

    def readout(self, state: Any) -> Any:
        """The outputs of the final state."""
        return self.lin(state) if self.jk == "max" else state


class TypedConv(torch.nn.Module):
    """PyG's layer `conv` with linear maps `own` of nodes' own rows added; then a linear map `lin`.
    With `aggr` it is a `HeteroConv`; `options` are then by edge type."""

    def __init__(self, conv, options, own, aggr=None, lin=None):
        super().__init__()
        make = getattr(pyg, conv)
        if aggr is None:
            self.conv = make(**options)
        else:
            with warnings.catch_warnings():  # no layer has to update all node types
                warnings.simplefilter("ignore")
                convs = {name: make(**keywords) for name, keywords in options.items()}
                self.conv = pyg.HeteroConv(convs, aggr)
        self.own = ModuleDict({t: torch.nn.Linear(*widths) for t, widths in own.items()})
        self.lin = torch.nn.Linear(*lin) if lin else torch.nn.Identity()

    def forward(self, h, edge_index):
        out = {t: rows for t, rows in self.conv(h, edge_index).items() if rows is not None}
        for name, own in self.own.items():
            out[name] = out[name] + own(h[name]) if name in out else own(h[name])
        return {name: self.lin(rows) for name, rows in out.items()}


class WithTables(torch.nn.Module):
    """The outputs of the nodes of type `target`, by a model of `x_dict` and `edge_index_dict`.

    x_dict: float32 [num_nodes, width] of each type with features.
    edge_index_dict: int64 [2, num_edges] of each edge type, sources over destinations.
    n_id_dict: the nodes of a batch, int64 [num_nodes] of each type without features: which learnt
    rows to take. None: all nodes of the graph of training, in order.
    """

    def __init__(self, module, target, tables):
        super().__init__()
        self.module, self.target = module, target
        self.tables = ModuleDict({t: torch.nn.Embedding(*shape) for t, shape in tables.items()})

    def forward(self, x_dict, edge_index_dict, n_id_dict=None):
        h = dict(x_dict)
        for name, table in self.tables.items():
            h[name] = table.weight if n_id_dict is None else table(n_id_dict[name])
        out = self.module(h, edge_index_dict)
        return out[self.target] if isinstance(out, dict) else out


def in_units(mean: float, std: float) -> Any:
    """A hook: the targets in their own units, of a model trained on standardised ones."""

    def hook(_module: Any, _inputs: Any, outputs: torch.Tensor) -> torch.Tensor:
        kind = torch.float32 if outputs.device.type == "mps" else torch.float64
        both = torch.tensor([mean, std], dtype=kind, device=outputs.device)
        return outputs.to(kind) * both[1] + both[0]

    return hook
