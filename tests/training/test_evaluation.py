from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import NODE, Graph
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext, rank_range
from gnntrain.distributed.exchange import open_exchange
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.distributed.owners import NodeOwners
from gnntrain.distributed.shared import SharedFile
from gnntrain.errors import RunError
from gnntrain.loading.features import in_place
from gnntrain.loading.graph import GraphTensors
from gnntrain.loading.loader import FullGraphLoader, SeedPlan
from gnntrain.loading.shared import ROWS, ShardedFeatures, answers_of
from gnntrain.models import GNN, build_model
from gnntrain.tasks import NodeClassification
from gnntrain.training import buffers
from gnntrain.training.buffers import DeviceBuffers, SharedBuffers
from gnntrain.training.evaluation import SampledEvaluator
from gnntrain.training.forward import OnBatch
from gnntrain.training.graph_access import balanced_range, chunks
from tests.disks import full_disk
from tests.evaluators import layerwise
from tests.examples import examples
from tests.graphs import random_graph, stored
from tests.loading.graphs import cpu_loader

VARIANTS: list[dict[str, Any]] = [
    {"name": "sage", "aggregator": "mean", "norm": "batch"},
    {"name": "sage", "aggregator": "max", "jk": "max"},
    {"name": "sage", "aggregator": "sum", "residual": True},
    {"name": "gcn", "norm": "layer", "jk": "cat"},
    {"name": "gat", "heads": 2, "residual": True},
    {"name": "gatv2", "heads": 2, "jk": "cat"},
    {"name": "gin", "norm": "batch"},
    {"name": "mlp"},
]
VARIANT_NAMES = ["-".join(str(value) for value in variant.values()) for variant in VARIANTS]


MACHINES = [(0, 0, 1), *(pytest.param(m, marks=pytest.mark.slow) for m in ((0, 1), (0, 1, 2)))]
"""The machine of each rank; (0, 0, 1) has both ranks of one machine and ranks of two."""


def make_model(store: Graph, variant: dict[str, Any], num_layers: int = 3) -> GNN:
    torch.manual_seed(0)
    config = SimpleNamespace(**(DEFAULTS[variant["name"]] | SCAFFOLD | variant))
    config.num_layers = num_layers
    model = build_model(config, store.num_features, store.num_outputs)
    assert isinstance(model, GNN)
    return model.eval()


SCAFFOLD: dict[str, Any] = {
    "hidden_channels": 8,
    "dropout": 0.5,
    "input_dropout": 0.5,
    "norm": "none",
    "activation": "relu",
    "residual": False,
    "jk": "none",
}
ATTENTION = {"heads": 2, "output_heads": 2, "attention_dropout": 0.5, "negative_slope": 0.2}
DEFAULTS: dict[str, dict[str, Any]] = {
    "sage": {"aggregator": "mean", "root_weight": True, "normalize": False},
    "gcn": {},
    "gat": ATTENTION,
    "gatv2": ATTENTION,
    "gin": {"train_eps": True, "mlp_layers": 2},
    "mlp": {},
}


def full_forward(store: StoredGraph, model: GNN) -> torch.Tensor:
    """All layers for all nodes at once."""
    plan = SeedPlan(np.arange(store.num_nodes), 1)
    loader = FullGraphLoader(
        GraphTensors.of(store, model.needs),
        in_place(store),
        plan,
        num_layers=model.num_layers,
        needs=model.needs,
    )
    (batch,) = loader
    with torch.no_grad():
        logits: torch.Tensor = OnBatch(model)(batch)
    return logits


