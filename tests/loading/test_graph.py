"""A graph's tensors are the store's own arrays, and hold what the model asks for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gnntrain.data.store import StoredGraph
from gnntrain.loading.graph import GraphTensors, take
from gnntrain.sampling.block import NO_NEEDS, BlockNeeds
from tests.graphs import random_graph, stored


@pytest.fixture
def store(tmp_path: Path) -> StoredGraph:
    weights = np.random.default_rng(1).random(240).astype(np.float32)
    return stored(tmp_path / "store", random_graph(edge_weight=weights))


def test_in_host_memory_the_tensors_are_views_of_the_stores_arrays(store: StoredGraph) -> None:
    graph = GraphTensors.of(store, BlockNeeds(norm=True, weight=True))
    assert store.edge_weight is not None
    assert graph.norm is not None
    assert graph.weight is not None
    pairs = [
        (graph.indptr, store.indptr),
        (graph.indices, store.indices),
        (graph.targets, store.labels),
        (graph.norm, store.gcn_norm),
        (graph.weight, store.edge_weight),
    ]
    for tensor, array in pairs:
        assert tensor.data_ptr() == array.ctypes.data
        np.testing.assert_array_equal(tensor, array)
    assert graph.device == torch.device("cpu")


def test_only_what_the_model_asks_for_is_there(store: StoredGraph, tmp_path: Path) -> None:
    graph = GraphTensors.of(store, NO_NEEDS)
    assert graph.norm is None
    assert graph.weight is None
    unweighted = stored(tmp_path / "unweighted")
    assert GraphTensors.of(unweighted, BlockNeeds(weight=True)).weight is None


def test_indices_may_lie_elsewhere(store: StoredGraph) -> None:
    elsewhere = torch.from_numpy(store.indices.copy())
    graph = GraphTensors.of(store, NO_NEEDS, indices=elsewhere)
    assert graph.indices.data_ptr() == elsewhere.data_ptr()


def test_degrees_count_the_in_edges_in_the_whole_graph(store: StoredGraph) -> None:
    graph = GraphTensors.of(store, NO_NEEDS)
    for nodes in (torch.tensor([7, 0, store.num_nodes - 1, 7]), torch.empty(0, dtype=torch.int64)):
        expected = np.diff(store.indptr).astype(np.float32)[nodes.numpy()]
        np.testing.assert_array_equal(graph.degrees(nodes), expected)
        assert graph.degrees(nodes).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
@pytest.mark.parametrize("shape", [(9,), (9, 3)])
def test_taking_is_indexing(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    values = torch.arange(27)[: int(np.prod(shape))].view(shape).to(dtype)
    for index in (torch.tensor([3, 0, 3, 8]), torch.empty(0, dtype=torch.int64)):
        taken = take(values, index)
        assert torch.equal(taken, values[index])
        assert taken.dtype == dtype
