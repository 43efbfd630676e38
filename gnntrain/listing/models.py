"""The models, with the parameters that they have by default, and the samplers."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from gnntrain.config.models import ModelConfig, model_names
from gnntrain.listing.kinds import Listing
from gnntrain.models import build_model
from gnntrain.plugins import MODELS, SAMPLERS, plugin_names

_SHAPE = (100, 47)


def models() -> Listing:
    """Built-in models, with their sizes for one shape of graph, and those of other packages."""
    rows = []
    for name in model_names():
        config = ModelConfig(name=name)
        with torch.device("meta"):
            model = build_model(config, *_SHAPE)
        number = sum(parameter.numel() for parameter in model.parameters())
        rows.append([name, str(config.__doc__).rstrip("."), f"{number:,}"])
    for name in plugin_names(MODELS):
        rows.append([name, f"of an installed package: model=plugin model.name={name}", "-"])
    note = (
        f"Parameters with the default keys, {_SHAPE[0]} features and {_SHAPE[1]} classes "
        "(ogbn-products)."
    )
    return Listing("models", ["model", "what it is", "parameters"], rows, left=2, notes=[note])


def samplers() -> Listing:
    """Built-in samplers, whether this machine has what they need, and those of other packages."""
    cuda = torch.cuda.is_available()
    has_pyg = find_spec("pyg_lib") or find_spec("torch_sparse")
    triton = find_spec("triton") is not None
    rows = [
        ["sampler=neighbor", "numba", "drawn on the CPU", "yes"],
        [
            "sampler=neighbor",
            "triton",
            "the same draws, on a GPU",
            "yes" if cuda and triton else "no GPU" if triton else "no triton",
        ],
        [
            "sampler=neighbor",
            "pyg",
            "PyG's own NeighborSampler",
            "yes" if has_pyg else "no pyg-lib",
        ],
        ["sampler=full", "-", "the whole graph at once", "yes"],
    ]
    for name in plugin_names(SAMPLERS):
        made_by = f"of an installed package: sampler.backend={name}"
        rows.append(["sampler=neighbor", name, made_by, "-"])
    header = ["sampler", "backend", "what it does", "here"]
    return Listing("samplers", header, rows, left=4)
