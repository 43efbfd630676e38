"""Batches made on the device are those that are made on the host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gnntrain.data.graph import Graph
from gnntrain.errors import UserError
from gnntrain.loading import build
from gnntrain.loading.batch import Batch
from gnntrain.loading.loader import SampledLoader
from gnntrain.loading.padded import PaddedBatches
from gnntrain.loading.placement import Memory
from gnntrain.sampling.block import BlockNeeds
from tests.compute.devices import NEEDS_GPU, on_each_device
from tests.loading.graphs import assert_same, builder, cpu_loader, gpu_loader, graph_of, plan_of

pytest.importorskip("triton", reason="triton is not installed")

on_a_gpu = pytest.mark.parametrize("device", [pytest.param("cuda:0", marks=NEEDS_GPU)])

FAN_OUTS = (3, -1)
ALL = BlockNeeds(norm=True, weight=True, degree=True)
TRITON: dict[str, Any] = {
    "sampler": {"fan_outs": [3, 2], "backend": "triton"},
    "features": {"placement": "cached", "cache_ratio": 0.5},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return graph_of("one type", tmp_path_factory.mktemp("graph") / "store", "bfloat16")


def loaders(
    store: Graph,
    device: str,
    needs: BlockNeeds = ALL,
    fan_outs: tuple[int, ...] = FAN_OUTS,
    **options: Any,
) -> tuple[SampledLoader, SampledLoader]:
    return (
        gpu_loader(store, plan_of(store), device, fan_outs, needs=needs, **options),
        cpu_loader(store, plan_of(store), fan_outs, needs=needs, threads=0),
    )


@on_each_device
@pytest.mark.parametrize("options", [{"threads": 0}, {"threads": 1}, {"threads": 2, "prefetch": 4}])
def test_an_epoch_is_the_hosts_however_batches_are_made_ahead(
    store: Graph, device: str, options: dict[str, Any]
) -> None:
    if device == "cpu" and options["threads"] > 1:
        pytest.skip("Triton's interpreter runs in one thread")
    for needs in (ALL, BlockNeeds()):
        pairs = list(zip(*loaders(store, device, needs, **options), strict=True))
        assert len(pairs) == 5
        for batch, expected in pairs:
            assert_same(batch, expected, device)


@on_each_device
def test_a_step_that_is_made_later_is_the_batch_and_padding(store: Graph, device: str) -> None:
    ours, theirs = loaders(store, device, fan_outs=(3, 2))
    shapes = set()
    padded = PaddedBatches(ours)
    for step, expected in zip(padded, theirs, strict=True):
        batch = padded.make(step)
        assert batch.is_padded
        assert (batch.num_counted, batch.global_batch_size) == (
            expected.num_counted,
            expected.global_batch_size,
        )
        assert torch.equal(batch.y.cpu(), expected.y)
        num_nodes = len(expected.n_id)
        assert torch.equal(batch.n_id[:num_nodes].cpu(), expected.n_id)
        assert torch.equal(batch.x[:num_nodes].cpu(), expected.x)
        blocks, wanted_blocks = (
            [block for hop in one.hops for block in hop.edges.values()] for one in (batch, expected)
        )
        for block, wanted in zip(blocks, wanted_blocks, strict=True):
            assert int(block.indptr[-1]) == wanted.num_edges
            assert torch.equal(block.indptr[: wanted.num_dst + 1].cpu(), wanted.indptr)
            assert torch.equal(block.indices[: wanted.num_edges].cpu(), wanted.indices)
            assert wanted.weight is not None
            assert block.weight is not None
            assert torch.equal(block.weight[: wanted.num_edges].cpu(), wanted.weight)
        shapes.add(tuple((b.num_dst, b.num_src, b.num_edges) for b in blocks))
    assert len(shapes) == 2  # 7 seeds, and the 2 that are left
    assert ours.state_dict() == {"epoch": 0, "step": len(ours)}


@pytest.mark.parametrize("wrong", [-1, 60])
def test_a_step_that_is_made_later_has_no_seed_that_is_no_node(store: Graph, wrong: int) -> None:
    """Its kernels would read the target of another node, or none."""
    ours, _ = loaders(store, "cpu", fan_outs=(3, 2))
    ours.plan = replace(ours.plan, seeds=np.array([3, wrong]))
    with pytest.raises(UserError, match=f"1 of 2 seeds are not nodes of the graph: {wrong}"):
        PaddedBatches(ours)


def sources_of(batch: Batch) -> Tensor:
    (block,) = batch.hops[0].edges.values()
    return block.indices.sum()


@on_a_gpu
def test_no_batch_is_overwritten_while_it_is_in_use(store: Graph, device: str) -> None:
    """What reads a batch is queued behind a long wait; later batches are made meanwhile, and memory
    that is free again is filled with other numbers."""
    ours, theirs = loaders(store, device, prefetch=3)
    sums = []
    for batch in ours:
        torch.cuda._sleep(50_000_000)  # type: ignore[no-untyped-call]  # torch has no types here
        sums.append((batch.x.sum(dtype=torch.float64), sources_of(batch)))
        nbytes = batch.x.nbytes
        del batch
        for _ in range(20):
            torch.full((nbytes,), 255, dtype=torch.uint8, device=device)
    for (rows, edges), expected in zip(sums, theirs, strict=True):
        assert float(rows) == pytest.approx(float(expected.x.sum(dtype=torch.float64)))
        assert int(edges) == int(sources_of(expected))


def test_a_gpu_sampler_reads_placed_arrays_and_the_place_is_told(store: Graph) -> None:
    made = builder(store, **TRITON)
    assert made.why_placed == ()
    loader = made.training_loader()
    assert isinstance(loader, SampledLoader)
    assert made.samples_on_gpu
    assert len(made.why_placed) == 2
    expected = cpu_loader(store, plan_of(store), threads=0)
    for batch, same in zip(loader, expected, strict=True):
        assert_same(batch, same)
    hits, reads = loader.take_reads()
    assert 0 < hits < reads


def test_steps_are_recorded_only_where_the_gpu_reads_the_rows(
    store: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = TRITON | {"trainer": {"cuda_graph": True}}
    assert len(builder(store, **keys).training_loader()) > 0
    monkeypatch.setattr(build, "measured_memory", lambda _: Memory((2**30,), host=0))
    with pytest.raises(UserError, match="cuda_graph"):
        builder(store, **keys).training_loader()
