"""A model of typed graphs as plain PyG code: a class over `x_dict` and `edge_index_dict`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch_geometric.nn import BatchNorm, LayerNorm
from torch_geometric.nn.module_dict import ModuleDict

from gnntrain.data.graph import EdgeType, GraphSchema, NodeType
from gnntrain.models.pyg_model import PyGModel

if TYPE_CHECKING:
    from gnntrain.models.hetero import HeteroGNN
    from gnntrain.models.plugin import PlainHeteroModel

_CLASS = '''

class TypedModel(torch.nn.Module):
    """The outputs of the {target} nodes.

    x_dict: float32 [num_nodes, width] of each type with features.
    edge_index_dict: int64 [2, num_edges] of each edge type, sources over destinations.
    n_id_dict: the nodes of a batch, int64 [num_nodes] of each type without features: which learnt
    rows to take. None: all nodes of the graph of training, in order.
    """

    def __init__(self{arguments}):
        super().__init__()
        with warnings.catch_warnings(action="ignore"):  # no layer has to update all node types
{parts}

    def forward(self, x_dict, edge_index_dict, n_id_dict=None):
        h = dict(x_dict)
        for name, table in self.tables.items():
            h[name] = table.weight if n_id_dict is None else table(n_id_dict[name])
{forward}
'''

_INPUTS = ("x_dict", "edge_index_dict")


@dataclass(frozen=True)
class PyGLayer:
    """PyG's layer with the same outputs as a `HeteroConv`.

    Attributes:
        code: Python that makes a layer, which is called with `x_dict` and `edge_index_dict`.
        imports: PyG's names in it.
        weights: Its state dict.
        own: By node type, weight and bias of a linear map of a node's own row, to be added.
        lin: Of the output layer: weight and bias of a linear map that follows; None: none does.
        edge_types: All edge types that the layer may be given; None: it takes those of its own.
    """

    code: str
    imports: Sequence[str]
    weights: Mapping[str, Tensor]
    own: Mapping[NodeType, tuple[Tensor, Tensor]] = field(default_factory=dict)
    lin: tuple[Tensor, Tensor] | None = None
    edge_types: Sequence[EdgeType] | None = None


def hetero_conv(convs: Mapping[EdgeType, str], aggr: str = "sum") -> str:
    """Python that makes PyG's `HeteroConv` of a layer for each edge type."""
    return f"HeteroConv({_mapping(convs)}, aggr={aggr!r})"


def typed_pyg_model(model: HeteroGNN, layers: Sequence[PyGLayer]) -> PyGModel:
    """The PyG model with the same outputs as a `HeteroGNN`.

    Args:
        model: The model.
        layers: Its convolutions.
    """
    weights = {name: w for name, w in model.state_dict().items() if not name.startswith("convs.")}
    for i, layer in enumerate(layers):
        weights |= {f"convs.{i}.{name}": weight for name, weight in layer.weights.items()}
        own = {f"own.{i}.{ModuleDict.to_internal_key(t)}": lin for t, lin in layer.own.items()}
        for name, linear in (own | ({} if layer.lin is None else {"lin": layer.lin})).items():
            weights |= dict(zip((f"{name}.weight", f"{name}.bias"), linear, strict=True))
    parts = {
        "tables": _tables(model.tables),
        "projections": _modules(model.projections),
        "convs": _list(layer.code for layer in layers),
        "own": _list(_linears(layer.own) for layer in layers),
        "norms": _list(map(_modules, model.norms)),
        "act": f"torch.nn.{model.act!r}",
        "dropout": f"torch.nn.Dropout({model.dropout.p})",
    }
    if model.residuals:
        parts["residuals"] = _list(map(_modules, model.residuals))
    if layers[-1].lin is not None:
        parts["lin"] = _linear(layers[-1].lin[0])
    return PyGModel(
        "TypedModel",
        {},
        {name: weight.detach() for name, weight in weights.items()},
        imports=list(dict.fromkeys(chain(*(layer.imports for layer in layers), _norms(model)))),
        inputs=_INPUTS,
        standard_imports=["import warnings"],
        definition=_class(model.schema, parts, _forward(model, layers)),
    )


def plain_pyg_model(
    model: PlainHeteroModel, module: str, name: str, out_channels: int, options: dict[str, Any]
) -> PyGModel:
    """A package's own model, in a class with the embedding tables.

    Args:
        model: The model.
        module, name: The function that makes it.
        out_channels, options: The function's arguments beside the types of the graph.
    """
    schema = model.schema
    types = {**vars(schema), "node_types": schema.node_types}
    forward = [
        "out = self.module(h, edge_index_dict)",
        f"return out[{schema.target!r}] if isinstance(out, dict) else out",
    ]
    parts = {"tables": _tables(model.tables), "module": "module"}
    return PyGModel(
        name,
        options,
        model.state_dict(),
        module=module,
        positionals=(_call("SimpleNamespace", types), str(out_channels)),
        changes=["model = TypedModel(model)"],
        inputs=_INPUTS,
        definition=_class(schema, parts, forward, arguments=", module"),
        standard_imports=["import warnings", "from types import SimpleNamespace"],
    )


