"""Calls of CUDA's runtime that torch does not pass on. ROCm has them under names of its own."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from gnntrain.errors import RunError

# Portable: for every GPU of the process. Mapped: without it a kernel may not read the memory.
_PORTABLE, _MAPPED = 1, 2
_PCI_LENGTH = 32


class CudaError(RunError):
    """CUDA has refused a call."""


def register_host_memory(address: int, size: int) -> None:
    """Pin pages of the host's memory, so that kernels read them over the bus; a CudaError where the
    system refuses to pin that much."""
    flags = ctypes.c_uint(_PORTABLE | _MAPPED)
    _call("HostRegister", ctypes.c_void_p(address), ctypes.c_size_t(size), flags)


def unregister_host_memory(address: int) -> None:
    """Undo `register_host_memory`; no kernel may be reading there."""
    _call("HostUnregister", ctypes.c_void_p(address))


def device_address(address: int) -> int:
    """The address at which kernels read pinned host memory, on some systems another one. Raises
    CudaError where the memory is not pinned."""
    found = ctypes.c_void_p()
    _call("HostGetDevicePointer", ctypes.byref(found), ctypes.c_void_p(address), ctypes.c_uint(0))
    return found.value or 0


def pci_address(index: int) -> str:
    """Where a GPU of this process sits: `0000:3b:00.0`, also each of its slices (MIG). Does not
    start CUDA."""
    text = ctypes.create_string_buffer(_PCI_LENGTH)
    _call("DeviceGetPCIBusId", text, ctypes.c_int(_PCI_LENGTH), ctypes.c_int(index))
    return text.value.decode().lower()


def _call(name: str, *arguments: object) -> None:
    library, prefix = _runtime()
    code = int(library[prefix + name](*arguments))
    if code != 0:
        library[f"{prefix}GetLastError"]()  # or torch would raise it after its next kernel
        describe = library[f"{prefix}GetErrorString"]
        describe.restype = ctypes.c_char_p
        raise CudaError(f"{prefix}{name} has failed: {describe(code).decode()}.")


@cache
def _runtime() -> tuple[ctypes.CDLL, str]:
    """The runtime that torch has loaded, and how the names of its functions begin: of several in
    this process the right one, since they are looked up in torch's own library and those that it
    needs."""
    prefix = "cuda" if torch.version.hip is None else "hip"
    return ctypes.CDLL(f"libc10_{prefix}.so"), prefix
