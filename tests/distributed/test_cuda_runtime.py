"""The runtime that torch has loaded is asked, and its errors are sentences."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gnntrain.distributed import cuda_runtime
from gnntrain.distributed.cuda_runtime import CudaError
from gnntrain.errors import RunError


class Library:
    """A runtime in Python; its one GPU sits at 3b, and it refuses memory at odd addresses."""

    def __init__(self, prefix: str) -> None:
        self.prefix, self.called = prefix, list[str]()

    def __getitem__(self, name: str) -> Any:
        assert name.startswith(self.prefix)

        def function(*arguments: Any) -> object:
            self.called.append(name.removeprefix(self.prefix))
            match self.called[-1], arguments:
                case "GetErrorString", _:
                    return b"out of memory"
                case "HostRegister", (ctypes.c_void_p() as address, _, ctypes.c_uint() as flags):
                    assert flags.value & 2  # mapped, or kernels may not read it
                    return 2 if (address.value or 0) % 2 else 0
                case "HostGetDevicePointer", (found, ctypes.c_void_p() as address, _):
                    into = ctypes.cast(found, ctypes.POINTER(ctypes.c_void_p))
                    into[0] = ctypes.c_void_p((address.value or 0) + 4096)
                case "DeviceGetPCIBusId", (text, _, _):
                    text.value = b"0000:3B:00.0"
            return 0

        return function


@pytest.fixture(params=["cuda", "hip"])
def library(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Library]:
    made = {f"libc10_{request.param}.so": Library(request.param)}
    monkeypatch.setattr(torch.version, "hip", "7.2" if request.param == "hip" else None)
    monkeypatch.setattr(ctypes, "CDLL", made.__getitem__)
    cuda_runtime._runtime.cache_clear()
    yield next(iter(made.values()))
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
