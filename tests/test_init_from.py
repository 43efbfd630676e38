"""`trainer.init_from`: a new run begins with the best weights of another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from torch import Tensor

from gnntrain.cli import main
from gnntrain.config import from_dict
from gnntrain.data.graph import EdgeData
from gnntrain.errors import UserError
from gnntrain.init_from import resolved_source, take_weights
from gnntrain.models import build_model
from gnntrain.training.checkpoint import load_checkpoint
from tests.data.files import FEATURES, LABELS, write
from tests.graphs import random_graph, stored
from tests.hetero_graphs import hetero_graph
from tests.packages import install
from tests.results.runs import run_of
from tests.results.test_typed_prediction import run_of as run_of_types
from tests.results.test_typed_prediction import with_ids as typed_ids
from tests.summaries import summary_of

SMALL = ["trainer.gpus=0", "dataset.num_nodes=300", "model.hidden_channels=8", "trainer.epochs=2"]


pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run that others begin with; nobody changes it."""
    folder = tmp_path_factory.mktemp("first")
    keys = [f"dataset.store_dir={folder}/stores", f"run.dir={folder}/first"]
    assert main([*SMALL, *keys]) == 0
    return f"{folder}/first"


def best(run: str) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = load_checkpoint(Path(run) / "checkpoints" / "best.pt")["model"]
    return weights


# A learning rate at which a step changes no weight in float32.
STILL = "trainer.lr=1e-30"


def test_a_run_begins_with_the_best_weights_of_another(first: str) -> None:
    more = [STILL, f"trainer.init_from={first}", "distributed.num_processes=2"]
    assert main([*SMALL, *more, "run.dir=second", "dataset.seed=7"]) == 0
    before, after = best(first), best("second")
    assert all(torch.equal(before[name], after[name]) for name in before)
    told = summary_of("second")["initial_weights"]
    assert told["num_taken"] == told["num_parameters"] == summary_of("second")["num_parameters"]
    assert told["epoch"] == summary_of(first)["best_epoch"]
    assert told["run"] == str(Path(first).resolve())
    written = yaml.safe_load(Path("second/config.yaml").read_text())
    assert written["trainer"]["init_from"] == str(Path(first).resolve())
    assert "initial_weights" not in summary_of(first)


def test_the_last_layer_begins_anew_where_there_are_other_classes(
    first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [STILL, f"trainer.init_from={first}", "dataset.num_classes=3", "run.dir=second"]
    assert main([*SMALL, *more]) == 0
    before, after = best(first), best("second")
    assert torch.equal(before["convs.0.lin_l.weight"], after["convs.0.lin_l.weight"])
    told = summary_of("second")["initial_weights"]
    last = sum(weight.numel() for name, weight in after.items() if name.startswith("convs.1."))
    assert told["num_taken"] == told["num_parameters"] - last
    assert f"{told['num_taken']:,} of {told['num_parameters']:,}" in capsys.readouterr().out
    assert main([*SMALL, "dataset.num_classes=3", STILL, "run.dir=third"]) == 0
    fresh = best("third")
    assert torch.equal(fresh["convs.1.lin_l.weight"], after["convs.1.lin_l.weight"])


@pytest.mark.parametrize(
    ("keys", "fresh"),
    [
        (["model.num_layers=3", "sampler.fan_outs=[5,5,5]"], ("convs.2.",)),
        (["dataset.num_features=9"], ("convs.0.lin_l.weight", "convs.0.lin_r.weight")),
    ],
)
def test_weights_of_another_shape_begin_at_random_and_are_named(
    first: str, capsys: pytest.CaptureFixture[str], keys: list[str], fresh: tuple[str, ...]
) -> None:
    assert main([*SMALL, *keys, STILL, f"trainer.init_from={first}", "run.dir=second"]) == 0
    (line,) = [text for text in capsys.readouterr().err.splitlines() if "init_from" in text]
    before = best(first)
    for name, weight in best("second").items():
        assert (name in line) == name.startswith(fresh)
        assert name in line or torch.equal(weight, before[name])


def test_a_resumed_run_keeps_its_own_weights_even_where_the_first_run_has_gone() -> None:
    assert main([*SMALL, "run.dir=first"]) == 0
    assert main([*SMALL, "trainer.init_from=first", "run.dir=second"]) == 0
    assert main([*SMALL, "trainer.init_from=first", "run.dir=whole", "trainer.epochs=4"]) == 0
    begun = summary_of("second")["initial_weights"]
    Path("first").rename("elsewhere")
    assert main(["resume", "second", "trainer.epochs=4"]) == 0
    assert summary_of("second")["initial_weights"] == begun
    assert summary_of("second")["train_loss"] == summary_of("whole")["train_loss"]


def test_a_name_and_latest_mean_runs_of_this_folder() -> None:
    assert main([*SMALL, "run.name=first"]) == 0
    for source, name in (("first", "second"), ("latest", "third")):
        assert main([*SMALL, f"trainer.init_from={source}", f"run.name={name}"]) == 0
    runs = Path("runs").resolve()
    assert summary_of("runs/second")["initial_weights"]["run"] == str(runs / "first")
    assert summary_of("runs/third")["initial_weights"]["run"] == str(runs / "second")


def test_a_sweep_begins_with_a_run_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", *SMALL, "trainer.init_from=latest", "trainer.lr=0.01,0.02"]) == 2
    assert capsys.readouterr().err.count("each trial becomes the latest run") == 1
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (["model.hidden_channels=16"], ["convs.0.lin_l.weight", "config.yaml"]),
        (["model=gcn"], ["convs.0.lin.weight", "model=sage"]),
        (["trainer.init_from=nowhere"], ["nowhere"]),
    ],
)
def test_what_does_not_fit_is_a_sentence_and_leaves_no_run(
    first: str, capsys: pytest.CaptureFixture[str], keys: list[str], named: list[str]
) -> None:
    asked = [*SMALL, f"trainer.init_from={first}", "run.dir=second"]
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
        {"name": "gat", "heads": 2},
    ],
    ids=str,
)
def test_any_model_takes_all_but_its_outputs(tmp_path: Path, model: dict[str, Any]) -> None:
    seven = stored(tmp_path / "seven", random_graph(num_classes=7))
    run_of(tmp_path / "run", seven, model)
    model = {"hidden_channels": 8, **model}
    sampler = {"fan_outs": [5] * model.get("num_layers", 2)}
    trainer = {"init_from": str(tmp_path / "run")}
    config = from_dict({"model": model, "sampler": sampler, "trainer": trainer})
    for num_classes in (7, 3):
        graph = stored(tmp_path / str(num_classes), random_graph(num_classes=num_classes))
        made = build_model(config.model, graph.schema, num_classes)
        before = {name: weight.clone() for name, weight in made.state_dict().items()}
        told = take_weights(config, made, graph)
        assert told is not None
        given = best(str(tmp_path / "run"))
        for name, weight in made.state_dict().items():
            fits = name in given and given[name].shape == weight.shape
            assert torch.equal(weight, given[name] if fits else before[name])
        assert (told["num_taken"] == told["num_parameters"]) == (num_classes == 7)


