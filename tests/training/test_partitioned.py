"""A graph in parts is evaluated as the whole graph is, whatever the partition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnntrain.data.graph import GraphData
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.partitioning.writing import write_parts
from gnntrain.data.parts import Parts
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext, rank_range
from gnntrain.distributed.exchange import Exchange, open_exchange
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.distributed.owners import NodeOwners
from gnntrain.loading.features import as_tensor
from gnntrain.loading.sharded import ROWS, RowCache, ShardedFeatures, answers_of
from gnntrain.tasks import NodeClassification, NodeRegression, Task
from gnntrain.training import buffers, partitioned
from gnntrain.training.buffers import SharedBuffers
from gnntrain.training.evaluation import SplitMetrics
from gnntrain.training.partitioned import PartitionedEvaluator
from tests.graphs import random_graph, stored
from tests.training.test_evaluation import (
    VARIANT_NAMES,
    VARIANTS,
    full_forward,
    layerwise,
    make_model,
)

KINDS = ("multiclass", "binary", "multilabel", "continuous")
NUM_PARTS = 5


def graph_of(kind: str) -> GraphData:
    weights = np.random.default_rng(1).random(240).astype(np.float32)
    num_classes = 2 if kind == "binary" else 3
    return random_graph(task=kind, num_classes=num_classes, edge_weight=weights)


def write_graphs(folder: Path) -> dict[str, StoredGraph]:
    """Of each kind a store and a random partition; of unequal parts."""
    stores = {}
    for kind in KINDS:
        store = stored(folder / kind / "store", graph_of(kind))
        part_of = np.random.default_rng(2).choice(
            np.arange(NUM_PARTS, dtype=np.uint8), store.num_nodes, p=[0.5, 0.2, 0.1, 0.1, 0.1]
        )
        write_parts(folder / kind / "parts", store, part_of, NUM_PARTS, "random")
        stores[kind] = store
    return stores


def task_of(graph: PartitionedGraph | StoredGraph) -> Task:
    if graph.task == "continuous":
        return NodeRegression(graph)
    return NodeClassification(graph)


def evaluator_of(
    parts: Parts, exchange: Exchange, context: DistributedContext, folder: Path
) -> PartitionedEvaluator:
    machines = range(context.num_machines)
    ends = [rank_range(NUM_PARTS, machine, len(machines)).stop for machine in machines]
    owners = NodeOwners(parts.starts[[0, *ends]])
    own = [as_tensor(part.features) for part in parts.opened]
    cache = RowCache(np.empty(0, np.int64), torch.empty(0, parts.meta.num_features))
    return PartitionedEvaluator(
        parts,
        owners,
        exchange,
        context,
        SharedBuffers(context, folder, 2**30),
        task=task_of(PartitionedGraph.of(parts)),
        features=ShardedFeatures(own, owners, exchange, cache),
    )


def evaluate_rank(context: DistributedContext, folder: Path) -> None:
    buffers._MAX_CHUNK_NUMBERS = 56
    buffers._MAX_CHUNK_EDGES = 20
    partitioned._MAX_SLICE_NUMBERS = 18
    answers: dict[Any, Any] = {}
    machines = [list(context.ranks_of(m)) for m in range(context.num_machines)]
    with open_exchange(context, owners=machines, host="127.0.0.1", timeout=60) as exchange:
        for kind in KINDS:
            opened = rank_range(NUM_PARTS, context.machine, context.num_machines)
            parts = Parts.open(folder / kind / "parts", range(opened.start, opened.stop))
            exchange.serve(ROWS, answers_of([part.features for part in parts.opened]))
            evaluator = evaluator_of(parts, exchange, context, folder)
            for name, variant in zip(VARIANT_NAMES, VARIANTS, strict=True):
                model = make_model(PartitionedGraph.of(parts), variant)
                if kind == "multiclass":
                    found = evaluator.outputs(model).clone()
                    nodes = np.concatenate([part.original for part in parts.opened])
                    answers[name] = torch.from_numpy(nodes), found
                answers[kind, name] = evaluator.evaluate(model)
            context.barrier()
            exchange.withdraw(ROWS)
    torch.save(answers, folder / f"{context.rank}.pt")


@pytest.mark.parametrize("machines", [(), (0, 1), (0, 0, 1), (0, 1, 2)])
def test_parts_are_evaluated_as_the_whole_graph(tmp_path: Path, machines: tuple[int, ...]) -> None:
    stores = write_graphs(tmp_path)
    num_ranks = len(machines) or 2
    launch(evaluate_rank, tmp_path, LaunchPlan(num_ranks, False, 1, 60, machines), tmp_path)
    by_rank = [torch.load(tmp_path / f"{rank}.pt") for rank in range(num_ranks)]
    for name, variant in zip(VARIANT_NAMES, VARIANTS, strict=True):
        store = stores["multiclass"]
        expected = full_forward(store, make_model(store, variant))
        for nodes, found in (answers[name] for answers in by_rank):
            torch.testing.assert_close(found, expected[nodes], rtol=1e-5, atol=1e-5)
        computed = torch.cat([answers[name][0] for answers in by_rank])
        assert set(computed.tolist()) == set(range(store.num_nodes))
        for kind, store in stores.items():
            alone = layerwise(store, tmp_path, task=task_of(store))
            metrics = alone.evaluate(make_model(store, variant))
            for answers in by_rank:
                assert_same_metrics(answers[kind, name], metrics)


def assert_same_metrics(found: SplitMetrics, expected: SplitMetrics) -> None:
    assert found.keys() == expected.keys()
    for split, values in expected.items():
        assert list(found[split]) == list(values)
        for name, value in values.items():
            if name.startswith(("accuracy", "f1")):
                assert found[split][name] == value
            else:
                close = pytest.approx(value, rel=1e-6, abs=1e-6, nan_ok=True)
                assert found[split][name] == close
