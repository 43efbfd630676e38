"""The operators' own examples: every registration, in every type, beside the reference."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from gnntrain.compute import launching, reference
from gnntrain.compute.aggregate import Aggregate, AggregateMax
from gnntrain.compute.examples import awkward_inputs
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.operator import OPERATORS, Edges, Operator, Sum
from gnntrain.compute.rows import AdamRows
from gnntrain.compute.selection import KernelChoice, select
from gnntrain.models.dropout import dropout
from tests.compute.registrations import LargestTensor, each_registration, registered
from tests.processes import python
from tests.simulated_device import present, watched

pytest.importorskip("triton", reason="triton is not installed")

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
NAMES = [
    (name, options)
    for name, operator in OPERATORS.items()
    for options in operator.examples(next(awkward_inputs()))
]
each_example = pytest.mark.parametrize(("name", "options"), NAMES, ids=map(": ".join, NAMES))
MARKS = {torch.float64: pytest.mark.slow, torch.float16: pytest.mark.slow}
CALLS = [
    pytest.param(*name, dtype, marks=MARKS.get(dtype, ()), id=f"{name[0]}: {name[1]}, {dtype}")
    for name, dtype in product(NAMES, DTYPES)
    if dtype in OPERATORS[name[0]].types
]


@contextmanager
def chunks_of(size: int) -> Iterator[None]:
    """Small chunks, so that small graphs have rows of many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launching, "CHUNK_EDGES", size)
        yield


def examples(name: str, options: str, dtype: torch.dtype) -> list[Operator]:
    """On each block; a hub has a few chunks of 4.

    Another type than float32 changes how numbers are read and written, not which: there are two of
    the blocks then, with indices of 32 bits, since each width is compiled for each type.
    """
    given = list(awkward_inputs(dtype, 14))
    if dtype != torch.float32:
        kept = [(one, one.edges) for one in given if one.name in ("hubs", "padded")]
        given = [
            replace(one, edges=edges._replace(indptr=edges[0].int(), indices=edges[1].int()))
            for one, edges in kept
        ]
    return [OPERATORS[name].examples(inputs)[options] for inputs in given]


def dispatched(example: Operator) -> list[Tensor]:
    """What torch's dispatcher has computed."""
    return tensors(example.run())


def tensors(results: Any) -> list[Tensor]:
    return list(results) if isinstance(results, tuple) else [results]