@pytest.mark.parametrize("variant", VARIANTS, ids=VARIANT_NAMES)
def test_layerwise_inference_in_small_chunks_equals_the_full_graph_forward(
    tmp_path: Path, variant: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stored(tmp_path / "store")
    model = make_model(store, variant)
    monkeypatch.setattr(buffers, "_MAX_CHUNK_NUMBERS", 7 * store.num_features)
    monkeypatch.setattr(buffers, "_MAX_CHUNK_EDGES", 20)
    logits = layerwise(store, tmp_path).infer(model).logits
    torch.testing.assert_close(logits, full_forward(store, model), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS, ids=VARIANT_NAMES)
@pytest.mark.parametrize("num_layers", [1, 3])
def test_the_last_layer_makes_the_logits_of_the_embeddings(
    tmp_path: Path, variant: dict[str, Any], num_layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stored(tmp_path / "store")
    model = make_model(store, variant, num_layers)
    monkeypatch.setattr(buffers, "_MAX_CHUNK_EDGES", 20)
    found = layerwise(store, tmp_path).infer(model, embed=True)
    rows = found.embeddings
    rows = rows.whole() if isinstance(rows, LazyFeatures) else rows
    assert rows is not None
    assert rows.shape == (store.num_nodes, model.embedding_channels)
    edges = GraphTensors.of(store, model.needs).only_edges
    block = replace(edges.in_edges(0, store.num_nodes), norm=edges.norm)
    with torch.no_grad():
        if model.jk == "none":
            expected = model.layer(num_layers - 1, rows, block)
        else:
            expected = model.lin(rows)
    torch.testing.assert_close(found.logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS, ids=VARIANT_NAMES)
def test_a_mini_batch_of_all_neighbours_equals_the_full_graph_forward(
    tmp_path: Path, variant: dict[str, Any]
) -> None:
    store = stored(tmp_path / "store")
    model = make_model(store, variant)
    fan_outs = (-1,) * model.num_layers if model.uses_graph else ()
    plan = SeedPlan(np.arange(store.num_nodes), 9)
    expected = full_forward(store, model)
    batches = cpu_loader(store, plan, fan_outs, needs=model.needs, threads=0)
    for batch in batches:
        with torch.no_grad():
            found = OnBatch(model)(batch)
        torch.testing.assert_close(
            found, expected[batch.n_id[: batch.batch_size]], rtol=1e-5, atol=1e-5
        )


def test_half_precision_features_are_evaluated_in_float32(tmp_path: Path) -> None:
    store = stored(tmp_path / "store", feature_dtype="bfloat16")
    model = make_model(store, VARIANTS[0])
    logits = layerwise(store, tmp_path).infer(model).logits
    torch.testing.assert_close(logits, full_forward(store, model), rtol=1e-5, atol=1e-5)


def test_activations_beyond_the_memory_limit_go_to_disk_and_leave_nothing(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    model = make_model(store, VARIANTS[3])
    scratch_dir = tmp_path / "scratch"
    scratch_dir.mkdir()
    logits = layerwise(store, scratch_dir, memory_limit=0).infer(model).logits
    torch.testing.assert_close(logits, full_forward(store, model), rtol=1e-5, atol=1e-5)
    assert not list(scratch_dir.iterdir())


def test_evaluation_leaves_the_model_in_the_mode_it_was(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    model = make_model(store, VARIANTS[0]).train()
    layerwise(store, tmp_path).evaluate(model)
    assert model.training


WAYS = ("all", "one", "on device", "on host")
"""Who computes, and where all ranks keep the layers."""


def evaluate_rank(context: DistributedContext, folder: Path) -> None:
    store = StoredGraph.open(folder / "store")
    answers: dict[str, Any] = {}
    host = SharedBuffers(context, folder, 2**30)
    places: dict[str, SharedBuffers] = {
        "all": host,
        "one": host,
        "on device": DeviceBuffers(context, folder, 2**30, free=2**40),
        "on host": DeviceBuffers(context, folder, 2**30, free=1000),
    }
    for name, scratch in places.items():
        evaluator = layerwise(store, scratch, context, all_ranks=name != "one")
        answers[name] = []
        for variant in VARIANTS:
            model = make_model(store, variant)
            answers[name].append((evaluator.infer(model).logits.clone(), evaluator.evaluate(model)))
    answers["sampled"] = sampled(store, decided_model(store), (2, 2, 2), 5, context)
    torch.save(answers, folder / f"{context.rank}.pt")


@pytest.fixture(scope="module")
def three_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[StoredGraph, list[Any]]:
    """A store, and each rank's answers: all in one launch, since ranks take long to start."""
    folder = tmp_path_factory.mktemp("ranks")
    store = stored(folder / "store")
    return store, evaluated(folder, LaunchPlan(3, "cpu", 1, 60))


def evaluated(folder: Path, plan: LaunchPlan) -> list[Any]:
    """Each rank's answers for the store in `folder`."""
    launch(evaluate_rank, folder, plan, folder)
    return [torch.load(folder / f"{rank}.pt") for rank in range(plan.world_size)]


@pytest.mark.parametrize("machines", MACHINES, ids=str)
def test_machines_together_give_what_one_gives(tmp_path: Path, machines: tuple[int, ...]) -> None:
    store = stored(tmp_path / "store")
    alone = layerwise(store, tmp_path)
    by_rank = evaluated(tmp_path, LaunchPlan(len(machines), "cpu", 1, 60, machines))
    for i, variant in enumerate(VARIANTS):
        model = make_model(store, variant)
        expected, metrics = full_forward(store, model), alone.evaluate(model)
        for machine, answers in zip(machines, by_rank, strict=True):
            for who in WAYS:
                logits, found = answers[who][i]
                assert found == metrics
                if who != "one" or machine == 0:
                    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
                else:
                    assert logits.shape == (0, store.num_outputs)
    sampled_alone = sampled(store, decided_model(store), (2, 2, 2), 1000)
    assert all(answers["sampled"] == sampled_alone for answers in by_rank)


def evaluate_sharded(context: DistributedContext, folder: Path) -> None:
    """With the rows of other machines as NaN in this machine's store."""
    store = StoredGraph.open(folder / "store")
    machines = range(context.num_machines)
    owned = [rank_range(store.num_nodes, machine, len(machines)) for machine in machines]
    own = owned[context.machine]
    rows = np.full_like(store.features, np.nan)
    rows[own] = store.features[own]
    store = replace(store, nodes={NODE: replace(store.only_nodes, features=rows)})
    owners = NodeOwners(np.array([0, *(part.stop for part in owned)]))
    ranks = [context.ranks_of(machine) for machine in machines]
    answers: dict[str, Any] = {}
    with open_exchange(context, owners=ranks, host=context.host, timeout=60) as exchange:
        exchange.serve(ROWS, answers_of([rows[own]]))
        cached, local_rows = np.array([3, 50]), torch.from_numpy(rows[own])
        features = ShardedFeatures(
            [local_rows], own.start, local_rows, cached, owners, exchange, context
        )
        for who, all_ranks in (("all", True), ("one", False)):
            evaluator = layerwise(
                store,
                folder,
                context,
                all_ranks=all_ranks,
                features=features,
            )
            models = [make_model(store, variant) for variant in VARIANTS]
            answers[who] = [
                (evaluator.infer(model).logits.clone(), evaluator.evaluate(model))
                for model in models
            ]
    torch.save(answers, folder / f"{context.rank}.pt")


@pytest.mark.parametrize("machines", MACHINES, ids=str)
def test_machines_ask_each_other_for_feature_rows_that_they_do_not_read(
    tmp_path: Path, machines: tuple[int, ...]
) -> None:
    store = stored(tmp_path / "store")
    launch(evaluate_sharded, tmp_path, LaunchPlan(len(machines), "cpu", 1, 60, machines), tmp_path)
    for rank, machine in enumerate(machines):
        answers = torch.load(tmp_path / f"{rank}.pt")
        for i, variant in enumerate(VARIANTS):
            model = make_model(store, variant)
            metrics = layerwise(store, tmp_path).evaluate(model)
            for who in ("all", "one") if machine == 0 else ("all",):
                logits, found = answers[who][i]
                assert found == metrics
                expected = full_forward(store, model)
                torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("who", WAYS)
def test_ranks_together_give_what_one_gives_and_all_know_it(
    tmp_path: Path, three_ranks: tuple[StoredGraph, list[Any]], who: str
) -> None:
    store, by_rank = three_ranks
    alone = layerwise(store, tmp_path)
    for i, variant in enumerate(VARIANTS):
        model = make_model(store, variant)
        metrics = alone.evaluate(model)
        for answers in by_rank:
            logits, found = answers[who][i]
            torch.testing.assert_close(logits, full_forward(store, model), rtol=1e-5, atol=1e-5)
            assert found == metrics


def sampled(
    store: StoredGraph,
    model: GNN,
    fan_outs: tuple[int, ...],
    batch_size: int = 4,
    context: DistributedContext | None = None,
) -> Any:
    context = context or DistributedContext()
    loaders = {
        split: cpu_loader(
            store,
            SeedPlan(
                store.split(split),
                batch_size,
                context.rank,
                context.world_size,
                shuffle=False,
                redraw=False,
            ),
            fan_outs,
            needs=model.needs,
            threads=0,
        )
        for split in ("train", "val", "test")
    }
    return SampledEvaluator(NodeClassification(store), loaders, context).evaluate(model)


def test_sampled_evaluation_over_all_neighbours_equals_the_exact_one(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    model = make_model(store, VARIANTS[0])
    assert sampled(store, model, (-1, -1, -1)) == layerwise(store, tmp_path).evaluate(model)


def decided_model(store: StoredGraph) -> GNN:
    """A model whose answers change with its neighbours."""
    model = make_model(store, VARIANTS[2])
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model


def test_sampled_evaluation_is_the_same_however_a_split_is_cut_and_shared_out(
    tmp_path: Path, three_ranks: tuple[StoredGraph, list[Any]]
) -> None:
    store, by_rank = three_ranks
    model = decided_model(store)
    alone = sampled(store, model, (2, 2, 2), 1000)
    assert sampled(store, model, (2, 2, 2), 3) == alone
    assert alone != layerwise(store, tmp_path).evaluate(model)
    for answers in by_rank:
        assert answers["sampled"] == alone


def test_chunks_are_bounded_in_bytes_where_the_model_is_wider_than_the_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stored(tmp_path / "store")
    model = make_model(store, VARIANTS[0])  # 5 features, 8 hidden channels
    monkeypatch.setattr(buffers, "_MAX_CHUNK_NUMBERS", 64)
    rows: list[int] = []
    update = model.update

    def noted(i: int, out: torch.Tensor, h_dst: torch.Tensor) -> torch.Tensor:
        rows.append(len(out))
        return update(i, out, h_dst)

    monkeypatch.setattr(model, "update", noted)
    layerwise(store, tmp_path).infer(model)
    assert max(rows) == 64 // 8


def test_an_empty_split_has_no_metrics(tmp_path: Path) -> None:
    data = random_graph()
    data.splits = {**data.splits, "val": np.array([], np.int64)}
    store = stored(tmp_path / "store", data)
    model = make_model(store, VARIANTS[0])
    assert layerwise(store, tmp_path).evaluate(model)["val"] == {}
    assert sampled(store, model, (2, 2, 2))["val"] == {}


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
    before = lambda node: int(indptr[node])  # noqa: E731
    num_nodes = len(degrees)
    ranges = [balanced_range(before, num_nodes, rank, world_size) for rank in range(world_size)]
    cuts = [cut for a, b in ranges for cut in chunks(before, a, b, max_rows, max_edges)]
    assert [node for a, b in cuts for node in range(a, b)] == list(range(len(degrees)))
    for a, b in cuts:
        assert b - a <= max_rows
        assert b - a == 1 or indptr[b] - indptr[a] <= max_edges


def test_ranks_get_equal_work_though_a_hub_comes_first() -> None:
    indptr = np.concatenate([[0], np.cumsum([1000] + [1] * 1000)]).astype(np.int64)
    work = []
    for rank in range(4):
        a, b = balanced_range(lambda node: int(indptr[node]), 1001, rank, 4)
        work.append(int(indptr[b] - indptr[a]) + 16 * (b - a))
    assert max(work) < 1.3 * min(work)


@pytest.mark.skipif(sys.platform != "linux", reason="files without a name are Linux's")
@pytest.mark.parametrize("on_disk", [False, True])
def test_what_ranks_share_has_no_name_that_could_be_left_behind(
    tmp_path: Path, on_disk: bool
) -> None:
    before = {path.name for path in Path("/dev/shm").glob(".gnntrain*")}
    file = SharedFile(4 * 6, tmp_path if on_disk else None)
    mine, other = (torch.from_file(file.path, shared=True, size=6) for _ in range(2))
    file.close()
    mine[:] = torch.arange(6.0)
    assert torch.equal(other, torch.arange(6.0))
    assert not Path(file.path).exists()
    assert not list(tmp_path.iterdir())
    assert before == {path.name for path in Path("/dev/shm").glob(".gnntrain*")}


def test_activations_without_room_on_the_disk_are_a_sentence(tmp_path: Path) -> None:
    scratch = SharedBuffers(DistributedContext(), tmp_path, memory_limit=0)
    with full_disk(1000), pytest.raises(RunError, match=r"40,000 bytes"):
        scratch.matrix("h", 1000, 10)
    assert not list(tmp_path.iterdir())
