"""The places of a graph on a device for which there are no kernels of ours; and batches that are
sent there together, without a wait.

That its batches arrive whole, and without a wait, is shown in `test_run_on_simulated_gpu.py`.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gnntrain.compute.selection import KernelChoice, select
from gnntrain.data.graph import Graph
from gnntrain.loading.transfer import send_all, sent, tensors_in
from gnntrain.sampling.block import BlockNeeds
from tests.examples import examples
from tests.graphs import random_graph, stored
from tests.loading.graphs import (
    KINDS,
    assert_same,
    builder,
    cpu_loader,
    full_loader,
    graph_of,
    plan_of,
)
from tests.simulated_device import present, watched

ALL = BlockNeeds(norm=True, weight=True, degree=True)


@pytest.fixture(autouse=True)
def sim() -> Iterator[torch.device]:
    select(KernelChoice("torch"), "sim")
    with present():
        yield torch.device("sim", 0)


@pytest.fixture(scope="module", params=[*zip(KINDS, ("float32", "bfloat16"), strict=True)])
def graph(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Graph:
    kind, dtype = request.param
    return graph_of(kind, tmp_path_factory.mktemp("graph") / "store", dtype)


def test_typed_rows_that_do_not_fit_are_copied_by_batch(tmp_path: Path, sim: torch.device) -> None:
    graph = graph_of("typed", tmp_path / "store")
    wide = np.random.default_rng(0).normal(size=(len(graph.nodes["paper"]), 800))
    paper = replace(graph.nodes["paper"], features=wide.astype(np.float32))
    graph = replace(graph, nodes={**graph.nodes, "paper": paper})
    with present(total_memory=2 * paper.features.nbytes - 8):
        made = builder(graph, ALL, sim, sampler={"fan_outs": [1]})
        assert {source.waits for source in made.features.values()} == {True}
        expected = cpu_loader(graph, plan_of(graph), (1,), needs=ALL, threads=0)
        for ours, theirs in zip(made.training_loader(), expected, strict=True):
            assert_same(ours, theirs, "sim")


def test_the_whole_graph_keeps_64_bit_sources(tmp_path: Path, sim: torch.device) -> None:
    store = stored(tmp_path / "store", random_graph())
    edges = replace(store.only_edges, indices=store.indices.astype(np.int64))
    wide = replace(store, edges=dict.fromkeys(store.edges, edges))
    needs = BlockNeeds(edge_index=True)
    (batch,) = builder(wide, needs, sim, sampler={"name": "full"}).training_loader()
    (expected,) = full_loader(wide, plan_of(wide), needs)
    assert_same(batch, expected, "sim")
    (block,) = batch.hops[0].edges.values()
    assert block.indices.dtype == torch.int64


def test_the_whole_graph_lies_once_on_the_device_if_half_its_memory_holds_it(
    graph: Graph, sim: torch.device
) -> None:
    full = {"name": "full"}
    with present() as module:
        made = builder(graph, ALL, sim, sampler=full)
        assert made.graph_on_device is not None
        held = [source.select().rows for source in made.features.values()]
        before = module.memory_allocated(sim) + sum(rows.nbytes for rows in held)
        batch = next(iter(made.training_loader()))
        tensors = [*batch.x_dict.values(), batch.y, *batch.n_id_dict.values()]
        # The norm counts: that of a block is the graph's own.
        tensors += [block.indptr for block in batch.hops[0].edges.values()]
        size = sum(-(-tensor.nbytes // 512) * 512 for tensor in tensors)
        assert module.memory_allocated(sim) <= before + size + 1024
    with present(total_memory=4000):
        made = builder(graph, ALL, sim, sampler=full)
        assert made.graph_on_device is None
        assert {source.select().device.type for source in made.features.values()} == {"cpu"}


# What is sent


TYPES = [torch.int32, torch.int64, torch.float32, torch.bfloat16, torch.bool]


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
