"""Who computes the operators on a device: our kernels, or their references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from gnntrain.compute.operator import called_flat
from gnntrain.compute.ops import OPERATORS

Kernels = Literal["numba", "triton", "torch"]

SAMPLER = "sampler"
"""Stands among the operators' names for the sampler on the GPU."""
HOST_MEMORY = "host memory"
"""Stands there for kernels that read pinned host memory, or other GPUs' memory."""


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """Who computes on a device. Plain data: ranks get it from their parent.

    Attributes:
        kernels: Numba's (CPU) or Triton's (GPU) kernels, or torch's operators.
        replaced: Operators (and perhaps `SAMPLER`, `HOST_MEMORY`) that torch's operators (the CPU's
            sampler) compute although there is a kernel; by name, the reason.
    """

    kernels: Kernels
    replaced: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.kernels == "torch":
            return "torch's operators"
        replaced = f" except {', '.join(self.replaced)}" if self.replaced else ""
        return f"{self.kernels.capitalize()}'s kernels{replaced}"

    @property
    def reads_host(self) -> bool:
        """Whether all operators read feature rows in pinned host memory, or on other GPUs."""
        readers = {"gather", "aggregate", "aggregate_max", "aggregate_linear", HOST_MEMORY}
        return self.kernels == "triton" and not readers & set(self.replaced)

    @property
    def samples_on_gpu(self) -> bool:
        """Whether the GPU may draw the mini-batches."""
        return self.kernels == "triton" and SAMPLER not in self.replaced


CPU_KERNELS = KernelChoice("numba")
"""The choice on a CPU, unless another is asked for."""

# By type of device: the choice, and torch's library of the methods that it takes.
_selected: dict[str, tuple[KernelChoice, Any]] = {}


def select(choice: KernelChoice, device_type: str) -> None:
    """Have the operators computed as chosen on devices of a type, in this process from now on.

    On a CPU Triton's kernels run in Triton's interpreter.
    """
    if device_type in _selected:
        _selected[device_type][1]._destroy()  # torch before 2.8 has no other way
    library: Any = torch.library.Library("gnntrain", "IMPL")  # type: ignore[no-untyped-call]
    key = torch._C._dispatch_key_for_device(device_type)
    method = {"numba": "cpu", "triton": "cuda", "torch": ""}[choice.kernels]
    for name, operator in OPERATORS.items():
        if method in vars(operator) and name not in choice.replaced:
            library.impl(name, called_flat(operator, getattr(operator, method)), key)
    _selected[device_type] = choice, library


def selected(device_type: str) -> KernelChoice:
    """Who computes on devices of a type in this process."""
    return _selected[device_type][0] if device_type in _selected else KernelChoice("torch")
