"""Exact evaluation of typed graphs equals the model computed on the whole graph at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import Graph
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.errors import Interrupted
from gnntrain.loading.features import rows_of
from gnntrain.models import HeteroGNN
from gnntrain.models.registry import model_class
from gnntrain.tasks import NodeClassification
from gnntrain.training import buffers
from gnntrain.training.buffers import DeviceBuffers, SharedBuffers
from gnntrain.training.graph_access import chunks, edges_before
from gnntrain.training.layerwise import LayerwiseEvaluator as HeteroLayerwiseEvaluator
from tests.evaluators import layerwise
from tests.hetero_graphs import SIZES, hetero_graph, random_hetero_data
from tests.models.hetero_blocks import full_hetero_block

SCAFFOLD: dict[str, Any] = {"hidden_channels": 8, "dropout": 0.5, "input_dropout": 0.5}
VARIANTS: list[dict[str, Any]] = [
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
NAMES = ["-".join(str(value) for value in variant.values()) for variant in VARIANTS]
each_variant = pytest.mark.parametrize("variant", VARIANTS, ids=NAMES)


def make_model(graph: Graph, variant: dict[str, Any], num_layers: int = 3) -> HeteroGNN:
    torch.manual_seed(0)
    options = SCAFFOLD | variant | {"num_layers": num_layers}
    model = model_class(options.pop("name"))(graph.schema, graph.num_outputs, **options)
    assert isinstance(model, HeteroGNN)
    for norm in model.norms.modules():
        if isinstance(norm, torch.nn.BatchNorm1d):
            torch.nn.init.normal_(norm.running_mean)  # type: ignore[arg-type]
    return model.eval()


def full_forward(graph: Graph, model: HeteroGNN) -> torch.Tensor:
    """All layers for all nodes at once."""
    x = {t: rows_of(nodes).float() for t, nodes in graph.nodes.items() if nodes.num_features}
    with torch.no_grad():
        outputs: torch.Tensor = model(x, {}, (full_hetero_block(graph),) * model.num_layers)
    return outputs


def evaluator(
    graph: Graph,
    scratch_dir: Path,
    context: DistributedContext | None = None,
    *,
    memory_limit: int = 2**30,
    **options: Any,
) -> HeteroLayerwiseEvaluator:
    context = context or DistributedContext()
    places = options.pop("places", SharedBuffers(context, scratch_dir, memory_limit))
    task = NodeClassification(graph)
    return layerwise(graph, places, context, task=task, **options)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@each_variant
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_inference_in_small_chunks_equals_the_full_graph_forward(
    tmp_path: Path, variant: dict[str, Any], num_layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = hetero_graph()
    model = make_model(graph, variant, num_layers)
    monkeypatch.setattr(buffers, "_MAX_CHUNK_NUMBERS", 7 * 8)
    monkeypatch.setattr(buffers, "_MAX_CHUNK_EDGES", 20)
    found = evaluator(graph, tmp_path).infer(model, embed=True)
    assert found.logits.shape == (SIZES["paper"], 3)
    assert_close(found.logits, full_forward(graph, model))


@each_variant
@pytest.mark.parametrize("num_layers", [1, 2])
def test_the_last_layer_makes_the_outputs_of_the_embeddings(
    tmp_path: Path, variant: dict[str, Any], num_layers: int
) -> None:
    graph = hetero_graph(random_hetero_data(edges={}))  # then a layer reads the target alone
    model = make_model(graph, variant, num_layers)
    found = evaluator(graph, tmp_path).infer(model, embed=True)
    rows = found.embeddings
    rows = rows.whole() if isinstance(rows, LazyFeatures) else rows
    assert rows is not None
    assert rows.shape == (SIZES["paper"], model.embedding_channels)
    last = num_layers - 1
    with torch.no_grad():
        outputs = model.update(last, "paper", model.conv(last).finish("paper", None, rows), rows)
    assert_close(found.logits, outputs)


def test_a_target_without_features_is_embedded_by_its_table(tmp_path: Path) -> None:
    data = random_hetero_data()
    nodes = {**data.nodes, "paper": replace(data.nodes["paper"], features=None)}
    graph = hetero_graph(replace(data, nodes=nodes))
    model = make_model(graph, VARIANTS[0], num_layers=1)
    found = evaluator(graph, tmp_path).infer(model, embed=True)
    assert_close(found.logits, full_forward(graph, model))
    assert isinstance(found.embeddings, torch.Tensor)
    assert torch.equal(found.embeddings, model.tables["paper"].weight)


def test_half_precision_features_are_evaluated_in_float32(tmp_path: Path) -> None:
    graph = hetero_graph()
    nodes = {
        t: replace(n, features=n.features.astype(np.float16), feature_dtype="float16")
        for t, n in graph.nodes.items()
    }
    graph = replace(graph, nodes=nodes)
    for variant in VARIANTS[1:3]:
        model = make_model(graph, variant)
        assert_close(evaluator(graph, tmp_path).infer(model).logits, full_forward(graph, model))


def test_activations_beyond_the_memory_limit_go_to_disk_and_leave_nothing(tmp_path: Path) -> None:
    graph = hetero_graph()
    model = make_model(graph, VARIANTS[0])
    found = evaluator(graph, tmp_path, memory_limit=0).infer(model).logits
    assert_close(found, full_forward(graph, model))
    assert not list(tmp_path.iterdir())


def test_evaluation_leaves_the_mode_and_gives_the_memory_back(tmp_path: Path) -> None:
    graph = hetero_graph()
    model = make_model(graph, VARIANTS[0]).train()
    ours = evaluator(graph, tmp_path)
    metrics = ours.evaluate(model)
    assert model.training
    assert metrics.keys() == {"train", "val", "test"}
    assert ours.access.buffers._matrices == {}


class Noted(SharedBuffers):
    """Notes the bytes that are held."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.announced = self.most = 0

    def begin(self, num_bytes: int) -> None:
        self.announced = num_bytes

    def matrix(self, name: str, num_rows: int, num_columns: int) -> torch.Tensor:
        made = super().matrix(name, num_rows, num_columns)
        self.most = max(self.most, sum(m.numel() * 4 for m in self._matrices.values()))
        return made


