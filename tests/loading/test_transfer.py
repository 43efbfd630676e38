"""Batches are sent to a device together, and handed over from one stream to another, without a
wait."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gnntrain.loading.transfer import send_all, sent, tensors_in
from tests.examples import examples
from tests.simulated_device import present, watched

TYPES = [torch.int32, torch.int64, torch.float32, torch.bfloat16, torch.bool]


@pytest.fixture(scope="module", autouse=True)
def sim() -> Iterator[torch.device]:
    with present():
        yield torch.device("sim", 0)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    out = torch.randint(0, 2, shape).to(draw(st.sampled_from(TYPES)))
    return out.t() if out.dim() == 2 and draw(st.booleans()) else out


@examples(50)
@given(given=st.lists(tensors(), max_size=9))
def test_what_arrives_is_what_was_sent_by_one_copy_a_type(given: list[Tensor]) -> None:
    """Each tensor begins where kernels read it in groups; what is there already is not copied."""
    there = torch.arange(4, device="sim")
    with watched() as traffic:
        *sent, same = send_all([*given, there], torch.device("sim", 0))
    assert same is there
    types = {tensor.dtype for tensor in given if tensor.numel()}
    assert len(traffic.copies) == len(types)
    assert not traffic.waits
    assert not traffic.races
    for before, after in zip(given, sent, strict=True):
        assert after.device.type == "sim"
        assert after.dtype == before.dtype
        assert after.storage_offset() * after.element_size() % 16 == 0
        assert torch.equal(after.cpu(), before)


def test_what_cannot_be_pinned_is_sent_with_a_wait_and_one_warning(
    sim: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    empty = torch.empty

    def refusing(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory\nFor debugging consider …")
        return empty(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", refusing)
    given = [torch.arange(5), torch.ones(3)]
    with watched() as traffic:
        sent = [send_all(given, sim) for _ in range(2)]
    assert [copy.is_blocking for copy in traffic.copies] == [True] * 4
    assert all(torch.equal(t.cpu(), u) for found in sent for t, u in zip(found, given, strict=True))
    assert len(caplog.records) == 1


@dataclass(frozen=True, slots=True)
class Table:
    rows: Tensor
    other: object


def test_every_tensor_of_a_batch_is_found_and_sent_at_any_depth(sim: torch.device) -> None:
    parts = [torch.full((2,), number) for number in range(5)]
    inner = Table(parts[3], Table(parts[4], "text"))
    batch = [Table(parts[0], {"a": [parts[1], None], "b": 3}), (Table(parts[2], 1.5), inner)]
    for found in (batch, sent(batch, sim)):
        assert [int(tensor[0]) for tensor in tensors_in(found)] == list(range(5))
    moved = sent(batch, sim)
    assert all(tensor.device == sim for tensor in tensors_in(moved))
    assert (moved[0].other["b"], moved[1][0].other, moved[1][1].other.other) == (3, 1.5, "text")  # type: ignore[attr-defined,index]


def test_a_sent_batch_is_freed_at_once() -> None:
    """Without Python's garbage collection, which comes many batches later."""
    gc.disable()
    try:
        batch = {"paper": [torch.ones(3)]}
        tensor = weakref.ref(sent(batch, torch.device("cpu"))["paper"][0])
        del batch
        assert tensor() is None
    finally:
        gc.enable()
