"""Runs on a graph that is an object, as in a notebook: trained, found again, predicted for."""

from __future__ import annotations

import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gnntrain.cli import main
from gnntrain.config import (
    BuiltinConfig,
    Config,
    ConfigError,
    EvaluationConfig,
    FilesConfig,
    ModelConfig,
    RunConfig,
    SamplerConfig,
    TaskConfig,
    TrainerConfig,
    from_dict,
)
from gnntrain.data.store import StoredGraph
from gnntrain.errors import UserError
from gnntrain.inference import infer
from gnntrain.planning.plan import plan
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.results.export import export
from gnntrain.results.prediction import predict
from gnntrain.run import evaluate, partition, resume, train
from gnntrain.sweep import sweep
from tests.graphs import random_graph

NUM_NODES = 60
pytestmark = pytest.mark.usefixtures("here")
TRAINER = TrainerConfig(epochs=2, gpus=0, batch_size=16)


def graph(seed: int = 0, **changes: Any) -> Data:
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(NUM_NODES) % 3
    x = torch.randn(NUM_NODES, 4, generator=rng) + y[:, None]
    edge_index = torch.randint(0, NUM_NODES, (2, 200), generator=rng)
    return Data(**{"x": x, "y": y, "edge_index": edge_index, **changes})


def stores() -> list[str]:
    return sorted(path.parent.name for path in Path("cache").rglob("meta.json"))


def test_each_call_has_a_run_of_its_own_and_each_graph_one_store() -> None:
    first, second = (train(Config(trainer=TRAINER), data=graph()) for _ in range(2))
    assert first["run"] != second["run"]
    assert first["train_loss"] == second["train_loss"]
    assert first["dataset"] == "data"
    assert len(stores()) == 1
    assert evaluate(second["run"])["metrics"]["test"] == pytest.approx(second["test"])
    train(Config(trainer=TRAINER), data=graph(seed=1))
    assert len(stores()) == 2
    arrays = {name: value.numpy() for name, value in graph().to_dict().items()}
    assert train(Config(trainer=TRAINER), data=arrays)["train_loss"] == first["train_loss"]
    assert train(Config(trainer=TRAINER), data=random_graph())["dataset"] == "data"


def test_a_run_goes_on_and_predicts_from_its_store(tmp_path: Path) -> None:
    run = train(Config(trainer=TRAINER), data=graph())["run"]
    assert infer(run).logits.shape == (NUM_NODES, 3)
    assert predict(run, "out.csv").num_rows == NUM_NODES
    assert main(["resume", run, "trainer.epochs=3", "trainer.gpus=0"]) == 0
    assert resume(run)["epochs"] == 3
    record = next(tmp_path.glob("cache/gnntrain/stores/data-*"))
    shutil.rmtree(record)
    with pytest.raises(UserError, match="object") as caught:
        resume(run)
    assert "data=data" in str(caught.value.hint)
    train(Config(trainer=TRAINER), data=graph())
    assert resume(run)["epochs"] == 3


def test_another_object_is_predicted_for() -> None:
    config = Config(trainer=TRAINER, dataset=FilesConfig(to_undirected=True, name="mine"))
    summary = train(config, data=graph())
    assert summary["dataset"] == "mine"
    other = graph(seed=1, y=None)
    logits = infer(summary["run"], data=other).logits
    both = torch.cat([other.edge_index, other.edge_index.flip(0)], dim=1)
    given_both = infer(summary["run"], data=graph(seed=1, y=None, edge_index=both)).logits
    assert torch.equal(logits, given_both)
    done = predict(summary["run"], "out.npz", what="logits", data=other)
    assert done.num_rows == NUM_NODES
    np.testing.assert_allclose(np.load("out.npz")["logits"], logits.numpy())
    with pytest.raises(UserError, match="4 features"):
        infer(summary["run"], data=graph(x=torch.ones(NUM_NODES, 5)))


