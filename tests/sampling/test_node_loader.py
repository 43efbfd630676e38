"""PyG's own loaders run on our CPU sampler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import GraphSAGE
from torch_geometric.sampler import NodeSamplerInput

from gnntrain.errors import UserError
from gnntrain.sampling.node_loader import NodeLoaderSampler


def communities(num_nodes: int = 400, num_classes: int = 4) -> Data:
    """A graph whose nodes mostly cite their own class, with weak features: edges must help."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, num_classes, num_nodes)
    dst = rng.integers(0, num_nodes, 10 * num_nodes)
    src = rng.integers(0, num_nodes, 10 * num_nodes)
    same = rng.random(len(dst)) < 0.85
    by_class = [np.flatnonzero(y == c) for c in range(num_classes)]
    src[same] = [rng.choice(by_class[c]) for c in y[dst[same]]]
    x = np.eye(num_classes)[y] + 1.5 * rng.normal(size=(num_nodes, num_classes))
    edge_index = torch.from_numpy(np.stack([src, dst]))
    return Data(
        x=torch.tensor(x, dtype=torch.float32),
        y=torch.from_numpy(y),
        edge_index=edge_index,
        edge_attr=torch.arange(len(src)),
    )


def loader_of(data: Data, fan_outs: list[int], **options: Any) -> NodeLoader:
    return NodeLoader(data, node_sampler=NodeLoaderSampler.from_data(data, fan_outs), **options)


def test_a_batch_of_pygs_node_loader_holds_true_edges_and_their_attributes() -> None:
    data = communities()
    for batch in loader_of(data, [4, 3], batch_size=50, shuffle=True):
        assert (batch.n_id[: batch.batch_size] == batch.input_id).all()
        assert (batch.n_id[batch.edge_index] == data.edge_index[:, batch.e_id]).all()
        assert (batch.edge_attr == batch.e_id).all()
        assert (batch.x == data.x[batch.n_id]).all()
        assert sum(batch.num_sampled_nodes) == batch.num_nodes
        assert sum(batch.num_sampled_edges) == batch.num_edges


def test_every_node_draws_once_when_it_was_just_found() -> None:
    data = communities()
    in_degree = torch.bincount(data.edge_index[1], minlength=data.num_nodes)
    batch = next(iter(loader_of(data, [4, 3], batch_size=50)))
    drawn = torch.bincount(batch.edge_index[1], minlength=batch.num_nodes)
    num_seeds, num_found, _ = batch.num_sampled_nodes
    fan_outs = torch.tensor([4] * num_seeds + [3] * num_found)
    expected = torch.minimum(in_degree[batch.n_id[: len(fan_outs)]], fan_outs)
    assert (drawn[: len(fan_outs)] == expected).all()
    assert (drawn[len(fan_outs) :] == 0).all()


def test_a_plain_pyg_model_learns_through_pygs_node_loader() -> None:
    torch.manual_seed(0)
    data = communities()
    train = torch.arange(data.num_nodes) < 200
    model = GraphSAGE(4, 32, num_layers=2, out_channels=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = loader_of(data, [5, 5], input_nodes=train, batch_size=50, shuffle=True)
    for _ in range(15):
        for batch in loader:
            optimizer.zero_grad()
            out = model(
                batch.x,
                batch.edge_index,
                num_sampled_nodes_per_hop=batch.num_sampled_nodes,
                num_sampled_edges_per_hop=batch.num_sampled_edges,
            )[: batch.batch_size]
            F.cross_entropy(out, batch.y[: batch.batch_size]).backward()  # type: ignore[no-untyped-call]  # torch
            optimizer.step()
    with torch.no_grad():
        predicted = model(data.x, data.edge_index).argmax(dim=1)
    assert (predicted == data.y)[~train].float().mean() > 0.8
    assert (data.x.argmax(dim=1) == data.y)[~train].float().mean() < 0.65, "the edges must matter"


def edges_of_an_epoch(loader: NodeLoader) -> list[list[int]]:
    return [batch.e_id.tolist() for batch in loader]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_and_epochs_draw_anew_and_runs_are_repeatable(num_workers: int) -> None:
    data = communities()
    seeds = torch.arange(20).repeat(2)  # two batches of the same seeds
    runs = []
    for _ in range(2):
        torch.manual_seed(1)
        loader = loader_of(data, [2, 2], input_nodes=seeds, batch_size=20, num_workers=num_workers)
        runs.append(edges_of_an_epoch(loader) + edges_of_an_epoch(loader))
    assert runs[0] == runs[1]
    assert len({str(edges) for edges in runs[0]}) == 4


def test_what_cannot_be_sampled_is_refused() -> None:
    data = communities()
    with pytest.raises(UserError, match="no edge_index"):
        NodeLoaderSampler.from_data(Data(x=data.x), [2])
    sampler = NodeLoaderSampler.from_data(data, [2])
    timed = NodeSamplerInput(None, torch.arange(3), torch.arange(3))
    with pytest.raises(UserError, match="by time"):
        sampler.sample_from_nodes(timed)
    with pytest.raises(UserError, match="around nodes only"):
        sampler.sample_from_edges(None)
