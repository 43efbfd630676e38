"""Which model a name stands for."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Protocol

from gnntrain.errors import UserError
from gnntrain.models.base import GNN
from gnntrain.models.gat import GAT
from gnntrain.models.gatv2 import GATv2
from gnntrain.models.gcn import GCN
from gnntrain.models.gin import GIN
from gnntrain.models.mlp import MLP
from gnntrain.models.plugin import PlainModel, build_plugin, installed_plugins
from gnntrain.models.sage import SAGE

MODELS: dict[str, Callable[..., GNN]] = {
    "sage": SAGE,
    "gcn": GCN,
    "gat": GAT,
    "gatv2": GATv2,
    "gin": GIN,
    "mlp": MLP,
}


class ModelOptions(Protocol):
    """A model's configuration: its name, and as attributes the keywords of its class."""

    @property
    def name(self) -> str: ...


def build_model(config: ModelOptions, in_channels: int, out_channels: int) -> GNN | PlainModel:
    """Make the model a configuration asks for, its weights drawn from torch's generator.

    Args:
        config: For a built-in model `name` and the keywords of its class; for a plug-in `name`,
            its entry point, and `options`, a mapping.
        in_channels: Width of the input rows.
        out_channels: Width of the outputs.

    Raises:
        UserError: No such model, or its options do not fit together.
    """
    if config.name in MODELS:
        options = {key: value for key, value in vars(config).items() if key != "name"}
        return MODELS[config.name](in_channels, out_channels, **options)
    plugins = installed_plugins()
    if config.name not in plugins:
        raise _unknown(config.name, (*MODELS, *plugins))
    return build_plugin(config.name, in_channels, out_channels, getattr(config, "options", {}))


def _unknown(name: str, choices: tuple[str, ...]) -> UserError:
    nearest = get_close_matches(name, choices, n=1)
    guess = f"did you mean {nearest[0]!r}? " if nearest else ""
    return UserError(f"no model is called {name!r}", f"{guess}there are {', '.join(choices)}")
