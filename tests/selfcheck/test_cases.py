"""The cases of the self-check: that they try every kernel, and what they find; also of kernels that
do not end, or end their process, and where the parent ends first."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gnntrain.compute.operator import OPERATORS
from gnntrain.compute.selection import HOST_MEMORY, SAMPLER
from gnntrain.selfcheck.cases import WrongResultError, all_cases, compare, try_cases
from tests.compute.devices import NEEDS_INTERPRETER
from tests.processes import started, wait_until
from tests.selfcheck.breaking import python_path

pytest.importorskip("triton", reason="triton is not installed")

CPU = torch.device("cpu")


def test_every_operator_with_a_kernel_is_tried() -> None:
    kernels = {n for n, one in OPERATORS.items() if "cuda" in vars(one)}
    assert {kernel for kernel, _ in all_cases()} == {SAMPLER, HOST_MEMORY} | kernels


def test_every_kernel_that_reads_features_is_tried_on_several_matrices() -> None:
    cases = all_cases()
    for name, operator in OPERATORS.items():
        if "cuda" in vars(operator) and "features" in operator.__annotations__:
            assert "rows in several matrices" in cases[name, "bf16"]
            assert name in cases[HOST_MEMORY, "bf16"]


SMALL = [
    ("gather", "fp16", "float32 rows"),
    (HOST_MEMORY, "bf16", "aggregate"),
    (SAMPLER, "fp32", "padded"),
]


@NEEDS_INTERPRETER
@pytest.mark.parametrize(("kernel", "precision", "example"), SMALL)
def test_a_right_kernel_passes(kernel: str, precision: str, example: str) -> None:
    all_cases()[kernel, precision][example](CPU)


@pytest.mark.slow
@NEEDS_INTERPRETER
def test_all_kernels_pass() -> None:
    for examples in all_cases().values():
        for error_on in examples.values():
            error_on(CPU)


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


SLOW = pytest.mark.slow
GATHER, SUM = ("gather", "fp32"), ("aggregate", "fp32")


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Sets `BROKEN`, which processes from here on obey. They print a line when they start."""
    monkeypatch.setenv("PYTHONPATH", python_path(tmp_path))
    with (tmp_path / "sitecustomize.py").open("a") as file:
        file.write("\nprint('[a line', flush=True)\n")
    monkeypatch.syspath_prepend(tmp_path)
    return monkeypatch


@SLOW
@NEEDS_INTERPRETER
def test_a_lack_of_memory_is_a_fault_that_does_not_last_and_the_others_are_tried(
    broken: pytest.MonkeyPatch,
) -> None:
    broken.setenv("BROKEN", "gather=memory")
    outcomes = try_cases([GATHER, SUM], "cpu")
    assert list(outcomes) == [GATHER, SUM]
    assert "OutOfMemoryError" in str(outcomes[GATHER].fault)
    assert not outcomes[GATHER].is_lasting
    assert outcomes[SUM].fault is None


def test_without_a_process_nothing_is_known() -> None:
    outcomes = try_cases([GATHER, SUM], "no device")
    assert [*outcomes] == [GATHER, SUM]
    for outcome in outcomes.values():
        assert "no device" in str(outcome.fault)
        assert not outcome.is_lasting


@SLOW
@NEEDS_INTERPRETER
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_where_the_parent_ends(
    broken: pytest.MonkeyPatch, ending: signal.Signals
) -> None:
    broken.setenv("BROKEN", "gather=hang")
    broken.setenv("EXAMPLE_SECONDS", "8")
    code = "from tests.selfcheck.test_cases import *; try_cases([GATHER], 'cpu')"
    parent = started("-c", code, stdout=None, stderr=None)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    wait_until(lambda: children.read_text().strip())
    child = Path("/proc", children.read_text().strip(), "stat")
    parent.send_signal(ending)
    parent.wait()
    wait_until(lambda: not child.exists() or ") Z " in child.read_text())
