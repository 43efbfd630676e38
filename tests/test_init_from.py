"""`trainer.init_from`: a new run begins with the best weights of another."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from torch import Tensor

from gnntrain.cli import main
from gnntrain.config import Config, from_dict
from gnntrain.data.graph import HeteroGraphData
from gnntrain.errors import UserError
from gnntrain.init_from import resolved_source, take_weights
from gnntrain.models import PlainModel, build_model
from gnntrain.training.checkpoint import load_checkpoint
from tests.graphs import random_graph, stored
from tests.hetero_graphs import hetero_graph, random_hetero_data
from tests.results.runs import run_of, write_run
from tests.results.test_typed_prediction import run_of as run_of_types
from tests.results.test_typed_prediction import with_ids as typed_ids

SMALL = ["trainer.gpus=0", "dataset.num_nodes=300", "model.hidden_channels=8", "trainer.epochs=2"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def best(run: str) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = load_checkpoint(Path(run) / "checkpoints" / "best.pt")["model"]
    return weights


def summary(run: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((Path(run) / "summary.json").read_text())
    return told


# A learning rate at which a step changes no weight in float32.
STILL = "trainer.lr=1e-30"


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_begins_with_the_best_weights_of_another(ranks: int) -> None:
    assert main([*SMALL, "run.dir=first"]) == 0
    more = [STILL, "trainer.init_from=first", f"distributed.num_processes={ranks}"]
    assert main([*SMALL, *more, "run.dir=second", "dataset.seed=7"]) == 0
    before, after = best("first"), best("second")
    assert all(torch.equal(before[name], after[name]) for name in before)
    told = summary("second")["initial_weights"]
    assert told["num_taken"] == told["num_parameters"] == summary("second")["num_parameters"]
    assert told["epoch"] == summary("first")["best_epoch"]
    assert told["run"] == str(Path("first").resolve())
    written = yaml.safe_load(Path("second/config.yaml").read_text())
    assert written["trainer"]["init_from"] == str(Path("first").resolve())
    assert "initial_weights" not in summary("first")


def test_the_last_layer_begins_anew_where_there_are_other_classes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*SMALL, "run.dir=first"]) == 0
    capsys.readouterr()
    more = [STILL, "trainer.init_from=first", "dataset.num_classes=3", "run.dir=second"]
    assert main([*SMALL, *more]) == 0
    before, after = best("first"), best("second")
    assert torch.equal(before["convs.0.lin_l.weight"], after["convs.0.lin_l.weight"])
    told = summary("second")["initial_weights"]
    last = sum(weight.numel() for name, weight in after.items() if name.startswith("convs.1."))
    assert told["num_taken"] == told["num_parameters"] - last
    assert f"{told['num_taken']:,} of {told['num_parameters']:,}" in capsys.readouterr().out
    assert main([*SMALL, "dataset.num_classes=3", STILL, "run.dir=third"]) == 0
    fresh = best("third")
    assert torch.equal(fresh["convs.1.lin_l.weight"], after["convs.1.lin_l.weight"])


def test_a_resumed_run_keeps_its_own_weights_even_where_the_first_run_has_gone() -> None:
    assert main([*SMALL, "run.dir=first"]) == 0
    assert main([*SMALL, "trainer.init_from=first", "run.dir=second"]) == 0
    assert main([*SMALL, "trainer.init_from=first", "run.dir=whole", "trainer.epochs=4"]) == 0
    begun = summary("second")["initial_weights"]
    Path("first").rename("elsewhere")
    assert main(["resume", "second", "trainer.epochs=4"]) == 0
    assert summary("second")["initial_weights"] == begun
    assert summary("second")["train_loss"] == summary("whole")["train_loss"]


def test_a_name_and_latest_mean_runs_of_this_folder() -> None:
    assert main([*SMALL, "run.name=first"]) == 0
    for source, name in (("first", "second"), ("latest", "third")):
        assert main([*SMALL, f"trainer.init_from={source}", f"run.name={name}"]) == 0
    runs = Path("runs").resolve()
    assert summary("runs/second")["initial_weights"]["run"] == str(runs / "first")
    assert summary("runs/third")["initial_weights"]["run"] == str(runs / "second")


@pytest.mark.parametrize("search", [False, True])
def test_in_a_sweep_latest_is_the_run_before_it(search: bool) -> None:
    assert main([*SMALL, "run.name=first"]) == 0
    asked = ["trainer.lr=0.01,0.02"]
    if search:
        asked = ["sweep=optuna", "sweep.trials=2", "trainer.lr=interval(0.01,0.02)"]
    assert main(["-m", *SMALL, "trainer.init_from=latest", *asked]) == 0
    summaries = list(Path("runs/multirun").glob("*/*/summary.json"))
    assert len(summaries) == 2
    first = str(Path("runs/first").resolve())
    assert [summary(str(s.parent))["initial_weights"]["run"] for s in summaries] == [first] * 2


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (["model.hidden_channels=16"], ["convs.0.lin_l.weight", "[8, 64]", "[16, 64]", "=8"]),
        (["model=gcn"], ["convs.0.lin.weight", "absent", "model=sage"]),
        (["model.num_layers=3", "sampler.fan_outs=[5,5,5]"], ["convs.2.lin_l.weight", "=2"]),
        (["dataset.num_features=9"], ["64 features", "9"]),
        (["trainer.init_from=nowhere"], ["nowhere"]),
    ],
)
def test_what_does_not_fit_is_a_sentence_and_leaves_no_run(
    capsys: pytest.CaptureFixture[str], keys: list[str], named: list[str]
) -> None:
    assert main([*SMALL, "run.dir=first"]) == 0
    asked = [*SMALL, "trainer.init_from=first", "run.dir=second"]
    assert main([*asked, *keys]) == 2
    told = capsys.readouterr().err
    assert all(word in told for word in named), told
    assert "Traceback" not in told
    assert not Path("second").exists()


@pytest.mark.parametrize(
    "model",
    [
        {"name": "sage", "residual": True, "norm": "batch"},
        {"name": "sage", "jk": "cat"},
        {"name": "sage", "jk": "max", "num_layers": 3},
        {"name": "gat", "heads": 2},
        {"name": "gatv2", "heads": 2, "residual": True},
        {"name": "gin"},
        {"name": "gcn", "norm": "layer"},
        {"name": "mlp"},
    ],
    ids=str,
)
def test_any_model_takes_all_but_its_last_layer(tmp_path: Path, model: dict[str, Any]) -> None:
    seven = stored(tmp_path / "seven", random_graph(num_classes=7))
    run_of(tmp_path / "run", seven, model)
    model = {"hidden_channels": 8, **model}
    sampler = {"fan_outs": [5] * model.get("num_layers", 2)}
    trainer = {"init_from": str(tmp_path / "run")}
    config = from_dict({"model": model, "sampler": sampler, "trainer": trainer})
    for num_classes in (7, 3):
        made = build_model(config.model, seven.num_features, num_classes)
        before = {name: weight.clone() for name, weight in made.state_dict().items()}
        told = take_weights(config, made)
        assert told is not None
        given = best(str(tmp_path / "run"))
        for name, weight in made.state_dict().items():
            fits = name in given and given[name].shape == weight.shape
            assert torch.equal(weight, given[name] if fits else before[name])
            assert fits or name.startswith(made.output_layer)
        assert (told.num_taken == told.num_parameters) == (num_classes == 7)


class Plain(torch.nn.Module):
    """A model of one's own, whose last layer is called `out`."""

    def __init__(self, width: int, num_outputs: int) -> None:
        super().__init__()
        self.into = torch.nn.Linear(5, width)
        self.out = torch.nn.Linear(width, num_outputs)


