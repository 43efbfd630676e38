"""A thread pool for kernels: runs tasks on as many threads as torch may use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

_lock = threading.Lock()
_pools: dict[int, ThreadPoolExecutor] = {}


def parallel_for(task: Callable[[int], None], num_tasks: int) -> None:
    """Call `task(0)` … `task(num_tasks − 1)`, each once, on as many threads as torch may use.

    A thread that has finished a task takes the next one. Within a task torch uses that thread only,
    so that a core's data stays in its cache from one operation to the next.
    Tasks record no gradients, must release the GIL for most of their time, and must not depend on
    the thread: then the results do not depend on the number of threads.

    Called in another thread than the main one (a loader's), or inside a task, it runs all tasks in
    that thread, to leave the other cores to the training step.
    """
    num_threads = min(torch.get_num_threads(), num_tasks)
    is_main = threading.current_thread() is threading.main_thread()
    if num_threads <= 1 or not is_main or not _lock.acquire(blocking=False):
        _work(task, range(num_tasks))
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _run(task, num_tasks, num_threads)
    finally:
        torch.set_num_threads(before)
        _lock.release()


def _run(task: Callable[[int], None], num_tasks: int, num_threads: int) -> None:
    numbers = iter(range(num_tasks))  # to take the next is atomic
    pool = _pool(num_threads)
    others: list[Future[None]] = [
        pool.submit(_work_alone, task, numbers) for _ in range(num_threads - 1)
    ]
    try:
        _work(task, numbers)
    finally:
        errors = [other.exception() for other in others]
    for error in errors:
        if error is not None:
            raise error


def _work(task: Callable[[int], None], numbers: Iterable[int]) -> None:
    # Both are thread-local settings.
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        for number in numbers:
            task(number)


def _work_alone(task: Callable[[int], None], numbers: Iterable[int]) -> None:
    # The number of threads of a matrix product is a thread-local setting.
    torch.set_num_threads(1)
    _work(task, numbers)


def _pool(num_threads: int) -> ThreadPoolExecutor:
    if num_threads not in _pools:
        _pools[num_threads] = ThreadPoolExecutor(num_threads - 1, "gnntrain-compute")
    return _pools[num_threads]
