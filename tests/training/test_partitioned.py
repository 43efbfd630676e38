"""A graph in parts is evaluated as the whole graph is, whatever the partition."""

from __future__ import annotations

import json
import signal
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gnntrain.config import FeaturesConfig
from gnntrain.data.graph import NODE, GraphData
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.partitioning.writing import write_parts
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext, rank_range
from gnntrain.distributed.exchange import Exchange, open_exchange
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.distributed.owners import AnyArray
from gnntrain.errors import Interrupted
from gnntrain.loading import read_counts
from gnntrain.loading.shared import SharedGraph
from gnntrain.tasks import NodeClassification, NodeRegression, Task
from gnntrain.tasks import nodes as node_tasks
from gnntrain.training import buffers, graph_access
from gnntrain.training.buffers import SharedBuffers
from gnntrain.training.evaluation import SplitMetrics
from gnntrain.training.graph_access import OwnedParts
from gnntrain.training.layerwise import LayerwiseEvaluator
from tests.evaluators import layerwise
from tests.graphs import random_graph, stored
from tests.training.test_evaluation import (
    MACHINES,
    VARIANT_NAMES,
    VARIANTS,
    full_forward,
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


@contextmanager
def exchange_of(context: DistributedContext) -> Iterator[Exchange]:
    machines = [context.ranks_of(machine) for machine in range(context.num_machines)]
    with open_exchange(context, owners=machines, host=context.host, timeout=60) as exchange:
        yield exchange


def evaluator_of(
    path: Path, exchange: Exchange, context: DistributedContext
) -> tuple[PartitionedGraph, LayerwiseEvaluator]:
    """The graph of the parts in `path`, shared out to the machines, and its evaluator."""
    num_parts, num_machines = PartitionedGraph.open(path, range(0)).num_parts, context.num_machines
    shares = [rank_range(num_parts, machine, num_machines) for machine in range(num_machines)]
    own = shares[context.machine]
    graph = PartitionedGraph.open(path, range(own.start, own.stop))
    shared = SharedGraph(graph, exchange, context, in_parts=True)
    features = shared.features(FeaturesConfig(cache_ratio=0.0), lambda _: [])
    access = OwnedParts(graph, SharedBuffers(context, path, 2**30), features, shared, exchange)
    return graph, LayerwiseEvaluator(access, task_of(graph))


def evaluate_rank(context: DistributedContext, folder: Path) -> None:
    buffers._MAX_CHUNK_NUMBERS = 56
    buffers._MAX_CHUNK_EDGES = 20
    node_tasks._MAX_SLICE_NUMBERS = 18
    answers: dict[Any, Any] = {}
    for kind in KINDS:
        with exchange_of(context) as exchange:
            graph, evaluator = evaluator_of(folder / kind / "parts", exchange, context)
            nodes = np.concatenate([part.originals[NODE] for part in graph.opened])
            for name, variant in zip(VARIANT_NAMES, VARIANTS, strict=True):
                model = make_model(graph, variant)
                if kind == "multiclass":
                    rows = evaluator.outputs(model)[0].clone()
                    answers[name] = torch.from_numpy(nodes), rows
                answers[kind, name] = evaluator.evaluate(model)
            context.barrier()
    torch.save(answers, folder / f"{context.rank}.pt")


@pytest.mark.parametrize("machines", [*MACHINES, pytest.param((), marks=pytest.mark.slow)], ids=str)
def test_parts_are_evaluated_as_the_whole_graph(tmp_path: Path, machines: tuple[int, ...]) -> None:
    stores = write_graphs(tmp_path)
    num_ranks = len(machines) or 2
    launch(evaluate_rank, tmp_path, LaunchPlan(num_ranks, "cpu", 1, 60, machines), tmp_path)
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


def stop_rank(context: DistributedContext, folder: Path) -> None:
    """The last rank is asked to stop in the middle of the second layer."""
    with exchange_of(context) as exchange:
        graph, evaluator = evaluator_of(folder, exchange, context)
        output = evaluator._output

        def noted(layer: Any, *rest: Any) -> torch.Tensor:
            if layer.i == 1 and context.rank == context.world_size - 1:
                context.control.request_stop(signal.SIGTERM)
            return output(layer, *rest)

        setattr(evaluator, "_output", noted)  # noqa: B010  # its signature is `_output`'s
        with pytest.raises(Interrupted):
            evaluator.evaluate(make_model(graph, VARIANTS[3]))
        # The evaluation serves nothing any more: another one may begin.
        for name in ("h0/node", "h1/node"):
            exchange.serve(f"evaluation/{name}", lambda _: [])
    (folder / f"{context.rank}.stopped").touch()


def test_a_stop_in_the_middle_of_an_evaluation_ends_it_on_all_ranks(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    write_parts(
        tmp_path / "parts", store, np.arange(store.num_nodes, dtype=np.uint8) % 3, 3, "random"
    )
    plan = LaunchPlan(3, "cpu", 1, 60, (0, 0, 1))
    with suppress(Interrupted):  # the launcher has seen the request, or the ranks' end before it
        launch(stop_rank, tmp_path / "parts", plan, tmp_path)
    assert len(list(tmp_path.glob("parts/*.stopped"))) == 3


def ask_rank(context: DistributedContext, folder: Path) -> None:
    """Note the rows that an evaluation asks for, and those that it asks for once."""
    graph_access._COUNTED_AT_ONCE = read_counts._NODES_AT_ONCE = 7
    graph_access._MAX_GATHERED_NUMBERS = 40
    asked: dict[str, list[int]] = {}
    with exchange_of(context) as exchange:
        graph, evaluator = evaluator_of(folder, exchange, context)
        access, call = evaluator.access, exchange.call
        assert isinstance(access, OwnedParts)

        def noted(name: str, arguments: Mapping[int, Sequence[AnyArray]]) -> Any:
            for owner, (rows,) in arguments.items():
                first = int(access._shared.owners[NODE].starts[owner])
                asked.setdefault(name, []).extend((rows + first).tolist())
            return call(name, arguments)

        setattr(exchange, "call", noted)  # noqa: B010  # its signature is `call`'s
        evaluator.evaluate(make_model(graph, VARIANTS[2]))
        hot = access.cached_nodes(NODE).tolist()
    (folder / f"{context.rank}.json").write_text(json.dumps([asked, hot]))


@pytest.mark.parametrize("shares", [[1, 1], [3, 1]], ids=str)
def test_rows_that_many_edges_come_from_are_asked_for_once_a_layer(
    tmp_path: Path, shares: list[int]
) -> None:
    store = stored(tmp_path / "store")
    part_of = np.repeat(np.arange(2, dtype=np.uint8), [15 * s * 4 // sum(shares) for s in shares])
    write_parts(tmp_path / "parts", store, part_of, 2, "random")
    machines = (0, 0, 1)
    launch(ask_rank, tmp_path / "parts", LaunchPlan(3, "cpu", 1, 60, machines), tmp_path)
    parts = PartitionedGraph.open(tmp_path / "parts")
    for machine, part in enumerate(parts.opened):
        ranks = [rank for rank in range(3) if machines[rank] == machine]
        read = [json.loads((tmp_path / "parts" / f"{rank}.json").read_text()) for rank in ranks]
        num_edges = Counter(n for n in part.graph.indices.tolist() if n not in part.ranges[NODE])
        expected = sorted(num_edges, key=lambda node: (-num_edges[node], node))[
            : part.graph.num_nodes
        ]
        assert all(hot == sorted(expected) for _, hot in read)
        for name in ("evaluation/h0/node", "evaluation/z/node/to/node"):
            times = Counter(node for asked, _ in read for node in asked[name])
            assert all(times[node] == 1 for node in expected)
            assert set(times) == set(num_edges)


class LongestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the most rows of a tensor that an operator has made."""

    rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, torch.Tensor) and tensor.ndim:
                self.rows = max(self.rows, len(tensor))
        return made


def measure_rank(context: DistributedContext, folder: Path) -> None:
    buffers._MAX_CHUNK_NUMBERS = node_tasks._MAX_SLICE_NUMBERS = 1 << 13
    graph_access._MAX_GATHERED_NUMBERS = 1 << 13
    with exchange_of(context) as exchange:
        graph, evaluator = evaluator_of(folder, exchange, context)
        model = make_model(graph, VARIANTS[0], num_layers=2)
        evaluator.evaluate(model)  # loads what it needs
        context.barrier()
        tracemalloc.start()
        with LongestTensor() as longest:  # type: ignore[no-untyped-call]
            evaluator.evaluate(model)
        context.barrier()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    measured = {"rows": longest.rows, "bytes": peak, "own": len(graph.ranges[NODE])}
    (folder / f"{context.rank}.json").write_text(json.dumps(measured))


def test_no_rank_has_an_array_as_long_as_the_graph(tmp_path: Path) -> None:
    num_nodes, num_machines = 100_000, 4
    data = random_graph(num_nodes, 2 * num_nodes)
    data.only_edges.dst[:num_nodes] = np.arange(num_nodes)  # without the hub
    store = stored(tmp_path / "store", data)
    part_of = np.arange(num_nodes, dtype=np.uint8) % num_machines
    write_parts(tmp_path / "parts", store, part_of, num_machines, "random")
    plan = LaunchPlan(num_machines, "cpu", 1, 60, tuple(range(num_machines)))
    launch(measure_rank, tmp_path / "parts", plan, tmp_path)
    for rank in range(num_machines):
        measured = json.loads((tmp_path / "parts" / f"{rank}.json").read_text())
        assert measured["rows"] <= measured["own"] + 1
        assert measured["bytes"] < 8 * num_nodes  # of NumPy's arrays
