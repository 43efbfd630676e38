"""Mini-batches of typed graphs against the graph itself, and against PyG on all of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

from gnntrain.compute.features import as_tensor
from gnntrain.data.graph import EdgeType, Graph, NodeType
from gnntrain.loading.hetero_batch import HeteroBatch
from gnntrain.sampling.block import BlockNeeds
from tests.hetero_graphs import SIZES, hetero_graph
from tests.loading.hetero_loaders import ROWS, batches_of, full_graph_batch


@pytest.fixture
def graph() -> Graph:
    return hetero_graph()


def edges_of(graph: Graph, edge_type: EdgeType) -> np.ndarray[Any, Any]:
    """Sources over destinations, `[2, num_edges]`."""
    edges = graph.edges[edge_type]
    destinations = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
    return np.stack([edges.indices, destinations])


def of_graph(batch: HeteroBatch, edge_type: EdgeType) -> list[tuple[int, int]]:
    """The batch's edges with the nodes' ids in the graph."""
    sources, destinations = batch.edge_index_dict[edge_type]
    n_id = batch.n_id_dict
    pairs = n_id[edge_type[0]][sources], n_id[edge_type[2]][destinations]
    return list(zip(*(ends.tolist() for ends in pairs), strict=True))


@pytest.mark.parametrize("fan_outs", [(3, 2), (-1, -1, -1), (1,)])
def test_rows_targets_and_ids_are_those_of_the_graph(
    graph: Graph, fan_outs: tuple[int, ...]
) -> None:
    seen = []
    for batch in batches_of(graph, fan_outs):
        assert batch.x_dict.keys() == batch.rows.keys() == {"paper", "author"}
        for name, x in batch.x_dict.items():
            assert np.array_equal(x, graph.nodes[name].features[batch.n_id_dict[name]])
        seeds = batch.n_id_dict["paper"][: batch.batch_size]
        assert torch.equal(batch.y, as_tensor(graph.labels[seeds]))
        assert batch.seed_rows is None
        assert [len(batch.n_id_dict[name]) for name in SIZES] == [
            batch.blocks[0].num_src[name] for name in SIZES
        ]
        seen += seeds.tolist()
    assert sorted(seen) == graph.split("train").tolist()


@pytest.mark.parametrize("fan_outs", [(2, 3), (-1, -1)])
def test_edges_are_those_of_the_graph_and_with_all_neighbours_none_is_missing(
    graph: Graph, fan_outs: tuple[int, int]
) -> None:
    for batch in batches_of(graph, fan_outs):
        for edge_type in graph.edges:
            found = of_graph(batch, edge_type)
            given = list(map(tuple, edges_of(graph, edge_type).T.tolist()))
            assert set(found) <= set(given)
            inner = int(sum(batch[edge_type[2]].num_sampled_nodes[:-1]))
            asked = set(batch.n_id_dict[edge_type[2]][:inner].tolist())
            if fan_outs == (-1, -1):
                assert sorted(found) == sorted(pair for pair in given if pair[1] in asked)
            assert sum(batch[edge_type].num_sampled_edges) == len(found)


def inputs(batch: HeteroBatch) -> dict[NodeType, Tensor]:
    """Rows for all types: a venue's are made of its id."""
    x: dict[NodeType, Tensor] = dict(batch.x_dict)
    x["venue"] = torch.sin(batch.n_id_dict["venue"][:, None] * torch.arange(1.0, 5.0))
    return x


class Peer(nn.Module):
    def __init__(self, graph: Graph, *, trims: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trims = trims
        self.convs = nn.ModuleList(
            HeteroConv({edge: SAGEConv((-1, -1), 8) for edge in graph.edges}) for _ in range(2)
        )

    def forward(
        self, x: dict[NodeType, Tensor], edges: dict[EdgeType, Tensor], batch: HeteroBatch
    ) -> Tensor:
        for i, conv in enumerate(self.convs):
            if self.trims:
                numbers = batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict
                x, edges, _ = trim_to_layer(i, *numbers, x, edges)
            x = {name: rows.relu() for name, rows in conv(x, edges).items()}
        return x["paper"]


@pytest.mark.parametrize("trims", [False, True])
def test_pyg_computes_on_full_neighbourhoods_what_it_computes_on_the_graph(
    graph: Graph, trims: bool
) -> None:
    whole = full_graph_batch(graph, BlockNeeds(edge_index=True))
    peer = Peer(graph)
    expected = peer(inputs(whole), whole.edge_index_dict, whole)
    peer.trims = trims
    for batch in batches_of(graph, (-1, -1), BlockNeeds(edge_index=True)):
        found = peer(inputs(batch), batch.edge_index_dict, batch)[: batch.batch_size]
        seeds = batch.n_id_dict["paper"][: batch.batch_size]
        torch.testing.assert_close(found, expected[seeds])


def test_blocks_have_the_degrees_of_the_whole_graph_where_a_model_reads_them(graph: Graph) -> None:
    for needs in (ROWS, BlockNeeds(rows=True, degree=True)):
        for batch in batches_of(graph, (2, 1), needs):
            for hop in batch.blocks:
                for edge_type, block in hop.edges.items():
                    assert block.edge_ids is None
                    if not needs.degree:
                        assert block.degree is None
                        continue
                    nodes = batch.n_id_dict[edge_type[2]][: block.num_dst]
                    degrees = np.diff(graph.edges[edge_type].indptr)[nodes]
                    assert block.degree is not None
                    assert np.array_equal(block.degree.numpy(), degrees.astype(np.float32))


def test_the_whole_graph_is_one_batch(graph: Graph) -> None:
    batch = full_graph_batch(graph, BlockNeeds(edge_index=True))
    assert batch.seed_rows is not None
    assert batch.seed_rows.tolist() == graph.split("train").tolist()
    assert torch.equal(batch.y, as_tensor(graph.labels[graph.split("train")]))
    assert {name: len(ids) for name, ids in batch.n_id_dict.items()} == SIZES
    for edge_type in graph.edges:
        found, given = batch.edge_index_dict[edge_type], edges_of(graph, edge_type)
        assert np.array_equal(found.numpy(), given)


def test_names_of_types_do_not_collide_with_those_of_a_batch() -> None:
    def renamed(names: Mapping[NodeType, NodeType]) -> Graph:
        given = hetero_graph()
        nodes = {names.get(name, name): own for name, own in given.nodes.items()}
        edges = {
            (names.get(source, source), relation, names.get(target, target)): own
            for (source, relation, target), own in given.edges.items()
        }
        return Graph(nodes, edges, num_classes=given.num_classes, target=names["paper"])

    graph = renamed({"paper": "y", "author": "blocks", "venue": "x_dict"})
    for batch in batches_of(graph, (2, 2)):
        seeds = batch.n_id_dict["y"][: batch.batch_size]
        assert torch.equal(batch.y, as_tensor(graph.labels[seeds]))
        assert set(batch.rows) == {"y", "blocks"}
        assert len(batch.blocks) == 2
