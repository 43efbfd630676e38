"""A graph's tensors are the store's own arrays, and hold what the model asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gnntrain.data.graph import Graph
from gnntrain.loading.graph import GraphTensors
from gnntrain.sampling.block import NO_NEEDS, BlockNeeds
from tests.loading.graphs import KINDS, graph_of


@pytest.fixture(params=KINDS)
def graph(tmp_path: Path, request: pytest.FixtureRequest) -> Graph:
    return graph_of(request.param, tmp_path / "store")


def test_in_host_memory_the_tensors_are_views_of_the_stores_arrays(graph: Graph) -> None:
    tensors = GraphTensors.of(graph, BlockNeeds(norm=True, weight=True))
    assert tensors.device == torch.device("cpu")
    pairs: list[tuple[Tensor | None, Any]] = [(tensors.targets, graph.labels)]
    for name, own in graph.edges.items():
        found = tensors.edges[name]
        pairs += [(found.indptr, own.indptr), (found.indices, own.indices)]
        pairs += [(found.norm, own.gcn_norm), (found.weight, own.weight)]
    for tensor, array in pairs:
        assert (tensor is None) == (array is None)
        if array is not None:
            assert tensor is not None
            assert tensor.data_ptr() == array.ctypes.data
            np.testing.assert_array_equal(tensor, array)
    for edges in GraphTensors.of(graph, NO_NEEDS).edges.values():
        assert edges.norm is edges.weight is None


def test_in_edges_and_degrees_of_a_range_are_the_graphs(graph: Graph) -> None:
    for name, own in graph.edges.items():
        edges = GraphTensors.of(graph, BlockNeeds(weight=True)).edges[name]
        block = edges.in_edges(2, 6)
        first, last = own.indptr[[2, 6]]
        assert (block.dst_offset, block.num_src) == (2, len(graph.nodes[name[0]]))
        assert block.indices.data_ptr() == own.indices[first:].ctypes.data
        np.testing.assert_array_equal(block.indptr, own.indptr[2:7] - first)
        np.testing.assert_array_equal(block.indices, own.indices[first:last])
        assert own.weight is not None
        np.testing.assert_array_equal(block.weight, own.weight[first:last])
        for nodes in (torch.tensor([5, 0, 5]), torch.empty(0, dtype=torch.int64)):
            degrees = edges.degrees(nodes)
            np.testing.assert_array_equal(degrees, np.diff(own.indptr)[nodes.numpy()])
            assert degrees.dtype == torch.float32
