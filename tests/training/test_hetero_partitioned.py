"""A typed graph in parts is evaluated as the whole graph is, and makes the same batches."""

from __future__ import annotations

import json
import signal
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnntrain.config import from_dict
from gnntrain.data.build import write_store
from gnntrain.data.graph import PrepareOptions
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.partitioning.writing import write_parts
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext, rank_range
from gnntrain.distributed.exchange import Exchange, open_exchange
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.distributed.owners import AnyArray
from gnntrain.errors import Interrupted
from gnntrain.loading.build import LoaderBuilder
from gnntrain.loading.loader import SeedPlan
from gnntrain.loading.shared import SharedGraph
from gnntrain.models import HeteroGNN
from gnntrain.sampling.block import BlockNeeds
from gnntrain.tasks import NodeClassification
from gnntrain.tasks import nodes as node_tasks
from gnntrain.training import buffers, graph_access
from gnntrain.training.buffers import SharedBuffers
from gnntrain.training.graph_access import OwnedParts
from gnntrain.training.layerwise import LayerwiseEvaluator
from tests.hetero_graphs import random_hetero_data
from tests.training.test_hetero_layerwise import (
    NAMES,
    VARIANTS,
    evaluator,
    full_forward,
    make_model,
)

NUM_PARTS = 5
NEEDS = BlockNeeds(rows=True, degree=True)


def write_graph(folder: Path) -> StoredGraph:
    """A store, and a random partition in unequal parts; one has no venue."""
    store = write_store(
        folder / "store", random_hetero_data(), PrepareOptions(), {"dataset": "random"}
    )
    part_of = np.random.default_rng(2).choice(
        np.arange(NUM_PARTS, dtype=np.uint8), store.num_nodes, p=[0.5, 0.2, 0.1, 0.1, 0.1]
    )
    part_of[-7:] = [0, 0, 1, 2, 3, 3, 0]
    write_parts(folder / "parts", store, part_of, NUM_PARTS, "random")
    return store


def write_halves(folder: Path) -> Path:
    """A partition in two equal parts, each of which has every second node."""
    store = write_store(folder / "s", random_hetero_data(), PrepareOptions(), {"dataset": "r"})
    part_of = np.arange(store.num_nodes, dtype=np.uint8) % 2
    write_parts(folder / "parts", store, part_of, 2, "random")
    return folder / "parts"


def graph_of(path: Path, context: DistributedContext) -> PartitionedGraph:
    num_parts = PartitionedGraph.open(path, range(0)).num_parts
    own = rank_range(num_parts, context.machine, context.num_machines)
    return PartitionedGraph.open(path, range(own.start, own.stop))


@contextmanager
def exchange_of(context: DistributedContext) -> Iterator[Exchange]:
    machines = [context.ranks_of(machine) for machine in range(context.num_machines)]
    with open_exchange(context, owners=machines, host=context.host, timeout=60) as exchange:
        yield exchange


def loaders_of(
    graph: PartitionedGraph, context: DistributedContext, exchange: Exchange, **sampler: Any
) -> LoaderBuilder:
    keys = {"sampler": {"fan_outs": [3, 2], **sampler}, "model": {"name": "rgcn"}}
    plan = SeedPlan(
        graph.split("train"), 4, rank=context.rank, world_size=context.world_size, seed=5
    )
    none = torch.empty(0, dtype=torch.int64)
    return LoaderBuilder(
        from_dict(keys),
        graph,
        context,
        NEEDS,
        plan,
        none,
        is_typed=True,
        exchange=exchange,
        owners_draw=True,
    )


def evaluator_of(
    folder: Path, exchange: Exchange, context: DistributedContext
) -> tuple[PartitionedGraph, LayerwiseEvaluator]:
    graph = graph_of(folder, context)
    loaders = loaders_of(graph, context, exchange)
    places = SharedBuffers(context, folder, 2**30)
    shared = loaders.values
    assert isinstance(shared, SharedGraph)
    access = OwnedParts(graph, places, loaders.features, shared, exchange)
    return graph, LayerwiseEvaluator(access, NodeClassification(graph))


def evaluate_rank(context: DistributedContext, folder: Path) -> None:
    buffers._MAX_CHUNK_NUMBERS = 56
    buffers._MAX_CHUNK_EDGES = 20
    graph_access._MAX_GATHERED_NUMBERS = 200
    node_tasks._MAX_SLICE_NUMBERS = 18
    answers: dict[str, Any] = {}
    with exchange_of(context) as exchange:
        graph, made = evaluator_of(folder / "parts", exchange, context)
        nodes = np.concatenate([part.originals["paper"] for part in graph.opened])
        for name, variant in zip(NAMES, VARIANTS, strict=True):
            model = make_model(graph, variant)
            found = made.outputs(model)[0].clone()
            answers[name] = torch.from_numpy(nodes), found, made.evaluate(model)
    torch.save(answers, folder / f"{context.rank}.pt")


@pytest.mark.parametrize(
    "machines",
    [
        (0, 0, 1),
        *(pytest.param(machines, marks=pytest.mark.slow) for machines in ((), (0, 1), (0, 1, 2))),
    ],
    ids=str,
)
def test_parts_are_evaluated_as_the_whole_graph(tmp_path: Path, machines: tuple[int, ...]) -> None:
    store = write_graph(tmp_path)
    num_ranks = len(machines) or 2
    launch(evaluate_rank, tmp_path, LaunchPlan(num_ranks, "cpu", 1, 60, machines), tmp_path)
    by_rank = [torch.load(tmp_path / f"{rank}.pt") for rank in range(num_ranks)]
    for name, variant in zip(NAMES, VARIANTS, strict=True):
        model = make_model(store, variant)
        expected = full_forward(store, model)
        metrics = evaluator(store, tmp_path).evaluate(model)
        for nodes, found, of_parts in (answers[name] for answers in by_rank):
            torch.testing.assert_close(found, expected[nodes], rtol=1e-5, atol=1e-5)
            assert of_parts == metrics
        computed = torch.cat([answers[name][0] for answers in by_rank])
        assert set(computed.tolist()) == set(range(40))


