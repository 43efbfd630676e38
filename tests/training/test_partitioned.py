"""What training and evaluation on a graph in parts ask of other machines, and what they hold.

That it gives what the whole graph gives is shown in `test_evaluation.py`.
"""

from __future__ import annotations

import json
import signal
import tracemalloc
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gnntrain.build import (
    build_evaluator,
    build_exchange,
    build_loaders,
    build_model,
    build_task,
)
from gnntrain.config import from_dict
from gnntrain.data.graph import EDGE, NODE
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.partitioning.build import write_parts
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.distributed.owners import AnyArray
from gnntrain.errors import Interrupted
from gnntrain.loading import read_counts, shared
from gnntrain.run_store import rank_graph
from gnntrain.tasks import base as tasks
from gnntrain.training import buffers, graph_access
from gnntrain.training.forward import OnBatch
from gnntrain.training.graph_access import OwnedParts
from tests.graphs import random_graph, stored
from tests.hetero_graphs import random_hetero_data
from tests.training.inference_cases import (
    ONE_TYPE,
    TYPED,
    Noted,
    exchange_of,
    make_model,
    name_of,
    parts_evaluator,
)


def write_typed_halves(folder: Path) -> None:
    """Two equal parts, each of which has every second node."""
    store = stored(folder / "store", random_hetero_data())
    part_of = np.arange(store.num_nodes, dtype=np.uint8) % 2
    write_parts(folder / "parts", store, part_of, 2, "random")


def stop_rank(context: DistributedContext, folder: Path) -> None:
    """The last rank is asked to stop in the middle of the second layer."""
    with exchange_of(context) as exchange:
        graph, evaluator = parts_evaluator(folder, exchange, context)
        output = evaluator._output

        def noted(layer: Any, *rest: Any) -> torch.Tensor:
            if layer.i == 1 and context.rank == context.world_size - 1:
                context.control.request_stop(signal.SIGTERM)
            return output(layer, *rest)

        setattr(evaluator, "_output", noted)  # noqa: B010  # its signature is `_output`'s
        try:
            evaluator.evaluate(make_model(graph, TYPED[6]))
        except Interrupted:
            (folder / f"{context.rank}.stopped").touch()
        # The evaluation serves nothing any more: another one may begin.
        for name in ("h0/paper", "h1/paper", "h1/venue"):
            exchange.serve(f"evaluation/{name}", lambda _: [])


def test_a_stop_in_the_middle_of_an_evaluation_ends_it_on_all_ranks(tmp_path: Path) -> None:
    write_typed_halves(tmp_path)
    plan = LaunchPlan(3, "cpu", 1, 60, (0, 0, 1))
    with suppress(Interrupted):  # the launcher has seen the request, or the ranks' end before it
        launch(stop_rank, tmp_path / "parts", plan, tmp_path)
    assert len(list(tmp_path.glob("parts/*.stopped"))) == 3


def ask_rank(context: DistributedContext, folder: Path) -> None:
    """Note the rows that an evaluation asks for, and those that it asks for once."""
    graph_access._COUNTED_AT_ONCE = read_counts._NODES_AT_ONCE = 7
    graph_access._MAX_GATHERED_NUMBERS, shared._FETCH_BYTES = 40, 160
    asked: dict[str, list[int]] = {}
    with exchange_of(context) as exchange:
        graph, evaluator = parts_evaluator(folder, exchange, context)
        access, call = evaluator.access, exchange.call
        assert isinstance(access, OwnedParts)

        def noted(name: str, arguments: Mapping[int, Sequence[AnyArray]]) -> Any:
            for owner, (rows,) in arguments.items():
                first = int(access._shared.owners[NODE].starts[owner])
                asked.setdefault(name, []).extend((rows + first).tolist())
            return call(name, arguments)

        setattr(exchange, "call", noted)  # noqa: B010  # its signature is `call`'s
        evaluator.evaluate(make_model(graph, ONE_TYPE[2]))
        cached = access.cached_nodes(NODE).tolist()
    (folder / f"{context.rank}.json").write_text(json.dumps([asked, cached]))


