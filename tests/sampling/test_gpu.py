"""The Triton sampler draws exactly what the CPU sampler draws, in the same order."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.data.graph import EDGE, NODE, FusedCSC
from gnntrain.errors import RunError, UserError
from gnntrain.sampling.base import SampleKey, Seeds
from gnntrain.sampling.block import Sample
from tests.compute.devices import NEEDS_GPU, on_each_device
from tests.examples import examples
from tests.sampling.graphs import (
    CSC,
    assert_equal,
    blocks_of,
    cpu_sampler,
    csc,
    graphs,
    random_csc,
    seeds_of,
)

pytest.importorskip("triton", reason="triton is not installed")
from gnntrain.sampling import gpu
from gnntrain.sampling.gpu import GPUSampler

on_a_gpu = pytest.mark.parametrize("device", [pytest.param("cuda:0", marks=NEEDS_GPU)])

KEY = SampleKey(seed=1, epoch=2, step=3)


def gpu_sampler(graph: CSC, fan_outs: list[int], device: str, **options: Any) -> GPUSampler:
    indptr, indices = (torch.from_numpy(array).to(device) for array in graph)
    return sampler_on(indptr, indices, fan_outs, **options)


def sampler_on(indptr: Any, indices: Any, fan_outs: list[int], **options: Any) -> GPUSampler:
    """A sampler of a graph of one type, in tensors."""
    edges = FusedCSC.cut([EDGE], {NODE: len(indptr) - 1}, [len(indices)], indptr, indices)
    return GPUSampler(edges, {EDGE: tuple(fan_outs)}, **options)


def assert_same_draws(
    graph: CSC,
    fan_outs: list[int],
    seeds: list[int],
    device: str,
    key: SampleKey = KEY,
    **options: Any,
) -> None:
    expected = cpu_sampler(graph, fan_outs, edge_ids=True, **options)
    sampler = gpu_sampler(graph, fan_outs, device, edge_ids=True, **options)
    batch = torch.tensor(seeds, dtype=torch.int64)
    assert_equal(sampler.sample(seeds_of(batch), key), expected.sample(seeds_of(batch), key))


@on_each_device
@examples(40)
@given(
    graph=graphs(),
    fan_outs=st.lists(st.sampled_from([-1, 1, 2, 5, 16, 65, 1000]), min_size=1, max_size=3),
    key=st.builds(SampleKey, *[st.integers(-(2**63), 2**64)] * 3),
    replace=st.booleans(),
    data=st.data(),
)
def test_one_key_gives_equal_arrays_on_both_devices(
    device: str, graph: CSC, fan_outs: list[int], key: SampleKey, replace: bool, data: st.DataObject
) -> None:
    seeds = data.draw(st.lists(st.integers(0, len(graph[0]) - 2), max_size=8))
    fan_outs = [min(fan_out, 20) for fan_out in fan_outs] if replace else fan_outs
    assert_same_draws(graph, fan_outs, seeds, device, key, replace=replace)


HUB = csc(100, np.arange(5000) % 100, np.zeros(5000, int))
LARGE_HUB = csc(50, np.arange(10**6) % 50, np.arange(10**6) // (10**6 - 1))
MANY = random_csc(1500, 12_000)


@on_each_device
@pytest.mark.parametrize(
    ("graph", "fan_outs", "seeds"),
    [
        # A fan-out near the degree makes most of Floyd's draws fall back on a chain of others.
        *((HUB, [fan_out, 2], [0, 5]) for fan_out in (1, 63, 64, 65, 4999, 5000, -1)),
        (LARGE_HUB, [30, 3], [0, 1]),
        (LARGE_HUB, [3000], [0, 1]),
        # Repeated seeds count as often as they are given: more nodes than the graph has.
        (csc(4, [1, 2, 3, 0], [0, 1, 2, 3]), [2, 1, -1], [0, 0, 0, 1, 0]),
        # More edges and nodes than one program of any kernel takes.
        (MANY, [4, 2], [*range(0, 1500, 2), 0, 2]),
        (MANY, [-1], [*range(0, 1500, 2), 0, 2]),
    ],
    ids=lambda value: str(value) if isinstance(value, list) and len(value) < 9 else "",
)
def test_hubs_repeated_seeds_and_many_programs_are_drawn_from_alike(
    device: str, graph: CSC, fan_outs: list[int], seeds: list[int]
) -> None:
    assert_same_draws(graph, fan_outs, seeds, device)
    if graph is LARGE_HUB:
        assert_same_draws(graph, [100], seeds, device, replace=True)


@on_each_device
def test_a_hop_too_large_to_pad_is_measured_first(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "MAX_PADDED_EDGES", 100)
    assert_same_draws(random_csc(300, 4000), [4, 3, 2], [5, 5, 200, 0, 299], device)


@on_a_gpu
def test_cuda_sees_one_wait_a_batch(device: str) -> None:
    sampler = gpu_sampler(random_csc(3000, 40_000), [5, 4, 70], device, edge_ids=True)
    sampler.sample(seeds_of(torch.arange(100)), KEY)  # compiles
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sampler.sample(seeds_of(torch.arange(100)), KEY)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len([w for w in caught if "synchroniz" in str(w.message)]) == 1


@on_a_gpu
def test_pinned_host_memory_is_read_over_the_bus(device: str) -> None:
    graph = random_csc(3000, 40_000)
    indptr, indices = torch.from_numpy(graph[0]).to(device), torch.from_numpy(graph[1]).pin_memory()
    sampler = sampler_on(indptr, indices, [5, 4], edge_ids=True)
    expected = cpu_sampler(graph, [5, 4], edge_ids=True).sample(seeds_of(torch.arange(99)), KEY)
    assert_equal(sampler.sample(seeds_of(torch.arange(99)), KEY), expected)


@on_each_device
def test_a_used_sampler_gives_what_a_fresh_one_gives(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after an error in the middle of a batch."""
    graph = random_csc(300, 4000)
    used = gpu_sampler(graph, [5, 4], device, edge_ids=True)
    expected = cpu_sampler(graph, [5, 4], edge_ids=True)
    rng = np.random.default_rng(0)
    for step in range(4):
        if step == 2:
            monkeypatch.setattr(gpu, "MAX_LOCAL", 200)
            with pytest.raises(RunError, match="one hop"):
                used.sample(seeds_of(torch.arange(9, 39)), KEY)
            monkeypatch.undo()
        seeds = seeds_of(torch.from_numpy(rng.integers(0, 300, rng.integers(0, 60))))
        key = SampleKey(0, 0, step)
        assert_equal(used.sample(seeds, key), expected.sample(seeds, key))


