"""A user's own model: found by its entry point, run as it is."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from torch import Tensor, nn

from gnntrain.errors import UserError
from gnntrain.models.base import GNN

ENTRY_POINT_GROUP = "gnntrain.models"


class PlainModel(nn.Module):
    """A plain PyG model `forward(x, edge_index)`, run on all of a mini-batch's nodes.

    Args:
        module: The model.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Outputs of all nodes, float `[num_nodes, out_channels]`."""
        rows: Tensor = self.module(x, edge_index)
        return rows


def installed_plugins() -> tuple[str, ...]:
    """Names of the models that installed packages offer."""
    return tuple(sorted({point.name for point in entry_points(group=ENTRY_POINT_GROUP)}))


def build_plugin(
    name: str, in_channels: int, out_channels: int, options: Mapping[str, Any]
) -> GNN | PlainModel:
    """Make the model that an installed package offers as `name`.

    The entry point (group `gnntrain.models`) is a callable `(in_channels, out_channels,
    **options)`. A `GNN` that it returns is used as is; any other module is taken for a plain PyG
    model.

    Args:
        name: Of the entry point; one of `installed_plugins()`.
        in_channels: Width of the input rows.
        out_channels: Width of the outputs.
        options: Handed on by keyword.

    Raises:
        UserError: It cannot be imported, does not take the options, or returns something else.
    """
    (point, *_) = entry_points(group=ENTRY_POINT_GROUP, name=name)
    try:
        make = point.load()
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"model {name!r} ({point.value}) cannot be imported: {error}",
            f"install or mend the package that declares the entry point {name!r} "
            f"in the group {ENTRY_POINT_GROUP!r}",
        ) from error
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
