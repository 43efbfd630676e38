"""No model ever holds a tensor of edges × features, forward or backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import SAGEConv

from gnntrain.compute import reference
from gnntrain.data.graph import GraphSchema
from gnntrain.models import GAT, GCN, GIN, SAGE, GATv2
from gnntrain.models.hetero_sage import HeteroSAGE
from gnntrain.models.hgt import HGT
from gnntrain.models.rgat import RGAT
from gnntrain.models.rgcn import RGCN
from gnntrain.sampling.block import Block, Hop
from tests.compute.registrations import LargestTensor

NUM_NODES, WIDTH = 150, 64
NUM_EDGES = NUM_NODES * NUM_NODES


def dense_block() -> Block:
    """Every node a neighbour of every node."""
    indptr = torch.arange(NUM_NODES + 1) * NUM_NODES
    indices = torch.arange(NUM_NODES).repeat(NUM_NODES)
    return Block(indptr, indices, NUM_NODES, norm=torch.ones(NUM_NODES))


def largest(forward: Callable[[Tensor], Tensor]) -> int:
    x = torch.randn(NUM_NODES, WIDTH, requires_grad=True)
    record = LargestTensor()
    with record:
        torch.autograd.grad(forward(x).sum(), x)
    return record.numel


CASES: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (SAGE, {"aggregator": "mean"}),
    (SAGE, {"aggregator": "max"}),
    (SAGE, {"aggregator": "sum"}),
    (GCN, {}),
    (GAT, {"heads": 4}),
    (GATv2, {"heads": 4}),
    (GIN, {}),
    (RGCN, {}),
    (HeteroSAGE, {"aggregator": "max"}),
    (RGAT, {"heads": 4, "output_heads": 2, "across_relations": True}),
    (HGT, {"heads": 4}),
]
EDGE_TYPES = ("node", "to", "node"), ("node", "rev_to", "node")


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "MAX_CHUNK_ELEMENTS", 2**16)
    monkeypatch.setattr(reference, "MAX_COLUMN_ELEMENTS", 2**16)


def typed(kind: Any, num_features: int, **options: Any) -> Callable[[dict[str, Tensor]], Tensor]:
    """The outputs of a model of two relations, from its features."""
    schema = GraphSchema({"node": NUM_NODES}, {"node": num_features}, EDGE_TYPES, "node")
    model = kind(schema, WIDTH, hidden_channels=WIDTH, **options)
    hop = Hop(dict.fromkeys(EDGE_TYPES, dense_block()), schema.num_nodes, schema.num_nodes)
    return lambda x: model(x, {}, [hop] * 2)


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_memory_stays_far_below_edges_times_features(kind: Any, options: dict[str, Any]) -> None:
    if kind.is_hetero:
        outputs = typed(kind, WIDTH, **options)
        assert largest(lambda x: outputs({"node": x})) < NUM_EDGES * WIDTH // 8
    else:
        model = kind(WIDTH, WIDTH, hidden_channels=WIDTH, num_layers=2, **options)
        assert largest(lambda x: model(x, [dense_block()] * 2)) < NUM_EDGES * WIDTH // 8


@pytest.mark.parametrize("num_bases", [None, 4])
def test_nor_does_rgcn_of_one_hot_input(num_bases: int | None) -> None:
    outputs = typed(RGCN, 0, num_bases=num_bases)
    with LargestTensor() as record:
        torch.autograd.backward(outputs({}).sum())
    assert record.numel < NUM_EDGES * WIDTH // 8


def test_the_measure_sees_message_passing_edge_by_edge() -> None:
    conv, block = SAGEConv(WIDTH, WIDTH), dense_block()
    dst = torch.arange(NUM_NODES).repeat_interleave(NUM_NODES)
    edge_index = torch.stack([block.indices, dst])
    assert largest(lambda x: conv(x, edge_index)) >= NUM_EDGES * WIDTH
