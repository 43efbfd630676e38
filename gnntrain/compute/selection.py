"""Who computes the operators on a device: our kernels, or their references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Literal

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

    def method(self, operator: str) -> str:
        """The method of the class `Operator` that computes the operator of this name."""
        kind = {"numba": "cpu", "triton": "cuda", "torch": "reference"}[self.kernels]
        return "reference" if operator in self.replaced else kind

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
_TORCH = KernelChoice("torch")

# By type of device.
_selected = {
    "cpu": CPU_KERNELS,
    "cuda": KernelChoice("triton" if find_spec("triton") else "torch"),
}


def select(choice: KernelChoice, device_type: str) -> None:
    """Have the operators computed as chosen on devices of a type, in this process from now on.

    On a CPU Triton's kernels run in Triton's interpreter.
    """
    _selected[device_type] = choice


def selected(device_type: str) -> KernelChoice:
    """Who computes on devices of a type in this process."""
    return _selected.get(device_type, _TORCH)
