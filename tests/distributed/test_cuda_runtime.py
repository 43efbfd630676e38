"""The runtime that torch has loaded is asked, and its errors are sentences."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator

import pytest
import torch

from gnntrain.distributed import cuda_runtime
from gnntrain.distributed.cuda_runtime import CudaError
from gnntrain.errors import RunError


class Library:
    """A runtime in Python; its one GPU sits at 3b, and it refuses memory at odd addresses."""

    def __init__(self, prefix: str) -> None:
        self.prefix, self.called = prefix, list[str]()

    def __getitem__(self, name: str) -> object:
        assert name.startswith(self.prefix)
        return Function(self, name.removeprefix(self.prefix))


class Function:
    restype: object = ctypes.c_int

    def __init__(self, library: Library, name: str) -> None:
        self.library, self.name = library, name

    def __call__(self, *arguments: object) -> object:
        self.library.called.append(self.name)
        if self.name == "GetErrorString":
            return b"out of memory"
        if self.name == "HostRegister":
            address, _, flags = arguments
            assert isinstance(address, ctypes.c_void_p)
            assert isinstance(flags, ctypes.c_uint)
            assert flags.value & 2  # mapped, or kernels may not read it
            return 2 if (address.value or 0) % 2 else 0
        if self.name == "HostGetDevicePointer":
            found, address, _ = arguments
            assert isinstance(address, ctypes.c_void_p)
            into = ctypes.cast(found, ctypes.POINTER(ctypes.c_void_p))  # type: ignore[arg-type]
            into[0] = ctypes.c_void_p((address.value or 0) + 4096)
        if self.name == "DeviceGetPCIBusId":
            text, _, _ = arguments
            assert isinstance(text, ctypes.Array)
            text.value = b"0000:3B:00.0"
        return 0


@pytest.fixture(params=["cuda", "hip"])
def library(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Library]:
    opened: list[str] = []
    made = Library(request.param)

    def open_library(path: str) -> Library:
        opened.append(path)
        return made

    monkeypatch.setattr(torch.version, "hip", "7.2" if request.param == "hip" else None)
    monkeypatch.setattr(ctypes, "CDLL", open_library)
    cuda_runtime._runtime.cache_clear()
    yield made
    assert opened == [f"libc10_{request.param}.so"]
    cuda_runtime._runtime.cache_clear()


def test_a_refusal_is_a_sentence_and_leaves_no_error_behind(library: Library) -> None:
    cuda_runtime.register_host_memory(4096, 10)
    assert library.called == ["HostRegister"]
    with pytest.raises(CudaError, match="out of memory") as caught:
        cuda_runtime.register_host_memory(4097, 10)
    assert isinstance(caught.value, RunError)
    assert "GetLastError" in library.called  # torch would raise it after its next kernel


def test_addresses_are_those_of_the_gpu(library: Library) -> None:
    assert cuda_runtime.device_address(4096) == 8192
    assert cuda_runtime.pci_address(0) == "0000:3b:00.0"
    cuda_runtime.unregister_host_memory(4096)
    assert library.called[-1] == "HostUnregister"


def test_a_library_has_the_functions_of_those_that_it_needs() -> None:
    """As torch's own library for CUDA needs CUDA's runtime: here torch's for CPUs, and OpenMP."""
    suffix = "dylib" if sys.platform == "darwin" else "so"
    number = ctypes.CDLL(f"libtorch_cpu.{suffix}")["omp_get_max_threads"]
    assert number() >= 1
