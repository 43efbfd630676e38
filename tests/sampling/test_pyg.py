"""PyG's own sampling returns our subgraphs."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from gnntrain.data.fused import FusedCSC
from gnntrain.data.graph import EDGE, NODE, Edges
from gnntrain.errors import UserError
from gnntrain.sampling.base import Int64Array, SampledSubgraph, SampleKey
from gnntrain.sampling.kernels import IndexArray
from gnntrain.sampling.pyg import PyGSampler, require_pyg_backend, shared_graph
from tests.pyg_backends import BACKENDS, use_backend
from tests.sampling.graphs import CSC, cpu_sampler, csc, random_csc

pytestmark = pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without")

KEY = SampleKey(0, 0, 0)


def pyg_sampler(graph: CSC, fan_outs: list[int], *, replace: bool = False) -> PyGSampler:
    indptr, indices = (torch.from_numpy(array) for array in graph)
    return PyGSampler(indptr, indices, fan_outs, replace=replace)


def fused(indptr: Int64Array, indices: IndexArray) -> FusedCSC:
    return FusedCSC.cut([EDGE], {NODE: len(indptr) - 1}, [len(indices)], indptr, indices)


def test_without_a_backend_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    use_backend("none", monkeypatch)
    with pytest.raises(UserError, match="neither can be imported") as error:
        require_pyg_backend()
    assert error.value.hint is not None
    for word in ("pyg-lib", "torch-sparse", "--no-build-isolation", "backend=numba needs no"):
        assert word in error.value.hint


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    use_backend(request.param, monkeypatch)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("num_hops", [1, 2, 3])
def test_all_in_neighbours_are_those_that_our_own_sampler_finds(num_hops: int) -> None:
    graph = random_csc(60, 100)
    seeds = torch.tensor([0, 59, 7, 21])
    expected = cpu_sampler(graph, [-1] * num_hops, edge_ids=True).sample(seeds, KEY)
    subgraph = pyg_sampler(graph, [-1] * num_hops).sample(seeds, KEY)
    assert torch.equal(subgraph.nodes, expected.nodes)
    assert subgraph.num_seeds == 4
    assert subgraph.num_sampled_nodes == expected.num_sampled_nodes
    assert subgraph.num_sampled_edges == expected.num_sampled_edges
    assert torch.equal(subgraph.edge_index, expected.edge_index)
    for block, own in zip(subgraph.blocks, expected.blocks, strict=True):
        assert block.num_src == own.num_src
        for name in ("indptr", "indices", "edge_ids"):
            assert torch.equal(getattr(block, name), getattr(own, name)), name
            assert getattr(block, name).dtype == getattr(own, name).dtype, name


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fan_outs", [[3], [4, 2], [2, -1, 3]])
def test_each_node_draws_once_as_many_true_in_edges_as_its_hop_asks_for(
    fan_outs: list[int], replace: bool
) -> None:
    graph = random_csc(60, 500)
    indptr, indices = graph
    subgraph = pyg_sampler(graph, fan_outs, replace=replace).sample(torch.arange(0, 60, 9), KEY)
    nodes = subgraph.nodes.numpy()
    known = subgraph.num_seeds
    for block in reversed(subgraph.blocks):
        assert block.num_dst == known
        assert block.edge_ids is not None
        known = block.num_src
    assert known == len(nodes)
    (block, *_) = subgraph.blocks
    ids = block.edge_ids
    assert ids is not None
    hop_of = np.repeat(np.arange(len(fan_outs)), subgraph.num_sampled_nodes[:-1])
    for dst, hop in enumerate(hop_of):
        first, last = block.indptr[dst : dst + 2].tolist()
        begin, end = indptr[nodes[dst]], indptr[nodes[dst] + 1]
        drawn = ids[first:last].numpy()
        assert ((begin <= drawn) & (drawn < end)).all()
        np.testing.assert_array_equal(nodes[block.indices[first:last]], indices[drawn])
        fan_out = fan_outs[hop] if fan_outs[hop] >= 0 else end - begin
        if replace and fan_outs[hop] >= 0:
            assert len(drawn) == (fan_out if begin < end else 0)
        else:
            assert len(set(drawn.tolist())) == len(drawn) == min(fan_out, end - begin)


def drawn(sampler: PyGSampler, seeds: list[int], key: SampleKey) -> str:
    return str(positions(sampler.sample(torch.tensor(seeds), key)))


def positions(subgraph: SampledSubgraph) -> list[int]:
    """Where in its in-edges each node of `whole_graph` drew."""
    assert subgraph.edge_ids is not None
    return [edge % 60 for edge in subgraph.edge_ids.tolist()]


def whole_graph() -> CSC:
    """All nodes have the same in-neighbours: seeded alike, all batches would draw the same ones."""
    everyone: Int64Array = np.arange(60)
    return csc(60, np.tile(everyone, 60), np.repeat(everyone, 60))


@pytest.mark.usefixtures("backend")
def test_epochs_steps_seeds_and_ranks_draw_anew_and_repeatably() -> None:
    """Ranks have other seed nodes in a step."""
    sampler = pyg_sampler(whole_graph(), [4, 4])
    assert drawn(sampler, [5], SampleKey(0, 1, 0)) == drawn(sampler, [5], SampleKey(0, 1, 0))
    keys = [SampleKey(0, 1, 0), SampleKey(0, 2, 0), SampleKey(1, 1, 0), SampleKey(0, 1, 1)]
    draws = {drawn(sampler, [5], key) for key in keys} | {drawn(sampler, [6], keys[0])}
    assert len(draws) == 5


@pytest.mark.usefixtures("backend")
def test_many_steps_draw_anew() -> None:
    sampler = pyg_sampler(whole_graph(), [4])
    draws = {drawn(sampler, [node], SampleKey(0, 0, node)) for node in range(20)}
    assert len(draws) > 15


@pytest.mark.usefixtures("backend")
def test_sampling_leaves_the_generator_of_dropout_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    pyg_sampler(random_csc(60, 500), [3, 2]).sample(torch.arange(5), KEY)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.usefixtures("backend")
def test_the_root_logger_is_not_set_up_behind_our_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    pyg_sampler(random_csc(60, 500), [3, 2]).sample(torch.arange(5), KEY)
    assert logging.root.handlers == []  # else every record of ours would be printed as well


@pytest.mark.usefixtures("backend")
def test_a_walk_without_hops_holds_the_seeds_alone() -> None:
    subgraph = pyg_sampler(random_csc(60, 500), []).sample(torch.tensor([5, 3]), KEY)
    assert subgraph.nodes.tolist() == [5, 3]
    assert subgraph.blocks == ()
    assert subgraph.edge_index.shape == (2, 0)


def test_the_graph_is_copied_for_torch_sparse_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    indptr, indices = random_csc(60, 500)
    edges = fused(indptr, indices)
    use_backend("pyg", monkeypatch)
    row, colptr, permutation = shared_graph(edges).csc()
    assert permutation is None
    assert row.data_ptr() == indices.ctypes.data
    assert row.dtype == colptr.dtype == torch.int32
    use_backend("torch_sparse", monkeypatch)
    row, colptr, _ = shared_graph(edges).csc()
    assert colptr.data_ptr() == indptr.ctypes.data
    assert row.dtype == colptr.dtype == torch.int64


def test_more_edges_than_32_bits_can_number_are_read_in_64_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_backend("pyg", monkeypatch)
    monkeypatch.setattr(Edges, "__len__", lambda _: 2**31)
    row, colptr, _ = shared_graph(fused(*random_csc(60, 500))).csc()
    assert row.dtype == colptr.dtype == torch.int64


def test_all_samplers_of_a_graph_share_what_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    use_backend("torch_sparse", monkeypatch)
    indptr, indices = (torch.from_numpy(array) for array in random_csc(60, 500))
    first, second = (PyGSampler(indptr, indices, [fan_out]) for fan_out in (2, 3))
    assert first._graph is second._graph
    assert PyGSampler(indptr, indices.clone(), [2])._graph is not first._graph


def test_repeated_seeds_and_a_missing_backend_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    use_backend("pyg", monkeypatch)
    with pytest.raises(UserError, match="1 of 3 seeds are repetitions"):
        pyg_sampler(random_csc(60, 500), [2]).sample(torch.tensor([4, 5, 4]), KEY)
    use_backend("none", monkeypatch)
    with pytest.raises(UserError, match="neither can be imported"):
        pyg_sampler(random_csc(60, 500), [2])
