"""The CPU sampler draws exactly what the slow oracle draws, by the documented random numbers:
what a node draws depends on the key alone, not on threads, ranks or the rest of the batch."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from itertools import accumulate, pairwise
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnntrain import plugins
from gnntrain.config.types import AnyFanOuts
from gnntrain.data.graph import FusedCSC, GraphSchema
from gnntrain.errors import RunError, UserError
from gnntrain.sampling.base import SampleKey, make_sampler, resolved_fan_outs, sampler_class
from gnntrain.sampling.block import Sample
from gnntrain.sampling.cpu import MAX_BATCH_NODES, CPUSampler
from gnntrain.sampling.kernels import CHUNK_EDGES
from tests.examples import examples
from tests.sampling import graphs, oracle

KEY = SampleKey(seed=1, epoch=2, step=3)


def assert_drawn(sample: Sample, expected: oracle.OracleSample) -> None:
    assert {name: nodes.tolist() for name, nodes in sample.nodes.items()} == expected.nodes
    assert all(nodes.dtype == torch.int64 for nodes in sample.nodes.values())
    assert [*sample.num_seeds.values()] == [sum(expected.num_known[0].values())]
    sizes = zip(sample.hops[::-1], expected.edges, pairwise(expected.num_known), strict=True)
    for hop, edges, (before, after) in sizes:
        assert (hop.num_dst, hop.num_src) == (before, after)
        assert list(hop.edges) == list(edges)
        for name, of_type in edges.items():
            block, drawn = hop.edges[name], [edge for one in of_type for edge in one]
            assert block.num_src == after[name[0]]
            assert block.indptr.dtype == block.indices.dtype == torch.int32
            assert block.indptr.diff().tolist() == list(map(len, of_type))
            assert block.indices.tolist() == [source for source, _ in drawn]
            assert block.edge_ids is not None
            assert block.edge_ids.tolist() == [edge for _, edge in drawn]


@examples(100)
@given(
    graph=graphs.typed_graphs(),
    key=st.builds(SampleKey, *[st.integers(-(2**63), 2**64)] * 3),
    scope=st.sampled_from(["relation", "node"]),
    replace=st.booleans(),
    data=st.data(),
)
def test_nodes_and_edges_are_the_oracles_in_the_same_order(
    graph: FusedCSC, key: SampleKey, scope: str, replace: bool, data: st.DataObject
) -> None:
    seeds, fan_outs = (
        data.draw(graphs.some_seeds(graph)),
        data.draw(graphs.some_fan_outs(graph, scope)),
    )
    options: dict[str, Any] = {"scope": scope, "replace": replace}
    sampler = graphs.sampler_of(graph, fan_outs, edge_ids=True, **options)
    sample = sampler.sample(graphs.seeds_of(seeds, graph), key)
    assert_drawn(sample, oracle.sample(graph, seeds, fan_outs, key, **options))


@graphs.each_scope
@pytest.mark.parametrize("fan_out", [24, 25, 4999, -1])
def test_hubs_agree_with_the_oracle(fan_out: int, scope: str) -> None:
    """Beyond a fan-out of 24 repeats are found by a hash table; -1 takes more than a chunk."""
    size = 5000 if fan_out > 0 else 3 * CHUNK_EDGES + 1
    hub = graphs.of_one_type(graphs.csc(100, np.arange(size) % 100, np.zeros(size, int)))
    fan_outs = graphs.fan_outs_of(hub, [fan_out, 2])
    sampler = graphs.sampler_of(hub, fan_outs, edge_ids=True, scope=scope)
    expected = oracle.sample(hub, [0, 5], fan_outs, KEY)
    assert_drawn(sampler.sample(graphs.seeds_of([0, 5]), KEY), expected)


@graphs.on_each_graph
@graphs.each_scope
def test_a_used_sampler_gives_what_a_fresh_one_gives(graph: FusedCSC, scope: str) -> None:
    def fresh() -> Any:
        return graphs.sampler_of(graph, [5, 4], edge_ids=True, scope=scope)

    used, rng = fresh(), np.random.default_rng(0)
    for step in range(20):
        seeds = torch.from_numpy(rng.integers(0, 40, rng.integers(0, 60)))
        if step == 10:  # the scratch's numbers are about to leave int32
            used._idle[0].numbers = used._idle[0].numbers._replace(base=MAX_BATCH_NODES)
        key = SampleKey(0, 0, step)
        graphs.assert_equal(
            used.sample(graphs.seeds_of(seeds, graph), key),
            fresh().sample(graphs.seeds_of(seeds, graph), key),
        )
    assert used._idle[0].numbers.base < MAX_BATCH_NODES


def test_a_batch_allocates_nothing_of_the_graphs_size() -> None:
    indptr = np.zeros(1_000_001, np.int64)
    indptr[-100:] = np.arange(100)
    sampler = graphs.cpu_sampler((indptr, np.arange(99, dtype=np.int32)), [2, 2])
    seeds = graphs.seeds_of(torch.arange(999_900, 1_000_000))
    assert peak_of(lambda: sampler.sample(seeds, KEY)) < 100_000


def peak_of(work: Callable[[], object]) -> int:
    """The most bytes that Python holds more at once in a second call."""
    work()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_mistakes_are_told() -> None:
    graph = graphs.random_csc(50, 300)
    sampler = graphs.cpu_sampler(graph, [3])
    with pytest.raises(UserError, match=r"3 of 4 .*-1, 50, 99"):
        sampler.sample(graphs.seeds_of([-1, 0, 50, 99]), KEY)


@graphs.on_each_graph
@graphs.each_scope
def test_many_threads_at_once_give_what_one_gives(graph: FusedCSC, scope: str) -> None:
    sampler = graphs.sampler_of(graph, [8, 30, 3], scope=scope, edge_ids=True)
    rng, num_threads = np.random.default_rng(0), 8
    seeds = [graphs.seeds_of(torch.from_numpy(rng.integers(0, 40, 40)), graph) for _ in range(64)]
    together = Barrier(num_threads)

    def work(thread: int) -> list[Sample]:
        together.wait()
        steps = range(thread, len(seeds), num_threads)
        return [sampler.sample(seeds[step], SampleKey(0, 0, step)) for step in steps]

    with ThreadPoolExecutor(num_threads) as pool:
        drawn = list(pool.map(work, range(num_threads)))
    for step, of_step in enumerate(seeds):
        alone = sampler.sample(of_step, SampleKey(0, 0, step))
        graphs.assert_equal(drawn[step % num_threads][step // num_threads], alone)


# PyG's view


@examples(50)
@given(graphs.typed_graphs(), st.data())
def test_the_view_of_pyg_has_each_node_and_its_edges_once_in_the_hop_that_found_it(
    graph: FusedCSC, data: st.DataObject
) -> None:
    seeds, fan_outs = data.draw(graphs.some_seeds(graph)), data.draw(graphs.some_fan_outs(graph))
    sample = graphs.sampler_of(graph, fan_outs).sample(graphs.seeds_of(seeds, graph), KEY)
    for node_type, counts in sample.num_sampled_nodes.items():
        known = [*(hop.num_dst[node_type] for hop in sample.hops[::-1])]
        assert list(accumulate(counts)) == [*known, len(sample.nodes[node_type])]
    for name, edge_index in sample.edge_index().items():
        expected: list[tuple[int, int]] = []
        oldest = 0
        for number, hop in enumerate(reversed(sample.hops)):
            block = hop.edges[name]
            sources = torch.split(block.indices, block.indptr.diff().tolist())
            new = [(u, v) for v in range(oldest, block.num_dst) for u in sources[v].tolist()]
            assert len(new) == sample.num_sampled_edges[name][number]
            expected += new
            oldest = block.num_dst
        assert list(zip(*edge_index.tolist(), strict=True)) == expected


# A sampler is one class behind a name; its fan-outs are by edge type


class OfOneArgument(CPUSampler):
    def __init__(self, edges: FusedCSC) -> None:
        super().__init__(edges, {})


def test_a_packages_object_replaces_no_sampler_of_ours_and_must_be_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offered = EntryPoint("numba", f"{__name__}:SCHEMA", plugins.SAMPLERS)
    monkeypatch.setattr(plugins, "entry_points", lambda **_: [offered])
    assert sampler_class("numba") is CPUSampler
    with pytest.raises(UserError, match="no subclass of Sampler"):
        sampler_class("odd")
    anything: Any = None
    offered = EntryPoint("own", f"{__name__}:OfOneArgument", plugins.SAMPLERS)
    with pytest.raises(RunError, match=r"'own' \(tests.*\.OfOneArgument\) .*TypeError"):
        make_sampler("own", anything, {}, replace=True)


WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
EDITS, REVIEWS = ("author", "reviews", "paper"), ("author", "reviews", "book")
SCHEMA = GraphSchema(
    num_nodes={"author": 3, "paper": 4, "book": 2},
    num_features={"author": 0, "paper": 0, "book": 0},
    edge_types=(WRITES, CITES, EDITS, REVIEWS),
    target="paper",
)


def test_one_list_is_for_each_edge_type_or_for_those_without_their_own() -> None:
    assert resolved_fan_outs([3, 2], SCHEMA, 2) == dict.fromkeys(SCHEMA.edge_types, (3, 2))
    given = {"default": [3, 2], "writes": [5, 4], "author/reviews/book": [-1, 1]}
    assert resolved_fan_outs(given, SCHEMA, 2) == {
        WRITES: (5, 4),
        CITES: (3, 2),
        EDITS: (3, 2),
        REVIEWS: (-1, 1),
    }


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"default": [1], "wrotes": [2]}, "writes"),
        ({"default": [1], "author/writes/papers": [2]}, "author/writes/paper"),
        ({"default": [1], "reviews": [2]}, "author/reviews/paper, author/reviews/book"),
        ({"default": [1], "writes": [2], "author/writes/paper": [3]}, "author/writes/paper"),
        ({"author/reviews/paper": [1], "writes": [2], "cites": [3]}, "author/reviews/book"),
        ({"default": [1], "cites": [3, 3]}, "cites"),
        ({"defualt": [1]}, "default"),
    ],
)
def test_a_mistake_is_told_with_the_edge_types_that_are_meant(given: AnyFanOuts, told: str) -> None:
    with pytest.raises(UserError) as caught:
        resolved_fan_outs(given, SCHEMA, 1, "evaluation.fan_outs")
    assert told in str(caught.value)
    assert caught.value.message.startswith("evaluation.fan_outs")
