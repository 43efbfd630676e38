"""Models and graphs of exact inference, and the forward pass over the whole graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gnntrain.config import FeaturesConfig
from gnntrain.data.graph import Graph
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.distributed.context import DistributedContext, rank_range
from gnntrain.distributed.exchange import Exchange, open_exchange
from gnntrain.loading.features import rows_of
from gnntrain.loading.graph import GraphTensors
from gnntrain.loading.shared import SharedGraph
from gnntrain.models import GNN, HeteroGNN, build_model
from gnntrain.tasks import NodeClassification
from gnntrain.training.buffers import SharedBuffers
from gnntrain.training.graph_access import OwnedParts
from gnntrain.training.layerwise import LayerwiseEvaluator
from tests.models.hetero_blocks import full_hetero_block

SCAFFOLD: dict[str, Any] = {"hidden_channels": 8, "dropout": 0.5, "input_dropout": 0.5}
ONE_TYPE: list[dict[str, Any]] = [
    {"name": "sage", "aggregator": "mean", "norm": "batch"},
    {"name": "sage", "aggregator": "max", "jk": "max"},
    {"name": "sage", "aggregator": "sum", "residual": True},
    {"name": "gcn", "norm": "layer", "jk": "cat"},
    {"name": "gat", "heads": 2, "residual": True},
    {"name": "gatv2", "heads": 2, "jk": "cat"},
    {"name": "gin", "norm": "batch"},
    {"name": "mlp"},
]
TYPED: list[dict[str, Any]] = [
    {"name": "rgcn", "norm": "batch", "residual": True},
    {"name": "rgcn", "num_bases": 2},
    {"name": "rgcn", "project_inputs": False, "hidden_channels": 4},
    {"name": "rgcn", "num_blocks": 2, "norm": "layer"},
    {"name": "hetero_sage"},
    {"name": "hetero_sage", "project_inputs": False, "aggregator": "max"},
    {"name": "rgat", "heads": 2},
    {"name": "rgat", "heads": 2, "project_inputs": False, "residual": True},
    {"name": "rgat", "heads": 2, "across_relations": True},
    {"name": "hgt", "heads": 2},
    {"name": "rgcn", "num_bases": 2, "featureless": "embedding", "embedding_channels": 6},
]
VARIANTS = [*ONE_TYPE, *TYPED]


def name_of(variant: dict[str, Any]) -> str:
    return "-".join(map(str, variant.values()))


each_variant = pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
each_of_one_type = pytest.mark.parametrize("variant", ONE_TYPE, ids=name_of)


def make_model(graph: Graph, variant: dict[str, Any], num_layers: int = 3) -> GNN | HeteroGNN:
    torch.manual_seed(0)
    options = SCAFFOLD | variant | {"num_layers": num_layers}
    model = build_model(SimpleNamespace(**options), graph.schema, graph.num_outputs)
    assert isinstance(model, HeteroGNN)
    for norm in model.norms.modules():
        if isinstance(norm, torch.nn.BatchNorm1d):
            torch.nn.init.normal_(norm.running_mean)  # type: ignore[arg-type]
    return model.eval()


def full_forward(graph: Graph, model: GNN | HeteroGNN) -> torch.Tensor:
    """All layers for all nodes at once."""
    rows = {t: rows_of(nodes).float() for t, nodes in graph.nodes.items() if nodes.num_features}
    with torch.no_grad():
        if model.is_hetero:
            return model(rows, {}, (full_hetero_block(graph),) * model.num_layers)  # type: ignore[no-any-return]
        edges = GraphTensors.of(graph, model.needs).only_edges
        block = replace(edges.in_edges(0, graph.num_nodes), norm=edges.norm)
        return model(*rows.values(), [block] * model.num_layers)  # type: ignore[no-any-return]


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


class Noted(SharedBuffers):
    """Notes the bytes that are held."""

    announced = most = 0

    def begin(self, num_bytes: int) -> None:
        self.announced = num_bytes

    def matrix(self, name: str, num_rows: int, num_columns: int) -> torch.Tensor:
        made = super().matrix(name, num_rows, num_columns)
        self.most = max(self.most, sum(m.nbytes for m in self._matrices.values()))
        return made


@contextmanager
def exchange_of(context: DistributedContext) -> Iterator[Exchange]:
    machines = [context.ranks_of(machine) for machine in range(context.num_machines)]
    with open_exchange(context, owners=machines, timeout=60) as exchange:
        yield exchange


def parts_evaluator(
    path: Path, exchange: Exchange, context: DistributedContext
) -> tuple[PartitionedGraph, LayerwiseEvaluator]:
    """The graph of the parts in `path`, shared out to the machines, and its evaluator."""
    num_parts = PartitionedGraph.open(path, range(0)).num_parts
    local = rank_range(num_parts, context.machine, context.num_machines)
    graph = PartitionedGraph.open(path, range(local.start, local.stop))
    shared = SharedGraph(graph, exchange, context, in_parts=True)
    features = shared.features(FeaturesConfig(cache_ratio=0.0), lambda _: [])
    access = OwnedParts(graph, SharedBuffers(context, path, 2**30), features, shared, exchange)
    return graph, LayerwiseEvaluator(access, NodeClassification(graph))
