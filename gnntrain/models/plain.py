"""Models in torch and PyG alone; `gnntrain export` copies this file into `model.py`."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, operator, index, misc, arg-type"

from __future__ import annotations

from functools import partial
from types import SimpleNamespace  # noqa: F401  # the `schema` of an exported model
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.nn.inits import glorot
from torch_geometric.nn.module_dict import ModuleDict
from torch_geometric.nn.parameter_dict import ParameterDict
from torch_geometric.nn.resolver import activation_resolver, normalization_resolver
from torch_geometric.utils import scatter, softmax


class LayerTypes(NamedTuple):
    """What a layer is made of.

    in_channels, out_channels: the widths of its input, by node type, and of its output.
    node_types, edge_types: the node types that it computes, and the edge types into these, in the
        graph's order.
    is_output: whether it gives the model's outputs.
    one_hot: the node types whose input is one-hot. Such an input times a matrix is a row of the
        matrix: the node's row in the table holds, side by side, those of all the matrices.
    hidden_channels, act_and_norm: of the hidden layers, as `pyg.MLP` takes them.
    """

    in_channels: dict[str, int]
    out_channels: int
    node_types: tuple[str, ...]
    edge_types: tuple[tuple[str, str, str], ...]
    is_output: bool
    one_hot: tuple[str, ...]
    hidden_channels: int
    act_and_norm: dict[str, Any]

    def into(self, node_type: str) -> tuple[tuple[str, str, str], ...]:
        """The edge types whose destinations are of `node_type`."""
        return tuple(edge for edge in self.edge_types if edge[2] == node_type)

    @property
    def channels(self) -> tuple[int, int]:
        """Of one node type: the widths of input and output."""
        return *self.in_channels.values(), self.out_channels  # type: ignore[return-value]


class Layers(nn.Module):
    """A stack of convolutions, each followed by norm, activation, residual and dropout.

    Each is `conv(LayerTypes, **conv_options)`. Layer i computes the rows of the node types that
    reach the target type in the layers after it; there are parameters for these alone, by node type
    (with `is_typed` in dictionaries). The layer that gives the outputs has no norm, activation and
    dropout; with jk that is a linear map `lin`, and all convolutions are hidden_channels wide. A
    residual comes after the activation, through a linear map where widths differ. featureless: node
    types without features have learnt rows (embedding), or one-hot input (one_hot), see
    `LayerTypes`; its matrices are those of the edge types, or the `num_bases` that all share.

    model(x, edge_index, more): features and edges; of typed graphs by type. `more` is edge_weight,
    or of typed graphs the nodes of a batch, int64 [num_nodes] of each type whose rows are learnt.
    None: all nodes of the graph of training, in order.
    """

    make_dropout: Any = nn.Dropout
    make_table: Any = staticmethod(lambda nodes, width, _: nn.Embedding(nodes, width))

    def __init__(
        self,
        conv: Any,
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
        featureless: str = "embedding",
        is_typed: bool = True,
        **conv_options: Any,
    ) -> None:
        super().__init__()
        self.schema, self.is_typed, self.jk = schema, is_typed, jk
        self.hidden_channels, self.out_channels = hidden_channels, out_channels
        self.num_layers, act = num_layers, None if activation == "none" else activation
        kind, norm_options = {
            "none": (None, {}),
            # A batch of one row has no variance: use the running statistics.
            "batch": ("batch_norm", {"allow_single_element": True}),
            "layer": ("layer_norm", {"mode": "node"}),
        }[norm]
        self.act_and_norm = {"act": act, "norm": kind, "norm_kwargs": norm_options}
        self.act = activation_resolver(act) if act else nn.Identity()
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
        is_one_hot, num_bases = featureless == "one_hot", conv_options.get("num_bases")
        for t in read:
            width, is_fit = schema.num_features[t], False
            if width == 0:
                width, parts = embedding_channels or hidden_channels, 1
                if is_one_hot:
                    parts = sum(e[0] == t and e[2] in computed[0] for e in schema.edge_types)
                    parts = (num_bases if num_bases and parts else parts) + (t in computed[0])
                    width = parts * (hidden_channels if num_layers > 1 else out_channels)
                self.tables[t] = self.make_table(schema.num_nodes[t], width, parts)
                is_fit = is_one_hot or width == hidden_channels
            self.num_inputs[t] = width
            if project_inputs and not is_fit:
                self.projections[t] = nn.Linear(width, hidden_channels)
        self.one_hot = tuple(t for t in read if is_one_hot and t in self.tables)
        widths = {t: hidden_channels if t in self.projections else self.num_inputs[t] for t in read}
        # Width of the target's rows that enter the last layer: the last convolution, or `lin`.
        self.embedding_channels = widths[schema.target] if num_layers == 1 else hidden_channels
        self.convs, self.norms, self.residuals = (nn.ModuleList() for _ in range(3))
        for i, node_types in enumerate(computed):
            is_output, one_hot_types = self.is_output(i), self.one_hot if i == 0 else ()
            after = out_channels if is_output else hidden_channels
            edges = tuple(edge for edge in schema.edge_types if edge[2] in node_types)
            of = widths, after, node_types, edges, is_output, one_hot_types
            layer = LayerTypes(*of, hidden_channels, self.act_and_norm)
            self.convs.append(conv(layer, **conv_options))
            norms, linears = dict[str, Any](), dict[str, Any]()
            for t in node_types:
                norms[t] = normalization_resolver(kind, after, **norm_options) or nn.Identity()
                if residual and t not in one_hot_types:
                    is_same, same = widths[t] == after, nn.Identity()
                    linears[t] = same if is_same else nn.Linear(widths[t], after)
            if not is_output:
                self.norms.append(ModuleDict(norms) if is_typed else norms[schema.target])
            if residual:
                self.residuals.append(ModuleDict(linears) if is_typed else linears[schema.target])
            widths = dict.fromkeys(node_types, after)
        if jk != "none":
            self.embedding_channels = (num_layers if jk == "cat" else 1) * hidden_channels
            self.lin = nn.Linear(self.embedding_channels, out_channels)

    def forward(self, x: Any, edge_index: Any = None, more: Any = None) -> Any:
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
        layer's input for these."""
        if not self.is_output(i):
            norm = self.norms[i]
            out = self.act((norm[node_type] if self.is_typed else norm)(out))
        if self.residuals and (i > 0 or node_type not in self.one_hot):
            residual = self.residuals[i]
            out = out + (residual[node_type] if self.is_typed else residual)(h_dst)
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


