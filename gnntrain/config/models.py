"""The keys of `model=NAME`, as the model's own file declares them.

`gnntrain/models/gat.py` defines `GAT`. Its annotated attributes are the keys of `model=gat`, with
types and defaults; its docstring says what they mean. Its base `GNN` adds the keys of
`LayeredConfig`, or `HeteroGNN` those of `HeteroLayeredConfig`, some with another default
(`config_defaults`); `saved_defaults` are those of runs that were saved before a key.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, create_model

from gnntrain.config import types
from gnntrain.config.section import Section, judged
from gnntrain.config.types import JSON, OneOrMore, Share, Text, one_of
from gnntrain.groups import config_groups
from gnntrain.plugins import MODELS, load_plugin, takes_schema


@cache
def model_names() -> tuple[str, ...]:
    """The built-in models: those that have a file in `conf/model`."""
    return tuple(name for name in config_groups()["model"] if name != "plugin")


class ModelConfig(Section):
    """The keys every model has; `ModelConfig(name="gat", heads=4)` has those of its name, too."""

    name: Annotated[Text, one_of(model_names, MODELS)] = "sage"
    """Name of the model."""
    num_layers: OneOrMore = 2
    """Number of layers. Each layer (but the MLP's) looks one hop further."""

    uses_graph: ClassVar[bool] = True
    is_hetero: ClassVar[bool] = False
    saved_defaults: ClassVar[JSON] = {}
    class_name: ClassVar[str] = ""
    docstring: ClassVar[str] = ""  # of the class: what its arguments mean

    @classmethod
    def class_for(cls, keys: Mapping[str, Any]) -> type[Section]:
        """The class that the name stands for."""
        return model_section(str(keys.get("name", "sage"))) if cls is ModelConfig else cls

    @classmethod
    def completed(cls, keys: JSON, *, saved: bool) -> JSON:
        """With what a run did that was saved (with all keys of its time) before there was a key."""
        has_all = saved and StackConfig.model_fields.keys() <= keys.keys()
        return {**cls.saved_defaults, **keys} if has_all else keys

    if TYPE_CHECKING:  # which keys there are depends on the name

        def __init__(self, **keys: Any) -> None: ...

    def __reduce__(self) -> tuple[Callable[[JSON], ModelConfig], tuple[JSON]]:
        """Pickle by name and keys: a class that was made from a signature cannot be imported."""
        return _restored, (dict(self),)


def _restored(keys: JSON) -> ModelConfig:
    return judged(ModelConfig, keys, saved=True)[0]


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

    is_hetero: ClassVar[bool] = True

    project_inputs: bool = True
    """Bring the features of each node type to hidden_channels by a linear layer of its own and the
    activation, before the first convolution."""
    embedding_channels: OneOrMore | None = None
    """Width of the learnt rows of node types without features; null: hidden_channels."""


class PluginConfig(ModelConfig):
    """A model of another package, found by entry point."""

    name: Annotated[Text, one_of(model_names, MODELS)] = "plugin"
    """Name of the model's entry point in the group gnntrain.models. Must be given."""
    options: JSON = Field(default_factory=dict)
    """Arguments for the model's class."""
    embedding_channels: OneOrMore = 128
    """Of typed graphs: width of the learnt rows of node types without features."""

    @property
    def is_hetero(self) -> bool:  # type: ignore[override]
        """Whether it is a model of typed graphs; imports it."""
        return takes_schema(load_plugin(MODELS, self.name))


@cache
def model_section(name: str) -> type[ModelConfig]:
    """The section of a built-in model; `PluginConfig` for any other name.

    Its file is parsed: an import would load torch. The class is named as the file (`GATv2` in
    `gatv2.py`); it has the keys of its base class, too, if that is another model.
    """
    if name not in model_names():
        return PluginConfig
    path = Path(__file__).parents[1] / "models" / f"{name}.py"
    module = ast.parse(path.read_text(encoding="utf-8"))
    classes = {node.name.lower(): node for node in module.body if isinstance(node, ast.ClassDef)}
    model, constants = classes[name.replace("_", "")], dict[str, Any]()
    fields: dict[str, Any] = {"name": (Literal[name], name)}
    for node in model.body:
        match node:
            case ast.AnnAssign(ast.Name(key), annotation, ast.expr() as value):
                kind = ast.unparse(annotation)
            case ast.Assign([ast.Name(key)], value):
                kind = "ClassVar"
            case _:
                continue
        if not kind.startswith("ClassVar"):
            fields[key] = (kind, ast.literal_eval(value))
            continue
        with suppress(ValueError):  # it would have to be computed
            constants[key] = ast.literal_eval(value)
    parent = ast.unparse(model.bases[0]).rpartition(".")[2].lower()
    bases: dict[str, type[ModelConfig]] = {"gnn": LayeredConfig, "heterognn": HeteroLayeredConfig}
    base = bases.get(parent) or model_section(parent)
    for key, default in constants.get("config_defaults", {}).items():
        field = copy(base.model_fields[key])
        field.default = default
        fields[key] = (field.annotation, field)
    summary = (ast.get_docstring(module) or "").partition("\n")[0]
    section = create_model(
        f"{model.name}Config", __base__=base, __module__=__name__, __doc__=summary, **fields
    )
    constants |= {"class_name": model.name, "docstring": ast.get_docstring(model) or ""}
    for key in ModelConfig.__class_vars__ & constants.keys():
        setattr(section, key, constants[key])
    section.model_rebuild(_types_namespace=vars(types))
    return section
