"""Makes torch know the simulated device."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial, wraps
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import backend_registration

from tests.simulated_device import pinning, streams
from tests.simulated_device.module import DeviceModule, device_module
from tests.simulated_device.tensor import SimulatedTensor, run

# Autocast casts the arguments of these, as on a CPU.
_LOWER_PRECISION = ("mm", "bmm", "addmm", "baddbmm", "linear", "matmul")

# torch makes these by a change of an empty tensor's size, which `run` does not know.
_FACTORIES = ("arange", "arange.start", "arange.start_step", "linspace", "randperm")

_kept: list[Any] = []  # as long as the process


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return device_module.is_present

    def has_primary_context(self, _: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


@cache
def register() -> None:
    """Register the device type "sim" in this process; the machine has no such GPU yet."""
    backend_registration._setup_privateuseone_for_python_backend(
        "sim", backend_module=device_module, hook=_Hooks()
    )
    fallback: Any = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
    fallback.fallback(run, "PrivateUse1")
    fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    _kept.extend([fallback, _factories(), _autocast()])
    dist.Backend.default_device_backend_map["sim"] = "gloo"
    dist.Backend.backend_capability["gloo"].append("sim")


@contextmanager
def present(number: int = 1, total_memory: int = 4 << 30) -> Iterator[DeviceModule]:
    """The machine has simulated GPUs: `trainer.device=auto` means them.

    They are idle, and hold nothing that a run before has left, if only until garbage is collected.
    """
    if torch.cuda.is_available():
        pytest.skip("torch knows one accelerator a process, here the machine's GPU")
    register()
    module = device_module
    gc.collect()
    streams.finish_all()
    # A tensor that a test refuses to make gives back memory that it never had.
    module._allocated[:] = [max(0, nbytes) for nbytes in module._allocated]
    before = module.is_present, module.num_devices, module.total_memory
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the device computes with one
    module.is_present, module.num_devices, module.total_memory = True, number, total_memory
    with (
        patch.object(torch, "empty", _with_pinned_memory(torch.empty)),
        patch.object(torch, "tensor", _by_way_of_the_host(torch.tensor)),
        patch.object(torch, "as_tensor", _by_way_of_the_host(torch.as_tensor)),
        patch.object(Tensor, "pin_memory", pinning.pin_memory),
        patch.object(Tensor, "is_pinned", pinning.is_pinned),
    ):
        try:
            yield module
        finally:
            module.is_present, module.num_devices, module.total_memory = before
            torch.set_num_threads(num_threads)


def register_present() -> None:
    """Register `SIMULATED_GPUS` GPUs for good: an entry point of the group `torch.backends`."""
    _kept.append(context := present(int(os.environ["SIMULATED_GPUS"])))
    context.__enter__()


def _with_pinned_memory(empty: Any) -> Any:
    """torch asks the device's C++ for pinned memory, which a device in Python does not have."""

    @wraps(empty)
    def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        out: Tensor = empty(*args, **kwargs)
        return pinning.pinned_like(out) if pin_memory else out

    return made


def _by_way_of_the_host(function: Any) -> Any:
    """torch makes tensors of Python's numbers on the host and copies them, below Python's reach."""

    @wraps(function)
    def by_way(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        if device is None or torch.device(device).type != "sim":
            out: Tensor = function(data, *args, device=device, **kwargs)
            return out
        if isinstance(data, SimulatedTensor):
            moved: Tensor = data.to(device, *args, **kwargs)
            return moved
        requires_grad = kwargs.pop("requires_grad", False)
        made: Tensor = function(data, *args, **kwargs).to(device)
        return made.requires_grad_(requires_grad)

    return by_way


def _factories() -> Any:
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for name in _FACTORIES:
        operator, _, overload = name.partition(".")
        made = getattr(getattr(torch.ops.aten, operator), overload or "default")
        library.impl(name, partial(run, made), "PrivateUse1")
    return library


def _autocast() -> Any:
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for name in _LOWER_PRECISION:
        library.impl(name, _cast(getattr(torch.ops.aten, name).default), "AutocastPrivateUse1")
    return library


def _cast(operator: Any) -> Any:
    key = torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]
    keys = torch._C.DispatchKeySet(key)

    def computed(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            lower = torch.get_autocast_dtype("sim")
            cast = [
                a.to(lower) if isinstance(a, SimulatedTensor) and a.is_floating_point() else a
                for a in args
            ]
            return operator(*cast, **kwargs)

    return computed