class LinearLayer(nn.Linear):
    """W x + b: it reads no edge."""

    def __init__(self, types):
        super().__init__(*types.channels)

    def forward(self, x, *_):
        return super().forward(x)


class GCNLayer(pyg.GCNConv):
    def __init__(self, types):
        super().__init__(*types.channels)


class SAGELayer(pyg.SAGEConv):
    def __init__(self, types, aggregator, root_weight, normalize):
        normalize = normalize and not types.is_output  # a single output would be its sign
        options = {"root_weight": root_weight, "normalize": normalize}
        super().__init__(*types.channels, aggregator, **options)


class GINLayer(pyg.GINConv):
    def __init__(self, types, mlp_layers, train_eps):
        before, after = types.channels
        widths = [before, *[types.hidden_channels] * (mlp_layers - 1), after]
        super().__init__(pyg.MLP(widths, **types.act_and_norm), train_eps=train_eps)


class Heads:
    """A mixin: the heads are averaged where a layer gives the outputs, else side by side."""

    def __init__(self, types, heads, output_heads, attention_dropout, **options):
        (before, after), is_output = types.channels, types.is_output
        heads, width = (output_heads, after) if is_output else (heads, after // heads)
        options |= {"heads": heads, "concat": not is_output, "dropout": attention_dropout}
        super().__init__(before, width, **options)  # type: ignore[call-arg]  # of PyG's class


class GATLayer(Heads, pyg.GATConv):
    """PyG's GATConv."""


class GATv2Layer(Heads, pyg.GATv2Conv):
    """PyG's GATv2Conv."""


# The layers of typed graphs take the rows `h` and the edges by type, and give the rows of the node
# types that they compute.


glorot_linear = partial(pyg.Linear, weight_initializer="glorot", bias_initializer="zeros")


class HeteroSAGELayer(nn.Module):
    """Sum or mean over the relations r of lin_l_r(aggregate of x_u) + lin_r_r(x_v).

    The parameters are those of PyG's `HeteroConv` of a `SAGEConv` for each relation. A node type
    without edges into it has a linear layer.
    """

    def __init__(self, types, aggregator, relation_aggregator):
        super().__init__()
        self.types, self.reduce = types, aggregator
        widths, after, self.convs = types.in_channels, types.out_channels, ModuleDict()
        for edge in types.edge_types:
            both = widths[edge[0]], widths[edge[2]]
            self.convs[edge] = pyg.SAGEConv(both, after, aggr=aggregator)
        alone = [t for t in types.node_types if not types.into(t)]
        self.lins = ModuleDict({t: nn.Linear(widths[t], after) for t in alone})
        # By which the sum over the relations into a node type is divided.
        is_mean = relation_aggregator == "mean"
        self.divisors = {t: len(types.into(t)) if is_mean else 1 for t in types.node_types}

    def forward(self, h, edge_index):
        out = {t: lin(h[t]) for t, lin in self.lins.items()}
        for t in (t for t in self.types.node_types if t not in out):
            edges = self.types.into(t)
            total = sum(self.convs[edge]((h[edge[0]], h[t]), edge_index[edge]) for edge in edges)
            out[t] = total / self.divisors[t]
        return out


class RGCNLayer(nn.Module):
    """Σ_r W_r · (mean of x_u over the in-neighbours u of relation r) + W_0 x_v + b.

    W_0 and b are those of the node type of v (`roots`; of one-hot input `biases`). A layer's W_r
    are matrices of their own (`weight`, `[out, in]`), or Σ_b comp[r, b] · bases[b], or
    block-diagonal (`blocks`, `[num_blocks, out / num_blocks, in / num_blocks]`): the latter for the
    relations whose two widths `num_blocks` divides; the others have a matrix. `comp` has its rows
    in the order of the edge types' names: the weights fit a graph that has the same types in
    another order. The products of one-hot inputs are rows of tables, see `LayerTypes.one_hot`: such
    a row has one block of columns for each basis, or else for each edge type out of the node type,
    and one for W_0.
    """

    def __init__(self, types, num_bases=None, num_blocks=None):
        super().__init__()
        self.types = types
        widths, after, self._names = types.in_channels, types.out_channels, sorted(types.edge_types)
        self.weight, self.blocks = ParameterDict(), ParameterDict()
        self.roots, self.biases = ModuleDict(), ParameterDict()
        self.comp = None
        dense = [edge for edge in types.edge_types if edge[0] not in types.one_hot]
        if num_bases is not None and types.edge_types:
            if dense:
                self.bases = nn.Parameter(torch.empty(num_bases, after, widths[dense[0][0]]))
            self.comp, dense = nn.Parameter(torch.empty(len(self._names), num_bases)), []
        for edge in dense:
            before = widths[edge[0]]
            if num_blocks is not None and before % num_blocks == after % num_blocks == 0:
                shape = num_blocks, after // num_blocks, before // num_blocks
                self.blocks[edge] = nn.Parameter(torch.empty(shape))
            else:
                self.weight[edge] = nn.Parameter(torch.empty(after, before))
        for weight in self.parameters():
            glorot(weight)  # as in PyG's `RGCNConv`
        self._columns: dict[Any, slice] = {}
        for t in types.one_hot:  # the columns of its rows by who reads them
            for i, edge in enumerate(edge for edge in self._names if edge[0] == t):
                first, number = (i, 1) if self.comp is None else (0, self.comp.shape[1])
                self._columns[edge] = slice(first * after, (first + number) * after)
            self._columns[t] = slice(widths[t] - after, None)
        self.register_buffer("one", torch.eye(after if types.one_hot else 0), persistent=False)
        for t in types.node_types:
            if t in types.one_hot:
                self.biases[t] = nn.Parameter(torch.zeros(after))
            else:
                self.roots[t] = glorot_linear(widths[t], after)

    def columns(self, key):
        """Which columns of a type's input an edge type reads, or a node's own term."""
        return self._columns.get(key, slice(None))

    def relation_weight(self, edge_type):
        """W_r; of a one-hot input, what combines the blocks of columns."""
        comp = None if self.comp is None else self.comp[self._names.index(edge_type)]
        if edge_type[0] in self.types.one_hot:
            return self.one if comp is None else torch.kron(comp[None], self.one)
        if comp is not None:
            return torch.einsum("b,boi->oi", comp, self.bases)
        if edge_type in self.blocks:
            return torch.block_diag(*self.blocks[edge_type])
        return self.weight[edge_type]

    def root(self, node_type):
        """W_0 and b."""
        if node_type in self.biases:
            return self.one, self.biases[node_type]
        return self.roots[node_type].weight, self.roots[node_type].bias

    def forward(self, h, edge_index):
        out = {}
        for t in self.types.node_types:
            out[t] = F.linear(h[t][:, self.columns(t)], *self.root(t))
        for edge, (src, dst) in edge_index.items():
            rows = h[edge[0]][:, self.columns(edge)][src]
            mean = scatter(rows, dst, dim_size=len(h[edge[2]]), reduce="mean")
            out[edge[2]] = out[edge[2]] + F.linear(mean, self.relation_weight(edge))
        return out


def attend(number, messages, dropout=0.0):
    """Sums of edges' rows, `[number, H, C]`, by the softmax of a destination's scores. A message is
    the rows `[E, H, C]` of some edges, their scores `[E, H]` and destinations `[E]`."""
    rows, scores, index = map(torch.cat, zip(*messages, strict=True))
    alpha = F.dropout(softmax(scores, index, num_nodes=number), dropout).unsqueeze(-1)
    return scatter(alpha * rows, index, dim_size=number)


class HGTLayer(nn.Module):
    """PyG's `HGTConv`; in the output layer a linear map `lin` to the outputs follows.

    By head, for an edge of relation r from u to v, with keys k_u, values v_u and queries q_v:
    α is the softmax over all in-edges of v of p_r · (k_u K_r) · q_v / √D, and the aggregate is
    Σ α · (v_u V_r).

    By node type, `kv_lin` gives keys and values side by side, `q_lin` queries, `out_lin` maps the
    aggregate after gelu; where no edge leads to, `own_lin` maps the rows themselves. `skip`, of
    types whose input is `hidden_channels` wide, gates it: σ(skip) · out + (1 − σ(skip)) · input.
    By edge type, `k_rel` and `v_rel` are K_r and V_r, `[H, D, D]`, and `p_rel` is p_r, `[H]`.
    """

    def __init__(self, types, heads):
        super().__init__()
        self.types, self.heads, hidden_channels = types, heads, types.hidden_channels
        width, before = hidden_channels // heads, types.in_channels
        sources = {edge_type[0] for edge_type in types.edge_types}
        kv_lin = {t: nn.Linear(w, 2 * hidden_channels) for t, w in before.items() if t in sources}
        self.kv_lin, self.q_lin, self.out_lin = ModuleDict(kv_lin), ModuleDict(), ModuleDict()
        self.own_lin, self.skip = ModuleDict(), ParameterDict()
        for t in types.node_types:
            if types.into(t):
                self.q_lin[t] = nn.Linear(before[t], hidden_channels)
                self.out_lin[t] = nn.Linear(hidden_channels, hidden_channels)
            else:
                self.own_lin[t] = nn.Linear(before[t], hidden_channels)
            if before[t] == hidden_channels:
                self.skip[t] = nn.Parameter(torch.ones(1))
        self.k_rel, self.v_rel, self.p_rel = ParameterDict(), ParameterDict(), ParameterDict()
        for edge_type in types.edge_types:
            for matrices in (self.k_rel, self.v_rel):  # as PyG draws them
                drawn = torch.empty(heads, width, width).uniform_(-(width**-0.5), width**-0.5)
                matrices[edge_type] = nn.Parameter(drawn)
            self.p_rel[edge_type] = nn.Parameter(torch.ones(heads))
        is_output = types.is_output
        self.lin = nn.Linear(hidden_channels, types.out_channels) if is_output else nn.Identity()

    def finish(self, node_type, total, h):
        """A type's output from the aggregate `[n, H·D]` (None: no edge leads to it) and input."""
        if total is None:
            out = self.own_lin[node_type](h)
        else:
            out = self.out_lin[node_type](F.gelu(total))
        if node_type in self.skip:
            share = self.skip[node_type].sigmoid()
            out = share * out + (1 - share) * h
        return self.lin(out)

    def forward(self, h, edge_index):
        out, heads = {}, (self.heads, -1)
        for t in self.types.node_types:
            messages = []
            for edge in self.types.into(t):
                src, dst = edge_index[edge]
                query = self.q_lin[t](h[t]).unflatten(1, heads)
                kv = self.kv_lin[edge[0]](h[edge[0]]).unflatten(1, (2, *heads))
                matrices = torch.stack([self.k_rel[edge], self.v_rel[edge]])
                keys, values = torch.einsum("nihd,ihde->inhe", kv, matrices)
                score = (keys[src] * query[dst]).sum(-1) / query.shape[-1] ** 0.5
                messages.append((values[src], score * self.p_rel[edge], dst))
            total = attend(len(h[t]), messages).flatten(1) if messages else None
            out[t] = self.finish(t, total, h[t])
        return out


class RGATLayer(nn.Module):
    """Σ_r Σ α_uv W_r x_u over the in-neighbours u of each relation r, + W_0 x_v + b.

    W_0 and b are by node type: `roots`, linear layers. `relations` has the parameters of a
    `GATConv` for each edge type. With `across_relations` one softmax covers the in-neighbours of
    all relations.
    """

    make_relation: Any = GATLayer

    def __init__(self, types, across_relations, heads, output_heads, **options):
        super().__init__()
        self.types, self.is_joint, self.concat = types, across_relations, not types.is_output
        self.heads = output_heads if types.is_output else heads
        before, self.relations = types.in_channels, ModuleDict()
        options |= {"add_self_loops": False, "bias": False}
        for edge in types.edge_types:
            source, target = before[edge[0]], before[edge[2]]
            width = {edge: source if source == target else (source, target)}
            of = types._replace(in_channels=width), heads, output_heads
            self.relations[edge] = self.make_relation(*of, **options)
        roots = {t: glorot_linear(before[t], types.out_channels) for t in types.node_types}
        self.roots = ModuleDict(roots)

    def finish(self, node_type, total, h):
        """A type's output from the sum of the relations' (None: there are none) and its input."""
        own = self.roots[node_type](h)
        return own if total is None else total + own

    def forward(self, h, edge_index):
        out = {}
        for t in self.types.node_types:
            messages, total = [], None
            for i, edge in enumerate(self.types.into(t)):
                conv, (src, dst) = self.relations[edge], edge_index[edge]
                source, target = (
                    (conv.lin or lin)(h[of]).unflatten(1, (self.heads, -1))
                    for lin, of in ((conv.lin_src, edge[0]), (conv.lin_dst, t))
                )
                score = (source * conv.att_src).sum(-1)[src] + (target * conv.att_dst).sum(-1)[dst]
                score = F.leaky_relu(score, conv.negative_slope)
                dst = dst if self.is_joint else dst + i * len(h[t])
                messages.append((source[src], score, dst))
            if messages:  # one softmax, or one a relation
                number = 1 if self.is_joint else len(messages)
                dropout = conv.dropout if self.training else 0.0
                total = attend(number * len(h[t]), messages, dropout)
                total = total.unflatten(0, (number, -1)).sum(0)
                total = total.flatten(1) if self.concat else total.mean(1)
            out[t] = self.finish(t, total, h[t])
        return out


class WithTables(nn.Module):
    """The outputs of the nodes of type `target`, by a model of `x_dict` and `edge_index_dict`.

    x_dict: float32 [num_nodes, width] of each type with features.
    edge_index_dict: int64 [2, num_edges] of each edge type, sources over destinations.
    n_id_dict: the nodes of a batch, int64 [num_nodes] of each type without features: which learnt
    rows to take. None: all nodes of the graph of training, in order.
    """

    def __init__(self, module, target, tables):
        super().__init__()
        self.module, self.target = module, target
        self.tables = ModuleDict({t: nn.Embedding(*shape) for t, shape in tables.items()})

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