def test_rows_that_many_edges_come_from_are_asked_for_once_a_layer(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    part_of = np.repeat(np.arange(2, dtype=np.uint8), [45, 15])
    write_parts(tmp_path / "parts", store, part_of, 2, "random")
    machines = (0, 0, 1)
    launch(ask_rank, tmp_path / "parts", LaunchPlan(3, "cpu", 1, 60, machines), tmp_path)
    parts = PartitionedGraph.open(tmp_path / "parts")
    for machine, part in enumerate(parts.opened):
        ranks = [rank for rank in range(3) if machines[rank] == machine]
        read = [json.loads((tmp_path / "parts" / f"{rank}.json").read_text()) for rank in ranks]
        num_edges = Counter(n for n in part.graph.indices.tolist() if n not in part.ranges[NODE])
        most = sorted(num_edges, key=lambda node: (-num_edges[node], node))
        expected = most[: part.graph.num_nodes]
        assert all(cached == sorted(expected) for _, cached in read)
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


def measure_length(context: DistributedContext, folder: Path) -> None:
    """Note the longest array of an epoch of training and an evaluation."""
    buffers._MAX_CHUNK_NUMBERS = tasks._MAX_SLICE_NUMBERS = read_counts._NODES_AT_ONCE = 1 << 13
    graph_access._MAX_GATHERED_NUMBERS, shared._FETCH_BYTES = 1 << 13, 1 << 15
    config = from_dict(
        {
            "model": {"name": "gcn", "hidden_channels": 8},
            "sampler": {"fan_outs": [4, 3], "threads": 0},
            "trainer": {"batch_size": 50},
            "distributed": {"graph": "partitioned", "parts": str(folder)},
        }
    )
    with build_exchange(config, context) as exchange:
        graph = rank_graph(config, folder, context, exchange)
        assert isinstance(graph, PartitionedGraph)
        task = build_task(config, graph)
        model = build_model(config, task, graph, context)
        loaders = build_loaders(config, task, model, graph, context, exchange)
        evaluator = build_evaluator(config, task, model, loaders, graph, context, folder)

        def compute() -> None:
            for batch in loaders.training_loader():
                task.loss(OnBatch(model)(batch), batch.y).backward()  # type: ignore[no-untyped-call]
            evaluator.evaluate(model)
            context.barrier()

        compute()  # loads what it needs
        tracemalloc.start()
        with LongestTensor() as longest:  # type: ignore[no-untyped-call]
            compute()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    measured = {"rows": longest.rows, "bytes": peak, "local": len(graph.ranges[NODE])}
    (folder / f"{context.rank}.json").write_text(json.dumps(measured))


def test_no_rank_has_an_array_as_long_as_the_graph(tmp_path: Path) -> None:
    num_nodes, num_machines = 100_000, 4
    splits = np.split(np.random.default_rng(0).permutation(num_nodes)[:900], [500, 700])
    data = random_graph(
        num_nodes, 2 * num_nodes, splits=dict(zip(("train", "val", "test"), splits, strict=True))
    )
    data.edges[EDGE].dst[:num_nodes] = np.arange(num_nodes)  # without the hub
    store = stored(tmp_path / "store", data)
    part_of = np.arange(num_nodes, dtype=np.uint8) % num_machines
    write_parts(tmp_path / "parts", store, part_of, num_machines, "random")
    plan = LaunchPlan(num_machines, "cpu", 1, 60, tuple(range(num_machines)))
    launch(measure_length, tmp_path / "parts", plan, tmp_path)
    for rank in range(num_machines):
        measured = json.loads((tmp_path / "parts" / f"{rank}.json").read_text())
        assert measured["rows"] <= measured["local"] + 1
        assert measured["bytes"] < 8 * num_nodes  # of NumPy's arrays


def measure_matrices(context: DistributedContext, folder: Path) -> None:
    """Note the memory of evaluations, in layers of the machine's nodes."""
    most = {}
    with exchange_of(context) as exchange:
        graph, evaluator = parts_evaluator(folder, exchange, context)
        num_nodes = sum(map(len, graph.ranges.values()))
        # Others aggregate rows of every edge type into a node type at once.
        for variant in TYPED[:8:3]:
            evaluator.access.buffers = noted = Noted(context, folder, 2**30)
            model = make_model(graph, variant, num_layers=5)
            evaluator.evaluate(model)
            most[name_of(variant)] = noted.most / (4 * model.hidden_channels * num_nodes)
    (folder / f"{context.rank}.json").write_text(json.dumps(most))


def test_an_evaluation_holds_two_layers_and_copies_of_one(tmp_path: Path) -> None:
    write_typed_halves(tmp_path)
    plan = LaunchPlan(2, "cpu", 1, 60, (0, 1))
    launch(measure_matrices, tmp_path / "parts", plan, tmp_path)
    for rank in range(2):
        layers = json.loads((tmp_path / "parts" / f"{rank}.json").read_text())
        assert max(layers.values()) <= 3, layers
