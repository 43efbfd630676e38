"""A user's own model, found by its entry point and run unchanged."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from gnntrain.errors import UserError
from gnntrain.models.base import GNN
from gnntrain.models.hetero import HeteroGNN
from gnntrain.plugins import MODELS, find_plugin, load_plugin
from gnntrain.sampling.block import BlockNeeds


class PlainModel(nn.Module):
    """A plain PyG model `forward(x, edge_index)`, run on all of a mini-batch's nodes.

    Args:
        module: The model.

    Attributes:
        needs, uses_graph, is_hetero: See `GNN`.
    """

    needs = BlockNeeds(edge_index=True)
    uses_graph = True
    is_hetero = False

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Outputs of all nodes, float `[num_nodes, out_channels]`."""
        rows: Tensor = self.module(x, edge_index)
        return rows

    @property
    def output_layer(self) -> tuple[str, ...]:
        """Prefix of the names of the output layer, taken to be the last one, such as
        `convs.1.` or `lin.`."""
        names = list(self.state_dict())
        if not names:
            return ()
        parts = names[-1].split(".")
        numbers = [i for i, part in enumerate(parts) if part.isdecimal()]
        return (".".join(parts[: numbers[-1] + 1 if numbers else 2]) + ".",)


AnyModel = GNN | HeteroGNN | PlainModel
"""What `build_model` may return."""


def build_plugin(
    name: str, in_channels: int, out_channels: int, options: Mapping[str, Any]
) -> AnyModel:
    """Make the model that an installed package offers as `name`.

    The entry point (group `gnntrain.models`) is a callable `(in_channels, out_channels,
    **options)`. If it returns a `GNN`, that is used; any other module is run as a plain PyG model.

    Args:
        name: Name of the entry point.
        in_channels: Width of the input rows.
        out_channels: Width of the outputs.
        options: Further keyword arguments.

    Raises:
        UserError: No package offers it, it cannot be imported, does not take the options, or
            returns something else.
    """
    point = find_plugin(MODELS, name)
    make = load_plugin(MODELS, name)
    try:
        inspect.signature(make).bind(in_channels, out_channels, **options)
    except TypeError as error:
        raise UserError(
            f"model {name!r} ({point.value}) does not take model.options={dict(options)}: {error}",
            f"its signature is {point.attr}{inspect.signature(make)}",
        ) from error
    model = make(in_channels, out_channels, **options)
    if not isinstance(model, nn.Module):
        raise UserError(
            f"model {name!r} ({point.value}) returned a {type(model).__name__}, not a model",
            "the entry point must return a gnntrain GNN or a torch.nn.Module",
        )
    return model if isinstance(model, GNN) else PlainModel(model)
