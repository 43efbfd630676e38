"""PyG's own sampling of typed graphs returns our subgraphs."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
import torch

from gnntrain.data.graph import EdgeType, Graph
from gnntrain.errors import UserError
from gnntrain.sampling.base import SampleKey
from gnntrain.sampling.hetero import HeteroSubgraph
from gnntrain.sampling.hetero_cpu import HeteroCPUSampler
from gnntrain.sampling.hetero_pyg import HeteroPyGSampler
from tests.hetero_graphs import hetero_graph
from tests.loading.hetero_loaders import batches_of
from tests.pyg_backends import BACKENDS, use_backend
from tests.sampling.graphs import random_csc
from tests.sampling.test_hetero_cpu import of_one_type

pytestmark = pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without")

KEY = SampleKey(0, 0, 0)
SEEDS = torch.tensor([0, 39, 7, 21])


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    use_backend(request.param, monkeypatch)


def pyg_sampler(graph: Graph, *fan_outs: int, replace: bool = False) -> HeteroPyGSampler:
    given = dict.fromkeys(graph.edges, fan_outs)
    return HeteroPyGSampler(graph.fused, graph.target, given, replace=replace)


def edges_of(subgraph: HeteroSubgraph, name: EdgeType) -> list[list[tuple[int, int]]]:
    """By block: source and destination of each edge, in the graph's numbers, sorted."""
    sources, destinations = subgraph.nodes[name[0]].tolist(), subgraph.nodes[name[2]].tolist()
    found = []
    for block in subgraph.blocks:
        edges = block.edges[name]
        counts = edges.indptr.diff()
        ends = torch.arange(edges.num_dst).repeat_interleave(counts).tolist()
        pairs = zip(edges.indices.tolist(), ends, strict=True)
        found.append(sorted((sources[i], destinations[j]) for i, j in pairs))
    return found


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("num_hops", [1, 2, 3])
def test_all_in_neighbours_are_those_that_our_own_sampler_finds(num_hops: int) -> None:
    for graph, seeds in ((hetero_graph(), SEEDS), (of_one_type(random_csc(60, 200)), SEEDS)):
        given = dict.fromkeys(graph.edges, (-1,) * num_hops)
        expected = HeteroCPUSampler(graph.fused, graph.target, given).sample(seeds, KEY)
        subgraph = pyg_sampler(graph, *given[next(iter(given))]).sample(seeds, KEY)
        assert subgraph.num_seeds == expected.num_seeds
        assert subgraph.num_sampled_nodes == expected.num_sampled_nodes
        assert subgraph.num_sampled_edges == expected.num_sampled_edges
        assert torch.equal(subgraph.nodes[graph.target][:4], seeds)
        for block, own in zip(subgraph.blocks, expected.blocks, strict=True):
            assert (block.num_dst, block.num_src) == (own.num_dst, own.num_src)
            assert {name: edges.num_src for name, edges in block.edges.items()} == {
                name: block.num_src[name[0]] for name in graph.edges
            }
        for name in graph.edges:
            assert edges_of(subgraph, name) == edges_of(expected, name)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("replace", [False, True])
def test_each_node_draws_once_as_many_true_in_edges_as_its_hop_asks_for(replace: bool) -> None:
    graph = hetero_graph()
    fan_outs = {name: (2, 3, 1) if name[1] == "writes" else (4, -1, 2) for name in graph.edges}
    sampler = HeteroPyGSampler(graph.fused, graph.target, fan_outs, replace=replace)
    subgraph = sampler.sample(SEEDS, KEY)
    for name, given in graph.edges.items():
        last = subgraph.blocks[0].edges[name]
        assert last.edge_ids is not None
        nodes, sources = subgraph.nodes[name[2]].tolist(), subgraph.nodes[name[0]]
        known = list(accumulate(subgraph.num_sampled_nodes[name[2]]))
        for i, (first, end) in enumerate(pairwise(last.indptr.tolist())):
            ids = last.edge_ids[first:end].numpy()
            begin, stop = given.indptr[nodes[i] : nodes[i] + 2].tolist()
            assert ((begin <= ids) & (ids < stop)).all()
            assert (given.indices[ids] == sources[last.indices[first:end]].numpy()).all()
            fan_out = fan_outs[name][sum(i >= count for count in known)]
            if fan_out < 0 or (stop - begin <= fan_out and not replace):
                assert len(ids) == stop - begin
            else:
                assert len(ids) == (fan_out if stop > begin else 0)
                assert replace or len(set(ids.tolist())) == fan_out


@pytest.mark.usefixtures("backend")
def test_a_draw_can_be_repeated_in_another_process() -> None:
    """PyG lists the types in the order of a set, which differs from process to process."""
    graph = hetero_graph()
    sampler = pyg_sampler(graph, 2, 2)
    assert list(sampler._sampler.edge_types) == list(graph.edges)
    assert list(sampler._sampler.node_types) == list(graph.nodes)
    first, again = (str(sampler.sample(SEEDS, KEY)) for _ in range(2))
    assert first == again
    assert str(sampler.sample(SEEDS, SampleKey(0, 0, 1))) != first


@pytest.mark.usefixtures("backend")
def test_sampling_leaves_the_generator_and_the_threads_of_training_alone() -> None:
    torch.manual_seed(7)
    expected, num_threads = torch.rand(3), torch.get_num_threads()
    torch.manual_seed(7)
    pyg_sampler(hetero_graph(), 2, 2).sample(SEEDS, KEY)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == num_threads


def test_what_pyg_cannot_draw_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    use_backend("pyg", monkeypatch)
    graph = hetero_graph()
    with pytest.raises(UserError, match="repetitions"):
        pyg_sampler(graph, 2).sample(torch.tensor([4, 5, 4]), KEY)
    given = dict.fromkeys(graph.edges, (2,))
    with pytest.raises(UserError, match="fan_out_scope=node"):
        HeteroPyGSampler(graph.fused, graph.target, given, scope="node")
    use_backend("none", monkeypatch)
    with pytest.raises(UserError, match="neither can be imported"):
        pyg_sampler(graph, 2)


@pytest.mark.usefixtures("backend")
def test_a_batch_of_all_neighbours_has_our_features_and_targets() -> None:
    """The batches of an epoch, in the thread of training: PyG draws from dropout's generator."""
    graph = hetero_graph()
    pairs = zip(
        batches_of(graph, (-1, -1), sampler={"backend": "pyg"}),
        batches_of(graph, (-1, -1)),
        strict=True,
    )
    for batch, own in pairs:
        assert torch.equal(batch.y, own.y)
        for name, x in own.x_dict.items():
            order, own_order = batch[name].n_id.argsort(), own[name].n_id.argsort()
            assert torch.equal(batch.x_dict[name][order], x[own_order])
        assert batch.blocks[0].num_edges == own.blocks[0].num_edges