def _class(
    schema: GraphSchema, parts: Mapping[str, str], forward: Iterable[str], arguments: str = ""
) -> str:
    """Python of a class `TypedModel`.

    Args:
        schema: The types of the graph.
        parts: Python that makes its modules, by name; one is `tables`.
        forward: Lines that return the outputs, from the rows `h` of all node types.
        arguments: Arguments of `__init__`.
    """
    lines = "\n".join(f"self.{name} = {code}" for name, code in parts.items())
    return _CLASS.format(
        target=schema.target,
        arguments=arguments,
        parts=textwrap.indent(lines, " " * 12),
        forward=textwrap.indent("\n".join(forward), " " * 8),
    )


def _tables(tables: ModuleDict) -> str:
    """Python that makes the embedding tables by node type."""
    shapes = {t: ", ".join(map(str, table.weight.shape)) for t, table in tables.items()}
    return _module_dict({t: f"torch.nn.Embedding({shape})" for t, shape in shapes.items()})


def _forward(model: HeteroGNN, layers: Sequence[PyGLayer]) -> Iterator[str]:
    yield f"h = {{name: h[name] for name in {list(model.node_types_after(-1))}}}"
    yield "for name, projection in self.projections.items():"
    yield "    h[name] = self.act(projection(h[name]))"
    yield "for i, conv in enumerate(self.convs):"
    if layers[0].edge_types is None:
        yield "    out = conv(h, edge_index_dict)"
    else:
        yield f"    names = {_list_of_lists(layer.edge_types or () for layer in layers)}[i]"
        yield "    out = conv(h, {name: edge_index_dict[name] for name in names})"
    yield "    out = {name: rows for name, rows in out.items() if rows is not None}"
    yield "    for name, own in self.own[i].items():"
    yield "        out[name] = out[name] + own(h[name]) if name in out else own(h[name])"
    yield "    is_output = i == len(self.convs) - 1"
    if layers[-1].lin is not None:
        yield "    if is_output:"
        yield "        out = {name: self.lin(rows) for name, rows in out.items()}"
    yield "    if not is_output:"
    yield "        out = {name: self.act(self.norms[i][name](rows)) for name, rows in out.items()}"
    if model.residuals:
        yield "    for name, residual in self.residuals[i].items():"
        yield "        out[name] = out[name] + residual(h[name])"
    yield "    h = out if is_output else {name: self.dropout(rows) for name, rows in out.items()}"
    yield f"return h[{model.schema.target!r}]"


def _norms(model: HeteroGNN) -> set[str]:
    """Names of PyG's normalisations."""
    found = {type(module).__name__ for module in model.modules()}
    return found & {"BatchNorm", "LayerNorm"}


def _modules(modules: Any) -> str:
    return _module_dict({name: _module(module) for name, module in modules.items()})


def _module(module: nn.Module) -> str:
    if isinstance(module, nn.Linear):
        return _linear(module.weight)
    if isinstance(module, BatchNorm):
        return f"BatchNorm({module.in_channels}, allow_single_element=True)"
    if isinstance(module, LayerNorm):
        return f"LayerNorm({module.in_channels}, mode={module.mode!r})"
    assert isinstance(module, nn.Identity)
    return "torch.nn.Identity()"


def _linears(linears: Mapping[str, tuple[Tensor, Tensor]]) -> str:
    return _module_dict({name: _linear(weight) for name, (weight, _) in linears.items()})


def _linear(weight: Tensor) -> str:
    after, before = weight.shape
    return f"torch.nn.Linear({before}, {after})"


def _module_dict(modules: Mapping[str, str]) -> str:
    return f"ModuleDict({_mapping(modules)})" if modules else "ModuleDict()"


def _mapping(entries: Mapping[Any, str]) -> str:
    lines = [f"{key!r}: {code}," for key, code in entries.items()]
    return "{\n" + textwrap.indent("\n".join(lines), " " * 4) + "\n}"


def _list(modules: Iterable[str]) -> str:
    lines = "\n".join(f"{code}," for code in modules)
    inner = f"\n{textwrap.indent(lines, ' ' * 4)}\n" if lines else ""
    return f"torch.nn.ModuleList([{inner}])"


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _list_of_lists(entries: Iterable[Sequence[EdgeType]]) -> str:
    return repr([list(one) for one in entries])
