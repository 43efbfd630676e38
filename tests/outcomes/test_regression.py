"""A regression from the command line: trained, judged, resumed, predicted, exported, searched."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from gnntrain.cli import main
from gnntrain.data.store import StoredGraph
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.run import evaluate
from gnntrain.run_store import model_signature
from tests.hills import install_hills
from tests.summaries import epochs_of, summary_of

HILLS = ["dataset=hills", "task.type=node_regression", "trainer.gpus=0", "model.hidden_channels=16"]
SHORT = ["trainer.epochs=6", "trainer.lr=0.02", "model.dropout=0"]


@pytest.fixture(autouse=True)
def _hills(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_hills(here / "site", monkeypatch, "hills_of_others")


@pytest.fixture(scope="module")
def hilly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run `runs/hilly` of its folder, which tests read."""
    folder = tmp_path_factory.mktemp("hilly")
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as told:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        install_hills(folder / "site", patch, "hills_of_others")
        assert main([*HILLS, "trainer.epochs=60", *SHORT[1:], "run.name=hilly"]) == 0
    assert "2 targets" in told.getvalue()
    assert "val R2" in told.getvalue()
    return folder / "runs" / "hilly"


def store_of(run: Path) -> StoredGraph:
    record = RunDirectory.open(run).store_record()
    assert record is not None
    return StoredGraph.open(Path(record.path))


def test_a_regression_learns_and_predicts_in_the_users_units_and_words(
    hilly: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert summary_of(hilly)["metric"] == "r2"
    assert summary_of(hilly)["val"]["r2"] > 0.8
    monkeypatch.chdir(hilly.parents[1])
    commands = [["evaluate", "hilly"], ["ls", "runs"], ["plan", *HILLS, *SHORT], ["predict", "-h"]]
    for command, word in zip(commands, ("rmse", "R2", "2 targets", "value"), strict=True):
        assert main(command) == 0
        assert word in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    assert main(["predict", str(hilly), "--out", "all.csv"]) == 0
    found, graph = pd.read_csv("all.csv"), store_of(hilly)
    assert list(found) == ["node", "height", "slope"]
    for split in ("train", "val", "test"):
        nodes = graph.split(split)
        metrics = evaluate(hilly)["metrics"][split]
        assert metrics == pytest.approx(summary_of(hilly)[split], rel=1e-5)
        oracles = {"r2": r2_score, "rmse": root_mean_squared_error, "mae": mean_absolute_error}
        for name, oracle in oracles.items():
            values = []
            for target, column in enumerate(("height", "slope")):
                known = nodes[~np.isnan(graph.labels[nodes, target])]
                values.append(oracle(graph.labels[known, target], found[column][known]))
            assert metrics[name] == pytest.approx(np.mean(values), rel=1e-4)
    # Another graph is predicted in the units of the training.
    np.save("x.npy", graph.target_nodes.features)
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.only_edges.indptr))
    np.save("edges.npy", np.stack([graph.only_edges.indices, dst], axis=1))
    other = ["dataset=files", "dataset.features=x.npy", "dataset.edges=edges.npy"]
    assert main(["predict", str(hilly), "--out", "other.csv", *other]) == 0
    pd.testing.assert_frame_equal(pd.read_csv("other.csv"), found, rtol=1e-5)


