"""Who computes the operators on a device: our kernels, or their references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from gnntrain.compute import ops

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

# By type of device; at first as `gnntrain.compute` registers them.
_selected = {"cpu": CPU_KERNELS, "cuda": KernelChoice("triton")}


def select(choice: KernelChoice, device_type: str) -> None:
    """Have the operators computed as chosen on devices of a type, in this process from now on.

    On a CPU Triton's kernels run in Triton's interpreter.
    """
    kind = {"numba": "cpu", "triton": "cuda", "torch": "reference"}[choice.kernels]
    ops.register(torch._C._dispatch_key_for_device(device_type), kind, choice.replaced)
    _selected[device_type] = choice


def selected(device_type: str) -> KernelChoice:
    """Who computes on devices of a type in this process."""
    return _selected.get(device_type, KernelChoice("torch"))
