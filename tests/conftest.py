"""What is settled for all tests before anything else is imported.

Without a GPU, Triton's kernels run in its interpreter, which is chosen, for the whole process, when
Triton is imported; and PyG imports it.

Workers side by side share out the cores: where the threads of each wait for each other on all of
them, a tiny step takes as long as the other worker's turn.

A shell has what it runs in the background ignore Ctrl-C, and so would the processes that tests
start in order to interrupt them.

A GPU tells of a kernel's failure when it is next asked for something: after each test it is asked.
After an illegal access the process can do nothing more there. Where tests run in several processes,
this one is then replaced, so that other tests are not told to have failed as well.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import torch

signal.signal(signal.SIGINT, signal.default_int_handler)

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
if _WORKER and hasattr(os, "sched_setaffinity"):
    _CORES = sorted(os.sched_getaffinity(0))
    _NUM_WORKERS = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    _OWN = _CORES[int(_WORKER.removeprefix("gw")) :: _NUM_WORKERS] or _CORES
    os.sched_setaffinity(0, _OWN)
    torch.set_num_threads(len(_OWN))

_gpu_is_lost = False


@pytest.fixture(autouse=True)
def _own_failures(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if request.node.get_closest_marker("gpu") is None or not torch.cuda.is_available():
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        global _gpu_is_lost
        _gpu_is_lost = True
        pytest.fail(f"the GPU can no longer be used by this process: {error}")


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    """End a worker that has lost the GPU, once its last test has been told."""
    if _gpu_is_lost and "PYTEST_XDIST_WORKER" in os.environ:
        os._exit(1)
