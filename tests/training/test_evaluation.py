"""Exact evaluation equals the model computed on the whole graph at once, wherever that lies; what
it asks of other machines, and the memory that it holds."""

from __future__ import annotations

import json
import signal
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from gnntrain import build
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.selection import KernelChoice, select
from gnntrain.config import FeaturesConfig, from_dict
from gnntrain.data.graph import EDGE, NODE, Graph
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.partitioning.build import write_parts
from gnntrain.data.store import StoredGraph
from gnntrain.distributed import shared as memory
from gnntrain.distributed.context import DistributedContext, rank_range
from gnntrain.distributed.exchange import Exchange, open_exchange
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.distributed.owners import AnyArray
from gnntrain.errors import Interrupted, RunError
from gnntrain.loading import read_counts, shared
from gnntrain.loading.features import CopiedFeatures, FeatureSource, InPlaceFeatures, rows_of
from gnntrain.loading.graph import GraphTensors
from gnntrain.loading.loader import SeedPlan
from gnntrain.loading.placement import cached_rows
from gnntrain.loading.shared import SharedGraph
from gnntrain.models import GNN, HeteroGNN, build_model
from gnntrain.run_store import rank_graph
from gnntrain.tasks import NodeClassification
from gnntrain.tasks import base as tasks
from gnntrain.training import buffers, graph_access
from gnntrain.training.buffers import DeviceBuffers, SharedBuffers
from gnntrain.training.evaluation import SampledEvaluator
from gnntrain.training.forward import OnBatch
from gnntrain.training.graph_access import OwnedParts, balanced_range, chunks
from gnntrain.training.layerwise import LayerwiseEvaluator
from tests.compute.devices import on_each_device
from tests.disks import full_disk
from tests.evaluators import layerwise
from tests.examples import examples
from tests.graphs import random_graph, stored
from tests.hetero_graphs import hetero_graph, random_hetero_data
from tests.loading.graphs import cpu_loader
from tests.models.hetero_blocks import full_hetero_block
from tests.simulated_device import present

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
        block = replace(edges.in_edges(0, graph.num_nodes, (0, graph.num_edges)), norm=edges.norm)
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


Graphs = dict[str, StoredGraph]


def write_graphs(folder: Path) -> Graphs:
    """A graph of one type with weights, and a typed one."""
    weights = np.random.default_rng(1).random(240).astype(np.float32)
    data = {"one": random_graph(edge_weight=weights), "typed": random_hetero_data()}
    return {kind: stored(folder / kind, graph) for kind, graph in data.items()}


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


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v in TYPED or "jk" in v], ids=name_of)
@pytest.mark.parametrize("num_layers", [1, 3])
def test_the_last_layer_makes_the_outputs_of_the_embeddings(
    tmp_path: Path, variant: dict[str, Any], num_layers: int
) -> None:
    """Of typed graphs without edges: then a layer reads the target alone."""
    is_typed = variant in TYPED
    graph: Graph = stored(tmp_path / "store")
    graph = replace(hetero_graph(), edges={}) if is_typed else graph
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
    memory._MESSAGE_BYTES = 100  # three rows
    places: dict[str, SharedBuffers] = {
        "all": SharedBuffers(context, folder, 2**30),
        "all on disk": SharedBuffers(context, folder, 0),
        "one": SharedBuffers(context, folder, 2**30),
        "on device": DeviceBuffers(context, folder, 2**30, free=2**40),
        "on host": DeviceBuffers(context, folder, 2**30, free=1000),
    }
    answers: dict[Any, Any] = {}
    for kind, variant in ON_MACHINES.items():
        graph = StoredGraph.open(folder / kind)
        for place, at in places.items():
            evaluator = layerwise(graph, at, context, all_ranks=place != "one")
            model = make_model(graph, variant)
            nodes, logits = evaluator.access.nodes[graph.target], evaluator.outputs(model)[0]
            answers[kind, place] = [*nodes], logits.clone(), evaluator.evaluate(model)
    torch.save(answers, folder / f"{context.rank}.pt")


