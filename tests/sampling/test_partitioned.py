"""Sampling from a graph in parts gives the blocks of the whole graph, bit for bit."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.distributed.owners import NodeOwners, RowAnswers, ask_rows
from gnntrain.errors import RunError, UserError
from gnntrain.sampling import partitioned
from gnntrain.sampling.base import SampledSubgraph, SampleKey
from gnntrain.sampling.block import BlockNeeds
from gnntrain.sampling.kernels import CHUNK_EDGES
from gnntrain.sampling.partitioned import DRAW, NodeNumbers, PartitionedSampler
from tests.examples import examples
from tests.sampling.graphs import CSC, cpu_sampler, csc, graphs, random_csc
from tests.sampling.parts import InProcess, Partition

KEY = SampleKey(seed=1, epoch=2, step=3)


def assert_same(found: SampledSubgraph, expected: SampledSubgraph, partition: Partition) -> None:
    """Equal blocks; equal nodes but for the renumbering."""
    np.testing.assert_array_equal(partition.originals[found.nodes.numpy()], expected.nodes)
    assert found.num_seeds == expected.num_seeds
    assert found.num_sampled_edges == expected.num_sampled_edges
    assert found.num_sampled_nodes == expected.num_sampled_nodes
    for block, wanted in zip(found.blocks, expected.blocks, strict=True):
        for tensor, other in [(block.indptr, wanted.indptr), (block.indices, wanted.indices)]:
            assert tensor.dtype == other.dtype
            assert torch.equal(tensor, other)
        assert (block.num_src, block.max_in_edges) == (wanted.num_src, wanted.max_in_edges)


@examples(60)
@given(
    graph=graphs(),
    num_parts=st.sampled_from([1, 2, 4]),
    fan_outs=st.lists(st.sampled_from([-1, 1, 2, 5, 30, 1000]), max_size=3),
    key=st.builds(SampleKey, *[st.integers(-(2**63), 2**64)] * 3),
    replace=st.booleans(),
    data=st.data(),
)
def test_blocks_are_those_of_the_whole_graph_whatever_the_partition(
    graph: CSC,
    num_parts: int,
    fan_outs: list[int],
    key: SampleKey,
    replace: bool,
    data: st.DataObject,
) -> None:
    num_nodes, num_edges = len(graph[0]) - 1, len(graph[1])
    part = st.integers(0, num_parts - 1)
    part_of = data.draw(st.lists(part, min_size=num_nodes, max_size=num_nodes))
    seeds = np.array(data.draw(st.lists(st.integers(0, num_nodes - 1), max_size=8)), np.int64)
    fan_outs = [min(fan_out, 40) for fan_out in fan_outs] if replace else fan_outs
    partition = Partition.of(part_of, num_parts)
    weight = np.arange(num_edges, dtype=np.float32)
    parts_each = data.draw(st.integers(1, 2))
    sampler = PartitionedSampler(
        partition.caller(graph, weight, parts_each),
        partition.machines(parts_each),
        fan_outs,
        replace=replace,
        needs=BlockNeeds(weight=True, degree=True),
    )
    found = sampler.sample(torch.from_numpy(partition.new[seeds]), key)
    whole = cpu_sampler(graph, fan_outs, replace=replace, edge_ids=True)
    expected = whole.sample(torch.from_numpy(seeds), key)
    assert_same(found, expected, partition)
    degrees = np.diff(graph[0])
    for block, wanted in zip(found.blocks, expected.blocks, strict=True):
        assert block.weight is not None
        assert block.degree is not None
        np.testing.assert_array_equal(block.weight, weight[wanted.edge_ids])
        np.testing.assert_array_equal(block.degree, degrees[expected.nodes[: block.num_dst]])
        assert (block.weight.dtype, block.degree.dtype) == (torch.float32, torch.float32)


@pytest.mark.parametrize("fan_out", [24, 25, 400, 4999, -1])
def test_hubs_beyond_a_chunk_of_edges(fan_out: int) -> None:
    num_edges = 3 * CHUNK_EDGES + 1
    hub = csc(5000, np.arange(num_edges) % 5000, np.arange(num_edges) % 10 // 9)
    partition = Partition.of((np.arange(5000) % 3).tolist(), 3)
    sampler = PartitionedSampler(partition.caller(hub), partition.owners, [fan_out, 2])
    found = sampler.sample(torch.from_numpy(partition.new[[1, 0]]), KEY)
    assert_same(found, cpu_sampler(hub, [fan_out, 2]).sample(torch.tensor([1, 0]), KEY), partition)


def test_a_used_sampler_gives_what_a_fresh_one_gives() -> None:
    """Batches that grow the table, and batches that find old numbers in it."""
    graph = random_csc(30_000, 200_000)
    rng = np.random.default_rng(0)
    partition = Partition.of(rng.integers(0, 4, 30_000).tolist(), 4)
    used = PartitionedSampler(partition.caller(graph), partition.owners, [5, 4])
    whole = cpu_sampler(graph, [5, 4])
    for step in range(20):
        seeds = rng.integers(0, 30_000, rng.integers(0, 60) * (1 + 20 * (step % 5 == 4)))
        key = SampleKey(0, 0, step)
        found = used.sample(torch.from_numpy(partition.new[seeds]), key)
        assert_same(found, whole.sample(torch.from_numpy(seeds), key), partition)


def test_numbers_go_by_first_appearance() -> None:
    numbers = NodeNumbers()
    rng = np.random.default_rng(0)
    for size in (10, 100_000, 10, 20_000):
        seeds, sources = rng.integers(0, 2**40, 5), rng.integers(0, 2**40, size) // 2**20
        numbers.start(seeds)
        local = numbers.relabel(sources)
        known = dict.fromkeys([*seeds.tolist(), *sources.tolist()])
        assert numbers.nodes[: numbers.num_nodes].tolist() == list(known)
        np.testing.assert_array_equal(numbers.nodes[local], sources)


def test_a_batch_of_too_many_nodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioned, "MAX_BATCH_NODES", CHUNK_EDGES + 10)
    numbers = NodeNumbers()
    numbers.start(np.arange(11))
    with pytest.raises(RunError, match="batch size"):
        numbers.relabel(np.arange(3 * CHUNK_EDGES))


def test_a_batch_allocates_nothing_of_the_graphs_size() -> None:
    indptr = np.zeros(1_000_001, np.int64)
    indptr[-100:] = np.arange(100)
    graph = indptr, np.arange(99, dtype=np.int32)
    owners = NodeOwners(np.array([0, 1_000_000]))
    draws = partitioned.PartDraws(*graph, np.arange(1_000_000))
    sampler = PartitionedSampler(InProcess({DRAW: [draws]}), owners, [2, 2])
    seeds = torch.arange(999_900, 1_000_000)
    sampler.sample(seeds, key=KEY)
    tracemalloc.start()
    try:
        sampler.sample(seeds, key=KEY)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_bytes_on_the_way_are_those_of_ids_counts_and_sources() -> None:
    graph = random_csc(3000, 60_000)
    partition = Partition.of((np.arange(3000) % 2).tolist(), 2)
    caller = partition.caller(graph)
    sampler = PartitionedSampler(caller, partition.owners, [5, 3])
    found = sampler.sample(torch.arange(0, 3000, 6), KEY)
    num_dst = sum(block.num_dst for block in found.blocks)
    num_edges = sum(block.num_edges for block in found.blocks)
    assert len(caller.asked) == 4, "a call a hop and owner"
    assert sum(asked for _, _, asked, _ in caller.asked) == 4 * num_dst + 4 * 40
    assert sum(answered for *_, answered in caller.asked) == num_dst + 4 * num_edges


def test_only_owners_of_some_destination_are_asked() -> None:
    graph = csc(6, [0, 1, 2, 3], [1, 2, 3, 4])
    partition = Partition.of([0, 0, 0, 1, 1, 1], 2)
    caller = partition.caller(graph)
    PartitionedSampler(caller, partition.owners, [-1]).sample(torch.tensor([4, 3]), KEY)
    assert [(name, owner) for name, owner, *_ in caller.asked] == [(DRAW, 1)]


def test_seeds_and_fan_outs_are_checked() -> None:
    graph = random_csc(50, 300)
    partition = Partition.of([0] * 50, 1)
    sampler = PartitionedSampler(partition.caller(graph), partition.owners, [3])
    with pytest.raises(UserError, match=r"1 of 2 .*50"):
        sampler.sample(torch.tensor([0, 50]), KEY)
    with pytest.raises(UserError, match="0"):
        PartitionedSampler(partition.caller(graph), partition.owners, [0])


@examples(30)
@given(part_of=st.lists(st.integers(0, 3), min_size=1, max_size=30), data=st.data())
def test_rows_come_in_the_order_asked(part_of: list[int], data: st.DataObject) -> None:
    partition = Partition.of(part_of, 4)
    values = np.random.default_rng(0).normal(size=(len(part_of), 3))
    parts = [values[own] for own in partition.ranges()]
    nodes = data.draw(st.lists(st.integers(0, len(part_of) - 1), max_size=10))
    for parts_each in (1, 2, 3):
        held, owners = partition.held(parts_each), partition.machines(parts_each)
        answers = [RowAnswers([parts[p] for p in own], ranges) for own, ranges in held]
        caller = InProcess({"values": list(answers)})
        found = ask_rows(caller, owners, "values", np.array(nodes, np.int64))
        np.testing.assert_array_equal(found, values[nodes])
