"""A model as plain PyG code and weights, which `gnntrain export` writes to files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pprint import pformat
from typing import Any

from torch import Tensor
from torch_geometric.nn.module_dict import ModuleDict

from gnntrain.data.graph import NodeType

_WIDTH = 80


@dataclass
class PyGModel:
    """A plain PyG model with the same outputs as a model of ours.

    Attributes:
        name: The class or function of `module` that it is known as.
        weights: Its state dict.
        code: Python that makes `model`; PyG's layers are `pyg.NAME`.
        copied: The classes of `plain` that the code needs.
        arguments: Of the class or function; for people to read.
        inputs: Arguments of its `forward`; `edge_weight` only where the graph has weights.
        module: A plug-in's, from which the code needs `name`.
    """

    name: str
    weights: dict[str, Tensor]
    code: str
    copied: Sequence[Any] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ("x", "edge_index")
    module: str = "torch_geometric.nn"


def call(name: str, *arguments: str, **keywords: Any) -> str:
    """A call as Python, of arguments as Python and of keywords, with short ones side by side."""
    values = (f"{key}={pformat(value, sort_dicts=False)}" for key, value in keywords.items())
    lines = [f"{name}("]
    for argument in (*arguments, *values):
        if len(lines) == 1 or len(lines[-1]) + len(argument) > _WIDTH:
            lines.append("   ")
        lines[-1] += f" {argument},"
    return "\n".join([*lines, ")"])


PyGLayer = tuple[Mapping[str, Any], Mapping[str, Tensor]]
"""The arguments and the weights of a `plain.TypedConv` with the same outputs as a `HeteroConv`."""


def pyg_layer(
    conv: str,
    options: Mapping[Any, Any],
    weights: Mapping[str, Tensor],
    own: Mapping[NodeType, tuple[Tensor, Tensor]],
    **more: Any,
) -> PyGLayer:
    """A `TypedConv` of PyG's `conv`: its `options` and weights, and weight and bias of the linear
    maps of nodes' own rows."""
    named = {f"conv.{name}": weight for name, weight in weights.items()}
    for t, pair in own.items():
        key = ModuleDict.to_internal_key(t)
        named |= {f"own.{key}.{n}": w for n, w in zip(("weight", "bias"), pair, strict=True)}
    widths = {t: (weight.shape[1], weight.shape[0]) for t, (weight, _) in own.items()}
    return {"conv": conv, "options": dict(options), "own": widths, **more}, named
