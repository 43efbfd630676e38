"""What is settled for all tests before anything else is imported, and which tests run here.

Tests that need what this machine lacks (a GPU, pyg-lib) are deselected; one line a kind says how
many they are. Property tests try a part of their examples, unless asked to be `thorough` (see
`tests/examples.py`).

Without a GPU, Triton's kernels run in its interpreter, which is chosen, for the whole process, when
Triton is imported; and PyG imports it.

Workers side by side share out the cores: where the threads of each wait for each other on all of
them, a tiny step takes as long as the other worker's turn.

An image often forbids Python to keep what it compiled; the thousands of processes that tests start
would each compile all modules again.

A shell has what it runs in the background ignore Ctrl-C, and so would the processes that tests
start in order to interrupt them.

No test can show what `fsync` is for, and each that writes would wait for the disk.

A GPU tells of a kernel's failure when it is next asked for something: after each test it is asked.
After an illegal access the process can do nothing more there. Where tests run in several processes,
this one is then replaced, so that other tests are not told to have failed as well.
"""

from __future__ import annotations

import copy
import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gnntrain.startup import VARIABLES  # isort: skip

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
gc.disable()  # until all tests are collected: a million objects are made and stay
os.environ |= {**VARIABLES, **os.environ}  # before torch is loaded: idle threads do not spin
import pytest  # noqa: E402
import torch  # noqa: E402
from omegaconf import DictConfig  # noqa: E402

from gnntrain.app import Sources  # noqa: E402
from gnntrain.compute.selection import CPU_KERNELS, select  # noqa: E402
from gnntrain.distributed import processes  # noqa: E402
from tests import examples as examples  # noqa: E402  # before the profile is loaded

signal.signal(signal.SIGINT, signal.default_int_handler)
os.fsync = lambda fd: None  # noqa: ARG005

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
if _WORKER and hasattr(os, "sched_setaffinity"):
    _CORES = sorted(os.sched_getaffinity(0))
    _NUM_WORKERS = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    _OWN = _CORES[int(_WORKER.removeprefix("gw")) :: _NUM_WORKERS] or _CORES
    os.sched_setaffinity(0, _OWN)
    torch.set_num_threads(len(_OWN))
    # One for all tests of the worker: each training from Python would start one, and stop it.
    processes.start_server()
    processes._started.clear()

_compose_files = Sources.compose_files
_of_shipped_files = cache(lambda *lines: _compose_files(Sources(), lines))


def _compose_once(self: Sources, lines: Sequence[str]) -> DictConfig:
    """Hydra takes 0.1 s to compose, and tests choose the same of the shipped files again."""
    if self.config_dirs or self.config_path or self.config_name != "config":
        return _compose_files(self, lines)
    return copy.deepcopy(_of_shipped_files(*lines))


Sources.compose_files = _compose_once  # type: ignore[method-assign]

_LACKING = {
    "gpu": (
        not torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1",
        "a GPU: run scripts/gpu_check.sh on a machine that has one",
    ),
    "pyg_lib": (
        not (find_spec("pyg_lib") or find_spec("torch_sparse")),
        "pyg-lib or torch-sparse, which are not installed",
    ),
}
"""By mark: whether this machine lacks what such tests need, and what that is."""

_num_deselected: Counter[str] = Counter()
_gpu_is_lost = False


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def _usual_kernels() -> Iterator[None]:
    yield
    select(CPU_KERNELS, "cpu")


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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what cannot run here, among what was chosen by `-m` and `-k`."""
    kept: list[pytest.Item] = []
    deselected: list[pytest.Item] = []
    for item in items:
        marks = [
            name for name, (lacks, _) in _LACKING.items() if lacks and item.get_closest_marker(name)
        ]
        _num_deselected.update(marks[:1])
        (deselected if marks else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=deselected)


def pytest_collection_finish() -> None:
    """What is there now stays: a collection of garbage need not look at it again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands its counts to the process that prints the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["num_deselected"] = dict(_num_deselected)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each worker has collected all tests: any one's counts are those of the run."""
    _num_deselected.update(
        Counter(getattr(node, "workeroutput", {}).get("num_deselected", {})) - _num_deselected
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name, number in _num_deselected.items():
        terminalreporter.write_line(f"{number} tests need {_LACKING[name][1]}")