def in_float64(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float64
    return value.double() if value.is_floating_point() else value


@cache
def expected(
    name: str, options: str, dtype: torch.dtype
) -> list[tuple[Operator, list[Tensor], list[Tensor]]]:
    """Examples with what the reference makes of them, in their type and in float64."""
    with registered("torch"):
        return [
            (one, tensors(one.reference()), tensors(one.map(in_float64).reference()))
            for one in examples(name, options, dtype)
        ]


def error(got: Tensor, exact: Tensor) -> float:
    found, exact = got.cpu().double(), exact.double()
    return float((found - exact).masked_fill(found == exact, 0).abs().max()) if len(got) else 0.0


@each_registration
@pytest.mark.parametrize(("name", "options", "dtype"), CALLS)
def test_an_operator_errs_no_more_than_its_reference(
    name: str, options: str, dtype: torch.dtype, device: str
) -> None:
    for example, given, exact in expected(name, options, dtype):
        with chunks_of(4):
            moved = example.map(lambda v: v.to(device) if isinstance(v, Tensor) else v)
            found = dispatched(moved)
        for got, other, best in zip(found, given, exact, strict=True):
            assert (got.dtype, got.shape) == (other.dtype, other.shape)
            if not got.is_floating_point():
                assert torch.equal(got.cpu(), other)
                continue
            largest = error(best.nan_to_num(neginf=0), torch.zeros_like(best))
            unit = torch.finfo(got.dtype).eps * max(1, largest)
            assert error(other, best) <= 16 * unit
            # In float64 the reference errs no more than itself. Else additions in another order
            # of numbers that are larger than their sum make up for a few units.
            few = 16 if got.dtype == torch.float64 else 4
            assert error(got, best) <= 2 * error(other, best) + few * unit


@each_registration
@each_example
def test_no_result_depends_on_the_padding(name: str, options: str, device: str) -> None:
    (padded,) = (given for given in awkward_inputs(hub_edges=14) if given.name == "padded")
    number, longer = int(padded.edges.indptr[-1]), padded.num_edges

    def changed(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.is_floating_point() and len(value) == longer:
            value = value.clone()
            value[number:] = torch.nan
        return value.to(device)

    example = OPERATORS[name].examples(padded)[options]
    expected = dispatched(example.map(lambda v: v.to(device) if isinstance(v, Tensor) else v))
    for got, wanted in zip(dispatched(example.map(changed)), expected, strict=True):
        assert torch.equal(got, wanted)
        assert len(got) != longer or not got[number:].any()


@each_example
def test_fake_results_have_the_form_of_real_ones(name: str, options: str) -> None:
    if "several" in options:
        pytest.skip("fake matrices have no addresses")
    for example in examples(name, options, torch.float32):
        results = dispatched(example)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fakes = dispatched(
                example.map(lambda v: mode.from_tensor(v) if isinstance(v, Tensor) else v)
            )
        for fake, real in zip(fakes, results, strict=True):
            assert (fake.dtype, fake.shape) == (real.dtype, real.shape)


@pytest.fixture
def gpu() -> Iterator[str]:
    """A simulated one."""
    select(KernelChoice("torch"), "sim")
    with present():
        yield "sim"


@each_example
def test_no_reference_waits_for_the_device(name: str, options: str, gpu: str) -> None:
    if "several" in options:
        pytest.skip("torch's operators do not read rows in several matrices without a wait")
    for example, given, _ in expected(name, options, torch.float32):
        moved = example.map(lambda v: v.to(gpu) if isinstance(v, Tensor) else v)
        with watched() as traffic:
            found = dispatched(moved)
        assert not [*traffic.waits, *traffic.copies]
        for got, wanted in zip(found, given, strict=True):
            assert got.device.type == gpu
            torch.testing.assert_close(got.cpu(), wanted, equal_nan=True)


@each_example
@pytest.mark.parametrize("elements", [1, 100])
def test_results_do_not_depend_on_the_references_chunks(
    name: str, options: str, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = expected(name, options, torch.float32)
    monkeypatch.setattr(reference, "MAX_CHUNK_ELEMENTS", elements)
    monkeypatch.setattr(reference, "MAX_COLUMN_ELEMENTS", elements)
    for example, given, _ in known:
        for got, wanted in zip(tensors(example.reference()), given, strict=True):
            torch.testing.assert_close(got, wanted, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("named", [False, True])
def test_a_few_edges_do_not_copy_all_rows(dtype: torch.dtype, named: bool) -> None:
    """Exact inference reduces a chunk of destinations over the rows of all nodes."""
    rows = torch.randn(50_000, 64).to(dtype)
    nodes = torch.arange(50_000).flip(0) if named else None
    edges = torch.tensor([0, 2, 3]), torch.tensor([49_999, 7, 7])
    features, weight = LazyFeatures(rows, nodes), torch.rand(3, 4)
    given = Edges(*edges, dst_offset=5)
    total = Sum(weight, scale=given.shares(torch.float32))
    with LargestTensor(rows) as record:
        mean = Aggregate(features, given, total, torch.float32, True).reference()
        top, _ = AggregateMax(features, given, torch.float32, True).reference()
    assert record.numel < 1000
    source = (rows if nodes is None else rows.flip(0)).float()
    own = source[[49_999, 7]]
    torch.testing.assert_close(top[0], own.amax(0))
    by_head = weight[:2].repeat_interleave(16, dim=1)
    torch.testing.assert_close(mean[0], torch.cat([(own * by_head).mean(0), source[5]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_features_of_no_column_have_sums_and_maxima_of_none(dtype: torch.dtype) -> None:
    features = LazyFeatures(torch.empty(5, 0, dtype=dtype))
    edges = Edges(torch.tensor([0, 2, 3]), torch.tensor([4, 0, 1]))
    assert Aggregate(features, edges, Sum(), dtype, True).reference().shape == (2, 0)
    assert AggregateMax(features, edges, dtype, True).reference()[0].shape == (2, 0)


@each_registration
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(0, 3), (13, 7), (5, 3, 9)], ids=str)
def test_dropout_scales_what_it_keeps_and_its_gradient_alike(
    shape: tuple[int, ...], dtype: torch.dtype, device: str
) -> None:
    torch.manual_seed(0)
    x = (torch.rand(shape) + 1).to(device, dtype).requires_grad_()
    out = dropout(x, 0.5)
    pull = (torch.rand(shape) + 1).to(out)
    (gradient,) = torch.autograd.grad(out, x, pull)
    kept = out != 0
    assert out.numel() == 0 or 0.2 < kept.float().mean() < 0.8
    assert out.dtype == gradient.dtype == dtype
    assert torch.equal(out, torch.where(kept, 2 * x, 0))
    assert torch.equal(gradient, torch.where(kept, 2 * pull, 0))


@each_registration
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_adam_changes_the_named_rows_as_torchs_adam_does(
    kind: type[torch.optim.Adam], dtype: torch.dtype, device: str
) -> None:
    torch.manual_seed(0)
    nodes = torch.tensor([6, 0, 3])
    weight = torch.randn(9, 5, dtype=dtype)
    rows = torch.nn.Parameter(weight[nodes])
    optimizer = kind([rows], lr=0.1, weight_decay=0.2)
    gradients = torch.randn(2, 3, 5, dtype=dtype)
    rows.grad = gradients[0]
    optimizer.step()
    state = optimizer.state[rows]
    matrices = [weight, torch.zeros_like(weight), torch.zeros_like(weight)]
    for matrix, known in zip(matrices, (rows, state["exp_avg"], state["exp_avg_sq"]), strict=True):
        matrix[nodes] = known.detach()
    before = [matrix.clone() for matrix in matrices]
    rows.grad = gradients[1]
    optimizer.step()
    decay, l2 = (0.98, 0.0) if kind is torch.optim.AdamW else (1.0, 0.2)
    step_size, root = 0.1 / (1 - 0.9**2), math.sqrt(1 - 0.999**2)  # of the second step
    first, second, third = moved = [matrix.to(device) for matrix in matrices]
    given = first, second, third, nodes.to(device), gradients[1].to(device)
    AdamRows(*given, 0.9, 0.999, decay, l2, step_size, root, 1e-8).run()
    known = rows, state["exp_avg"], state["exp_avg_sq"]
    for found, old, new in zip(moved, before, known, strict=True):
        old[nodes] = new.detach()
        torch.testing.assert_close(found.cpu(), old)


def test_a_gpu_without_triton_takes_torchs_operators() -> None:
    code = "import sys; sys.modules['triton'] = None; from gnntrain.compute import selection as s; "
    done = python("-c", f"{code}print(s.selected('cuda').kernels)")
    assert done.stdout.split() == ["torch"], done.stderr


@pytest.mark.slow
def test_every_kernel_compiles_for_gpus_that_are_not_here() -> None:
    from tests.absent_gpus import TARGETS, Compiled
    from tests.compute.compiled_ahead import SAMPLER, launched

    done = python("-m", "tests.compute.compiled_ahead", env={"TRITON_INTERPRET": "0"})
    assert done.returncode == 0, done.stderr
    found = [Compiled(*values) for values in json.loads(done.stdout)]
    names = {*SAMPLER, *launched()}
    assert {(one.kernel, one.target) for one in found} == set(product(names, TARGETS))
    assert max(one.registers for one in found) <= 168  # or few programs fit on a GPU at once
    assert max(one.local for one in found) <= 16  # a number or two
    assert not any(one.local for one in found if one.kernel in SAMPLER)


def test_only_rows_that_may_be_long_are_cut_and_the_self_check_has_some() -> None:
    assert launching.num_chunks(1_000_000, 25) == launching.num_chunks(500) == 0
    assert launching.num_chunks(1_000_000) == 3906
    edges = next(given.edges for given in awkward_inputs() if given.name == "hubs")
    for degrees in (edges.indptr.diff(), edges.indices.bincount()):
        assert launching.num_chunks(int(degrees.max())) > 2
