"""A model as plain PyG code and weights, which `gnntrain export` writes to files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pprint import pformat
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch_geometric.nn.module_dict import ModuleDict

from gnntrain.data.graph import NodeType
from gnntrain.models.plain import TypedLayers, WithTables

if TYPE_CHECKING:
    from gnntrain.models.base import HeteroGNN
    from gnntrain.models.registry import PlainModel

_INPUTS = ("x_dict", "edge_index_dict")


@dataclass
class PyGModel:
    """A plain PyG model with the same outputs as a `GNN`.

    Attributes:
        name: The class or function of `module` that it is known as.
        arguments: Keyword arguments of the call that makes it.
        weights: Its state dict.
        module: Where `imports` come from.
        call: The called function, as Python; "": `name`.
        positionals: Its other arguments, as Python.
        changes: Lines of Python that change `model`, the result of the call.
        imports: The names that `call` and `changes` need.
        copied: The classes and functions of `plain` that they need.
        inputs: Arguments of its `forward`; `edge_weight` only where the graph has weights.
    """

    name: str
    arguments: dict[str, Any]
    weights: dict[str, Tensor]
    module: str = "torch_geometric.nn"
    call: str = ""
    positionals: Sequence[str] = ()
    changes: list[str] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)
    copied: Sequence[Any] = ()
    inputs: tuple[str, ...] = ("x", "edge_index")

    @property
    def own_package(self) -> str | None:
        """The package that the model is imported from; None for PyG."""
        package = self.module.partition(".")[0]
        return None if package == "torch_geometric" else package


@dataclass(frozen=True)
class PyGLayer:
    """PyG's layer with the same outputs as a `HeteroConv`.

    Attributes:
        conv: The name of PyG's class.
        options: Its keywords; with `aggr` by edge type, of the layers of PyG's `HeteroConv`.
        weights: Its state dict.
        aggr: How `HeteroConv` aggregates relations; None: the class takes all of them itself.
        own: By node type, weight and bias of a linear map of a node's own row, to be added.
        lin: Of the output layer: weight and bias of a linear map that follows; None: none does.
    """

    conv: str
    options: Mapping[Any, Any]
    weights: Mapping[str, Tensor]
    aggr: str | None = None
    own: Mapping[NodeType, tuple[Tensor, Tensor]] = field(default_factory=dict)
    lin: tuple[Tensor, Tensor] | None = None


def typed_pyg_model(model: HeteroGNN) -> PyGModel:
    """The PyG model with the same outputs as a `HeteroGNN`, by its layers' `pyg_layer`."""
    state, layers = model.state_dict(keep_vars=True), list[dict[str, Any]]()
    weights: dict[str, Tensor] = {}
    linears: dict[str, tuple[Tensor, Tensor]] = {}
    for i, conv in enumerate(map(model.conv, range(model.num_layers))):
        layer = conv.pyg_layer()
        weights |= {f"convs.{i}.{name}": weight for name, weight in layer.weights.items()}
        linears |= {f"own.{i}.{ModuleDict.to_internal_key(t)}": lin for t, lin in layer.own.items()}
        types = model.node_types_after(i)
        residuals: Any = model.residuals[i] if model.residuals else {}
        layers.append(
            {
                "conv": layer.conv,
                "options": dict(layer.options),
                "aggr": layer.aggr,
                "edge_types": [edge for edge in model.schema.edge_types if edge[2] in types],
                "own": {t: _widths(weight) for t, (weight, _) in layer.own.items()},
                "norms": dict.fromkeys(types, model.hidden_channels)
                if i < len(model.norms)
                else {},
                "residuals": {
                    t: _widths(lin.weight) if isinstance(lin, nn.Linear) else ()
                    for t, lin in residuals.items()
                },
            }
        )
    if layer.lin is not None:
        linears["lin"] = layer.lin
    for name, pair in linears.items():
        weights |= {f"{name}.weight": pair[0], f"{name}.bias": pair[1]}
    weights |= {name: w for name, w in state.items() if not name.startswith(("convs.", "tables."))}
    arguments = {
        "node_types": list(model.node_types_after(-1)),
        "projections": {t: _widths(lin.weight) for t, lin in model.projections.items()},
        "layers": layers,
        "lin": layer.lin and _widths(layer.lin[0]),
        "dropout": model.dropout.p,
        **model.act_and_norm,
    }
    made = PyGModel("HeteroConv" if layer.aggr else layer.conv, {}, {}, call="TypedLayers")
    made.copied = [TypedLayers]
    made.positionals = [f"{k}={pformat(v, sort_dicts=False)}" for k, v in arguments.items()]
    return with_tables(made, model, weights)


def with_tables(
    made: PyGModel, model: HeteroGNN | PlainModel, weights: Mapping[str, Tensor]
) -> PyGModel:
    """A model of the rows of all types, with the embedding tables before it.

    Args:
        made: The model, to be completed.
        model: Where the tables are.
        weights: The state dict of the model of all rows.
    """
    assert model.schema is not None
    target = model.schema.target
    tables = {t: tuple(table.weight.shape) for t, table in model.tables.items()}
    made.changes = [f"model = WithTables(model, {target!r}, {tables})"]
    made.copied, made.inputs = [*made.copied, WithTables], _INPUTS
    made.weights = {f"module.{name}": weight for name, weight in weights.items()}
    made.weights |= model.tables.state_dict(prefix="tables.", keep_vars=True)
    return made


def _widths(weight: Tensor) -> tuple[int, int]:
    return weight.shape[1], weight.shape[0]
