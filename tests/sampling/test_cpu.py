"""The CPU sampler draws exactly what the slow oracle draws."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.errors import UserError
from gnntrain.sampling.base import SampledSubgraph, SampleKey
from gnntrain.sampling.cpu import MAX_BATCH_NODES
from gnntrain.sampling.kernels import CHUNK_EDGES, draw_hop
from tests.examples import examples
from tests.sampling import oracle
from tests.sampling.graphs import CSC, cpu_sampler, csc, global_in_edges, graphs, random_csc

KEY = SampleKey(seed=1, epoch=2, step=3)


def assert_same(subgraph: SampledSubgraph, expected: oracle.OracleSample) -> None:
    assert subgraph.nodes.tolist() == expected.nodes
    assert subgraph.num_seeds == expected.num_known[0]
    assert [hop.num_src for hop in subgraph.blocks[::-1]] == expected.num_known[1:]
    for hop, edges in zip(subgraph.blocks[::-1], expected.edges, strict=True):
        drawn = [edge for of_destination in edges for edge in of_destination]
        assert hop.indptr.diff().tolist() == [len(of_destination) for of_destination in edges]
        assert hop.indices.tolist() == [source for source, _ in drawn]
        assert hop.edge_ids is not None
        assert hop.edge_ids.tolist() == [edge_id for _, edge_id in drawn]


@examples(50)
@given(
    graph=graphs(),
    fan_outs=st.lists(st.sampled_from([-1, 1, 2, 5, 30, 1000]), min_size=1, max_size=3),
    key=st.builds(SampleKey, *[st.integers(-(2**63), 2**64)] * 3),
    replace=st.booleans(),
    data=st.data(),
)
def test_nodes_and_edges_are_the_oracles_in_the_same_order(
    graph: CSC,
    fan_outs: list[int],
    key: SampleKey,
    replace: bool,
    data: st.DataObject,
) -> None:
    indptr, indices = graph
    seeds = data.draw(st.lists(st.integers(0, len(indptr) - 2), max_size=8))
    fan_outs = [min(fan_out, 40) for fan_out in fan_outs] if replace else fan_outs
    sampler = cpu_sampler((indptr, indices), fan_outs, edge_ids=True, replace=replace)
    expected = oracle.sample(
        indptr.tolist(), indices.tolist(), seeds, fan_outs, key, replace=replace
    )
    assert_same(sampler.sample(torch.tensor(seeds, dtype=torch.int64), key=key), expected)


@pytest.mark.parametrize("fan_out", [24, 25, 26, 400, 4999])
def test_large_fan_outs_of_a_hub_agree_with_the_oracle(fan_out: int) -> None:
    """Beyond a fan-out of 24 repeats are found by a hash table, not by a scan."""
    hub = csc(100, np.arange(5000) % 100, np.zeros(5000, int))
    sampler = cpu_sampler(hub, [fan_out, 2], edge_ids=True)
    expected = oracle.sample(hub[0].tolist(), hub[1].tolist(), [0, 5], [fan_out, 2], KEY)
    assert_same(sampler.sample(torch.tensor([0, 5]), key=KEY), expected)


def test_all_edges_of_a_hub_larger_than_a_chunk_are_taken() -> None:
    num_edges = 3 * CHUNK_EDGES + 1
    hub = csc(50, np.arange(num_edges) % 50, np.arange(num_edges) % 10 // 9)
    subgraph = cpu_sampler(hub, [-1], edge_ids=True).sample(torch.tensor([1, 0]), key=KEY)
    (hop,) = subgraph.blocks[::-1]
    assert hop.edge_ids is not None
    split = int(hub[0][1])
    assert hop.edge_ids.tolist() == [*range(split, num_edges), *range(split)]
    assert (subgraph.nodes[hop.indices] == torch.from_numpy(hub[1])[hop.edge_ids]).all()


def test_a_repeated_seed_keeps_its_place_and_has_its_own_true_edges() -> None:
    indptr, indices = csc(4, [1, 2, 3, 0], [0, 0, 0, 3])
    subgraph = cpu_sampler((indptr, indices), [2, -1]).sample(torch.tensor([3, 0, 3, 0]), key=KEY)
    assert subgraph.nodes[:4].tolist() == [3, 0, 3, 0]
    first = subgraph.blocks[::-1][0]
    assert first.indptr.diff().tolist() == [1, 2, 1, 2]
    assert first.indices[0] == first.indices[3] == 1, "edges from node 0 start at its first place"
    assert (first.indices[1:3] == first.indices[4:6]).all()


def test_without_replacement_no_edge_is_taken_twice() -> None:
    indptr, indices = random_csc(200, 8000)
    subgraph = cpu_sampler((indptr, indices), [20, 30], edge_ids=True).sample(
        torch.arange(150), key=KEY
    )
    for hop in subgraph.blocks[::-1]:
        assert hop.edge_ids is not None
        for begin, end in zip(hop.indptr, hop.indptr[1:], strict=False):
            assert len(set(hop.edge_ids[begin:end].tolist())) == end - begin


def test_edge_ids_are_left_out_unless_asked_for() -> None:
    subgraph = cpu_sampler(random_csc(50, 300), [3, 3]).sample(torch.arange(5), key=KEY)
    assert all(hop.edge_ids is None for hop in subgraph.blocks[::-1])
    assert subgraph.edge_ids is None


def test_the_arrays_have_the_promised_types() -> None:
    indptr, indices = random_csc(50, 300)
    for graph in ((indptr, indices), (indptr, indices.astype(np.int64))):
        sampler = cpu_sampler(graph, [3, 3], edge_ids=True)
        subgraph = sampler.sample(torch.arange(5, dtype=torch.int32), key=KEY)
        assert subgraph.nodes.dtype == torch.int64
        for hop in subgraph.blocks[::-1]:
            assert hop.edge_ids is not None
            dtypes = [tensor.dtype for tensor in (hop.indptr, hop.indices, hop.edge_ids)]
            assert dtypes == [torch.int32, torch.int32, torch.int64]


def test_a_used_sampler_gives_what_a_fresh_one_gives() -> None:
    graph = random_csc(300, 4000)
    used = cpu_sampler(graph, [5, 4], edge_ids=True)
    rng = np.random.default_rng(0)
    for step in range(20):
        seeds = torch.from_numpy(rng.integers(0, 300, rng.integers(0, 60)))
        if step == 10:  # the scratch's numbers are about to leave int32
            used._idle[0].base = MAX_BATCH_NODES
        key = SampleKey(0, 0, step)
        fresh = cpu_sampler(graph, [5, 4], edge_ids=True)
        assert_equal(used.sample(seeds, key=key), fresh.sample(seeds, key=key))
    assert used._idle[0].base < MAX_BATCH_NODES


def assert_equal(left: SampledSubgraph, right: SampledSubgraph) -> None:
    np.testing.assert_array_equal(left.nodes, right.nodes)
    assert global_in_edges(left) == global_in_edges(right)


def test_a_batch_allocates_nothing_of_the_graphs_size() -> None:
    indptr = np.zeros(1_000_001, np.int64)
    indptr[-100:] = np.arange(100)
    sampler = cpu_sampler((indptr, np.arange(99, dtype=np.int32)), [2, 2])
    seeds = torch.arange(999_900, 1_000_000)
    sampler.sample(seeds, key=KEY)
    tracemalloc.start()
    try:
        sampler.sample(seeds, key=KEY)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_read_only_memory_maps_are_used_in_place_by_the_same_compiled_code(tmp_path: Path) -> None:
    indptr, indices = random_csc(100, 900)
    expected = cpu_sampler((indptr, indices), [4, 4]).sample(torch.arange(30), key=KEY)
    compiled = len(draw_hop.signatures)  # type: ignore[attr-defined]  # a Numba dispatcher
    np.save(tmp_path / "indptr.npy", indptr)
    np.save(tmp_path / "indices.npy", indices)
    mapped_indptr = np.load(tmp_path / "indptr.npy", mmap_mode="r")
    mapped_indices = np.load(tmp_path / "indices.npy", mmap_mode="r")
    sampler = cpu_sampler((mapped_indptr, mapped_indices), [4, 4])
    assert np.shares_memory(sampler._indptr, mapped_indptr)
    assert np.shares_memory(sampler._indices, mapped_indices)
    assert_equal(sampler.sample(torch.arange(30), key=KEY), expected)
    assert len(draw_hop.signatures) == compiled  # type: ignore[attr-defined]  # a Numba dispatcher


def test_seeds_that_are_no_nodes_are_counted_and_shown() -> None:
    sampler = cpu_sampler(random_csc(50, 300), [3])
    with pytest.raises(UserError, match=r"3 of 4 .*-1, 50, 99"):
        sampler.sample(torch.tensor([-1, 0, 50, 99]), key=KEY)
    with pytest.raises(UserError, match="float64"):
        sampler.sample(torch.tensor([0.5], dtype=torch.float64), key=KEY)


@pytest.mark.parametrize("fan_outs", [[5, 0], [-2], [3, -5]])
def test_a_fan_out_is_positive_or_minus_one(fan_outs: list[int]) -> None:
    with pytest.raises(UserError, match=str(fan_outs[-1])):
        cpu_sampler(random_csc(50, 300), fan_outs)


def test_arrays_that_are_no_csc_are_refused() -> None:
    indptr, indices = random_csc(50, 300)
    with pytest.raises(UserError, match=r"\b300\b.*\b299 edges"):
        cpu_sampler((indptr, indices[:-1]), [3])
    with pytest.raises(UserError, match="float32"):
        cpu_sampler((indptr, indices.astype(np.float32)), [3])  # type: ignore[arg-type]


def test_no_hop_gives_the_seeds_alone() -> None:
    subgraph = cpu_sampler(random_csc(50, 300), []).sample(torch.tensor([4, 2]), key=KEY)
    assert subgraph.nodes.tolist() == [4, 2]
    assert subgraph.blocks == ()
    assert subgraph.edge_index.shape == (2, 0)