@each_variant
def test_no_more_memory_is_held_than_was_announced(tmp_path: Path, variant: dict[str, Any]) -> None:
    graph = hetero_graph()
    noted = Noted(DistributedContext(), tmp_path, 2**30)
    model = make_model(graph, variant)
    evaluator(graph, tmp_path, places=noted).infer(model)
    assert 0 < noted.most <= noted.announced


def test_types_that_the_outputs_do_not_depend_on_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = hetero_graph(random_hetero_data(reverse=False))
    model = make_model(graph, VARIANTS[0])
    computed: list[tuple[int, str]] = []
    update = model.update

    def noted(i: int, node_type: str, out: torch.Tensor, h_dst: torch.Tensor) -> torch.Tensor:
        if len(out):
            computed.append((i, node_type))
        return update(i, node_type, out, h_dst)

    monkeypatch.setattr(model, "update", noted)
    assert_close(evaluator(graph, tmp_path).infer(model).logits, full_forward(graph, model))
    assert "venue" not in {t for _, t in computed}
    assert (2, "author") not in computed


def test_one_chunk_is_bounded_in_rows_and_in_edges_of_all_types() -> None:
    graph = hetero_graph()
    before = edges_before(graph, "paper")
    degrees = [before(v + 1) - before(v) for v in range(SIZES["paper"])]
    assert sum(degrees) == sum(len(graph.edges[e]) for e in graph.schema.into("paper"))
    cuts = list(chunks(before, 0, SIZES["paper"], 6, 30))
    assert [v for a, b in cuts for v in range(a, b)] == list(range(SIZES["paper"]))
    for a, b in cuts:
        assert b - a <= 6
        assert b - a == 1 or sum(degrees[a:b]) <= 30


def test_rows_that_the_device_does_not_read_in_place_are_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = hetero_graph()
    monkeypatch.setattr(HeteroLayerwiseEvaluator, "_is_here", lambda *_: False)
    monkeypatch.setattr(buffers, "_MAX_CHUNK_EDGES", 20)
    for variant in VARIANTS:
        model = make_model(graph, variant)
        assert_close(evaluator(graph, tmp_path).infer(model).logits, full_forward(graph, model))


class AskedRows:
    """Rows that are asked for, as those of other machines."""

    def __init__(self, rows: torch.Tensor) -> None:
        self._rows = LazyFeatures(rows)

    def select(self, nodes: torch.Tensor) -> LazyFeatures:
        return LazyFeatures(self._rows.select(nodes).whole())


def test_rows_of_other_machines_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = hetero_graph()
    features = {t: AskedRows(rows_of(graph.nodes[t])) for t in ("paper", "author")}
    monkeypatch.setattr(buffers, "_MAX_CHUNK_EDGES", 20)
    for variant in VARIANTS:
        model = make_model(graph, variant)
        ours = evaluator(graph, tmp_path, features=features)
        assert_close(ours.infer(model).logits, full_forward(graph, model))


def test_a_stop_request_ends_the_evaluation(tmp_path: Path) -> None:
    graph = hetero_graph()
    context = DistributedContext()
    context.control.request_stop(15)
    with pytest.raises(Interrupted):
        evaluator(graph, tmp_path, context).evaluate(make_model(graph, VARIANTS[0]))


WAYS = ("all", "one", "on device", "on host")


def evaluate_rank(context: DistributedContext, folder: Path) -> None:
    graph = hetero_graph()
    host = SharedBuffers(context, folder, 2**30)
    places: dict[str, Any] = {
        "all": host,
        "one": host,
        "on device": DeviceBuffers(context, folder, 2**30, free=2**40),
        "on host": DeviceBuffers(context, folder, 2**30, free=1000),
    }
    answers: dict[str, Any] = {}
    for name, place in places.items():
        ours = evaluator(graph, folder, context, places=place, all_ranks=name != "one")
        answers[name] = []
        for variant in VARIANTS:
            model = make_model(graph, variant)
            answers[name].append((ours.infer(model).logits.clone(), ours.evaluate(model)))
    torch.save(answers, folder / f"{context.rank}.pt")


@pytest.mark.parametrize(
    "machines", [pytest.param((0, 0, 0), marks=pytest.mark.slow), (0, 0, 1)], ids=str
)
def test_ranks_together_give_what_one_gives_and_all_know_it(
    tmp_path: Path, machines: tuple[int, ...]
) -> None:
    graph = hetero_graph()
    launch(evaluate_rank, tmp_path, LaunchPlan(3, "cpu", 1, 60, machines), tmp_path)
    for rank, machine in enumerate(machines):
        answers = torch.load(tmp_path / f"{rank}.pt")
        for i, variant in enumerate(VARIANTS):
            model = make_model(graph, variant)
            metrics = evaluator(graph, tmp_path).evaluate(model)
            for who in WAYS:
                outputs, found = answers[who][i]
                assert found == metrics
                if who != "one" or machine == 0:
                    assert_close(outputs, full_forward(graph, model))
                else:
                    assert outputs.shape == (0, graph.num_outputs)
