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

from gnntrain.config.models import model_names, model_section
from gnntrain.data.graph import GraphSchema, NodeType
from gnntrain.errors import UserError
from gnntrain.models.conv import HeteroGNN
from gnntrain.models.embedding import EmbeddingTable
from gnntrain.plugins import MODELS, find_plugin, load_plugin, takes_schema, told
from gnntrain.sampling.block import BlockNeeds


class PlainModel(nn.Module):
    """A plain PyG model, run on all of a mini-batch's nodes; attributes as of `HeteroGNN`.

    Args:
        module: The model: `module(x, edge_index)`; of typed graphs `module(x_dict,
            edge_index_dict)`, which returns the outputs of the target type, or those of each type.
        name: Its name in messages.
        out_channels: Width of its outputs.
        schema: The types of the graph; None: a model of one type.
        embedding_channels: Width of the learnt rows of types without features.
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
        """Outputs of all nodes of the target type, float `[num_nodes, out_channels]`, from features
        and edges as PyG has them, and `n_id` as of `HeteroGNN.forward`: of which nodes the learnt
        rows are taken, unless `x` has rows of such a type.

        Raises:
            UserError: The module's outputs are no tensor, or one of another shape.
        """
        if self.schema is None:
            num_rows, out = len(x), self.module(x, edge_index)
        else:
            types, target = self.schema.node_types, self.schema.target
            x = {t: x[t] if t in x else self.tables[t]((n_id or {}).get(t)) for t in types}
            num_rows, out = len(x[target]), self.module(x, dict(edge_index))
            out = out.get(target) if isinstance(out, Mapping) else out
        expected = [num_rows, self.out_channels]
        found = list(out.shape) if isinstance(out, Tensor) else f"a {type(out).__name__}"
        if found != expected:
            raise UserError(
                f"model {self.name} gave outputs {found} for {num_rows:,} nodes; they must be "
                f"{expected}: a tensor, a row a node, {self.out_channels} columns.",
                "Its last layer must be as wide as the argument out_channels.",
            )
        return out  # type: ignore[no-any-return]


AnyModel = HeteroGNN | PlainModel
"""What `build_model` may return."""


def build_model(config: Any, schema: GraphSchema, out_channels: int) -> AnyModel:
    """Build the model of a configuration, with weights from torch's generator.

    A plug-in is a callable `(in_channels, out_channels, **options)`, or for typed graphs `(schema,
    out_channels, **options)`. A `GNN` or `HeteroGNN` is used as it is, any other module is run as a
    plain PyG model; weights that it initialises lazily get their shapes here. `config` has a
    built-in model's `name` and the keywords of its class, or the keys of `PluginConfig`.

    Raises:
        UserError: There is no such model, or it does not take the options or the graph.
    """
    name, inputs = config.name, schema.num_features[schema.target]
    if name in model_names():
        options = {key: value for key, value in vars(config).items() if key != "name"}
        found = getattr(import_module(f"gnntrain.models.{name}"), model_section(name).class_name)
        built_in: HeteroGNN = found(schema if found.is_hetero else inputs, out_channels, **options)
        return built_in
    options, point = dict(getattr(config, "options", {})), find_plugin(MODELS, name)
    make, called = load_plugin(MODELS, name), f"model {name!r} ({point.value})"
    is_typed = takes_schema(make)
    if not is_typed and (len(schema.node_types) > 1 or len(schema.edge_types) > 1):
        raise UserError(
            f"{called} computes on one type of nodes and edges: the graph has "
            f"{len(schema.node_types)} node types and {len(schema.edge_types)} edge types.",
            "Name the first argument of the entry point `schema`: it then gets the graph's "
            "types, and its model the arguments x_dict and edge_index_dict.",
        )
    arguments: Any = schema if is_typed else inputs, out_channels
    model = None
    try:
        inspect.signature(make).bind(*arguments, **options)
        if options and isinstance(make, type) and issubclass(make, HeteroGNN):
            # Its layers judge the options.
            model = make(*arguments, **options)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{called} does not take model.options={options}: {told(error)}",
            f"its signature is {point.attr}{inspect.signature(make)}",
        ) from error
    model = model or make(*arguments, **options)
    if isinstance(model, HeteroGNN):
        asked = getattr(config, "num_layers", model.num_layers)
        if model.uses_graph and asked != model.num_layers:
            raise UserError(
                f"model.num_layers={asked}: the model {name} has {model.num_layers} layers.",
                f"Write model.num_layers={model.num_layers}, and as many sampler.fan_outs.",
            )
        return model
    if not isinstance(model, nn.Module):
        raise UserError(
            f"{called} returned a {type(model).__name__}, not a model",
            "the entry point must return a gnntrain GNN or HeteroGNN, or a torch.nn.Module",
        )
    if any(isinstance(part, HeteroGNN) for part in model.modules()):
        raise UserError(
            f"{called} holds a model of gnntrain, which computes on blocks, not on an edge_index.",
            "Take PyG's model in its place, or let the entry point return gnntrain's itself.",
        )
    embedding_channels = getattr(config, "embedding_channels", 128)
    if any(map(is_lazy, model.parameters())):  # they get their shapes from a row and an edge
        edges, widths = torch.zeros(2, 1, dtype=torch.int64), schema.num_features.items()
        x = {t: torch.zeros(1, width or embedding_channels) for t, width in widths}
        typed = x, dict.fromkeys(schema.edge_types, edges)
        with torch.no_grad():
            model.eval()(*typed if is_typed else (x[schema.target], edges))
        model.train()
    return PlainModel(model, name, out_channels, schema if is_typed else None, embedding_channels)
