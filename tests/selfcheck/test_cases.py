"""The cases of the self-check: that they try every kernel, and what they find; also of kernels that
do not end, or end their process, and where the parent ends first."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gnntrain.compute.ops import OPERATORS
from gnntrain.compute.selection import HOST_MEMORY, SAMPLER
from gnntrain.loading.pinned import PinningError
from gnntrain.selfcheck.cases import (
    Case,
    Outcome,
    WrongResultError,
    all_cases,
    compare,
    tried,
    try_cases,
)
from tests.compute.devices import NEEDS_INTERPRETER
from tests.selfcheck.breaking import python_path

pytest.importorskip("triton", reason="triton is not installed")

CPU = torch.device("cpu")


def test_every_operator_with_a_kernel_is_tried_by_cases_of_distinct_names() -> None:
    cases = all_cases()
    assert len({case.name for case in cases}) == len(cases)
    tried = {case.kernel for case in cases}
    assert tried == {SAMPLER, HOST_MEMORY} | {n for n, one in OPERATORS.items() if one.has("cuda")}


def test_every_kernel_that_reads_features_is_tried_on_several_matrices() -> None:
    names = {case.name for case in all_cases()}
    for name, operator in OPERATORS.items():
        if operator.has("cuda") and "features" in operator.__annotations__:
            assert f"{name}: rows in several matrices, bf16" in names
            assert f"host memory: {name}, bf16" in names


SMALL = ["gather: float32 rows, fp16", "host memory: aggregate_max, bf16", "sampler: padded"]


@NEEDS_INTERPRETER
@pytest.mark.parametrize("name", SMALL)
def test_a_right_kernel_passes(name: str) -> None:
    next(case for case in all_cases() if case.name == name).run(CPU)


@pytest.mark.slow
@NEEDS_INTERPRETER
def test_all_kernels_pass() -> None:
    for case in all_cases():
        case.run(CPU)


OUT = torch.linspace(-3, 3, 20).reshape(5, 4)


def test_a_result_as_near_as_the_reference_is_right() -> None:
    assert compare(lambda: OUT, lambda: OUT, OUT.double) == 0
    assert 0 < compare(lambda: OUT * (1 + 1e-7), lambda: OUT, OUT.double) < 1e-6


@pytest.mark.parametrize(
    "kernel",
    [
        lambda: OUT * 1.00001,
        lambda: OUT.index_fill(0, torch.tensor([1]), torch.nan),
        lambda: OUT.half(),
        lambda: OUT[:2],
        lambda: OUT + 1e-5 * torch.rand(()),
    ],
    ids=["error", "NaN", "type", "shape", "equal calls"],
)
def test_another_result_is_wrong(kernel: Callable[[], Tensor]) -> None:
    with pytest.raises(WrongResultError):
        compare(kernel, lambda: OUT, OUT.double)


def test_a_race_between_equal_calls_is_wrong_however_small() -> None:
    calls = iter([0.0, 1e-8])
    with pytest.raises(WrongResultError, match="equal calls"):
        compare(lambda: OUT + 3e-7 * (next(calls) > 0), lambda: OUT, OUT.double)


@pytest.mark.parametrize(
    ("error", "is_lasting"),
    [
        (WrongResultError("error 0.1"), True),
        (RuntimeError("an illegal memory access"), True),
        (torch.OutOfMemoryError("2 GiB"), False),
        (subprocess.CalledProcessError(1, "gcc"), False),
        (PinningError("ulimit -l", "raise it"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_the_machines_fault_is_tried_again(error: Exception, is_lasting: bool) -> None:
    def fail(_: torch.device) -> float:
        raise error

    outcome = tried(Case("gather: x", "gather", "fp32", fail), CPU)
    assert outcome.fault
    assert outcome.is_lasting == is_lasting


SLOW, PATIENCE = pytest.mark.slow, 120.0
GATHER = "gather: selected rows, fp32"
FURTHER, SUM = "gather: float32 rows, fp32", "aggregate: sum, fp32"


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Sets `BROKEN`, which processes from here on obey."""
    monkeypatch.setenv("PYTHONPATH", python_path(tmp_path))
    return monkeypatch


def try_some(
    *names: str, seconds: float = math.inf, before: Sequence[str] = ()
) -> tuple[dict[str, Outcome], str | None]:
    """The outcomes, and why a process did not start."""
    cases = {case.name: case for case in all_cases()}
    known = dict.fromkeys(before, Outcome("hangs", is_lasting=False))
    deadline = time.monotonic() + seconds
    failure = try_cases([cases[name] for name in names], "cpu", deadline, known)
    return known, failure


@SLOW
@NEEDS_INTERPRETER
def test_what_hangs_twice_hangs_and_the_others_are_tried(broken: pytest.MonkeyPatch) -> None:
    broken.setenv("BROKEN", "gather=hang")
    broken.setenv("CASE_SECONDS", "10")
    began = time.monotonic()
    outcomes, _ = try_some(GATHER, FURTHER, SUM)
    assert list(outcomes) == [GATHER, SUM]  # a further case would tell nothing new
    assert "hang" in str(outcomes[GATHER].fault)
    assert not outcomes[GATHER].is_lasting  # the machine may have had too much to do
    assert try_some(GATHER, before=[GATHER])[0][GATHER].is_lasting
    assert outcomes[SUM].fault is None
    assert time.monotonic() - began < PATIENCE


@SLOW
@NEEDS_INTERPRETER
def test_what_is_not_done_in_time_has_no_outcome(broken: pytest.MonkeyPatch) -> None:
    broken.setenv("BROKEN", "gather=hang")
    began = time.monotonic()
    assert try_some(GATHER, SUM, seconds=1.0) == ({}, None)
    assert time.monotonic() - began < PATIENCE


@SLOW
@NEEDS_INTERPRETER
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_where_the_parent_ends(
    broken: pytest.MonkeyPatch, ending: signal.Signals
) -> None:
    broken.setenv("BROKEN", "gather=hang")
    broken.setenv("CASE_SECONDS", "8")
    code = "from tests.selfcheck.test_cases import *; try_some(GATHER)"
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    deadline = time.monotonic() + PATIENCE
    while not children.read_text().strip() and time.monotonic() < deadline:
        time.sleep(0.1)
    child = Path("/proc", children.read_text().strip(), "stat")
    parent.send_signal(ending)
    parent.wait()
    while time.monotonic() < deadline and child.exists() and ") Z " not in child.read_text():
        time.sleep(0.1)
    assert time.monotonic() < deadline