def test_machines_together_give_what_one_gives_and_all_know_it(tmp_path: Path) -> None:
    graphs = write_graphs(tmp_path)
    launch(evaluate_rank, tmp_path, LaunchPlan(5, "cpu", 1, 60, (0, 0, 1, 1, 2)), tmp_path)
    by_rank = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(5)]
    for kind, variant in ON_MACHINES.items():
        graph = of(graphs, variant)
        model, num_nodes = make_model(graph, variant), len(graph.nodes[graph.target])
        expected, metrics = full_forward(graph, model), layerwise(graph, tmp_path).evaluate(model)
        for place in ("all", "all on disk", "one", "on device", "on host"):
            found = [answers[kind, place] for answers in by_rank]
            assert {node for nodes, *_ in found for node in nodes} == {*range(num_nodes)}
            for nodes, logits, of_rank in found:
                assert_close(logits, expected[nodes])
                assert of_rank == metrics
            assert (found[-1][0] == []) == (place == "one")


# Sampled evaluation


def sampled(
    store: StoredGraph, model: GNN | HeteroGNN, fan_outs: tuple[int, ...], batch_size: int = 4
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


# On a device. That torch's operators do the same is shown in `test_run_on_simulated_gpu.py`


PLENTY, LITTLE = 2**40, 1_000


def placed(rows: torch.Tensor, place: str, device: torch.device) -> LazyFeatures:
    source: FeatureSource = InPlaceFeatures(LazyFeatures(rows.to(device)), device)
    if place == "staged":
        source = CopiedFeatures(rows, device)
    elif place == "cached":
        cold = rows.pin_memory() if device.type == "cuda" else rows.clone()
        source = InPlaceFeatures(cached_rows(cold, torch.tensor([0, 7, 30]), device), device)
    return source.select()


def device_evaluator(
    store: StoredGraph, scratch_dir: Path, device: torch.device, features: LazyFeatures, free: int
) -> LayerwiseEvaluator:
    context = DistributedContext(device=device)
    made = DeviceBuffers(context, scratch_dir, PLENTY, free=free)
    return layerwise(store, made, context, features=features)


@on_each_device
@pytest.mark.parametrize(
    ("place", "free", "dtype"),
    [
        ("resident", PLENTY, "float32"),
        ("cached", PLENTY, "float32"),
        ("staged", LITTLE, "float32"),
        ("resident", PLENTY, "bfloat16"),
    ],
)
@pytest.mark.parametrize("variant", ONE_TYPE, ids=name_of)
def test_logits_and_embeddings_are_the_hosts(
    tmp_path: Path,
    device: str,
    variant: dict[str, Any],
    place: str,
    free: int,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.setattr(buffers, "_MAX_DEVICE_NUMBERS", 150)  # several chunks a layer
    data = random_graph(edge_weight=np.random.default_rng(1).random(240).astype(np.float32))
    store = stored(tmp_path / "store", data, feature_dtype=dtype)
    model, gpu = make_model(store, variant), torch.device(device)
    expected = layerwise(store, tmp_path).infer(model, embed=True)
    rows = placed(rows_of(store.target_nodes), place, gpu)
    found = device_evaluator(store, tmp_path, gpu, rows, free).infer(model.to(gpu), embed=True)
    for ours, theirs in zip(
        (found.logits, found.embeddings), (expected.logits, expected.embeddings), strict=True
    ):
        assert isinstance(ours, torch.Tensor)
        assert ours.device.type == "cpu"
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("variant", [ONE_TYPE[1], *ONE_TYPE[3:6]], ids=name_of)
def test_evaluation_takes_no_more_than_the_memory_that_is_free(
    tmp_path: Path, variant: dict[str, Any]
) -> None:
    """If all matrices fit, and if only chunks do. No node alone has too many in-edges."""
    select(KernelChoice("torch"), "sim")
    destinations = np.arange(30_000) % 3000
    data = random_graph(3000, len(destinations), num_features=64, dst=destinations)
    store = stored(tmp_path / "store", data)
    for free in (8 << 20, 2 << 20):
        with present(total_memory=PLENTY) as module:
            device = torch.device("sim", 0)
            model = make_model(store, variant).to(device)
            on_host = LazyFeatures(rows_of(store.target_nodes))
            ours = device_evaluator(store, tmp_path, device, on_host, free)
            before = module.memory_allocated(device)
            module.reset_peak_memory_stats(device)
            ours.infer(model)
            assert module.max_memory_allocated(device) - before <= free


# What evaluation in parts asks of other machines, and what it holds


HELD = TYPED[:8:3]  # others aggregate rows of every edge type into a node type at once


def hold_and_stop_rank(context: DistributedContext, folder: Path) -> None:
    """Note metrics and the memory of evaluations, in layers of the machine's nodes; then the last
    rank is asked to stop in the middle of the second layer."""
    found = {}
    with exchange_of(context) as exchange:
        graph, evaluator = parts_evaluator(folder, exchange, context)
        num_nodes = sum(map(len, graph.ranges.values()))
        for variant in HELD:
            evaluator.access.buffers = noted = Noted(context, folder, 2**30)
            model = make_model(graph, variant, num_layers=5)
            metrics = evaluator.evaluate(model)
            layers = noted.most / (4 * model.hidden_channels * num_nodes)
            found[name_of(variant)] = metrics, layers
        (folder / f"{context.rank}.json").write_text(json.dumps(found))
        output = evaluator._output

        def stopping(layer: Any, *rest: Any) -> torch.Tensor:
            if layer.i == 1 and context.rank == context.world_size - 1:
                context.control.request_stop(signal.SIGTERM)
            return output(layer, *rest)

        setattr(evaluator, "_output", stopping)  # noqa: B010  # its signature is `_output`'s
        try:
            evaluator.evaluate(make_model(graph, TYPED[6]))
        except Interrupted:
            (folder / f"{context.rank}.stopped").touch()
        # The evaluation serves nothing any more: another one may begin.
        for name in ("h0/paper", "h1/paper", "h1/venue"):
            exchange.serve(f"evaluation/{name}", lambda _: [])


def test_an_evaluation_holds_two_layers_and_copies_of_one_and_a_stop_ends_it_on_all_ranks(
    tmp_path: Path,
) -> None:
    store = stored(tmp_path / "store", random_hetero_data())
    part_of = np.arange(store.num_nodes, dtype=np.uint8) % 2
    write_parts(tmp_path / "parts", store, part_of, 2, "random")
    plan = LaunchPlan(3, "cpu", 1, 60, (0, 0, 1))
    with suppress(Interrupted):  # the launcher has seen the request, or the ranks' end before it
        launch(hold_and_stop_rank, tmp_path / "parts", plan, tmp_path)
    assert len(list(tmp_path.glob("parts/*.stopped"))) == 3
    alone = layerwise(store, tmp_path)
    expected = {name_of(v): alone.evaluate(make_model(store, v, num_layers=5)) for v in HELD}
    for rank in range(3):
        found = json.loads((tmp_path / "parts" / f"{rank}.json").read_text())
        assert {name: metrics for name, (metrics, _) in found.items()} == expected
        assert all(0 < layers <= 3 for _, layers in found.values()), found


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
        sources = part.graph.only_edges.indices.tolist()
        num_edges = Counter(n for n in sources if n not in part.ranges[NODE])
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
    with build.build_exchange(config, context) as exchange:
        graph = rank_graph(config, folder, context, exchange)
        assert isinstance(graph, PartitionedGraph)
        task = build.build_task(config, graph)
        model = build.build_model(config, task, graph, context)
        loaders = build.build_loaders(config, task, model, graph, context, exchange)
        evaluator = build.build_evaluator(config, task, model, loaders, graph, context, folder)

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


@pytest.mark.slow
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
