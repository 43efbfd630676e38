"""Exact evaluation equals the model computed on the whole graph at once, wherever that lies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.compute.features import LazyFeatures
from gnntrain.config import FeaturesConfig
from gnntrain.data.graph import EDGE, NODE, Graph
from gnntrain.data.partitioning.build import write_parts
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.errors import Interrupted, RunError
from gnntrain.loading.graph import GraphTensors
from gnntrain.loading.loader import SeedPlan
from gnntrain.loading.shared import SharedGraph
from gnntrain.models import GNN, HeteroGNN
from gnntrain.sampling.block import Hop
from gnntrain.tasks import NodeClassification
from gnntrain.tasks import base as tasks
from gnntrain.training import buffers, graph_access
from gnntrain.training.buffers import DeviceBuffers, SharedBuffers
from gnntrain.training.evaluation import SampledEvaluator
from gnntrain.training.graph_access import balanced_range, chunks
from tests.disks import full_disk
from tests.evaluators import layerwise
from tests.examples import examples
from tests.graphs import random_graph, stored
from tests.hetero_graphs import hetero_graph, random_hetero_data
from tests.loading.graphs import cpu_loader, only_its_rows
from tests.training.inference_cases import (
    ONE_TYPE,
    TYPED,
    VARIANTS,
    Noted,
    assert_close,
    each_variant,
    exchange_of,
    full_forward,
    make_model,
    parts_evaluator,
)

Graphs = dict[str, StoredGraph]
NUM_PARTS = 5


def write_graphs(folder: Path) -> Graphs:
    """A graph of one type with weights and a typed one, each whole and in random unequal parts."""
    weights = np.random.default_rng(1).random(240).astype(np.float32)
    data = {"one": random_graph(edge_weight=weights), "typed": random_hetero_data()}
    graphs = {}
    for kind, given_data in data.items():
        graph = graphs[kind] = stored(folder / kind / "store", given_data)
        numbers, shares = np.arange(NUM_PARTS, dtype=np.uint8), [0.5, 0.2, 0.1, 0.1, 0.1]
        part_of = np.random.default_rng(2).choice(
            numbers, sum(graph.schema.num_nodes.values()), p=shares
        )
        if kind == "typed":
            part_of[-7:] = [0, 0, 1, 2, 3, 3, 0]  # one part has no venue
        write_parts(folder / kind / "parts", graph, part_of, NUM_PARTS, "random")
    return graphs


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Graphs:
    return write_graphs(tmp_path_factory.mktemp("graphs"))


def of(graphs: Graphs, variant: dict[str, Any]) -> StoredGraph:
    return graphs["typed" if variant in TYPED else "one"]


@pytest.mark.parametrize(
    ("variant", "num_layers", "memory_limit"),
    [*((one, 3, 0) for one in VARIANTS), (ONE_TYPE[0], 1, 2**30), (TYPED[0], 1, 2**30)],
)
def test_inference_in_small_chunks_equals_the_full_graph_forward(
    graphs: Graphs,
    tmp_path: Path,
    variant: dict[str, Any],
    num_layers: int,
    memory_limit: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = of(graphs, variant)
    model = make_model(graph, variant, num_layers)
    monkeypatch.setattr(buffers, "_MAX_CHUNK_NUMBERS", 7 * 8)
    monkeypatch.setattr(buffers, "_MAX_CHUNK_EDGES", 20)
    evaluator = layerwise(graph, tmp_path, memory_limit=memory_limit)
    assert_close(evaluator.infer(model).logits, full_forward(graph, model))
    for _ in range(2):  # the first layer's aggregates are kept, the weights are not
        outputs, _ = evaluator.outputs(model, keeps=True)
        assert_close(outputs, full_forward(graph, model))
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.01)
    assert not list(tmp_path.iterdir())


def test_later_evaluations_of_constant_features_read_no_edges(
    graphs: Graphs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graphs["one"]
    model, evaluator = make_model(graph, {"name": "sage"}, 1), layerwise(graph, tmp_path)
    before = evaluator.evaluate(model)
    monkeypatch.setattr(evaluator.access, "in_edges", None)
    assert evaluator.evaluate(model) == before


@each_variant
@pytest.mark.parametrize("num_layers", [1, 3])
def test_the_last_layer_makes_the_outputs_of_the_embeddings(
    tmp_path: Path, variant: dict[str, Any], num_layers: int
) -> None:
    """Of typed graphs without edges: then a layer reads the target alone."""
    is_typed = variant in TYPED
    graph: Graph = stored(tmp_path / "store")
    graph = hetero_graph(random_hetero_data(edges={})) if is_typed else graph
    model = make_model(graph, variant, num_layers)
    found = layerwise(graph, tmp_path).infer(model, embed=True)
    rows, last = found.embeddings, num_layers - 1
    rows = rows.whole() if isinstance(rows, LazyFeatures) else rows
    assert rows is not None
    assert rows.shape == (len(graph.nodes[graph.target]), model.embedding_channels)
    with torch.no_grad():
        if is_typed:
            total = model.convs[last].finish("paper", None, rows)
            expected = model.update(last, "paper", total, rows)
        elif model.jk == "none":
            edges = GraphTensors.of(graph, model.needs).only_edges
            block = replace(edges.in_edges(0, graph.num_nodes), norm=edges.norm)
            sizes = {NODE: graph.num_nodes}
            blocks = {EDGE: block} if model.uses_graph else {}
            expected = model.layer(last, {NODE: rows}, Hop(blocks, sizes, sizes))[NODE]
        else:
            expected = model.lin(rows)
    assert_close(found.logits, expected)


def test_a_target_without_features_is_embedded_by_its_table(tmp_path: Path) -> None:
    data = random_hetero_data()
    data.nodes["paper"].features = None
    graph = hetero_graph(data)
    model = make_model(graph, TYPED[0], num_layers=1)
    found = layerwise(graph, tmp_path).infer(model, embed=True)
    assert_close(found.logits, full_forward(graph, model))
    assert isinstance(model, HeteroGNN)
    assert isinstance(found.embeddings, torch.Tensor)
    assert torch.equal(found.embeddings, model.tables["paper"].weight)


@each_variant
def test_no_more_memory_is_held_than_was_announced(
    graphs: Graphs, tmp_path: Path, variant: dict[str, Any]
) -> None:
    graph, noted = of(graphs, variant), Noted(DistributedContext(), tmp_path, 2**30)
    model = make_model(graph, variant).train()
    ours = layerwise(graph, noted)
    ours.evaluate(model)
    assert 0 < noted.most <= noted.announced
    assert model.training


def test_types_that_the_outputs_do_not_depend_on_change_nothing(tmp_path: Path) -> None:
    graph = hetero_graph(random_hetero_data(reverse=False))
    model = make_model(graph, TYPED[0])
    assert_close(layerwise(graph, tmp_path).infer(model).logits, full_forward(graph, model))


def test_a_stop_request_ends_the_evaluation(graphs: Graphs, tmp_path: Path) -> None:
    context = DistributedContext()
    context.control.request_stop(15)
    with pytest.raises(Interrupted):
        layerwise(graphs["typed"], tmp_path, context).evaluate(
            make_model(graphs["typed"], TYPED[0])
        )


def test_an_empty_split_has_no_metrics(tmp_path: Path) -> None:
    data = random_graph()
    data.splits = {**data.splits, "val": np.array([], np.int64)}
    store = stored(tmp_path / "store", data)
    model = make_model(store, ONE_TYPE[0])
    assert layerwise(store, tmp_path).evaluate(model)["val"] == {}
    assert sampled(store, model, (2, 2, 2))["val"] == {}


# Ranks and machines


ON_MACHINES = {"one": ONE_TYPE[4], "typed": TYPED[0]}


def evaluate_rank(context: DistributedContext, folder: Path) -> None:
    """The nodes that the machine has, their logits and the metrics, by graph and place."""
    graph_access._MAX_GATHERED_NUMBERS, tasks._MAX_SLICE_NUMBERS = 200, 18
    buffers._MAX_CHUNK_NUMBERS, buffers._MAX_CHUNK_EDGES = 168, 60
    places: dict[str, SharedBuffers] = {
        "all": SharedBuffers(context, folder, 2**30),
        "one": SharedBuffers(context, folder, 2**30),
        "on device": DeviceBuffers(context, folder, 2**30, free=2**40),
        "on host": DeviceBuffers(context, folder, 2**30, free=1000),
    }
    answers: dict[Any, Any] = {}
    for kind, variant in ON_MACHINES.items():
        graph = StoredGraph.open(folder / kind / "store")
        evaluators = {
            n: layerwise(graph, at, context, all_ranks=n != "one") for n, at in places.items()
        }
        with exchange_of(context) as exchange, exchange_of(context) as of_parts:
            local = only_its_rows(graph, context.machine, context.num_machines)
            shared = SharedGraph(local, exchange, context, in_parts=False)
            features = shared.features(FeaturesConfig(cache_ratio=0.1), lambda _: [])
            evaluators["sharded"] = layerwise(local, places["all"], context, features=features)
            parts, in_parts = parts_evaluator(folder / kind / "parts", of_parts, context)
            evaluators["parts"] = in_parts
            originals = np.concatenate([part.originals[graph.target] for part in parts.opened])
            for place, evaluator in evaluators.items():
                model = make_model(graph, variant)
                nodes = originals if place == "parts" else evaluator.access.nodes[graph.target]
                logits = evaluator.outputs(model)[0].clone()
                found = [*nodes], logits, evaluator.evaluate(model)
                answers[kind, place] = found
            context.barrier()
    torch.save(answers, folder / f"{context.rank}.pt")


def test_machines_together_give_what_one_gives_and_all_know_it(tmp_path: Path) -> None:
    graphs = write_graphs(tmp_path)
    launch(evaluate_rank, tmp_path, LaunchPlan(3, "cpu", 1, 60, (0, 0, 1)), tmp_path)
    by_rank = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(3)]
    for kind, variant in ON_MACHINES.items():
        graph = of(graphs, variant)
        model, num_nodes = make_model(graph, variant), len(graph.nodes[graph.target])
        expected, metrics = full_forward(graph, model), layerwise(graph, tmp_path).evaluate(model)
        for place in ("all", "one", "on device", "on host", "sharded", "parts"):
            found = [answers[kind, place] for answers in by_rank]
            assert {node for nodes, *_ in found for node in nodes} == {*range(num_nodes)}
            for nodes, logits, of_rank in found:
                assert_close(logits, expected[nodes])
                assert of_rank == metrics
            assert (found[2][0] == []) == (place == "one")


# Sampled evaluation


def sampled(
    store: StoredGraph,
    model: GNN | HeteroGNN,
    fan_outs: tuple[int, ...],
    batch_size: int = 4,
) -> Any:
    loaders, needs = {}, model.needs
    for split in ("train", "val", "test"):
        plan = SeedPlan(store.split(split), batch_size, shuffle=False, redraw=False)
        loaders[split] = cpu_loader(store, plan, fan_outs, needs=needs, threads=0)
    evaluator = SampledEvaluator(NodeClassification(store), loaders, DistributedContext())
    return evaluator.evaluate(model)


def test_sampled_evaluation_is_the_same_however_a_split_is_cut_and_exact_over_all_neighbours(
    graphs: Graphs, tmp_path: Path
) -> None:
    store, model = graphs["one"], make_model(graphs["one"], ONE_TYPE[2])
    for parameter in model.parameters():  # its answers change with the neighbours
        torch.nn.init.normal_(parameter)
    exact, alone = (
        layerwise(store, tmp_path).evaluate(model),
        sampled(store, model, (2, 2, 2), 1000),
    )
    assert sampled(store, model, (2, 2, 2), 3) == alone != exact
    assert sampled(store, model, (-1, -1, -1)) == exact


# Cuts and memory


@examples(50)
@given(
    degrees=st.lists(st.integers(0, 60), max_size=40),
    world_size=st.integers(1, 6),
    max_edges=st.integers(1, 80),
    max_rows=st.integers(1, 9),
)
def test_ranks_and_chunks_cut_the_nodes_without_gap_or_overlap(
    degrees: list[int], world_size: int, max_edges: int, max_rows: int
) -> None:
    indptr = np.concatenate([[0], np.cumsum(degrees, dtype=np.int64)]).astype(np.int64)
    before, num_nodes = lambda node: int(indptr[node]), len(degrees)
    ranges = [balanced_range(before, num_nodes, rank, world_size) for rank in range(world_size)]
    cuts = [cut for a, b in ranges for cut in chunks(before, a, b, max_rows, max_edges)]
    assert [node for a, b in cuts for node in range(a, b)] == list(range(num_nodes))
    for a, b in cuts:
        assert b - a <= max_rows
        assert b - a == 1 or indptr[b] - indptr[a] <= max_edges


def test_ranks_get_equal_work_though_a_hub_comes_first() -> None:
    indptr = np.concatenate([[0], np.cumsum([1000] + [1] * 1000)]).astype(np.int64)
    ranges = [balanced_range(lambda node: int(indptr[node]), 1001, rank, 4) for rank in range(4)]
    work = [int(indptr[b] - indptr[a]) + 16 * (b - a) for a, b in ranges]
    assert max(work) < 1.3 * min(work)


def test_activations_without_room_on_the_disk_are_a_sentence(tmp_path: Path) -> None:
    scratch = SharedBuffers(DistributedContext(), tmp_path, memory_limit=0)
    with full_disk(1000), pytest.raises(RunError, match=r"40,000 bytes"):
        scratch.matrix("h", 1000, 10)
    assert not list(tmp_path.iterdir())
