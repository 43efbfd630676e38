"""The models, with the parameters that they have by default."""

from __future__ import annotations

import torch

from gnntrain.config.models import ModelConfig, model_names
from gnntrain.data.graph import EDGE, NODE, GraphSchema
from gnntrain.models import build_model
from gnntrain.plugins import MODELS, plugin_names

HEADER = ("model", "what it is", "parameters")
_NUM_FEATURES, _NUM_CLASSES = 100, 47
_SCHEMA = GraphSchema({NODE: 2_449_029}, {NODE: _NUM_FEATURES}, (EDGE,), NODE)
NOTE = (
    f"Parameters with the default keys, {_NUM_FEATURES} features and {_NUM_CLASSES} classes "
    "(ogbn-products)."
)


def model_rows() -> list[list[str]]:
    """Built-in models, with their sizes for one shape of graph, and those of other packages."""
    rows = []
    for name in model_names():
        config = ModelConfig(name=name)
        with torch.device("meta"):
            model = build_model(config, _SCHEMA, _NUM_CLASSES)
        number = sum(parameter.numel() for parameter in model.parameters())
        rows.append([name, str(config.__doc__).rstrip("."), f"{number:,}"])
    for name in plugin_names(MODELS):
        rows.append([name, f"of an installed package: model=plugin model.name={name}", "-"])
    return rows