def stop_rank(context: DistributedContext, folder: Path) -> None:
    """The last rank is asked to stop in the middle of the second layer."""
    with exchange_of(context) as exchange:
        graph, made = evaluator_of(folder, exchange, context)
        output = made._output

        def noted(layer: Any, *rest: Any) -> torch.Tensor:
            if layer.i == 1 and context.rank == context.world_size - 1:
                context.control.request_stop(signal.SIGTERM)
            return output(layer, *rest)

        setattr(made, "_output", noted)  # noqa: B010  # its signature is `_output`'s
        model: HeteroGNN = make_model(graph, VARIANTS[6])
        with pytest.raises(Interrupted):
            made.evaluate(model)
        # The evaluation serves nothing any more: another one may begin.
        for name in ("h0/paper", "h1/paper", "h1/venue"):
            exchange.serve(f"evaluation/{name}", lambda _: [])
    (folder / f"{context.rank}.stopped").touch()


def test_a_stop_in_the_middle_of_an_evaluation_ends_it_on_all_ranks(tmp_path: Path) -> None:
    write_graph(tmp_path)
    plan = LaunchPlan(3, "cpu", 1, 60, (0, 0, 1))
    with suppress(Interrupted):  # the launcher has seen the request, or the ranks' end before it
        launch(stop_rank, tmp_path / "parts", plan, tmp_path)
    assert len(list(tmp_path.glob("parts/*.stopped"))) == 3


def ask_rank(context: DistributedContext, folder: Path) -> None:
    """Note how often an evaluation asks for a row."""
    buffers._MAX_CHUNK_NUMBERS = 56
    asked: dict[str, list[int]] = {}
    with exchange_of(context) as exchange:
        graph, made = evaluator_of(folder, exchange, context)
        call = exchange.call

        def noted(name: str, arguments: Mapping[int, Sequence[AnyArray]]) -> Any:
            for owner, (rows,) in arguments.items():
                asked.setdefault(f"{owner}: {name}", []).extend(rows.tolist())
            return call(name, arguments)

        setattr(exchange, "call", noted)  # noqa: B010  # its signature is `call`'s
        made.evaluate(make_model(graph, VARIANTS[6], num_layers=2))
    counts = {name: max(Counter(rows).values(), default=0) for name, rows in asked.items()}
    (folder / f"{context.rank}.json").write_text(json.dumps(counts))


def test_rows_that_many_edges_come_from_are_asked_for_once_a_matrix(tmp_path: Path) -> None:
    folder = write_halves(tmp_path)
    launch(ask_rank, folder, LaunchPlan(2, "cpu", 1, 60, (0, 1)), tmp_path)
    for rank in range(2):
        counts = json.loads((folder / f"{rank}.json").read_text())
        layers = {name: most for name, most in counts.items() if "evaluation/" in name}
        assert layers
        # Once in each of two layers: a machine keeps as many rows of others as it has itself.
        assert max(layers.values()) == 2


class CountedBuffers(SharedBuffers):
    """Notes the most bytes of its matrices that were in memory at the same time."""

    most = 0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._held: dict[tuple[str, int, int], torch.Tensor] = {}
        self._made: list[weakref.ref[AnyArray]] = []

    def matrix(self, name: str, num_rows: int, num_columns: int) -> torch.Tensor:
        key = name, num_rows, num_columns
        if key not in self._held:
            made = np.empty((num_rows, num_columns), np.float32)
            self._made.append(weakref.ref(made))
            self._held[key] = torch.from_numpy(made)
            del made
            alive = [array for one in self._made if (array := one()) is not None]
            self.most = max(self.most, sum(array.nbytes for array in alive))
        return self._held[key]

    def release(self, name: str | None = None) -> None:
        self._held = {key: held for key, held in self._held.items() if name not in (None, key[0])}


def measure_rank(context: DistributedContext, folder: Path) -> None:
    """Note the memory of evaluations, in layers of the machine's nodes."""
    most = {}
    with exchange_of(context) as exchange:
        graph, made = evaluator_of(folder, exchange, context)
        num_nodes = sum(map(len, graph.ranges.values()))
        # Others aggregate rows of every edge type into a node type at once.
        for name, variant in zip(NAMES[:8], VARIANTS, strict=False):
            made.access.buffers = counted = CountedBuffers(context, folder, 2**30)
            model = make_model(graph, variant, num_layers=5)
            made.evaluate(model)
            most[name] = counted.most / (4 * model.hidden_channels * num_nodes)
    (folder / f"{context.rank}.json").write_text(json.dumps(most))


def test_an_evaluation_holds_two_layers_and_copies_of_one(tmp_path: Path) -> None:
    folder = write_halves(tmp_path)
    launch(measure_rank, folder, LaunchPlan(2, "cpu", 1, 60, (0, 1)), tmp_path)
    for rank in range(2):
        layers = json.loads((folder / f"{rank}.json").read_text())
        assert max(layers.values()) <= 3, layers
