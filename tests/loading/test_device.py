"""Batches made on the device are those that are made on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.utils import trim_to_layer

from gnntrain.data.store import GraphStore
from gnntrain.loading.batch import BlockNeeds, MiniBatch
from gnntrain.loading.features import MappedFeatures
from gnntrain.loading.loader import NeighborLoader, SeedPlan
from gnntrain.sampling.cpu import CPUNeighborSampler
from tests.compute.devices import NEEDS_GPU, on_each_device
from tests.graphs import random_graph, stored

pytest.importorskip("triton", reason="triton is not installed")

from gnntrain.loading.device import DeviceGraph, DeviceNeighborLoader
from gnntrain.sampling.gpu import TritonNeighborSampler

on_a_gpu = pytest.mark.parametrize("device", [pytest.param("cuda", marks=NEEDS_GPU)])

FAN_OUTS = (3, -1)
ALL = BlockNeeds(norm=True, weight=True, degree=True)
PLENTY = 2**40


@pytest.fixture(params=["float32", "bfloat16"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> GraphStore:
    weights = np.random.default_rng(1).random(240).astype(np.float32)
    graph = random_graph(edge_weight=weights)
    return stored(tmp_path / "store", graph, feature_dtype=request.param)


def loaders(
    store: GraphStore, device: str, needs: BlockNeeds = ALL, room: int = PLENTY
) -> tuple[DeviceNeighborLoader, NeighborLoader]:
    plan = SeedPlan(store.split("train"), 7, seed=5)
    options: dict[str, Any] = {"edge_ids": needs.weight}
    graph = DeviceGraph.of(store, needs, torch.device(device), room)
    ours = TritonNeighborSampler(
        graph.indptr, graph.indices, FAN_OUTS, device=graph.indptr.device, **options
    )
    theirs = CPUNeighborSampler(store.indptr, store.indices, FAN_OUTS, **options)
    features = MappedFeatures(store)
    return (
        DeviceNeighborLoader(graph, features, ours, plan, needs=needs),
        NeighborLoader(store, features, theirs, plan, needs=needs, threads=0),
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
def test_an_epoch_is_the_hosts_whatever_the_model_needs(store: GraphStore, device: str) -> None:
    for needs in (ALL, BlockNeeds()):
        pairs = list(zip(*loaders(store, device, needs), strict=True))
        assert len(pairs) == 5
        for ours, theirs in pairs:
            assert_equal(ours, theirs)


@on_each_device
def test_a_loader_goes_on_where_its_state_says(store: GraphStore, device: str) -> None:
    ours, theirs = loaders(store, device)
    for loader in (ours, theirs):
        loader.load_state_dict({"epoch": 3, "step": 2})
    batches = list(ours)
    assert len(batches) == len(ours) - 2
    for batch, expected in zip(batches, theirs, strict=True):
        assert_equal(batch, expected)
    assert ours.state_dict() == {"epoch": 3, "step": len(ours)}


@on_each_device
def test_features_that_do_not_fit_are_read_from_the_store(store: GraphStore, device: str) -> None:
    graph = DeviceGraph.of(store, ALL, torch.device(device), PLENTY)
    assert graph.features is not None
    tensors = (graph.indptr, graph.indices, graph.labels, graph.norm, graph.degree, graph.weight)
    rest = sum(tensor.nbytes for tensor in tensors if tensor is not None)
    everything = rest + graph.features.nbytes
    for room, fits in ((everything, True), (everything - 1, False)):
        loader, expected = loaders(store, device, room=room)
        assert (loader._graph.features is not None) == fits
        assert_equal(next(iter(loader)), next(iter(expected)))


@on_a_gpu
def test_edges_that_do_not_fit_are_read_from_pinned_host_memory(
    store: GraphStore, device: str
) -> None:
    loader, expected = loaders(store, device, room=0)
    assert loader._graph.indices.is_pinned()
    assert loader._graph.features is None
    for batch, host in zip(loader, expected, strict=True):
        assert_equal(batch, host)


@on_each_device
def test_a_batch_moves_and_is_trimmed_like_the_hosts(store: GraphStore, device: str) -> None:
    ours, _ = loaders(store, device)
    batch = next(iter(ours)).to(device)
    x, edge_index, _ = trim_to_layer(
        1, batch.num_sampled_nodes, batch.num_sampled_edges, batch.x, batch.edge_index
    )
    assert len(x) == sum(batch.num_sampled_nodes[:-1])
    assert edge_index.shape[1] == sum(batch.num_sampled_edges[:-1])