def test_weights_that_are_there_in_one_graph_alone_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    weighted, plain = graph(edge_attr=torch.rand(200)), graph()
    weights, model = FilesConfig(weight_column="edge_attr"), ModelConfig(name="gcn")
    with_weights = train(Config(trainer=TRAINER, model=model, dataset=weights), data=weighted)
    without = train(Config(trainer=TRAINER, model=model), data=plain)
    again = infer(with_weights["run"], data=weighted).logits
    assert torch.equal(again, infer(with_weights["run"]).logits)
    with pytest.raises(UserError, match="edge_attr"):
        infer(with_weights["run"], data=plain)
    infer(without["run"], data=graph(edge_weight=torch.rand(200)))
    assert "Edges have weights, and had no weights in training." in caplog.text


def test_a_run_that_is_not_shown_tells_its_warnings(capfd: pytest.CaptureFixture[str]) -> None:
    nobody = torch.zeros(NUM_NODES, dtype=torch.bool)
    data = graph(train_mask=~nobody, val_mask=nobody)
    assert train(Config(trainer=TRAINER), data=data, progress=False)["epochs"] == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "There are no validation nodes" in printed.err


@pytest.mark.slow
def test_a_sweep_is_over_an_object() -> None:
    dataset, model = FilesConfig(name="mine", split=1), ModelConfig(name="gcn", hidden_channels=8)
    config = Config(trainer=TRAINER, dataset=dataset, model=model, run=RunConfig(dir="a, b"))
    results = sweep(config, {"trainer.lr": np.array([0.01, 0.1])}, data=graph())
    assert [trial.status for trial in results.trials] == ["completed"] * 2
    for trial, lr in zip(results.trials, (0.01, 0.1), strict=True):
        here = config.changed(trainer={"lr": lr}, run={"dir": trial.run_dir})
        summary = train(here.changed(run={"dir": "again", "if_exists": "error"}), data=graph())
        shutil.rmtree("again")
        assert trial.val == summary["val"]["accuracy"]
        assert from_dict(RunDirectory.open(trial.run_dir).config(), saved=True) == here


def test_an_object_is_planned_and_cut_into_parts() -> None:
    config = Config(trainer=TRAINER)
    assert plan(config, data=graph()).times["run"] > 0
    parts = partition(config, 2, "parts", data=graph())
    assert sum(part.num_nodes for part in parts.meta.parts) == NUM_NODES


BEYOND = graph(edge_index=torch.full((2, 3), NUM_NODES))


@pytest.mark.parametrize(
    ("config", "data", "told"),
    [
        (Config(dataset=BuiltinConfig(name="cora")), graph(), "two graphs"),
        (Config(dataset=FilesConfig(edges="edges.csv")), graph(), "two graphs"),
        (Config(trainer=TRAINER), BEYOND, "edge_index"),
        (Config(sampler=SamplerConfig(fan_outs=(5,))), graph(), "sampler.fan_outs"),
        (Config(trainer=TrainerConfig(gpus=999)), graph(), "trainer.gpus"),
    ],
)
def test_a_mistake_is_told_before_anything_is_done(config: Config, data: Data, told: str) -> None:
    with pytest.raises(UserError, match=told):
        train(config, data=data)
    assert not Path("runs").exists()
    assert stores() == []


THREE = torch.arange(NUM_NODES) % 3
QUANTITY = 1000 + 50.0 * THREE


LABELS = {
    "gaps": torch.tensor([0, 3, 7])[THREE],
    "two with a gap": torch.tensor([2, 9])[(THREE == 0).long()],
    "labels": torch.stack([THREE == 0, THREE > 0, THREE > 1], 1).long(),
    "quantity": QUANTITY,
    "quantities": torch.stack([QUANTITY, -QUANTITY], 1),
}


