"""Batches made on the device are those that are made on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.utils import trim_to_layer

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.store import StoredGraph
from gnntrain.loading.batch import MiniBatch
from gnntrain.loading.features import InPlaceFeatures, stored_rows
from gnntrain.loading.graph import GraphTensors
from gnntrain.loading.loader import BlockLoader, SeedPlan
from gnntrain.loading.padded import PaddedBatches
from gnntrain.sampling.block import BlockNeeds
from tests.compute.devices import NEEDS_GPU, on_each_device
from tests.graphs import random_graph, stored
from tests.loading.graphs import cpu_loader

pytest.importorskip("triton", reason="triton is not installed")

from gnntrain.sampling.gpu import GPUSampler

on_a_gpu = pytest.mark.parametrize("device", [pytest.param("cuda", marks=NEEDS_GPU)])

FAN_OUTS = (3, -1)
ALL = BlockNeeds(norm=True, weight=True, degree=True)


@pytest.fixture(params=["float32", "bfloat16"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> StoredGraph:
    weights = np.random.default_rng(1).random(240).astype(np.float32)
    graph = random_graph(edge_weight=weights)
    return stored(tmp_path / "store", graph, feature_dtype=request.param)


def loaders(
    store: StoredGraph,
    device: str,
    needs: BlockNeeds = ALL,
    fan_outs: tuple[int, ...] = FAN_OUTS,
    **options: Any,
) -> tuple[BlockLoader, BlockLoader]:
    plan = SeedPlan(store.split("train"), 7, seed=5)
    graph = GraphTensors.of(store, needs, torch.device(device))
    sampler = GPUSampler(graph.indptr, graph.indices, fan_outs, edge_ids=needs.weight)
    features = InPlaceFeatures(LazyFeatures(stored_rows(store).to(device)), torch.device(device))
    return (
        BlockLoader(graph, features, sampler, plan, needs=needs, **options),
        cpu_loader(store, plan, fan_outs, needs=needs, threads=0),
    )


def assert_equal(ours: MiniBatch, theirs: MiniBatch) -> None:
    for name in ("x", "y", "n_id", "edge_index"):
        left, right = getattr(ours, name).cpu(), getattr(theirs, name)
        assert torch.equal(left, right), name
        assert left.dtype == right.dtype, name
    for name in ("batch_size", "num_counted", "global_batch_size", "seed_rows", "rows"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.num_sampled_nodes == theirs.num_sampled_nodes
    assert ours.num_sampled_edges == theirs.num_sampled_edges
    for block, expected in zip(ours.blocks, theirs.blocks, strict=True):
        assert block.num_src == expected.num_src
        for name in ("indptr", "indices", "weight", "degree", "norm"):
            left, right = getattr(block, name), getattr(expected, name)
            assert (left is None) == (right is None), name
            if left is not None:
                assert torch.equal(left.cpu(), right), name
                assert left.dtype == right.dtype, name


@on_each_device
def test_an_epoch_is_the_hosts_whatever_the_model_needs(store: StoredGraph, device: str) -> None:
    for needs in (ALL, BlockNeeds()):
        pairs = list(zip(*loaders(store, device, needs), strict=True))
        assert len(pairs) == 5
        for ours, theirs in pairs:
            assert_equal(ours, theirs)


@on_each_device
def test_a_loader_goes_on_where_its_state_says(store: StoredGraph, device: str) -> None:
    ours, theirs = loaders(store, device)
    for loader in (ours, theirs):
        loader.load_state_dict({"epoch": 3, "step": 2})
    batches = list(ours)
    assert len(batches) == len(ours) - 2
    for batch, expected in zip(batches, theirs, strict=True):
        assert_equal(batch, expected)
    assert ours.state_dict() == {"epoch": 3, "step": len(ours)}


@on_each_device
@pytest.mark.parametrize("options", [{"threads": 0}, {"threads": 1}, {"threads": 2, "prefetch": 4}])
def test_batches_are_the_same_however_they_are_made_ahead(
    store: StoredGraph, device: str, options: dict[str, Any]
) -> None:
    if device == "cpu" and options["threads"] > 1:
        pytest.skip("Triton's interpreter runs in one thread")
    ours, theirs = loaders(store, device, **options)
    for _ in range(2):
        ours.set_epoch(1)
        theirs.set_epoch(1)
        for batch, expected in zip(ours, theirs, strict=True):
            assert_equal(batch, expected)


@on_each_device
def test_a_step_that_is_made_later_is_the_batch_and_padding(
    store: StoredGraph, device: str
) -> None:
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
        num_nodes = expected.num_nodes
        assert torch.equal(batch.n_id[:num_nodes].cpu(), expected.n_id)
        assert torch.equal(batch.x[:num_nodes].cpu(), expected.x)
        for block, wanted in zip(batch.blocks, expected.blocks, strict=True):
            assert int(block.indptr[-1]) == wanted.num_edges
            assert torch.equal(block.indptr[: wanted.num_dst + 1].cpu(), wanted.indptr)
            assert torch.equal(block.indices[: wanted.num_edges].cpu(), wanted.indices)
            assert wanted.weight is not None
            assert block.weight is not None
            assert torch.equal(block.weight[: wanted.num_edges].cpu(), wanted.weight)
        shapes.add(tuple((b.num_dst, b.num_src, b.num_edges) for b in batch.blocks))
    assert len(shapes) == 2  # 7 seeds, and the 2 that are left
    assert ours.state_dict() == {"epoch": 0, "step": len(ours)}


@on_a_gpu
def test_edges_are_read_from_pinned_host_memory(store: StoredGraph, device: str) -> None:
    ours, theirs = loaders(store, device)
    pinned = torch.from_numpy(store.indices).pin_memory()
    graph = ours._graph
    assert isinstance(graph, GraphTensors)
    ours.sampler = GPUSampler(graph.indptr, pinned, FAN_OUTS, edge_ids=True, device=device)
    for batch, expected in zip(ours, theirs, strict=True):
        assert_equal(batch, expected)


@on_a_gpu
def test_no_batch_is_overwritten_while_it_is_in_use(store: StoredGraph, device: str) -> None:
    """What reads a batch is queued behind a long wait; later batches are made meanwhile, and memory
    that is free again is filled with other numbers."""
    ours, theirs = loaders(store, device, prefetch=3)
    sums = []
    for batch in ours:
        torch.cuda._sleep(50_000_000)  # type: ignore[no-untyped-call]  # torch has no types here
        sums.append((batch.x.sum(dtype=torch.float64), batch.blocks[0].indices.sum()))
        nbytes = batch.x.nbytes
        del batch
        for _ in range(20):
            torch.full((nbytes,), 255, dtype=torch.uint8, device=device)
    for (rows, edges), expected in zip(sums, theirs, strict=True):
        assert float(rows) == pytest.approx(float(expected.x.sum(dtype=torch.float64)))
        assert int(edges) == int(expected.blocks[0].indices.sum())


@on_each_device
def test_a_batch_moves_and_is_trimmed_like_the_hosts(store: StoredGraph, device: str) -> None:
    ours, _ = loaders(store, device)
    batch = next(iter(ours)).to(device)
    x, edge_index, _ = trim_to_layer(
        1, batch.num_sampled_nodes, batch.num_sampled_edges, batch.x, batch.edge_index
    )
    assert len(x) == sum(batch.num_sampled_nodes[:-1])
    assert edge_index.shape[1] == sum(batch.num_sampled_edges[:-1])
