"""The keys of `model=NAME`, as the model's own file declares them.

`gnntrain/models/gat.py` defines `GAT`. The keyword-only arguments of its `__init__` are the keys
of `model=gat`: an annotation is a key's type and range, a default its default, and the class's
docstring says what it means. Annotations are Python's own types, `Literal[...]`, and the types of
`gnntrain.config.types`. `**scaffold` adds the keys of `LayeredConfig`, or those of
`HeteroLayeredConfig` to a model of typed graphs (`is_hetero = True`), some with another default
where the class says so: `config_defaults = {"activation": "elu"}`. `saved_defaults` are those of
runs that were saved before there was a key.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import (
    Field,
    SerializeAsAny,
    ValidationInfo,
    WrapValidator,
    create_model,
    model_validator,
)

from gnntrain.config import types
from gnntrain.config.types import JSON, OneOf, OneOrMore, Section, Share, Text, Variants, name_in
from gnntrain.groups import config_groups
from gnntrain.plugins import MODELS, load_plugin, plugin_names, takes_schema

DEFAULT = "sage"
_PLUGIN = "plugin"
_FOLDER = Path(__file__).parents[1] / "models"


@cache
def model_names() -> tuple[str, ...]:
    """The built-in models: those that have a file in `conf/model`."""
    return tuple(name for name in config_groups()["model"] if name != _PLUGIN)


class ModelConfig(Section):
    """The keys every model has.

    `ModelConfig(name="gat", heads=4)` makes the section that the name stands for, with its keys:
    of a built-in model those of its class, of any other model those of `PluginConfig`.
    """

    name: Text = DEFAULT
    """Name of the model."""
    num_layers: OneOrMore = 2
    """Number of layers. Each layer (but the MLP's) looks one hop further."""

    uses_graph: ClassVar[bool] = True
    is_hetero: ClassVar[bool] = False
    saved_defaults: ClassVar[JSON] = {}

    @classmethod
    def class_for(cls, keys: Mapping[str, Any]) -> type[Section]:
        """The class that the name stands for."""
        return _choose(keys) if cls is ModelConfig else cls

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_its_time(cls, raw: Any, info: ValidationInfo) -> Any:
        """A user's own file may be read as a saved one; a saved one has all keys of its time."""
        is_saved = info.context and info.context.get("saved") and isinstance(raw, Mapping)
        has_all = is_saved and StackConfig.model_fields.keys() <= raw.keys()
        return {**cls.saved_defaults, **raw} if has_all else raw

    if TYPE_CHECKING:  # which keys there are depends on the name

        def __init__(self, **keys: Any) -> None: ...

    def __reduce__(self) -> tuple[Callable[[JSON], ModelConfig], tuple[JSON]]:
        """Pickle by name and keys: a class that was made from a signature cannot be imported."""
        return _unpickle, (dict(self),)


class StackConfig(ModelConfig):
    """The keys of every stack of layers."""

    hidden_channels: OneOrMore = 128
    """Width of the hidden layers, all heads together."""
    dropout: Share = 0.5
    """Share of the hidden values to drop in training."""
    input_dropout: Share = 0.0
    """Share of the input features to drop in training."""
    norm: Literal["none", "batch", "layer"] = "none"
    """Normalisation between layers."""
    activation: Literal["relu", "elu", "gelu", "leaky_relu", "none"] = "relu"
    """Activation between layers."""
    residual: bool = False
    """Add the input of each layer to its output."""


class LayeredConfig(StackConfig):
    """The keys every built-in model of graphs with one type has."""

    jk: Literal["none", "cat", "max"] = "none"
    """Jumping knowledge (Xu et al., 2018): classify the outputs of all layers, concatenated (cat)
    or their maximum (max), or the last layer's alone (none)."""


class HeteroLayeredConfig(StackConfig):
    """The keys every built-in model of typed graphs has."""

    project_inputs: bool = True
    """Bring the features of each node type to hidden_channels by a linear layer of its own and the
    activation, before the first convolution."""
    embedding_channels: OneOrMore | None = None
    """Width of the learnt rows of node types without features; null: hidden_channels."""


class PluginConfig(ModelConfig):
    """A model of another package, found by entry point."""

    name: Annotated[Text, OneOf(model_names, MODELS)] = _PLUGIN
    """Name of the model's entry point in the group gnntrain.models. Must be given."""
    options: JSON = Field(default_factory=dict)
    """Arguments for the model's class."""
    embedding_channels: OneOrMore = 128
    """Of typed graphs: width of the learnt rows of node types without features."""

    @property
    def is_hetero(self) -> bool:  # type: ignore[override]
        """Whether it is a model of typed graphs; imports it."""
        return takes_schema(load_plugin(MODELS, self.name))


class ClassSource(NamedTuple):
    """A class that gives its file the name: `GATv2` in `gatv2.py`; underscores do not count.

    Attributes:
        name: Of the class.
        summary: First line of the file's docstring.
        docstring: Of the class; of its base class where that has the arguments.
        arguments: (annotation, default) of each keyword-only argument of `__init__`.
        passes_on: Whether `__init__` takes `**keywords` too, for its base class.
        constants: Attributes of the class that are plain values, such as `uses_graph = False`.
    """

    name: str
    summary: str
    docstring: str
    arguments: Mapping[str, tuple[str, Any]]
    passes_on: bool
    constants: Mapping[str, Any]


def read_class(file: Path) -> ClassSource:
    """Parse, not import, the class that is named as its file: a model's file imports torch, which
    takes seconds, and a configuration is judged without it.

    A class without an `__init__` has the arguments and constants of its first base class, which
    has a file of its own in the same folder: `GAT` in `gat.py`.
    """
    module, name = ast.parse(file.read_text(encoding="utf-8")), file.stem.replace("_", "")
    classes = (node for node in module.body if isinstance(node, ast.ClassDef))
    found = next(node for node in classes if node.name.lower() == name)
    summary = (ast.get_docstring(module) or "").partition("\n")[0]
    init, constants = None, dict[str, Any]()
    for node in found.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            init = node.args
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            with suppress(ValueError):  # it would have to be computed
                constants[ast.unparse(target)] = ast.literal_eval(node.value)
    if init is None:
        base = read_class(file.with_name(f"{ast.unparse(found.bases[0]).lower()}.py"))
        constants = {**base.constants, **constants}
        return base._replace(name=found.name, summary=summary, constants=constants)
    arguments = {
        argument.arg: (ast.unparse(argument.annotation), ast.literal_eval(default))
        for argument, default in zip(init.kwonlyargs, init.kw_defaults, strict=True)
        if argument.annotation is not None and default is not None
    }
    docstring, passes_on = ast.get_docstring(found) or "", init.kwarg is not None
    return ClassSource(found.name, summary, docstring, arguments, passes_on, constants)


@cache
def model_source(name: str) -> ClassSource:
    """What the file of a built-in model says of its class."""
    return read_class(_FOLDER / f"{name}.py")


@cache
def model_section(name: str) -> type[ModelConfig]:
    """The section of a built-in model; `PluginConfig` for any other name."""
    if name not in model_names():
        return PluginConfig
    source = model_source(name)
    is_hetero = source.constants.get("is_hetero", False)
    scaffold = HeteroLayeredConfig if is_hetero else LayeredConfig
    base = scaffold if source.passes_on else ModelConfig
    fields: dict[str, Any] = {"name": (Literal[name], name), **source.arguments}
    for key, default in source.constants.get("config_defaults", {}).items():
        field = copy(base.model_fields[key])
        field.default = default
        fields[key] = (field.annotation, field)
    section = create_model(
        f"{source.name}Config", __base__=base, __module__=__name__, __doc__=source.summary, **fields
    )
    section.uses_graph = source.constants.get("uses_graph", True)
    section.is_hetero = is_hetero
    section.saved_defaults = source.constants.get("saved_defaults", {})
    section.model_rebuild(_types_namespace=vars(types))
    return section


def _unpickle(keys: JSON) -> ModelConfig:
    return _choose(keys).model_validate(keys, context={"saved": True})


def _choose(keys: object) -> type[ModelConfig]:
    return model_section(name_in(keys, DEFAULT))


MODEL_VARIANTS = Variants(lambda: (*model_names(), *plugin_names(MODELS)), _choose)

AnyModelConfig = Annotated[SerializeAsAny[ModelConfig], WrapValidator(MODEL_VARIANTS.read)]