def test_a_regression_predicts_no_classes_and_a_classification_no_values(
    hilly: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dataset.num_nodes=200", "trainer.epochs=1", "trainer.gpus=0", "run.dir=run"]) == 0
    wrong = [(str(hilly), what, "value") for what in ("class", "probabilities", "logits", "values")]
    for run, what, known in [*wrong, ("run", "value", "probabilities")]:
        capsys.readouterr()
        assert main(["predict", run, "--out", "a.csv", "--what", what]) == 2
        told = capsys.readouterr().err
        assert what in told
        assert known in told
        assert not Path("a.csv").exists()
    assert main(["predict", str(hilly), "--out", "a.npz", "--what", "embeddings"]) == 0
    assert main(["predict", str(hilly), "--out", "b.npz", "--nodes", "test"]) == 0
    found = np.load("b.npz")
    assert found["value"].shape == (len(store_of(hilly).split("test")), 2)
    assert found["target_names"].tolist() == ["height", "slope"]
    # Of a run of an older version: its record knows no scale of targets; its graph does.
    path = Path("run/store.json")
    record = json.loads(path.read_text())
    assert record["learnt"].pop("target_scale") is None
    path.write_text(json.dumps(record))
    assert model_signature(RunDirectory.open("run")).target_scale is None
    assert main(["predict", "run", "--out", "a.csv", "dataset.seed=3"]) == 0


@pytest.mark.parametrize("kind", ["npz", "schema"])
def test_a_time_in_seconds_is_learnt_and_predicted_to_its_last_digits(kind: str) -> None:
    """1.7e9 ± 60, of which float32 has steps of 128: judged by the numbers in the file."""
    rng = np.random.default_rng(0)
    t = 1.7e9 + rng.normal(0, 60, 300)
    when = t + rng.normal(0, 1, 300)
    table = pd.DataFrame({"id": np.arange(300), "t": t, "label": when})
    table["split"] = ["train"] * 200 + ["val"] * 50 + ["test"] * 50
    table.to_csv("nodes.csv", index=False)
    masks = {f"{name}_mask": table["split"] == name for name in ("train", "val", "test")}
    np.savez("nodes.npz", x=t[:, None], y=when, edge_index=np.zeros((2, 1), int), **masks)
    Path("edges.csv").write_text("source,target\n0,0\n")
    Path("graph.yaml").write_text(
        "nodes: {event: {files: nodes.csv, label: label, split: split}}\n"
        "edges: {event/after/event: {files: edges.csv}}"
    )
    files = ["dataset.schema=graph.yaml", "model=rgcn"]
    files = ["dataset.data=nodes.npz"] if kind == "npz" else files
    keys = ["dataset=files", *files, "dataset.standardize=true", "task.type=node_regression"]
    keys += ["trainer.gpus=0", "trainer.epochs=60", "trainer.lr=0.02", "model.dropout=0"]
    assert main([*keys, "model.hidden_channels=16", "run.dir=run"]) == 0
    assert main(["predict", "run", "--out", "all.csv"]) == 0
    error = mean_absolute_error(when[250:], pd.read_csv("all.csv").iloc[250:, 1])
    assert error < 20
    assert summary_of()["test"]["mae"] == pytest.approx(error, rel=1e-6)


def test_a_contradiction_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dataset=hills", "run.dir=run"]) == 2
    told = capsys.readouterr().err
    assert all(word in told for word in ("task.type=node_regression", "hills")), told
    assert not Path("run").exists()


def test_the_least_error_is_the_best_of_a_run_and_of_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install_hills(tmp_path / "other_site", monkeypatch, "hills_by_rmse", "rmse")
    keys = ["trainer.epochs=30", "trainer.lr=0.3", "trainer.patience=3"]
    assert main([*HILLS, *keys, "run.dir=run"]) == 0
    errors, told = [row["val/rmse"] for row in epochs_of()], summary_of()
    assert told["metric"] == "rmse"
    assert told["best_epoch"] == 1 + errors.index(min(errors))
    assert told["epochs"] in (told["best_epoch"] + 3, 30)
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    starred = [errors[i] == min(errors[: i + 1]) for i in range(len(errors))]
    assert ["*" in line for line in shown] == starred
    swept = ["sweep=optuna", "sweep.trials=4", "trainer.lr=tag(log,interval(1e-7,0.1))"]
    assert main(["-m", *HILLS, "trainer.epochs=5", *swept, "run.dir=sweep"]) == 0
    told = summary_of("sweep")
    trials = json.loads(Path("sweep/sweep.json").read_text())
    assert told["metric"] == "rmse"
    ended = [trial["val"] for trial in trials if trial["status"] == "completed"]
    assert told["best"]["val"] == min(ended)
    best = yaml.safe_load(Path("sweep/best.yaml").read_text())
    assert best["trainer"]["lr"] > 1e-6
