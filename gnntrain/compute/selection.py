"""Who computes the operators on a device: our kernels, or their references."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from gnntrain.compute import cuda, ops, reference

Kernels = Literal["numba", "triton", "torch"]

SAMPLER = "sampler"
"""Stands among the operators' names for the sampler on the GPU."""
HOST_MEMORY = "host memory"
"""Stands there for kernels that read pinned host memory, or other GPUs' memory."""

_libraries: dict[str, Any] = {}  # by dispatch key: what is selected, while the object lives


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


def select(choice: KernelChoice, device_type: str) -> None:
    """Have the operators computed as chosen on devices of a type, in this process from now on.

    On a CPU Triton's kernels run in Triton's interpreter.
    """
    key = torch._C._dispatch_key_for_device(device_type)
    if key in _libraries:
        _libraries.pop(key)._destroy()
    if choice.kernels == "numba":
        return
    library: Any = torch.library.Library("gnntrain", "IMPL")  # type: ignore[no-untyped-call]
    _libraries[key] = library
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that a kernel is overridden
        for name in ops.SCHEMAS:
            has_kernel = choice.kernels == "triton" and name not in choice.replaced
            function = getattr(cuda if has_kernel else reference, name, getattr(reference, name))
            library.impl(name, ops.called_flat(name, function), key, allow_override=True)


def uses_numba(device_type: str) -> bool:
    """Whether Numba's kernels compute the operators on devices of a type."""
    return device_type == "cpu" and "CPU" not in _libraries