@pytest.mark.parametrize(
    ("kind", "is_typed"), [*((kind, False) for kind in LABELS), ("gaps", True)]
)
def test_predictions_are_in_the_callers_words_and_those_of_the_file(
    kind: str, is_typed: bool
) -> None:
    y = LABELS[kind]
    data: Any = typed() if is_typed else graph(y=y)
    if is_typed:
        data["paper"].y = y
    is_quantity = y.is_floating_point()
    config = Config(
        trainer=TRAINER,
        model=ModelConfig(name="rgcn" if is_typed else "sage"),
        task=TaskConfig(type="node_regression" if is_quantity else "node_classification"),
    )
    summary = train(config, data=data)
    run = summary["run"]
    outputs = infer(run)
    predict(run, "out.csv")
    table = outputs.to_pandas()
    pd.testing.assert_frame_equal(table, pd.read_csv("out.csv"), check_dtype=False, rtol=1e-5)
    written = torch.tensor(table.drop(columns=["node", "probability"], errors="ignore").to_numpy())
    assert torch.equal(outputs.predictions.double(), written.view(y.shape).double())
    (store,) = Path("cache").rglob("meta.json")
    test = torch.from_numpy(StoredGraph.open(store.parent).split("test"))
    told = evaluate(run)["metrics"]["test"]
    if is_quantity:
        assert (summary["metric"], set(told)) == ("r2", {"r2", "rmse", "mae"})
        with pytest.raises(AttributeError, match="predictions"):
            _ = outputs.logits
        error = (outputs.predictions - y)[test].abs().mean()
        assert float(error) == pytest.approx(told["mae"], rel=1e-5)
        return
    right = (outputs.predictions == y)[test].float().mean()
    assert float(right) == pytest.approx(told["accuracy"])
    assert outputs.probabilities.shape == (NUM_NODES, len(outputs.classes))
    if y.ndim == 1:
        assert outputs.classes.tolist() == sorted(set(y.tolist()))
        likely = outputs.classes[outputs.probabilities.argmax(dim=1)]
        assert torch.equal(likely, outputs.predictions)


def test_the_callers_generators_are_left_alone() -> None:
    def drawn() -> tuple[float, float, float]:
        return float(torch.rand(1)), random.random(), float(np.random.rand())

    def seed() -> None:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)

    seed()
    expected = drawn()
    config = Config(trainer=TRAINER)
    seed()
    run = train(config, data=graph())["run"]
    assert drawn() == expected
    for compute in (infer, evaluate, export, resume):
        seed()
        compute(run)
        assert drawn() == expected


def test_trainings_in_threads_have_the_numbers_of_each_alone() -> None:
    configs = [
        Config(trainer=TRAINER, model=ModelConfig(name=name, hidden_channels=16))
        for name in ("sage", "gat")
    ]

    def losses(config: Config) -> object:
        return train(config, data=graph())["train_loss"]

    alone = [*map(losses, configs)]
    with ThreadPoolExecutor() as threads:
        assert [*threads.map(losses, configs)] == alone


