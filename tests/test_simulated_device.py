"""The simulated GPU is as strict as a real one: mixed devices, copies, waits, streams, memory.

That it is no stricter is shown by `test_run_on_simulated_gpu.py`, whose runs have no race and wait
in no step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.simulated_device import Traffic, device_module, present, watched


@pytest.fixture(autouse=True)
def gpus() -> Iterator[None]:
    with present(number=2):
        yield


@pytest.fixture
def traffic() -> Iterator[Traffic]:
    with watched() as traffic:
        yield traffic


def on_device(*shape: int) -> Tensor:
    return torch.ones(*shape, device="sim")


def test_the_device_is_the_accelerator_only_while_it_is_present() -> None:
    assert torch.accelerator.is_available()
    device_module.is_present = False
    assert not torch.accelerator.is_available()


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x: x + torch.ones(4),
        lambda x: x + torch.ones(4, device="sim:1"),
        lambda x: torch.ones(4)[x.long()],
        lambda x: torch.cat([x, torch.ones(4)]),
        lambda x: torch.ops.aten.segment_reduce(
            torch.ones(4), "sum", offsets=x.long(), axis=0, unsafe=True
        ),
        lambda x: x.numpy(),
    ],
)
def test_tensors_of_two_devices_are_refused(mixed: Any) -> None:
    with pytest.raises((RuntimeError, TypeError), match="device"):
        mixed(on_device(4))


@pytest.mark.parametrize(
    "waiting",
    [
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
        lambda _: torch.sim.synchronize(),  # type: ignore[attr-defined]
        lambda _: torch.sim.current_stream().synchronize(),  # type: ignore[attr-defined]
    ],
)
def test_the_host_waits(traffic: Traffic, waiting: Any) -> None:
    x = on_device(4)
    waiting(x)
    assert traffic.waits


def test_copies_are_counted_with_their_bytes(traffic: Traffic) -> None:
    x = torch.ones(10).to("sim").double()
    x.cpu()
    x.to("sim:1")
    told = [(c.direction, c.nbytes, c.is_blocking) for c in traffic.copies]
    assert told == [("to device", 40, True), ("to host", 80, True), ("to peer", 80, False)]


def test_what_is_read_before_the_copy_has_ended_is_garbage() -> None:
    copied = on_device(3).to("cpu", non_blocking=True)
    assert copied.tolist() != [1, 1, 1]
    torch.sim.synchronize()  # type: ignore[attr-defined]
    assert copied.tolist() == [1, 1, 1]


class TestStreams:
    def test_a_read_without_an_order_is_a_race(self, traffic: Traffic) -> None:
        x, side = on_device(3), device_module.Stream()
        with device_module.stream(side):
            x + 1
        assert traffic.races

    def test_a_write_over_what_another_stream_reads_is_a_race(self, traffic: Traffic) -> None:
        x, side = on_device(3), device_module.Stream()
        side.wait_stream(device_module.current_stream())
        with device_module.stream(side):
            x + 1
        x.zero_()
        assert traffic.races

    def test_memory_that_another_stream_uses_must_not_be_freed(self, traffic: Traffic) -> None:
        side = device_module.Stream()
        with device_module.stream(side):
            x = on_device(3)
        device_module.current_stream().wait_stream(side)
        x + 1
        del x
        assert traffic.races

    def test_pinned_memory_must_stay_until_it_is_copied(self, traffic: Traffic) -> None:
        staged = torch.ones(3).pin_memory()
        x = staged.to("sim", non_blocking=True)
        staged.zero_()
        assert x.tolist() == [1, 1, 1]
        assert traffic.races


def test_memory_is_counted_and_has_an_end() -> None:
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
