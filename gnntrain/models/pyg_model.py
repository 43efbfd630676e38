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
    """A plain PyG model with the same outputs as a `GNN`.

    Attributes:
        name: The class or function of `module` that it is known as.
        weights: Its state dict.
        code: Python that makes `model`.
        imports: The names of `module` that the code needs.
        copied: The classes of `plain` that it needs.
        module: Where `imports` come from.
        arguments: Of the class or function; for people to read.
        inputs: Arguments of its `forward`; `edge_weight` only where the graph has weights.
    """

    name: str
    weights: dict[str, Tensor]
    code: str
    imports: Sequence[str] = ()
    copied: Sequence[Any] = ()
    module: str = "torch_geometric.nn"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ("x", "edge_index")

    @property
    def own_package(self) -> str | None:
        """The package that the model is imported from; None for PyG."""
        package = self.module.partition(".")[0]
        return None if package == "torch_geometric" else package


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
