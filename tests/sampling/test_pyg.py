"""PyG's own sampling returns our samples."""

from __future__ import annotations

import logging
from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch

from gnntrain.data.graph import FusedCSC
from gnntrain.errors import UserError
from gnntrain.sampling.base import SampleKey
from gnntrain.sampling.pyg import PyGSampler, shared_graph
from tests.hetero_graphs import hetero_graph
from tests.pyg_backends import BACKENDS, use_backend
from tests.sampling import graphs

pytestmark = pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without")

KEY = SampleKey(0, 0, 0)
SEEDS = torch.tensor([0, 39, 7, 21])


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    use_backend(request.param, monkeypatch)


def test_without_a_backend_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    use_backend("none", monkeypatch)
    with pytest.raises(UserError, match="neither can be imported") as error:
        graphs.sampler_of(hetero_graph().fused, [2], PyGSampler)
    for word in ("pyg-lib", "torch-sparse", "--no-build-isolation", "backend=numba needs no"):
        assert word in str(error.value.hint)


@pytest.mark.usefixtures("backend")
@graphs.on_each_graph
@pytest.mark.parametrize("num_hops", [1, 2, 3])
def test_all_in_neighbours_are_those_that_our_own_sampler_finds(
    graph: FusedCSC, num_hops: int
) -> None:
    expected = graphs.sampler_of(graph, [-1] * num_hops).sample(graphs.seeds_of(SEEDS, graph), KEY)
    sample = graphs.sampler_of(graph, [-1] * num_hops, PyGSampler).sample(
        graphs.seeds_of(SEEDS, graph), KEY
    )
    assert sample.num_seeds == expected.num_seeds
    assert torch.equal(sample.nodes[graphs.target_of(graph)][:4], SEEDS)
    assert sample.num_sampled_nodes == expected.num_sampled_nodes
    assert sample.num_sampled_edges == expected.num_sampled_edges
    assert graphs.in_edges(sample) == graphs.in_edges(expected)
    for hop, own in zip(sample.hops, expected.hops, strict=True):
        assert (hop.num_dst, hop.num_src) == (own.num_dst, own.num_src)
        for name, block in hop.edges.items():
            assert block.num_src == hop.num_src[name[0]]
            assert block.indptr.dtype == block.indices.dtype == torch.int32


@pytest.mark.usefixtures("backend")
@graphs.on_each_graph
@pytest.mark.parametrize("replace", [False, True])
def test_each_node_draws_once_as_many_true_in_edges_as_its_hop_asks_for(
    graph: FusedCSC, replace: bool
) -> None:
    fan_outs = dict.fromkeys(graph.edge_types, (4, -1, 2))
    fan_outs[graph.edge_types[0]] = (2, 3, 1)
    sample = graphs.sampler_of(graph, fan_outs, PyGSampler, replace=replace).sample(
        graphs.seeds_of(SEEDS, graph), KEY
    )
    for number, name in enumerate(graph.edge_types):
        indptr, indices = graph.part(number)
        last = sample.hops[0].edges[name]
        assert last.edge_ids is not None
        nodes, sources = sample.nodes[name[2]].tolist(), sample.nodes[name[0]]
        known = list(accumulate(sample.num_sampled_nodes[name[2]]))
        assert [hop.edges[name].num_dst for hop in sample.hops[::-1]] == known[:-1]
        for i, (first, end) in enumerate(pairwise(last.indptr.tolist())):
            ids = last.edge_ids[first:end].numpy()
            begin, stop = indptr[nodes[i] : nodes[i] + 2].tolist()
            assert ((begin <= ids) & (ids < stop)).all()
            assert (indices[ids] == sources[last.indices[first:end]].numpy()).all()
            fan_out = fan_outs[name][sum(i >= count for count in known)]
            if fan_out < 0 or (stop - begin <= fan_out and not replace):
                assert len(ids) == stop - begin
            else:
                assert len(ids) == (fan_out if stop > begin else 0)
                assert replace or len(set(ids.tolist())) == fan_out


@pytest.mark.usefixtures("backend")
def test_epochs_steps_seeds_and_ranks_draw_anew() -> None:
    """Ranks have other seed nodes in a step: seeded alike, all would draw at the same positions."""
    everyone = np.arange(60)
    whole = graphs.of_one_type(graphs.csc(60, np.tile(everyone, 60), np.repeat(everyone, 60)))
    sampler = graphs.sampler_of(whole, [4, 4], PyGSampler)
    keys = [SampleKey(0, 1, 0), SampleKey(0, 2, 0), SampleKey(1, 1, 0), SampleKey(0, 1, 1)]
    seeds = [(5, key) for key in keys] + [(node, keys[0]) for node in range(20)]
    samples = [sampler.sample(graphs.seeds_of([node]), key) for node, key in seeds]
    ids = [[block.edge_ids for block in graphs.blocks_of(sample)] for sample in samples]
    draws = {str([(own % 60).tolist() for own in hops if own is not None]) for hops in ids}
    assert len(draws) > 18


@pytest.mark.usefixtures("backend")
@graphs.on_each_graph
def test_a_draw_can_be_repeated_in_another_process(graph: FusedCSC) -> None:
    """PyG lists the types in the order of a set, which differs from process to process."""
    sampler = graphs.sampler_of(graph, [2, 2], PyGSampler)
    assert isinstance(sampler, PyGSampler)
    if len(graph.num_nodes) > 1:
        assert list(sampler._sampler.edge_types) == list(graph.edge_types)
        assert list(sampler._sampler.node_types) == list(graph.num_nodes)
    first, again = (str(sampler.sample(graphs.seeds_of(SEEDS, graph), KEY)) for _ in range(2))
    assert first == again
    assert str(sampler.sample(graphs.seeds_of(SEEDS, graph), SampleKey(0, 0, 1))) != first


@pytest.mark.usefixtures("backend")
@graphs.on_each_graph
def test_sampling_leaves_generator_threads_and_root_logger_of_training_alone(
    graph: FusedCSC, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    torch.manual_seed(7)
    expected, num_threads = torch.rand(3), torch.get_num_threads()
    torch.manual_seed(7)
    graphs.sampler_of(graph, [2, 2], PyGSampler).sample(graphs.seeds_of(SEEDS, graph), KEY)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == num_threads
    assert logging.root.handlers == []  # else every record of ours would be printed as well
    assert not PyGSampler.thread_safe  # dropout would draw from its generator meanwhile


def test_more_edges_than_32_bits_can_number_are_read_in_64_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_backend("pyg", monkeypatch)
    many = graphs.of_one_type((np.array([0, 2**31]), np.zeros(1, np.int32)))
    row, colptr, _ = shared_graph(many).csc()
    assert row.dtype == colptr.dtype == torch.int64


@graphs.on_each_graph
def test_what_pyg_cannot_draw_is_refused(graph: FusedCSC, monkeypatch: pytest.MonkeyPatch) -> None:
    use_backend("pyg", monkeypatch)
    with pytest.raises(UserError, match="1 of 3 seeds are repetitions"):
        graphs.sampler_of(graph, [2], PyGSampler).sample(graphs.seeds_of([4, 5, 4], graph), KEY)
