"""The models, with the parameters that they have by default, and the samplers."""

from __future__ import annotations

import torch

from gnntrain.config.models import ModelConfig, model_names
from gnntrain.data.graph import EDGE, NODE, GraphSchema
from gnntrain.devices import accelerator
from gnntrain.inventory.machine import has_package
from gnntrain.models import build_model
from gnntrain.plugins import MODELS, SAMPLERS, plugin_names

MODEL_HEADER = ("model", "what it is", "parameters")
SAMPLER_HEADER = ("sampler", "backend", "what it does", "here")
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


def sampler_rows() -> list[list[str]]:
    """Built-in samplers, whether this machine has what they need, and those of other packages."""
    triton = "yes" if accelerator() == "cuda" else "no GPU"
    rows = [
        ["sampler=neighbor", "numba", "drawn on the CPU", "yes"],
        [
            "sampler=neighbor",
            "triton",
            "the same draws, on a GPU",
            triton if has_package("triton") else "no triton",
        ],
        [
            "sampler=neighbor",
            "pyg",
            "PyG's own NeighborSampler",
            "yes" if has_package("pyg_lib", "torch_sparse") else "no pyg-lib",
        ],
        ["sampler=full", "-", "the whole graph at once", "yes"],
    ]
    for name in plugin_names(SAMPLERS):
        origin = f"of an installed package: sampler.backend={name}"
        rows.append(["sampler=neighbor", name, origin, "-"])
    return rows