def test_a_model_of_ones_own_takes_all_but_its_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
        import torch

        class Plain(torch.nn.Module):
            def __init__(self, in_channels, out_channels, width=4):
                super().__init__()
                self.out = torch.nn.Linear(width, out_channels)
                self.into = torch.nn.Linear(in_channels, width)

            def forward(self, x, edge_index):
                return self.out(self.into(x))

            def get_extra_state(self):
                return {"version": 1}  # no tensor

            def set_extra_state(self, state):
                assert state == {"version": 1}
    """
    points = "[gnntrain.models]\nplain_taken = plain_taken:Plain\n"
    install(tmp_path / "packages", monkeypatch, "plain_taken", code, points)
    keys = [key for key in SMALL if not key.startswith("model.")]
    keys += ["model=plugin", "model.name=plain_taken"]
    assert main([*keys, "run.dir=first"]) == 0
    assert main(["evaluate", "first"]) == 0
    more = [STILL, "trainer.init_from=first", "dataset.num_classes=3"]
    assert main([*keys, *more, "run.dir=second"]) == 0
    told = summary_of("second")["initial_weights"]
    assert (told["num_taken"], told["num_parameters"]) == (64 * 4 + 4, 64 * 4 + 4 + 4 * 3 + 3)
    assert main([*keys, *more, "+model.options.width=6", "run.dir=third"]) == 2


def people(columns: str, prefix: str = "") -> list[str]:
    """Keys that read the small graph with features of these names, and classes called otherwise."""
    labels = LABELS.replace(",a", f",{prefix}a")
    written = write(Path(), {"features": FEATURES.replace("f0,f1", columns), "labels": labels})
    return ["dataset=files", *(f"dataset.{role}={path}" for role, path in written.items())]


QUICK = ["trainer.gpus=0", "trainer.epochs=1", "model.hidden_channels=8", "sampler=full"]


@pytest.mark.parametrize(
    ("columns", "prefix", "layer"), [("spent,age", "", 0), ("age,spent", "new ", 1)]
)
def test_weights_of_other_features_or_classes_begin_at_random_even_of_as_many(
    columns: str, prefix: str, layer: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*QUICK, *people("age,spent"), "run.dir=first"]) == 0
    capfd.readouterr()
    keys = [*QUICK, *people(columns, prefix), STILL]
    assert main([*keys, "trainer.init_from=first", "run.dir=second"]) == 0
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "init_from" in line]
    assert main([*keys, "run.dir=third"]) == 0
    for at in (0, 1):
        name = f"convs.{at}.lin_l.weight"
        assert (name in line) == (at == layer)
        expected = best("third" if at == layer else "first")[name]
        assert torch.equal(best("second")[name], expected)


def test_rows_that_were_learnt_for_other_nodes_begin_at_random(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_of_types(tmp_path, {"name": "rgcn", "num_bases": 2})
    data, raw = typed_ids(), {"name": "rgcn", "num_bases": 2, "hidden_channels": 8}
    config = from_dict({"model": raw, "trainer": {"init_from": "run"}})
    resolved_source(config, hetero_graph(data))
    assert "random" not in caplog.text
    ids = np.array([f"v{at}".encode() for at in range(data.nodes["venue"].num_nodes)])
    nodes = {**data.nodes, "venue": replace(data.nodes["venue"], ids=ids)}
    resolved_source(config, hetero_graph(replace(data, nodes=nodes)))
    assert "tables.venue.weight" in caplog.text


def test_further_types_are_told(tmp_path: Path) -> None:
    run_of_types(tmp_path, {"name": "rgcn", "num_bases": 2})
    data = typed_ids()
    edges = {**data.edges, ("venue", "hosts", "author"): EdgeData(np.array([1]), np.array([2]))}
    raw = {"model": {"name": "rgcn"}, "trainer": {"init_from": "run"}}
    with pytest.raises(UserError, match="venue/hosts/author"):
        resolved_source(from_dict(raw), hetero_graph(replace(data, edges=edges)))
