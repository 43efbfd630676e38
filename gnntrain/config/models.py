"""The keys of `model=NAME`, as the model's own file declares them.

`gnntrain/models/gat.py` defines `GAT`. The keyword-only arguments of its `__init__` are the keys
of `model=gat`: an annotation is a key's type and range, a default its default, and the class's
docstring says what it means. Annotations are Python's own types, `Literal[...]`, and the types of
`gnntrain.config.types`. `**scaffold` adds the keys of `LayeredConfig`, some with another default
where the class says so: `config_defaults = {"activation": "elu"}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

from pydantic import Field, create_model

from gnntrain.config import types
from gnntrain.config.signatures import Argument, read_class
from gnntrain.config.types import JSON, OneOrMore, Section, Share, Text
from gnntrain.groups import config_groups

DEFAULT = "sage"
_PLUGIN = "plugin"
_FOLDER = Path(__file__).parents[1] / "models"


class ModelConfig(Section):
    """The keys every model has.

    `ModelConfig(name="gat", heads=4)` makes the section that the name stands for, with its keys:
    of a built-in model those of its class, of any other model those of `PluginConfig`.
    """

    name: Text = DEFAULT
    """Name of the model."""
    num_layers: OneOrMore = 2
    """Layers; each but the MLP's looks one hop further."""

    uses_graph: ClassVar[bool] = True

    def __new__(cls, **keys: Any) -> Self:
        """An empty section of the class that `name` stands for."""
        chosen = model_section(keys.get("name", DEFAULT)) if cls is ModelConfig else cls
        return cast(Self, super().__new__(chosen))

    @classmethod
    def public_name(cls) -> str:
        """`ModelConfig` for every model."""
        return ModelConfig.__name__

    if TYPE_CHECKING:  # which keys there are depends on the name

        def __init__(self, **keys: Any) -> None: ...

    def __reduce__(self) -> tuple[Callable[[], ModelConfig], tuple[()]]:
        """Pickle by name and keys: a class that was made from a signature cannot be imported."""
        return partial(ModelConfig, **dict(self)), ()


class LayeredConfig(ModelConfig):
    """The keys every built-in model has."""

    hidden_channels: OneOrMore = 128
    """Width of the hidden layers, all heads together."""
    dropout: Share = 0.5
    """Share of hidden values dropped in training."""
    input_dropout: Share = 0.0
    """Share of input features dropped in training."""
    norm: Literal["none", "batch", "layer"] = "none"
    """Normalisation between layers."""
    activation: Literal["relu", "elu", "gelu", "leaky_relu", "none"] = "relu"
    """Activation between layers."""
    residual: bool = False
    """Add each layer's input to its output."""
    jk: Literal["none", "cat", "max"] = "none"
    """Jumping knowledge (Xu et al., 2018): classify all layers' values, joined or their maximum."""


class PluginConfig(ModelConfig):
    """A model of another package, found by entry point."""

    name: Text = _PLUGIN
    """Name of the model's entry point in the group gnntrain.models. Must be given."""
    options: JSON = Field(default_factory=dict)
    """The model's own options, handed over as they are."""


def model_names() -> tuple[str, ...]:
    """The built-in models: those that have a file in `conf/model`."""
    return tuple(name for name in _shipped() if name != _PLUGIN)


@cache
def _shipped() -> tuple[str, ...]:
    return tuple(config_groups()["model"])


def model_sections() -> Mapping[str, type[ModelConfig]]:
    """The section of every built-in model, by the model's name."""
    return {name: model_section(name) for name in model_names()}


def model_class_name(name: str) -> str:
    """The class that a built-in model's file defines."""
    return read_class(_FOLDER / f"{name}.py").name


@cache
def model_section(name: str) -> type[ModelConfig]:
    """The section of a built-in model; `PluginConfig` for any other name."""
    if name not in model_names():
        return PluginConfig
    source = read_class(_FOLDER / f"{name}.py")
    base = LayeredConfig if source.passes_on else ModelConfig
    fields: dict[str, Any] = {
        "name": (Literal[name], Field(name, description="Name of the model.")),
        **{
            key: _shared_key(base, key, default)
            for key, default in source.constants.get("config_defaults", {}).items()
        },
        **{argument.name: _own_key(argument) for argument in source.arguments},
    }
    section = create_model(
        f"{source.name}Config", __base__=base, __module__=__name__, __doc__=source.summary, **fields
    )
    section.uses_graph = source.constants.get("uses_graph", True)
    section.model_rebuild(_types_namespace=vars(types))
    return section


def _shared_key(base: type[ModelConfig], key: str, default: object) -> tuple[Any, Any]:
    """The annotation and the field of a key of `base`, with another default."""
    field = copy(base.model_fields[key])
    field.default = default
    return field.annotation, field


def _own_key(argument: Argument) -> tuple[Any, Any]:
    return argument.annotation, Field(argument.default, description=argument.meaning)
