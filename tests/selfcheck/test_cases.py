"""The cases of the self-check: that they try every kernel, and what they find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.ops import OPERATORS
from gnntrain.compute.rows import Gather
from gnntrain.selfcheck.case import WrongResultError
from gnntrain.selfcheck.cases import PRECISIONS, all_cases
from gnntrain.selfcheck.comparing import compare
from tests.compute.devices import NEEDS_INTERPRETER

pytest.importorskip("triton", reason="triton is not installed")

CPU = torch.device("cpu")


def test_every_operator_with_a_kernel_is_tried() -> None:
    tried = {case.kernel for case in all_cases("cpu")}
    assert {name for name, operator in OPERATORS.items() if operator.has("cuda")} <= tried


def test_names_are_distinct_and_every_precision_is_tried() -> None:
    for device_type in ("cpu", "cuda"):
        cases = all_cases(device_type)
        assert len({case.name for case in cases}) == len(cases)
        tried = {(case.kernel, case.precision) for case in cases}
        assert {("aggregate", precision) for precision in PRECISIONS} <= tried


SMALL = ["gather: selected rows, fp16", "aggregate: heads, bf16", "sampler: padded"]


@NEEDS_INTERPRETER
@pytest.mark.parametrize("name", SMALL)
def test_a_right_kernel_passes(name: str) -> None:
    next(case for case in all_cases("cpu") if case.name == name).run(CPU)


@pytest.mark.slow
@NEEDS_INTERPRETER
def test_all_kernels_pass() -> None:
    for case in all_cases("cpu"):
        case.run(CPU)


ROWS = torch.linspace(-3, 3, 20).reshape(5, 4)


def gather(*arguments: Any) -> Tensor:
    return Gather(*arguments).reference()


GIVEN = LazyFeatures(ROWS, torch.tensor([4, 0, 2])), 0, 3, torch.float32


def changed(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    return lambda *arguments: change(gather(*arguments))


def test_a_result_as_near_as_the_reference_is_right() -> None:
    assert compare(gather, gather, GIVEN, CPU) == 0
    near = changed(lambda out: out * (1 + 1e-7))
    assert 0 < compare(near, gather, GIVEN, CPU) < 1e-6


@pytest.mark.parametrize(
    "change",
    [
        lambda out: out * 1.00001,
        lambda out: out.index_fill(0, torch.tensor([1]), torch.nan),
        lambda out: out.half(),
        lambda out: out[:2],
        lambda out: (out, out),
        lambda out: out + 1e-5 * torch.rand(()),
    ],
    ids=["error", "NaN", "type", "shape", "results", "equal calls"],
)
def test_another_result_is_wrong(change: Callable[[Tensor], Any]) -> None:
    with pytest.raises(WrongResultError):
        compare(changed(change), gather, GIVEN, CPU)


def test_a_race_between_equal_calls_is_wrong_however_small() -> None:
    calls = iter([0.0, 1e-8])
    with pytest.raises(WrongResultError, match="equal calls"):
        compare(changed(lambda out: out + 3e-7 * (next(calls) > 0)), gather, GIVEN, CPU)
