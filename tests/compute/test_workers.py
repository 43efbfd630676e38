"""Work is shared out over threads: all of it, once, and errors come back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from gnntrain.compute.cpu import parallel_for


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_tasks_run_side_by_side_each_with_one_thread_of_torch(threads: int) -> None:
    seen: dict[int, int] = {}
    everyone = threading.Barrier(threads)

    def task(_: int) -> None:
        everyone.wait(timeout=30)  # ends only if all threads are at work at once
        seen[threading.get_ident()] = torch.get_num_threads()

    parallel_for(task, threads)
    assert len(seen) == threads
    assert set(seen.values()) == {1}


def test_an_error_in_a_task_is_raised_and_the_threads_are_given_back(threads: int) -> None:
    def task(number: int) -> None:
        time.sleep(0.001)
        if number == 3:
            raise ValueError("task 3")

    with pytest.raises(ValueError, match="task 3"):
        parallel_for(task, 8)
    assert torch.get_num_threads() == threads
    parallel_for(lambda _: None, 8)


def test_who_comes_second_works_alone(threads: int) -> None:
    inner: list[int] = []

    def task(number: int) -> None:
        parallel_for(lambda _: inner.append(number), 3)

    parallel_for(task, threads)
    assert sorted(inner) == sorted(3 * list(range(threads)))


def test_a_thread_that_makes_batches_ahead_works_alone(threads: int) -> None:
    seen: list[int] = []

    def ahead() -> None:
        parallel_for(lambda _: seen.append(threading.get_ident()), 4 * threads)

    thread = threading.Thread(target=ahead)
    thread.start()
    thread.join()
    assert set(seen) == {thread.ident}
    assert len(seen) == 4 * threads
