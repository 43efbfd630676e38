"""The references on any device: no wait, bounded memory, the same numbers in chunks of any size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gnntrain.compute import reference
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.ops import Edges, Sum
from gnntrain.compute.selection import KernelChoice, select
from gnntrain.sampling.block import Block
from tests.compute.registrations import registered
from tests.compute.test_ops_edges import hub_block
from tests.compute.test_ops_types import CASES
from tests.models.padding import padded
from tests.simulated_device import present, watched

pytest.importorskip("triton", reason="triton is not installed")

each_case = pytest.mark.parametrize("name", CASES)


@pytest.fixture
def gpu() -> Iterator[str]:
    """A simulated one."""
    select(KernelChoice("torch"), "sim")
    with present():
        yield "sim"


def inputs_of(name: str, block: Block, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape).to(dtype) for shape in CASES[name].shapes(block)]


def forward_and_backward(name: str, block: Block, inputs: list[Tensor]) -> list[Tensor]:
    given = [part.detach().requires_grad_() for part in inputs]
    out = CASES[name].call(replace(block, derived={}), *given)
    outs = out if isinstance(out, tuple) else (out,)
    pulls = [torch.full_like(part, 0.5) for part in outs]
    found = torch.autograd.grad(outs, given, pulls, allow_unused=True, materialize_grads=True)
    return [*(part.detach() for part in outs), *found]


@each_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("block", [hub_block(), padded(hub_block())], ids=["block", "padded"])
def test_nothing_waits_for_the_device(
    name: str, block: Block, dtype: torch.dtype, gpu: str
) -> None:
    inputs = inputs_of(name, block, dtype)
    own, moved = block.to(gpu), [part.to(gpu) for part in inputs]
    with watched() as traffic:
        found = forward_and_backward(name, own, moved)
    # What no function of gnntrain did is the case's own.
    assert not [wait for wait in traffic.waits if wait.stack]
    assert not [copy for copy in traffic.copies if copy.stack]
    with registered(reference, "CPU"):
        expected = forward_and_backward(name, block, inputs)
    for got, wanted in zip(found, expected, strict=True):
        assert got.device.type == gpu
        torch.testing.assert_close(got.cpu(), wanted)


@each_case
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("elements", [1, 100])
def test_results_do_not_depend_on_the_chunks(
    name: str, elements: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = hub_block()
    inputs = inputs_of(name, block, dtype)
    with registered(reference, "CPU"):
        expected = forward_and_backward(name, block, inputs)
        monkeypatch.setattr(reference, "MAX_CHUNK_ELEMENTS", elements)
        monkeypatch.setattr(reference, "MAX_COLUMN_ELEMENTS", elements)
        found = forward_and_backward(name, block, inputs)
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got, wanted)


class Allocated(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """How many numbers the largest tensor held that is no view of a given one."""

    def __init__(self, given: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._given, self.most = given.data_ptr(), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, list | tuple) else (result,):
            if isinstance(value, Tensor) and value.untyped_storage().data_ptr() != self._given:
                self.most = max(self.most, value.untyped_storage().nbytes() // value.itemsize)
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("named", [False, True])
def test_a_few_edges_do_not_copy_all_rows(dtype: torch.dtype, named: bool) -> None:
    """Exact inference reduces a chunk of destinations over the rows of all nodes."""
    rows = torch.randn(50_000, 64).to(dtype)
    nodes = torch.arange(50_000).flip(0) if named else None
    edges = Edges(torch.tensor([0, 2, 3]), torch.tensor([49_999, 7, 7]))
    features, weight = LazyFeatures(rows, nodes), torch.rand(3, 4)
    total = Sum(*edges[:2], edge_weight=weight, is_mean=True, dst_offset=5)
    with Allocated(rows) as record:
        mean = reference.aggregate(features, total, "beside", torch.float32)
        top, _ = reference.aggregate_max(features, edges, torch.float32, count=True)
    assert record.most < 1000
    source = (rows if nodes is None else rows.flip(0)).float()
    own = source[[49_999, 7]]
    torch.testing.assert_close(top[0], own.amax(0))
    by_head = weight[:2].repeat_interleave(16, dim=1)
    torch.testing.assert_close(mean[0], torch.cat([(own * by_head).mean(0), source[5]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_features_of_no_column_have_sums_and_maxima_of_none(dtype: torch.dtype) -> None:
    features = LazyFeatures(torch.empty(5, 0, dtype=dtype))
    edges = Edges(torch.tensor([0, 2, 3]), torch.tensor([4, 0, 1]))
    total = Sum(*edges[:2], is_mean=True)
    assert reference.aggregate(features, total, "beside", dtype).shape == (2, 0)
    assert reference.aggregate_max(features, edges, dtype, count=True)[0].shape == (2, 0)
