"""A model as plain PyG code and weights, which `gnntrain export` writes to files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass
class PyGModel:
    """A plain PyG model with the same outputs as a `GNN`.

    Attributes:
        name: Its class, or the function that makes it.
        arguments: Keyword arguments of the call.
        weights: Its state dict.
        module: `name` and `imports` are imported from it.
        positionals: Positional arguments of the call, as Python.
        changes: Lines of Python that change `model`, the result of the call.
        imports: Further names that `changes` needs.
        inputs: Arguments of its `forward`; `edge_weight` only where the graph has weights.
        residual: Add each layer's input to its output, by a subclass of the class `name`, which
            must be a PyG `BasicGNN`.
        definition: Python that defines further classes; of PyG's modules alone, `name` is one.
        standard_imports: Lines that import from Python's library what `definition` or the call
            need.
    """

    name: str
    arguments: dict[str, Any]
    weights: dict[str, Tensor]
    module: str = "torch_geometric.nn"
    positionals: tuple[str, ...] = ()
    changes: list[str] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)
    inputs: tuple[str, ...] = ("x", "edge_index")
    residual: bool = False
    definition: str = ""
    standard_imports: list[str] = field(default_factory=list)

    @property
    def imported(self) -> list[str]:
        """The names to import from `module`, that of the model or of its layers first."""
        is_defined = self.definition != "" and self.own_package is None
        return self.imports if is_defined else [self.name, *self.imports]

    @property
    def own_package(self) -> str | None:
        """The package that the model is imported from; None for PyG."""
        package = self.module.partition(".")[0]
        return None if package == "torch_geometric" else package
