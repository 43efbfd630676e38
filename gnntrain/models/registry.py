"""Models by name: a file in this folder, or an entry point of another package."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Protocol

from gnntrain.config.models import model_names, model_section, model_source
from gnntrain.config.problems import did_you_mean
from gnntrain.data.graph import GraphSchema
from gnntrain.errors import UserError
from gnntrain.models.base import GNN, HeteroGNN
from gnntrain.models.plugin import AnyModel, build_plugin
from gnntrain.plugins import MODELS, plugin_names


class ModelOptions(Protocol):
    """A model's configuration: its name, and as attributes the keywords of its class."""

    @property
    def name(self) -> str: ...


def model_class(name: str) -> Callable[..., GNN | HeteroGNN]:
    """The class of a built-in model: `GATv2`, which `gatv2.py` defines."""
    module = import_module(f"gnntrain.models.{name}")
    found: Callable[..., GNN | HeteroGNN] = getattr(module, model_source(name).name)
    return found


def build_model(config: ModelOptions, inputs: int | GraphSchema, out_channels: int) -> AnyModel:
    """Build the model of a configuration, with weights from torch's generator.

    Args:
        config: For a built-in model `name` and the keywords of its class; for a plug-in `name`,
            its entry point, `options`, a mapping, `embedding_channels` and `num_layers`.
        inputs: Width of the input rows, or the types of the graph: a model of typed graphs needs
            them, another one takes the width of the target type.
        out_channels: Width of the outputs.

    Raises:
        UserError: No such model, its options do not fit together, or a plug-in `GNN` or `HeteroGNN`
            has another number of layers.
    """
    width = inputs if isinstance(inputs, int) else inputs.num_features[inputs.target]
    if config.name in model_names():
        options = {key: value for key, value in vars(config).items() if key != "name"}
        is_hetero = model_section(config.name).is_hetero
        made_for = inputs if is_hetero else width
        return model_class(config.name)(made_for, out_channels, **options)
    plugins = plugin_names(MODELS)
    if config.name not in plugins:
        raise _unknown(config.name, (*model_names(), *plugins))
    model = build_plugin(
        config.name,
        inputs,
        out_channels,
        getattr(config, "options", {}),
        getattr(config, "embedding_channels", 128),
    )
    asked, is_ours = getattr(config, "num_layers", None), isinstance(model, GNN | HeteroGNN)
    if is_ours and model.uses_graph and asked not in (None, model.num_layers):
        raise UserError(
            f"model.num_layers={asked}: the model {config.name} has {model.num_layers} layers.",
            f"Write model.num_layers={model.num_layers}, and as many sampler.fan_outs.",
        )
    return model


def _unknown(name: str, names: tuple[str, ...]) -> UserError:
    told = f"there are {', '.join(names)}"
    guess = did_you_mean(name, names)
    return UserError(f"no model is called {name!r}", told if guess is None else f"{guess} {told}")
