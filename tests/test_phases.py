from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gnntrain.phases import Phases, combined


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = 100.0
        monkeypatch.setattr("gnntrain.phases.time.perf_counter", lambda: self.time)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_waiting_for_items_counts_and_using_them_does_not(clock: Clock) -> None:
    def slow() -> Iterator[int]:
        for number in range(3):
            clock.time += 1
            yield number
        clock.time += 0.5

    phases = Phases()
    for _ in phases.each("wait", slow()):
        clock.time += 10
    assert phases.drain() == {"wait": 3.5}


def test_backward_ends_at_its_last_gradient(clock: Clock) -> None:
    phases = Phases()
    with phases.split("backward", "all_reduce"):
        clock.time += 1
        phases.mark()
        clock.time += 2
        phases.mark()
        clock.time += 4
    assert phases.drain() == {"backward": 3, "all_reduce": 4}


def test_what_the_loader_did_in_the_step_was_waited_for_there() -> None:
    step = {"wait": 5.0, "forward": 1.0}
    assert combined(step, {"sample": 3.0, "gather": 1.0}) == {
        "sample": 3.0,
        "gather": 1.0,
        "wait": 1.0,
        "forward": 1.0,
    }
    background = {"background/sample": 9.0}
    assert combined(step, background) == background | step
    assert combined({}, {}) == {}


@pytest.mark.gpu
def test_on_a_gpu_its_own_time_counts_without_waiting_for_it() -> None:
    device = torch.device("cuda")
    matrix = torch.randn(4096, 4096, device=device)
    phases = Phases(device)
    with phases("forward"):
        for _ in range(50):
            matrix = (matrix @ matrix).clamp(-1, 1)
    assert phases.drain() == {}  # it has only been asked for
    torch.cuda.synchronize()
    assert phases.drain()["forward"] > 1e-3
