"""Models in torch and PyG alone; `gnntrain export` copies them into `model.py`."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, operator, index"

from __future__ import annotations

import types  # noqa: F401  # a package's own model of typed graphs needs it
import warnings
from itertools import pairwise
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch_geometric.nn.module_dict import ModuleDict
from torch_geometric.nn.resolver import activation_resolver, normalization_resolver


def with_residuals(base: Any) -> Any:
    """PyG's model class `base` with each layer's input added to its output, mapped if need be."""

    class WithResiduals(base):  # type: ignore[misc]  # PyG's classes carry no types
        def __init__(self, in_channels, hidden_channels, num_layers, out_channels, **options):
            super().__init__(in_channels, hidden_channels, num_layers, out_channels, **options)
            last = hidden_channels if self.jk_mode else out_channels
            widths = [in_channels, *[hidden_channels] * (num_layers - 1), last]
            self.residuals = torch.nn.ModuleList(
                torch.nn.Identity() if before == after else torch.nn.Linear(before, after)
                for before, after in pairwise(widths)
            )

        def forward(self, x, edge_index, edge_weight=None):
            weight = {"edge_weight": edge_weight} if self.supports_edge_weight else {}
            rows = []
            for i, conv in enumerate(self.convs):
                out = conv(x, edge_index, **weight)
                is_output = i == self.num_layers - 1 and not self.jk_mode
                if not is_output:
                    out = self.norms[i](out)
                    out = self.act(out) if self.act is not None else out
                x = out + self.residuals[i](x)
                x = x if is_output else self.dropout(x)
                rows.append(x)
            return self.lin(self.jk(rows)) if self.jk_mode else x

    return WithResiduals


class TypedLayers(torch.nn.Module):
    """From the rows of each node type, `x_dict`, to the outputs by node type.

    projections, and of a layer `own` and `residuals`: by node type the widths of linear maps, none
    of the identity. A layer's `options` are the keywords of `conv`; with `aggr` by edge type, of a
    `HeteroConv`.
    """

    def __init__(self, node_types, projections, layers, lin, dropout, act, norm, norm_kwargs=None):
        super().__init__()
        self.node_types, self.edge_types = node_types, [layer["edge_types"] for layer in layers]
        self.projections = self._linears(projections)
        self.convs, self.own = torch.nn.ModuleList(), torch.nn.ModuleList()
        self.norms, self.residuals = torch.nn.ModuleList(), torch.nn.ModuleList()
        for layer in layers:
            make, options = getattr(pyg, layer["conv"]), layer["options"]
            if layer["aggr"] is None:
                self.convs.append(make(**options))
            else:
                with warnings.catch_warnings():  # no layer has to update all node types
                    warnings.simplefilter("ignore")
                    convs = {name: make(**keywords) for name, keywords in options.items()}
                    self.convs.append(pyg.HeteroConv(convs, layer["aggr"]))
            self.own.append(self._linears(layer["own"]))
            widths = layer["norms"].items()
            norms = {t: normalization_resolver(norm, n, **(norm_kwargs or {})) for t, n in widths}
            self.norms.append(ModuleDict({t: n or torch.nn.Identity() for t, n in norms.items()}))
            self.residuals.append(self._linears(layer["residuals"]))
        self.lin = torch.nn.Linear(*lin) if lin else torch.nn.Identity()
        self.act = activation_resolver(act) if act else torch.nn.Identity()
        self.dropout = torch.nn.Dropout(dropout)

    def _linears(self, widths):
        layers = {t: torch.nn.Linear(*w) if w else torch.nn.Identity() for t, w in widths.items()}
        return ModuleDict(layers)

    def forward(self, x_dict, edge_index_dict):
        h = {name: x_dict[name] for name in self.node_types}
        for name, projection in self.projections.items():
            h[name] = self.act(projection(h[name]))
        for i, conv in enumerate(self.convs):
            out = conv(h, {name: edge_index_dict[name] for name in self.edge_types[i]})
            out = {name: rows for name, rows in out.items() if rows is not None}
            for name, own in self.own[i].items():
                out[name] = out[name] + own(h[name]) if name in out else own(h[name])
            is_output = i == len(self.convs) - 1
            for name, rows in out.items():
                rows = self.lin(rows) if is_output else self.act(self.norms[i][name](rows))
                if name in self.residuals[i]:
                    rows = rows + self.residuals[i][name](h[name])
                out[name] = rows if is_output else self.dropout(rows)
            h = out
        return h


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