@on_a_gpu
def test_threads_on_streams_of_their_own_share_a_sampler(device: str) -> None:
    graph = random_csc(3000, 40_000)
    sampler = gpu_sampler(graph, [5, 4], device, edge_ids=True)
    torch.cuda.synchronize()

    def drawn(step: int) -> Sample:
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            return sampler.sample(seeds_of(torch.arange(step, 3000, 7)), SampleKey(0, 0, step))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(drawn, range(40)))
    expected = cpu_sampler(graph, [5, 4], edge_ids=True)
    for step, sample in enumerate(found):
        seeds, key = torch.arange(step, 3000, 7), SampleKey(0, 0, step)
        assert_equal(sample, expected.sample(seeds_of(seeds), key))


@on_each_device
@pytest.mark.parametrize("on_device", [False, True])
def test_mistakes_are_told(device: str, on_device: bool) -> None:
    def seeds(*ids: int) -> Seeds:
        ids_on = torch.tensor(ids, dtype=torch.int64, device=device if on_device else "cpu")
        return seeds_of(ids_on)

    graph = random_csc(50, 300)
    sampler = gpu_sampler(graph, [3], device)
    with pytest.raises(UserError, match=r"3 of 4 .*-1, 50, 99"):
        sampler.sample(seeds(-1, 0, 50, 99), KEY)
    expected = cpu_sampler(graph, [3]).sample(seeds_of([3, 49]), KEY)
    assert_equal(sampler.sample(seeds(3, 49), KEY), expected)
    empty = gpu_sampler(csc(0, [], []), [3, -1], device)
    assert empty.sample(seeds(), KEY).nodes[NODE].numel() == 0
    with pytest.raises(UserError, match="1 of 1"):
        empty.sample(seeds(0), KEY)
    unpadded = gpu_sampler(graph, [2, -1], device)
    keys = unpadded.hop_keys(KEY).to(device)
    with pytest.raises(UserError, match="fan-out -1"):
        unpadded.sample_padded(torch.zeros(1, dtype=torch.int64, device=device), keys)


@on_each_device
@examples(30)
@given(
    graph=graphs(),
    fan_outs=st.lists(st.sampled_from([1, 2, 5, 70]), min_size=1, max_size=3),
    replace=st.booleans(),
    data=st.data(),
)
def test_a_padded_draw_begins_with_what_is_drawn(
    device: str, graph: CSC, fan_outs: list[int], replace: bool, data: st.DataObject
) -> None:
    """And what follows is 0, and has no edges."""
    node = st.integers(0, len(graph[0]) - 2)
    seeds = torch.tensor(data.draw(st.lists(node, min_size=1, max_size=6)))
    sampler = gpu_sampler(graph, fan_outs, device, edge_ids=True, replace=replace)
    for step in range(2):  # the second finds no trace of the first
        key = SampleKey(1, 2, step)
        keys = sampler.hop_keys(key).to(device)
        padded = sampler.sample_padded(seeds.to(device), keys)
        drawn = sampler.sample(seeds_of(seeds), key)
        found_nodes, nodes = padded.nodes[NODE], drawn.nodes[NODE]
        assert torch.equal(found_nodes[: len(nodes)], nodes)
        assert not found_nodes[len(nodes) :].any()
        assert int(padded.size) == len(nodes)  # type: ignore[arg-type]
        for hop, expected in zip(blocks_of(padded), blocks_of(drawn), strict=True):
            assert torch.equal(hop.indptr[: expected.num_dst + 1], expected.indptr)
            assert bool((hop.indptr[expected.num_dst :] == expected.num_edges).all())
            for name in ("indices", "edge_ids"):
                found, wanted = getattr(hop, name), getattr(expected, name)
                assert torch.equal(found[: expected.num_edges], wanted)
                assert not found[expected.num_edges :].any()
