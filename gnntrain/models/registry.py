"""Models by name: a file in this folder, or an entry point of another package."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch_geometric.nn.module_dict import ModuleDict

from gnntrain.config.models import model_names, model_source
from gnntrain.data.graph import GraphSchema, NodeType
from gnntrain.errors import UserError
from gnntrain.models.base import HeteroGNN
from gnntrain.models.embedding import EmbeddingTable
from gnntrain.plugins import MODELS, find_plugin, load_plugin, takes_schema
from gnntrain.sampling.block import BlockNeeds


class PlainModel(nn.Module):
    """A plain PyG model, run on all of a mini-batch's nodes; attributes as of `HeteroGNN`.

    Args:
        module: The model: `module(x, edge_index)`; of typed graphs `module(x_dict,
            edge_index_dict)`, which returns the outputs of the target type, or those of each type.
        name: Its name in messages.
        out_channels: Width of its outputs.
        schema: The types of the graph; None: a model of one type.
        embedding_channels: Width of the embedding tables, of types without features.
    """

    needs = BlockNeeds(edge_index=True)
    uses_graph = True

    def __init__(
        self,
        module: nn.Module,
        name: str,
        out_channels: int,
        schema: GraphSchema | None = None,
        embedding_channels: int = 128,
    ) -> None:
        super().__init__()
        self.module, self.name, self.out_channels = module, name, out_channels
        self.schema, self.is_hetero, self.tables = schema, schema is not None, ModuleDict()
        if schema is not None:
            for t in (t for t, width in schema.num_features.items() if width == 0):
                self.tables[t] = EmbeddingTable(schema.num_nodes[t], embedding_channels)

    def forward(
        self, x: Any, edge_index: Any, n_id: Mapping[NodeType, Tensor] | None = None
    ) -> Tensor:
        """Outputs of all nodes of the target type, float `[num_nodes, out_channels]`.

        Args:
            x: The features; of typed graphs those of the types that have some.
            edge_index: Sources over destinations; of typed graphs by edge type.
            n_id: Ids within the type, see `HeteroGNN.forward`.
        """
        if self.schema is not None:
            learnt = {t: table((n_id or {}).get(t)) for t, table in self.tables.items()}
            x = {t: learnt[t] if t in learnt else x[t] for t in self.schema.node_types}
        return self.on_rows(x, edge_index)

    def on_rows(self, x: Any, edge_index: Any) -> Tensor:
        """As `forward`, with the rows of all types.

        Raises:
            UserError: The module's outputs are no tensor, or one of another shape.
        """
        if self.schema is None:
            num_rows, out = len(x), self.module(x, edge_index)
        else:
            target = self.schema.target
            num_rows, out = len(x[target]), self.module(x, dict(edge_index))
            out = out.get(target) if isinstance(out, Mapping) else out
        expected, found = (num_rows, self.out_channels), f"a {type(out).__name__}, not a tensor"
        if isinstance(out, Tensor):
            if out.shape == expected:
                return out
            found = f"{list(out.shape)}"
        raise UserError(
            f"model {self.name} gave outputs {found} for {num_rows:,} nodes; "
            f"they must be {list(expected)}: a row a node, {self.out_channels} columns.",
            "Its last layer must be as wide as the argument out_channels.",
        )


AnyModel = HeteroGNN | PlainModel
"""What `build_model` may return."""


def build_model(config: Any, inputs: int | GraphSchema, out_channels: int) -> AnyModel:
    """Build the model of a configuration, with weights from torch's generator.

    Args:
        config: For a built-in model `name` and the keywords of its class; for a plug-in `name`,
            its entry point, `options`, a mapping, `embedding_channels` and `num_layers`.
        inputs: Width of the input rows, or the types of the graph: a model of typed graphs needs
            them, another one takes the width of the target type.
        out_channels: Width of the outputs.

    Raises:
        UserError: No such model, its options do not fit together, or a plug-in cannot be imported,
            does not take the options or the graph, returns something else, or has another number
            of layers.
    """
    if config.name not in model_names():
        return _build_plugin(config, inputs, out_channels)
    options = {key: value for key, value in vars(config).items() if key != "name"}
    found = getattr(import_module(f"gnntrain.models.{config.name}"), model_source(config.name).name)
    if isinstance(inputs, GraphSchema) and not found.is_hetero:
        inputs = inputs.num_features[inputs.target]
    model: HeteroGNN = found(inputs, out_channels, **options)
    return model


def _build_plugin(config: Any, inputs: int | GraphSchema, out_channels: int) -> AnyModel:
    """The model that an installed package offers by an entry point.

    That is a callable `(in_channels, out_channels, **options)`, or for typed graphs `(schema,
    out_channels, **options)`. A `GNN` or `HeteroGNN` is used as it is, any other module is run as a
    plain PyG model. Weights that are initialised lazily get their shapes here.
    """
    name, options = config.name, dict(getattr(config, "options", {}))
    embedding_channels = getattr(config, "embedding_channels", 128)
    point, make = find_plugin(MODELS, name), load_plugin(MODELS, name)
    signature = inspect.signature(make)
    if isinstance(inputs, GraphSchema) and not takes_schema(make):
        if len(inputs.node_types) > 1 or len(inputs.edge_types) > 1:
            raise UserError(
                f"model {name!r} ({point.value}) computes on one type of nodes and edges: the "
                f"graph has {len(inputs.node_types)} node types and {len(inputs.edge_types)} edge "
                "types.",
                "Name the first argument of the entry point `schema`: it then gets the graph's "
                "types, and its model the arguments x_dict and edge_index_dict.",
            )
        inputs = inputs.num_features[inputs.target]
    try:
        signature.bind(inputs, out_channels, **options)
    except TypeError as error:
        raise UserError(
            f"model {name!r} ({point.value}) does not take model.options={options}: {error}",
            f"its signature is {point.attr}{signature}",
        ) from error
    model = make(inputs, out_channels, **options)
    if not isinstance(model, nn.Module):
        raise UserError(
            f"model {name!r} ({point.value}) returned a {type(model).__name__}, not a model",
            "the entry point must return a gnntrain GNN or HeteroGNN, or a torch.nn.Module",
        )
    if isinstance(model, HeteroGNN):
        asked = getattr(config, "num_layers", model.num_layers)
        if model.uses_graph and asked != model.num_layers:
            raise UserError(
                f"model.num_layers={asked}: the model {name} has {model.num_layers} layers.",
                f"Write model.num_layers={model.num_layers}, and as many sampler.fan_outs.",
            )
        return model
    if any(is_lazy(parameter) for parameter in model.parameters()):
        was_training, edge = model.training, torch.zeros(2, 1, dtype=torch.int64)
        with torch.no_grad():
            if isinstance(inputs, int):
                model.eval()(torch.zeros(1, inputs), edge)
            else:
                widths = {t: n or embedding_channels for t, n in inputs.num_features.items()}
                x = {t: torch.zeros(1, width) for t, width in widths.items()}
                model.eval()(x, dict.fromkeys(inputs.edge_types, edge))
        model.train(was_training)
    schema = None if isinstance(inputs, int) else inputs
    return PlainModel(model, name, out_channels, schema, embedding_channels)
