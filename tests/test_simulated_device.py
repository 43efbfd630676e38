"""The simulated GPU is as strict as a real one: mixed devices, copies, waits, memory.

That it is no stricter is shown by `test_run_on_simulated_gpu.py`, whose runs wait in no step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.simulated_device import device_module, present, watched


@pytest.fixture(autouse=True)
def gpus() -> Iterator[None]:
    with present(number=2):
        yield


def on_device(*shape: int) -> Tensor:
    return torch.ones(*shape, device="sim")


MIXED: list[Callable[[Any], object]] = [
    lambda x: x + torch.ones(4),
    lambda x: x + torch.ones(4, device="sim:1"),
    lambda x: torch.ones(4)[x.long()],
    lambda x: torch.cat([x, torch.ones(4)]),
    lambda x: torch.segment_reduce(torch.ones(4), "sum", offsets=x.long(), unsafe=True),
    lambda x: x.numpy(),
]
WAITING: list[Callable[[Any], object]] = [
    lambda x: x.sum().item(),
    lambda x: x.tolist(),
    lambda x: x.cpu(),
    lambda x: x.nonzero(),
    lambda x: x[x > 0],
    lambda x: x[torch.tensor([0, 1])],
    lambda x: x.unique(),
    lambda x: x.repeat_interleave(x.long()),
    lambda x: torch.bincount(x.long()),
    lambda x: x.copy_(torch.ones(4)),
    lambda x: x.copy_(torch.ones(4), non_blocking=True),
    lambda x: x.copy_(torch.ones(4).pin_memory()),
    lambda _: torch.tensor([1.0], device="sim"),
    lambda _: device_module.synchronize(),
    lambda _: device_module.current_stream().synchronize(),
]


@pytest.mark.parametrize("mixed", MIXED)
def test_tensors_of_two_devices_are_refused(mixed: Callable[[Any], object]) -> None:
    with pytest.raises((RuntimeError, TypeError), match="device"):
        mixed(on_device(4))


@pytest.mark.parametrize("waiting", WAITING)
def test_the_host_waits(waiting: Callable[[Any], object]) -> None:
    with watched() as traffic:
        waiting(on_device(4))
    assert traffic.waits


def test_copies_and_memory_are_counted_and_what_is_read_too_early_is_garbage() -> None:
    with watched() as traffic:
        x = torch.ones(10).to("sim").double()
        x.cpu()
        x.to("sim:1")
    told = [(c.direction, c.nbytes, c.is_blocking) for c in traffic.copies]
    assert told == [("to device", 40, True), ("to host", 80, True), ("to peer", 80, False)]
    copied = on_device(3).to("cpu", non_blocking=True)
    assert copied.tolist() != [1, 1, 1]
    device_module.synchronize()
    assert copied.tolist() == [1, 1, 1]
    del x
    before = device_module.memory_allocated()
    with present(total_memory=before + 1000) as module:
        x = on_device(100)
        view = x[:50]
        del x
        assert module.memory_allocated() == before + 400
        assert module.mem_get_info() == (600, before + 1000)
        with pytest.raises(torch.OutOfMemoryError):
            on_device(200)
        del view
        assert module.memory_allocated() == before
        assert module.max_memory_allocated() >= before + 400