def test_a_run_goes_on_with_its_name_and_graph_and_never_as_another_one() -> None:
    dataset = FilesConfig(split=1)
    config = Config(trainer=TRAINER, run=RunConfig(name="mine"), dataset=dataset)
    train(config, data=graph())
    with pytest.raises(UserError, match="mine"):
        train(config, data=graph())
    files = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    others = [
        Config(trainer=TRAINER, model=ModelConfig(name="gcn")),
        Config(trainer=TRAINER, dataset=BuiltinConfig(name="cora")),
    ]
    for other in others:
        with pytest.raises(ConfigError, match="with which the run was begun"):
            resume("mine", other)
    assert files == {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    for epochs, asked in enumerate((Config(), Config(dataset=dataset), config), 3):
        summary = resume("mine", asked.changed(trainer={**dict(TRAINER), "epochs": epochs}))
        assert Path(summary["run"]) == Path("runs/mine").absolute()
        assert summary["epochs"] == epochs
    assert infer("mine").logits.shape == (NUM_NODES, 3)


@pytest.mark.parametrize("trained_on", ["object", "tables"])
def test_the_command_predicts_for_a_file_of_a_whole_graph(trained_on: str) -> None:
    data, other = graph(), graph(seed=1, y=None)
    torch.save(other.to_dict(), "other.pt")
    np.savez("nodes.npz", x=data.x, y=data.y)
    np.savez("edges.npz", edge_index=data.edge_index)
    dataset = {
        "object": FilesConfig(),
        "tables": FilesConfig(edges="edges.npz", features="nodes.npz", labels="nodes.npz"),
    }
    config = Config(trainer=TRAINER, dataset=dataset[trained_on])
    run = train(config, data=data if trained_on == "object" else None)["run"]
    written = ["predict", run, "--what", "logits", "--out"]
    assert main([*written, "out.npz", "dataset.data=other.pt"]) == 0
    expected = infer(run, data=other).logits.numpy()
    np.testing.assert_allclose(np.load("out.npz")["logits"], expected)
    words = ["dataset.features=nodes.npz", "dataset.edges=edges.npz"]
    assert main([*written, "own.npz", *words]) == 0
    np.testing.assert_allclose(np.load("own.npz")["logits"], infer(run).logits.numpy())


def typed(seed: int = 0) -> HeteroData:
    """The nodes of `graph` with their authors, who have ids and no features."""
    plain, data = graph(seed), HeteroData()
    data["paper"].x, data["paper"].y = plain.x, plain.y
    data["author"].ids = [f"author {i}" for i in range(20)]
    data["author"].num_nodes = 20
    data["paper", "cites", "paper"].edge_index = plain.edge_index
    data["author", "writes", "paper"].edge_index = plain.edge_index % torch.tensor([[20], [60]])
    return data


def test_a_hetero_data_is_trained_on_found_again_and_predicted_for() -> None:
    config = Config(model=ModelConfig(name="rgcn"), trainer=TRAINER)
    first = train(config, data=typed())
    assert train(config, data=typed().to_dict())["train_loss"] == first["train_loss"]
    assert len(stores()) == 1
    assert evaluate(first["run"])["metrics"]["test"] == first["test"]
    other = typed(seed=1)
    del other["paper"].y
    expected = infer(first["run"], data=typed(seed=1)).logits
    assert torch.equal(infer(first["run"], data=other).logits, expected)
    longer = config.model_copy(update={"trainer": TRAINER.model_copy(update={"epochs": 3})})
    assert resume(first["run"], longer)["status"] == "completed"


@pytest.mark.parametrize(("model", "evaluation"), [("mlp", "layerwise"), ("hgt", "sampled")])
def test_a_run_whose_outputs_are_all_equal_says_so(
    model: str, evaluation: Any, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = torch.arange(NUM_NODES)  # a ring of nodes without a difference
    data: Any = graph(x=torch.ones(NUM_NODES, 4), edge_index=torch.stack([nodes, nodes.roll(1)]))
    if model == "hgt":
        plain, data = data, HeteroData()
        data["paper"].x, data["paper"].y = plain.x, plain.y
        data["paper", "cites", "paper"].edge_index = plain.edge_index
    choice = EvaluationConfig(name=evaluation)
    config = Config(model=ModelConfig(name=model), trainer=TRAINER, evaluation=choice)
    summary = train(config, data=data)
    assert summary["constant_outputs"] == ["train", "val", "test"]
    assert caplog.text.count("train, val, test the same outputs") == 1
    assert evaluate(summary["run"])["metrics"]["test"] == summary["test"]


def test_a_graph_in_the_place_of_another_argument_is_told() -> None:
    config: Any = Config(trainer=TRAINER)
    with pytest.raises(TypeError):
        train(config, graph())  # type: ignore[call-arg]
    for arguments in ({"config": graph()}, {"config": config, "overrides": graph()}):
        with pytest.raises(UserError, match="data=") as caught:
            train(**arguments)
        assert "is a Data" in str(caught.value)
    assert not Path("runs").exists()
    summary: Any = train(config, data=graph())
    with pytest.raises(UserError, match="data="):
        infer(summary["run"], config=graph())
    with pytest.raises(UserError, match=r'summary\["run"\]'):
        infer(summary)


@pytest.mark.parametrize("standardize", [False, True])
def test_a_feature_of_far_spread_is_told_until_it_is_standardised(
    standardize: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data = typed()
    data["paper"].x[:, 2] *= 1000
    dataset, model = FilesConfig(standardize=standardize), ModelConfig(name="rgcn")
    train(Config(dataset=dataset, model=model, trainer=TRAINER), data=data)
    assert caplog.text.count("spread of paper.feature 2 is far") == (not standardize)