def test_a_models_last_layer_is_its_last_layer(tmp_path: Path) -> None:
    from torch_geometric.nn import GraphSAGE

    sage = PlainModel(GraphSAGE(5, 8, num_layers=2, out_channels=3), "own", 3)
    assert sage.output_layer == ("module.convs.1.",)
    assert PlainModel(Plain(4, 3), "own", 3).output_layer == ("module.out.",)
    store = stored(tmp_path / "store")
    config = from_dict({"trainer": {"init_from": str(tmp_path / "run")}})
    write_run(tmp_path / "run", store, config, PlainModel(Plain(4, 3), "own", 3))
    told = take_weights(config, PlainModel(Plain(4, 7), "own", 7))
    assert told is not None
    assert (told.num_taken, told.num_parameters) == (5 * 4 + 4, 5 * 4 + 4 + 7 * 5)
    with pytest.raises(UserError, match=r"module\.into\.weight"):
        take_weights(config, PlainModel(Plain(6, 7), "own", 7))


def test_without_the_key_nothing_is_taken() -> None:
    config = from_dict({})
    assert take_weights(config, build_model(config.model, 5, 3)) is None


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        ("age,spent", [], []),
        ("spent,age", [], ["age there and spent here"]),
        ("age,spent", ["dataset.standardize=false"], ["dataset.standardize"]),
    ],
)
def test_features_of_another_order_or_scale_are_told(
    columns: str, options: list[str], told: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    for name, head in (("first", "age,spent"), ("second", columns)):
        rows = [f"n{at},{at % 3 + 0.5},{at % 5 + 0.25},{'ab'[at % 2]}\n" for at in range(20)]
        Path(f"{name}.csv").write_text(f"id,{head},label\n" + "".join(rows))
    edges = "".join(f"n{at},n{(at + 1) % 20}\n" for at in range(20))
    Path("edges.csv").write_text(f"source,target\n{edges}")
    usual = ["dataset=files", "dataset.edges=edges.csv", "dataset.standardize=true"]
    usual += ["trainer.gpus=0", "trainer.epochs=1", "model.hidden_channels=4"]
    assert main([*usual, "dataset.features=first.csv", "run.dir=runs/first"]) == 0
    capfd.readouterr()
    more = ["dataset.features=second.csv", "trainer.init_from=first", "run.dir=runs/second"]
    assert main([*usual, *more, *options]) == 0
    lines = capfd.readouterr().err.splitlines()
    messages = [line for line in lines if "trainer.init_from" in line]
    assert len(messages) == len(told)
    assert all(words in text for words, text in zip(told, messages, strict=True))


def test_features_of_any_type_in_another_order_are_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    people = "".join(f"p{at},{at % 3},{'ab'[at % 2]}\n" for at in range(20))
    Path("people.csv").write_text(f"id,age,label\n{people}")
    shops = "".join(f"s{at},{at + 0.5},{at + 0.25}\n" for at in range(4))
    for name, head in (("first", "size,rent"), ("second", "rent,size")):
        Path(f"{name}.csv").write_text(f"id,{head}\n{shops}")
        nodes = f"{{person: {{files: people.csv, label: label}}, shop: {{files: {name}.csv}}}}"
        edges = "{shop/knows/person: {files: edges.csv}}"
        Path(f"{name}.yaml").write_text(f"nodes: {nodes}\nedges: {edges}\n")
    edges = "".join(f"s{at % 4},p{at}\n" for at in range(20))
    Path("edges.csv").write_text(f"source,target\n{edges}")
    usual = ["dataset=files", "model=rgcn", "model.hidden_channels=4", "trainer.gpus=0"]
    usual += ["trainer.epochs=1"]
    assert main([*usual, "dataset.schema=first.yaml", "run.dir=runs/first"]) == 0
    capfd.readouterr()
    more = ["dataset.schema=second.yaml", "trainer.init_from=first", "run.dir=runs/second"]
    assert main([*usual, *more]) == 0
    lines = capfd.readouterr().err.splitlines()
    (message,) = [line for line in lines if "trainer.init_from" in line]
    assert "shop" in message
    assert "size there and rent here" in message


def typed_source(data: HeteroGraphData) -> Config:
    """A run on a typed graph begins with the weights of the run `run`."""
    graph = hetero_graph(data)
    model = {"name": "rgcn", "hidden_channels": 8, "num_bases": 2}
    raw = {"model": model, "trainer": {"init_from": "run"}}
    return resolved_source(from_dict(raw), graph)


def test_a_typed_model_takes_its_tables_too(tmp_path: Path) -> None:
    _, trained = run_of_types(tmp_path, {"name": "rgcn", "num_bases": 2})
    data = typed_ids()
    config = typed_source(replace(data, labels=data.labels % 2, num_classes=2))
    graph = hetero_graph(data)
    torch.manual_seed(7)
    model = build_model(config.model, graph.schema, 2)
    taken = take_weights(config, model)
    assert taken is not None
    assert taken.num_taken > sum(w.numel() for n, w in model.state_dict().items() if "tables" in n)
    weights, before = model.state_dict(), trained.state_dict()
    is_same = {
        n: before[n].shape == w.shape and torch.equal(before[n], w) for n, w in weights.items()
    }
    assert all(same for name, same in is_same.items() if not name.startswith("convs.1."))
    assert not all(is_same.values())


@pytest.mark.parametrize(
    ("values", "named"),
    [({"num_nodes": 9}, ["venue", "7", "9"]), ({"features": np.ones((7, 2))}, ["venue", "2"])],
)
def test_other_nodes_of_a_type_are_told(
    tmp_path: Path, values: dict[str, Any], named: list[str]
) -> None:
    run_of_types(tmp_path, {"name": "rgcn", "num_bases": 2})
    data = random_hetero_data()
    nodes = {**data.nodes, "venue": replace(data.nodes["venue"], **values)}
    with pytest.raises(UserError) as caught:
        typed_source(replace(data, nodes=nodes))
    assert all(word in caught.value.message for word in named)


def test_further_types_are_told(tmp_path: Path) -> None:
    run_of_types(tmp_path, {"name": "rgcn", "num_bases": 2})
    data = typed_ids()
    edges = {**data.edges, ("venue", "hosts", "author"): (np.array([1]), np.array([2]))}
    with pytest.raises(UserError, match="venue/hosts/author"):
        typed_source(replace(data, edges=edges))
