"""Host memory that GPUs read: just as large as wanted, and given back."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest
import torch

from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.errors import RunError
from gnntrain.loading import pinned as module
from gnntrain.loading.pinned import pinned, pinned_room


class Cudart:
    """In the place of CUDA's runtime."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.registered: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        assert flags & 2  # or kernels may not read it
        assert address % mmap.PAGESIZE == 0
        self.registered[address] = size
        return self.code

    def cudaHostUnregister(self, address: int) -> None:
        del self.registered[address]


def runtime(monkeypatch: pytest.MonkeyPatch, code: int = 0) -> Cudart:
    made = Cudart(code)
    monkeypatch.setattr(module, "_cudart", lambda: made)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_memory_stays_pinned_while_a_view_of_it_is_held(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    cuda = runtime(monkeypatch)
    room: Any = pinned_room((70, 3), dtype)
    assert (room.shape, room.dtype) == ((70, 3), dtype)
    assert cuda.registered == {room.data_ptr(): room.nbytes}
    part = room[5:]
    del room
    part.fill_(2)
    assert len(cuda.registered) == 1
    del part
    assert cuda.registered == {}


def test_nothing_is_pinned_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = runtime(monkeypatch)
    assert pinned_room((0, 3)).shape == (0, 3)
    assert cuda.registered == {}


def test_memory_that_may_not_be_pinned_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime(monkeypatch, code=2)
    with pytest.raises(RunError, match="could not be pinned: CUDA error 2"):
        pinned_room((4, 3))


ROWS = torch.arange(12, dtype=torch.bfloat16).view(4, 3)


def share_rank(context: DistributedContext, out: Path) -> None:
    rows = pinned(ROWS, context)
    assert torch.equal(rows, ROWS)
    context.barrier()
    if context.rank == 1:
        rows[2, 1] = 99
    context.barrier()
    (out / f"{context.rank}").write_text(str(float(rows[2, 1])))


def test_all_ranks_see_one_copy_of_the_rows(tmp_path: Path) -> None:
    launch(share_rank, tmp_path, LaunchPlan(2, "cpu", 1, 60), tmp_path)
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["99.0", "99.0"]
