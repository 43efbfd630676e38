"""What torch's devices offer: the one place that knows how CUDA (NVIDIA's GPUs and, with torch's
ROCm build, AMD's), MPS, XPU and the CPU differ. A device that is not a CPU is called a GPU."""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gnntrain.limits import available_memory

_log = logging.getLogger("gnntrain")
_in_use = threading.RLock()


@contextmanager
def alone_in_process() -> Iterator[None]:
    """One thread at a time trains or computes: generators, kernels and handlers of signals are the
    process's. The generators of torch and Python, torch's number of threads and its precision of
    products are left as they were."""
    if not _in_use.acquire(blocking=False):
        _log.warning("Another thread of this process trains or predicts; this one begins after it.")
        _in_use.acquire()
    num_threads, drawn = torch.get_num_threads(), random.getstate()
    precision = torch.get_float32_matmul_precision()
    try:
        with torch.random.fork_rng(devices=()):
            yield
    finally:
        if torch.get_float32_matmul_precision() != precision:
            torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(num_threads)
        random.setstate(drawn)  # to import Rich draws a number
        _in_use.release()


def accelerator() -> str | None:
    """The type of this machine's GPUs: cuda, mps, xpu or a further one of torch's; None: no GPU."""
    return next(iter(gpus_here()), None)


def gpus_here() -> dict[str, int]:
    """How many GPUs this machine has, by their type; empty: none. Does not start CUDA, after which
    a process must not fork."""
    if (number := torch.cuda.device_count()) > 0:  # asks the driver's library
        return {"cuda": number}
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return {found.type: number} if found and (number := num_gpus(found.type)) else {}


def num_gpus(kind: str) -> int:
    """How many GPUs of this type torch sees. Does not start CUDA."""
    if kind == "mps":  # the references need `embedding_bag`, which torch has there since 2.10
        return int(torch.backends.mps.is_available() and torch.__version__ >= "2.10")
    return int(_module(kind).device_count())


def visibility(kind: str) -> str:
    """The environment variable that names the GPUs of a type which a process sees."""
    if kind == "xpu":
        return "ZE_AFFINITY_MASK"
    # AMD's takes precedence over NVIDIA's, which torch's ROCm build heeds too.
    is_amds = torch.version.hip is not None and "HIP_VISIBLE_DEVICES" in os.environ
    return "HIP_VISIBLE_DEVICES" if is_amds else "CUDA_VISIBLE_DEVICES"


def is_gpu(device: torch.device) -> bool:
    """Whether host memory is not the device's."""
    return device.type != "cpu"


def set_current(device: torch.device) -> None:
    """Make the device the one of this thread where "cuda" stands without a number."""
    if pins_memory(device):
        _module(device.type).set_device(device)


def pins_memory(device: torch.device) -> bool:
    """Whether a copy from pinned host memory does not make the host wait."""
    return device.type not in ("cpu", "mps")


def has_streams(device: torch.device) -> bool:
    """Whether a second queue of work can run beside the first one."""
    return pins_memory(device) and hasattr(_module(device.type), "Stream")


def synchronize(device: torch.device, *, stream_only: bool = False) -> None:
    """Wait until the device has done its work, or that of this thread's stream alone."""
    if stream_only and has_streams(device):
        _module(device.type).current_stream(device).synchronize()
    elif is_gpu(device):
        _module(device.type).synchronize(*_numbered(device))


def free_memory(device: torch.device) -> int:
    """Bytes that new tensors on the device may take; of a CPU those of the host."""
    module = _module(device.type)
    if device.type == "cpu":
        return available_memory()
    if device.type == "mps":  # one memory for CPU and GPU
        room = module.recommended_max_memory() - module.driver_allocated_memory()
        return int(min(room, available_memory()))
    # torch's allocator holds memory that no tensor uses.
    held = module.memory_reserved(device) - module.memory_allocated(device)
    # What belongs to a CUDA graph remains its own. (cudaMallocAsync cannot tell.)
    is_told = device.type == "cuda" and module.get_allocator_backend() == "native"
    for segment in module.memory_snapshot() if is_told else ():
        if segment["device"] == device.index and segment["segment_pool_id"] != (0, 0):
            held -= segment["total_size"] - segment["allocated_size"]
    return int(module.mem_get_info(device)[0] + held)


def peak_memory(device: torch.device) -> int:
    """The most bytes that tensors have taken on the device; 0 where torch does not count them."""
    count = getattr(_module(device.type), "max_memory_allocated", None)
    return int(count(device)) if count is not None else 0


def release_memory() -> None:
    """Give back what torch's allocator holds and no tensor uses, and begin a new peak; on a GPU
    that this process has used."""
    module: Any = _module(accelerator() or "meta")
    if module is not None and getattr(module, "is_initialized", lambda: True)():
        module.empty_cache()
        getattr(module, "reset_peak_memory_stats", lambda: None)()


def describe(device: torch.device) -> tuple[str, int]:
    """A GPU's name, with its architecture where torch knows it, and the bytes of its memory."""
    if device.type == "mps":
        name = getattr(torch.backends.mps, "get_name", lambda: "Apple GPU")()  # torch 2.6 has none
        return name, torch.mps.recommended_max_memory()
    properties = _module(device.type).get_device_properties(device)
    name = properties.name
    if torch.version.hip:
        name += f", {properties.gcnArchName}"
    elif device.type == "cuda":
        name += f", sm_{properties.major}{properties.minor}"
    return name, int(properties.total_memory)


def software() -> str:
    """The libraries with which torch drives this machine's GPUs; empty: torch is built for none."""
    parts = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip, "XPU": torch.version.xpu}
    if accelerator() == "cuda":
        numbers = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        parts["RCCL" if torch.version.hip else "NCCL"] = ".".join(map(str, numbers))
    return ", ".join(f"{name} {version}" for name, version in parts.items() if version)


def float_type(device: torch.device) -> torch.dtype:
    """The most precise type of floating-point numbers: float64, but float32 on Apple's GPUs."""
    return torch.float32 if device.type == "mps" else torch.float64


def timing_event(device: torch.device) -> Any:
    """An event as `torch.cuda.Event`; None where torch has none that tells the time."""
    event = getattr(_module(device.type), "Event", None) if is_gpu(device) else None
    return None if event is None else event(enable_timing=True)


def rng_state(device: torch.device) -> Tensor:
    """The state of a GPU's random-number generator: uint8, on the CPU."""
    return _module(device.type).get_rng_state(*_numbered(device))  # type: ignore[no-any-return]


def set_rng_state(state: Tensor, device: torch.device) -> None:
    """Set the state of a GPU's random-number generator."""
    _module(device.type).set_rng_state(state, *_numbered(device))


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed torch's generators of the host and this device (`torch.manual_seed`: of all devices)."""
    torch.default_generator.manual_seed(seed)
    if is_gpu(device):
        _module(device.type).manual_seed(seed)


@contextmanager
def generator_kept(device: torch.device) -> Iterator[None]:
    """A GPU's generator is afterwards as it was; the host's is `alone_in_process`'s matter."""
    state = rng_state(device) if is_gpu(device) else None
    try:
        yield
    finally:
        if state is not None:
            set_rng_state(state, device)


def _numbered(device: torch.device) -> tuple[torch.device, ...]:
    """The device as an argument, where torch's functions take one: of Apple's GPUs there is one."""
    return () if device.type == "mps" else (device,)


def _module(kind: str) -> Any:
    """torch's module of a device's type; None of `meta`, whose tensors have no memory."""
    return getattr(torch, kind, None)
