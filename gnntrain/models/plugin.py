"""A user's own model, found by its entry point and run unchanged."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch_geometric.nn.module_dict import ModuleDict

from gnntrain.data.graph import EdgeType, GraphSchema, NodeType
from gnntrain.errors import UserError
from gnntrain.models.base import GNN, HeteroGNN
from gnntrain.models.embedding import EmbeddingTable
from gnntrain.plugins import MODELS, find_plugin, load_plugin, takes_schema
from gnntrain.sampling.block import BlockNeeds


class PlainModel(nn.Module):
    """A plain PyG model `forward(x, edge_index)`, run on all of a mini-batch's nodes.

    Args:
        module: The model.
        name: Its name in messages.
        out_channels: Width of its outputs.

    Attributes:
        needs, uses_graph, is_hetero: See `GNN`.
    """

    needs = BlockNeeds(edge_index=True)
    uses_graph = True
    is_hetero = False

    def __init__(self, module: nn.Module, name: str, out_channels: int) -> None:
        super().__init__()
        self.module, self.name, self.out_channels = module, name, out_channels

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Outputs of all nodes, float `[num_nodes, out_channels]`."""
        return self._checked(self.module(x, edge_index), len(x))

    def _checked(self, out: Any, num_rows: int) -> Tensor:
        """The outputs of the module.

        Raises:
            UserError: They are no tensor, or one of another shape.
        """
        expected = num_rows, self.out_channels
        if isinstance(out, Tensor) and out.shape == expected:
            return out
        is_tensor = isinstance(out, Tensor)
        found = list(out.shape) if is_tensor else f"a {type(out).__name__}, not a tensor"
        raise UserError(
            f"model {self.name} gave outputs {found} for {num_rows:,} nodes; "
            f"they must be {list(expected)}: a row a node, {self.out_channels} columns.",
            "Its last layer must be as wide as the argument out_channels.",
        )


class PlainHeteroModel(PlainModel):
    """A plain PyG model `forward(x_dict, edge_index_dict)`, run on all of a mini-batch's nodes.

    The rows of types without features are those of embedding tables.

    Args:
        module: The model. It returns the outputs of the target type, or those of each type.
        name, out_channels: See `PlainModel`.
        schema: The types of the graph.
        embedding_channels: Width of the tables.

    Attributes:
        tables: The embedding table of each type without features.
    """

    is_hetero = True

    def __init__(
        self,
        module: nn.Module,
        name: str,
        out_channels: int,
        schema: GraphSchema,
        embedding_channels: int,
    ) -> None:
        super().__init__(module, name, out_channels)
        self.schema, self.tables = schema, ModuleDict()
        for node_type, width in schema.num_features.items():
            if width == 0:
                table = EmbeddingTable(schema.num_nodes[node_type], embedding_channels)
                self.tables[node_type] = table

    def forward(  # type: ignore[override]  # by type
        self,
        x_dict: Mapping[NodeType, Tensor],
        n_id_dict: Mapping[NodeType, Tensor],
        edge_index_dict: Mapping[EdgeType, Tensor],
    ) -> Tensor:
        """Outputs of all nodes of the target type, float `[num_nodes, out_channels]`.

        Args:
            x_dict: Features of the types that have some.
            n_id_dict: Ids within the type, see `HeteroGNN.forward`.
            edge_index_dict: Sources over destinations.
        """
        learnt = {t: table(n_id_dict.get(t)) for t, table in self.tables.items()}
        found = {t: learnt[t] if t in learnt else x_dict[t] for t in self.schema.node_types}
        return self.on_rows(found, edge_index_dict)

    def on_rows(
        self, x_dict: dict[NodeType, Tensor], edge_index_dict: Mapping[EdgeType, Tensor]
    ) -> Tensor:
        """As `forward`, with the rows of all types."""
        num_rows = len(x_dict[self.schema.target])
        out = self.module(x_dict, dict(edge_index_dict))
        target = out.get(self.schema.target) if isinstance(out, Mapping) else out
        return self._checked(target, num_rows)


AnyModel = GNN | HeteroGNN | PlainModel
"""What `build_model` may return."""


def build_plugin(
    name: str,
    inputs: int | GraphSchema,
    out_channels: int,
    options: Mapping[str, Any],
    embedding_channels: int,
) -> AnyModel:
    """Make the model that an installed package offers as `name`.

    The entry point (group `gnntrain.models`) is a callable `(in_channels, out_channels,
    **options)`, or for typed graphs `(schema, out_channels, **options)`. A `GNN` or `HeteroGNN` is
    used as it is, any other module is run as a plain PyG model. Weights that are initialised
    lazily get their shapes here.

    Args:
        name: Name of the entry point.
        inputs: Width of the input rows, or the types of the graph.
        out_channels: Width of the outputs.
        options: Further keyword arguments.
        embedding_channels: Width of the rows of types without features, for a plain PyG model.

    Raises:
        UserError: No package offers it, it cannot be imported, does not take the options or the
            graph, or returns something else.
    """
    point = find_plugin(MODELS, name)
    make = load_plugin(MODELS, name)
    signature = inspect.signature(make)
    if isinstance(inputs, GraphSchema) and not takes_schema(make):
        inputs = _only_width(inputs, f"{name!r} ({point.value})")
    try:
        signature.bind(inputs, out_channels, **options)
    except TypeError as error:
        raise UserError(
            f"model {name!r} ({point.value}) does not take model.options={dict(options)}: {error}",
            f"its signature is {point.attr}{signature}",
        ) from error
    model = make(inputs, out_channels, **options)
    if not isinstance(model, nn.Module):
        raise UserError(
            f"model {name!r} ({point.value}) returned a {type(model).__name__}, not a model",
            "the entry point must return a gnntrain GNN or HeteroGNN, or a torch.nn.Module",
        )
    if isinstance(model, GNN | HeteroGNN):
        return model
    _initialise(model, inputs, embedding_channels)
    if isinstance(inputs, GraphSchema):
        return PlainHeteroModel(model, name, out_channels, inputs, embedding_channels)
    return PlainModel(model, name, out_channels)


def _only_width(schema: GraphSchema, model: str) -> int:
    """The width of the rows of a graph with one type.

    Raises:
        UserError: It has several types.
    """
    if len(schema.node_types) > 1 or len(schema.edge_types) > 1:
        raise UserError(
            f"model {model} computes on one type of nodes and edges: the graph has "
            f"{len(schema.node_types)} node types and {len(schema.edge_types)} edge types.",
            "Name the first argument of the entry point `schema`: it then gets the graph's types, "
            "and its model the arguments x_dict and edge_index_dict.",
        )
    return schema.num_features[schema.target]


@torch.no_grad()
def _initialise(module: nn.Module, inputs: int | GraphSchema, embedding_channels: int) -> None:
    """Let lazily initialised weights take their shapes from a forward pass."""
    if not any(is_lazy(parameter) for parameter in module.parameters()):
        return
    edge = torch.zeros(2, 1, dtype=torch.int64)
    was_training = module.training
    module.eval()
    if isinstance(inputs, GraphSchema):
        widths = {t: width or embedding_channels for t, width in inputs.num_features.items()}
        x = {t: torch.zeros(1, width) for t, width in widths.items()}
        module(x, dict.fromkeys(inputs.edge_types, edge))
    else:
        module(torch.zeros(1, inputs), edge)
    module.train(was_training)
