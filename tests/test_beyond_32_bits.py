"""Graphs of more than 2^31 edges or nodes, in files that are almost all hole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pytest
import torch

from gnntrain.data.graph import NODE
from gnntrain.errors import RunError
from gnntrain.loading.graph import EdgeTensors
from gnntrain.sampling.base import SampleKey
from gnntrain.training.graph_access import balanced_range, chunks
from tests.sampling.graphs import blocks_of, cpu_sampler, seeds_of

HUB_EDGES = 3 * 2**30
KEY = SampleKey(seed=1, epoch=2, step=3)

Array = npt.NDArray[Any]


def with_hole(path: Path, length: int, dtype: type[np.generic], end: list[int]) -> Array:
    """An array of zeros but for its `end`: no disk and no memory is used for the rest."""
    array = np.memmap(path, dtype, "w+", shape=(length,))
    array[length - len(end) :] = end
    return array.view(np.ndarray)


def hub_graph(path: Path) -> tuple[Array, Array]:
    """Node 0 has 3 · 2^30 in-edges, all from itself; node 1 has three; node 2 has one."""
    indptr = np.array([0, HUB_EDGES, HUB_EDGES + 3, HUB_EDGES + 4])
    return indptr, with_hole(path / "indices", HUB_EDGES + 4, np.int32, [0, 1, 2, 1])


def test_edges_beyond_2_31_are_sampled(tmp_path: Path) -> None:
    sampler = cpu_sampler(hub_graph(tmp_path), (-1,), edge_ids=True)
    sampled = sampler.sample(seeds_of([2, 1]), KEY)
    (hop,) = blocks_of(sampled)
    assert hop.edge_ids is not None
    assert hop.edge_ids.tolist() == [HUB_EDGES + place for place in (3, 0, 1, 2)]
    assert sampled.nodes[NODE][hop.indices].tolist() == [1, 0, 1, 2]


def test_a_hub_of_more_than_2_31_in_edges_is_sampled_over_its_whole_length(tmp_path: Path) -> None:
    graph = hub_graph(tmp_path)
    for replace in (False, True):
        sampler = cpu_sampler(graph, (40,), edge_ids=True, replace=replace)
        (hop,) = blocks_of(sampler.sample(seeds_of([0]), KEY))
        assert hop.edge_ids is not None
        assert len(np.unique(hop.edge_ids)) == 40
        assert 0 <= hop.edge_ids.min() < 2**30
        assert 2**31 < hop.edge_ids.max() < HUB_EDGES


def test_more_edges_than_a_block_can_number_are_refused_before_they_are_listed(
    tmp_path: Path,
) -> None:
    sampler = cpu_sampler(hub_graph(tmp_path), (-1,))
    with pytest.raises(RunError, match="3,221,225,472 edges") as caught:
        sampler.sample(seeds_of([0]), KEY)
    assert caught.value.hint == "Lower the batch size or the fan-outs."


@pytest.mark.skipif(psutil.virtual_memory().total < 12 << 30, reason="the system grants too little")
def test_nodes_beyond_2_31_are_sampled(tmp_path: Path) -> None:
    num_nodes = 2**31 + 8
    indptr = with_hole(tmp_path / "indptr", num_nodes + 1, np.int64, [0, 2, 3])
    indices = np.array([2**31 + 1, 5, 2**31 + 6], np.int64)
    sampler = cpu_sampler((indptr, indices), (-1, -1))
    sampled = sampler.sample(seeds_of([2**31 + 7]), KEY)
    assert sampled.nodes[NODE].tolist() == [2**31 + 7, 2**31 + 6, 2**31 + 1, 5]


def test_layer_wise_evaluation_cuts_nodes_beyond_2_31_edges(tmp_path: Path) -> None:
    indptr, indices = hub_graph(tmp_path)
    before = lambda node: int(indptr[node])  # noqa: E731
    assert list(chunks(before, 0, 3, 100, 1 << 20)) == [(0, 1), (1, 3)]
    assert [balanced_range(before, 3, rank, 2) for rank in range(2)] == [(0, 1), (1, 3)]
    ends = HUB_EDGES, HUB_EDGES + 4
    block = EdgeTensors(torch.from_numpy(indptr), torch.from_numpy(indices), 3).in_edges(1, 3, ends)
    assert block.indptr.tolist() == [0, 3, 4]
    assert block.indices.tolist() == [0, 1, 2, 1]
