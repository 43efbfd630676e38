"""What torch's devices offer: the one place that knows how CUDA, MPS, XPU and the CPU differ.

A device that is not a CPU is called a GPU. CUDA stands for NVIDIA's GPUs and, with torch's ROCm
build, for AMD's.
"""

from __future__ import annotations

from typing import Any

import psutil
import torch


def accelerator() -> str | None:
    """The type of this machine's GPUs: cuda, mps, xpu or a further one of torch's; None: no GPU.

    Does not start CUDA, after which a process must not fork.
    """
    if torch.cuda.device_count() > 0:  # asks the driver's library
        return "cuda"
    if not torch.accelerator.is_available():
        return None
    found = torch.accelerator.current_accelerator()
    return None if found is None else found.type


def gpus_here() -> dict[str, int]:
    """How many GPUs this machine has, by their type; empty: none. Does not start CUDA."""
    kind = accelerator()
    return {} if kind is None else {kind: num_gpus(kind)}


def num_gpus(kind: str) -> int:
    """How many GPUs of this type torch sees. Does not start CUDA."""
    if kind == "cpu":
        return 0
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    return int(_module(kind).device_count())


def is_gpu(device: torch.device) -> bool:
    """Whether host memory is not the device's."""
    return device.type != "cpu"


def set_current(device: torch.device) -> None:
    """Make the device the one of this thread where "cuda" stands without a number."""
    if device.type in ("cpu", "mps"):
        return
    _module(device.type).set_device(device)


def has_streams(device: torch.device) -> bool:
    """Whether a second queue of work can run beside the first one."""
    return hasattr(_module(device.type), "Stream") and device.type not in ("cpu", "mps")


def pins_memory(device: torch.device) -> bool:
    """Whether a copy from pinned host memory does not make the host wait."""
    return device.type not in ("cpu", "mps")


def synchronize(device: torch.device) -> None:
    """Wait until the device has done its work."""
    if device.type == "mps":
        torch.mps.synchronize()
    elif is_gpu(device):
        _module(device.type).synchronize(device)


def free_memory(device: torch.device) -> int:
    """Bytes that new tensors on the device may take; of a CPU those of the host."""
    module = _module(device.type)
    if device.type == "cpu":
        return int(psutil.virtual_memory().available)
    if device.type == "mps":  # one memory for CPU and GPU
        room = module.recommended_max_memory() - module.driver_allocated_memory()
        return int(min(room, psutil.virtual_memory().available))
    free = int(module.mem_get_info(device)[0])
    # torch's allocator holds memory that no tensor uses.
    return free + int(module.memory_reserved(device)) - int(module.memory_allocated(device))


def peak_memory(device: torch.device) -> int:
    """The most bytes that tensors have taken on the device; 0 where torch does not count them."""
    module = _module(device.type)
    counts = hasattr(module, "max_memory_allocated") and is_gpu(device)
    return int(module.max_memory_allocated(device)) if counts else 0


def _module(kind: str) -> Any:
    return torch.get_device_module(kind)
