"""Host memory that GPUs read: just as large as wanted, and given back."""

from __future__ import annotations

import mmap
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.cuda_runtime import CudaError
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.loading import pinned as module
from gnntrain.loading.pinned import PinningError, device_addresses, empty_pinned, pinned

AWAY = 1 << 40


class Runtime:
    """In the place of CUDA's runtime; its GPU has other addresses for the host's memory.

    Attributes:
        room: Bytes that it registers at most.
        registered: The size of what it has registered, by address.
    """

    def __init__(self, room: int = 1 << 40) -> None:
        self.room = room
        self.registered: dict[int, int] = {}

    def register_host_memory(self, address: int, size: int) -> None:
        assert address % mmap.PAGESIZE == 0
        assert address not in self.registered
        if sum(self.registered.values()) + size > self.room:
            raise CudaError("cudaHostRegister has failed: out of memory.")
        self.registered[address] = size

    def unregister_host_memory(self, address: int) -> None:
        del self.registered[address]

    def device_address(self, address: int) -> int:
        first = max(start for start in self.registered if start <= address)
        assert address < first + self.registered[first]
        return address + AWAY


def runtime(monkeypatch: pytest.MonkeyPatch, room: int = 1 << 40) -> Runtime:
    """The runtime, in the place of CUDA's."""
    made = Runtime(room)
    monkeypatch.setattr(module, "cuda_runtime", made)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_memory_stays_pinned_while_a_view_of_it_is_held(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    cuda = runtime(monkeypatch)
    room: Any = empty_pinned((70, 3), dtype)
    assert (room.shape, room.dtype) == ((70, 3), dtype)
    assert cuda.registered == {room.data_ptr(): room.nbytes}
    part = room[5:]
    del room
    part.fill_(2)
    assert len(cuda.registered) == 1
    del part
    assert cuda.registered == {}


def test_memory_that_may_not_be_pinned_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime(monkeypatch, room=8)
    with pytest.raises(PinningError, match="out of memory"):
        empty_pinned((4, 3))


def test_kernels_read_pinned_rows_at_the_gpus_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime(monkeypatch)
    rows = empty_pinned((70, 3))
    parts = (rows[:35], rows[35:])
    with mock.patch.object(torch, "tensor") as made:  # no GPU is here
        device_addresses(parts, torch.device("cuda", 0))
    assert made.call_args.args == ([part.data_ptr() + AWAY for part in parts],)
    found = device_addresses(parts, torch.device("cpu")).tolist()
    assert found == [part.data_ptr() for part in parts]


ROWS = torch.arange(12, dtype=torch.bfloat16).view(4, 3)


def pin_twice(context: DistributedContext, out: Path) -> None:
    """Pin as two GPU ranks of a machine would; the second one's CUDA refuses."""
    made = Runtime()
    on_gpu = replace(context, device=torch.device("cuda", context.rank))
    with (
        mock.patch.object(module, "cuda_runtime", made),
        mock.patch.object(torch.cuda, "synchronize"),
    ):
        rows = pinned(ROWS, on_gpu)
        told = [torch.equal(rows, ROWS), made.registered == {rows.data_ptr(): rows.nbytes}]
        if context.rank == 1:
            made.room = 0
        with pytest.raises(PinningError, match="out of memory"):
            pinned(ROWS, on_gpu)
        told.append(len(made.registered) == 1)
        del rows
        told.append(len(made.registered) == 0)
    (out / f"{context.rank}").write_text(str(told))


def test_ranks_pin_one_copy_each_once_or_all_do_without(tmp_path: Path) -> None:
    launch(pin_twice, tmp_path, LaunchPlan(2, "cpu", 1, 60), tmp_path)
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == [str([True] * 4)] * 2
