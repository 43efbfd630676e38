"""A model as plain PyG code and weights, which `gnntrain export` writes to files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass
class PyGModel:
    """A plain PyG model with the same outputs as a `GNN`.

    Attributes:
        name: The class or function of `module` that it is known as.
        arguments: Keyword arguments of the call that makes it.
        weights: Its state dict.
        module: Where `imports` come from.
        call: The called function, as Python; "": `name`.
        positionals: Its other arguments, as Python.
        changes: Lines of Python that change `model`, the result of the call.
        imports: The names that `call` and `changes` need.
        copied: The classes and functions of `plain` that they need.
        inputs: Arguments of its `forward`; `edge_weight` only where the graph has weights.
    """

    name: str
    arguments: dict[str, Any]
    weights: dict[str, Tensor]
    module: str = "torch_geometric.nn"
    call: str = ""
    positionals: Sequence[str] = ()
    changes: list[str] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)
    copied: Sequence[Any] = ()
    inputs: tuple[str, ...] = ("x", "edge_index")

    @property
    def own_package(self) -> str | None:
        """The package that the model is imported from; None for PyG."""
        package = self.module.partition(".")[0]
        return None if package == "torch_geometric" else package
