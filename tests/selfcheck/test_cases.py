"""The cases of the self-check: that they try every kernel, and what they find."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gnntrain.compute import cuda, ops, reference
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.selection import HOST_MEMORY, SAMPLER
from gnntrain.loading.pinned import PinningError
from gnntrain.selfcheck.arguments import FORMS
from gnntrain.selfcheck.blocks import awkward_blocks
from gnntrain.selfcheck.cases import READERS, Case, WrongResultError, all_cases, compare
from gnntrain.selfcheck.child import tried
from tests.compute.devices import NEEDS_INTERPRETER

pytest.importorskip("triton", reason="triton is not installed")

CPU = torch.device("cpu")


def test_every_operator_with_a_kernel_is_tried() -> None:
    own = {name for name in ops.SCHEMAS if hasattr(cuda, name)}
    own -= {name for name in own if getattr(cuda, name) is getattr(reference, name)}
    assert own == set(FORMS) == {case.kernel for case in all_cases()} - {SAMPLER, HOST_MEMORY}


def test_every_kernel_that_reads_features_is_tried_as_runs_use_it() -> None:
    """On rows of the store's type and in several matrices in host memory."""
    reading = {name for name in FORMS if "LazyFeatures" in ops.SCHEMAS[name]}
    assert reading == set(READERS)
    cases = all_cases()
    names = {case.name for case in cases}
    assert len(names) == len(cases)
    for name in reading:
        assert f"host memory: {name}, bf16" in names
        assert {f"{name}: float32 rows, bf16", f"{name}: float32 results, bf16"} <= names


def test_blocks_are_awkward() -> None:
    blocks = dict(awkward_blocks())
    assert any(block.num_edges == 0 for block in blocks.values())
    assert any(block.num_dst == 1 for block in blocks.values())
    assert any(len(block.indices) > int(block.indptr[-1]) for block in blocks.values())
    assert any(block.dst_offset > 0 for block in blocks.values())
    hubs = blocks["hubs"]
    assert int(hubs.indptr.diff().max()) > 1024  # two chunks of `launching`
    assert int(hubs.indices.bincount().max()) > 1024
    for block in blocks.values():
        assert bool(((block.indices >= 0) & (block.indices < block.num_src)).all())


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


ROWS = torch.linspace(-3, 3, 20).reshape(5, 4)
GIVEN = LazyFeatures(ROWS, torch.tensor([4, 0, 2])), 0, 3, torch.float32


def changed(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    return lambda *arguments: change(reference.gather(*arguments))


def test_a_result_as_near_as_the_reference_is_right() -> None:
    assert compare(reference.gather, reference.gather, GIVEN, CPU) == 0
    near = changed(lambda out: out * (1 + 1e-7))
    assert 0 < compare(near, reference.gather, GIVEN, CPU) < 1e-6


@pytest.mark.parametrize(
    "change",
    [
        lambda out: out * 1.00001,
        lambda out: out.index_fill(0, torch.tensor([1]), torch.nan),
        lambda out: out.half(),
        lambda out: out[:2],
        lambda out: out + 1e-5 * torch.rand(()),
    ],
    ids=["error", "NaN", "type", "shape", "equal calls"],
)
def test_another_result_is_wrong(change: Callable[[Tensor], Any]) -> None:
    with pytest.raises(WrongResultError):
        compare(changed(change), reference.gather, GIVEN, CPU)


def test_a_race_between_equal_calls_is_wrong_however_small() -> None:
    calls = iter([0.0, 1e-8])
    with pytest.raises(WrongResultError, match="equal calls"):
        compare(changed(lambda out: out + 3e-7 * (next(calls) > 0)), reference.gather, GIVEN, CPU)


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
