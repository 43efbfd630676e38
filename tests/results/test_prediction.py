"""Predictions in files: the right numbers for the right nodes, in the user's words."""

from __future__ import annotations

import csv
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from gnntrain.cli import main
from gnntrain.commands.results import predicting_config
from gnntrain.config import Config, FilesConfig, TrainerConfig, from_dict
from gnntrain.data.graph import AnyArray
from gnntrain.data.store import StoredGraph
from gnntrain.errors import RunError, UserError
from gnntrain.inference import infer
from gnntrain.results import prediction
from gnntrain.results.export import export
from gnntrain.results.prediction import predict
from gnntrain.run import train
from gnntrain.run_store import prepare_store
from tests.graphs import random_graph, stored
from tests.results.runs import logits_of, run_of

IDS = [f'n"{i},é' if i % 7 == 0 else f"node {i}" for i in range(60)]
NAMES = ["cat", "dog, big", "emu"]
SAGE = {"name": "sage"}


def encoded(texts: list[str]) -> AnyArray:
    return np.array([text.encode() for text in texts])


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "_CHUNK_NUMBERS", 50)


@pytest.fixture
def store(tmp_path: Path) -> StoredGraph:
    data = random_graph(node_ids=encoded(IDS), class_names=encoded(NAMES))
    return stored(tmp_path / "store", data)


def columns(path: Path) -> dict[str, list[Any]]:
    """A table's columns, with the nodes' ids first."""
    if path.suffix == ".parquet":
        return {str(k): v.tolist() for k, v in pd.read_parquet(path).items()}
    with path.open(newline="", encoding="utf-8") as file:
        names, *rows = csv.reader(file)
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".npz", ".npy"])
def test_classes_have_the_users_words_and_the_probability_of_the_model(
    tmp_path: Path, store: StoredGraph, ending: str
) -> None:
    model = run_of(tmp_path / "run", store, SAGE)
    done = predict(tmp_path / "run", tmp_path / f"out{ending}")
    assert (done.num_rows, done.epoch) == (60, 3)
    probability, code = logits_of(store, model).softmax(1).max(1)
    expected = [NAMES[i] for i in code.tolist()]
    assert len(set(expected)) > 1
    if ending == ".npy":
        assert np.load(done.path).tolist() == expected
        return
    found: Any = np.load(done.path) if ending == ".npz" else columns(done.path)
    assert list(found["node"]) == IDS
    assert list(found["class"]) == expected
    assert [float(p) for p in found["probability"]] == pytest.approx(probability.tolist(), rel=1e-5)


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_probabilities_have_a_column_a_class(
    tmp_path: Path, store: StoredGraph, ending: str
) -> None:
    model = run_of(tmp_path / "run", store, SAGE)
    predict(tmp_path / "run", tmp_path / f"out{ending}", what="probabilities", nodes="test")
    found = columns(tmp_path / f"out{ending}")
    expected = logits_of(store, model).softmax(1)[store.split("test")]
    assert found.pop("node") == [IDS[i] for i in store.split("test")]
    assert list(found) == [f"probability_{name}" for name in NAMES]
    for i, values in enumerate(found.values()):
        assert [float(p) for p in values] == pytest.approx(expected[:, i].tolist(), rel=1e-5)


def test_of_two_classes_both_have_a_probability(tmp_path: Path) -> None:
    store = stored(tmp_path / "store", random_graph(task="binary", num_classes=2))
    model = run_of(tmp_path / "run", store, SAGE)
    second = logits_of(store, model)[:, 0].sigmoid()
    predict(tmp_path / "run", tmp_path / "p.npy", what="probabilities")
    found = np.load(tmp_path / "p.npy")
    np.testing.assert_allclose(found[:, 1], second, rtol=1e-5)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-6)
    predict(tmp_path / "run", tmp_path / "c.npz")
    classes = np.load(tmp_path / "c.npz")
    assert classes["class"].tolist() == (second > 0.5).int().tolist()
    np.testing.assert_allclose(classes["probability"], found.max(1), rtol=1e-5)
    assert classes["node"].tolist() == list(range(60))
    predict(tmp_path / "run", tmp_path / "l.csv", what="logits")
    assert list(columns(tmp_path / "l.csv")) == ["node", "logit"]


def test_several_labels_are_0_or_1_each(tmp_path: Path) -> None:
    data = random_graph(task="multilabel", class_names=encoded(NAMES))
    store = stored(tmp_path / "store", data)
    model = run_of(tmp_path / "run", store, SAGE)
    predict(tmp_path / "run", tmp_path / "out.parquet")
    found = columns(tmp_path / "out.parquet")
    assert list(found) == ["node", *(f"class_{name}" for name in NAMES)]
    rows = torch.tensor([found[f"class_{name}"] for name in NAMES]).T
    assert torch.equal(rows, (logits_of(store, model) > 0).to(rows.dtype))


@pytest.mark.parametrize("num_layers", [1, 2])
def test_embeddings_enter_the_last_layer(
    tmp_path: Path, store: StoredGraph, num_layers: int
) -> None:
    model = run_of(tmp_path / "run", store, {"name": "mlp", "num_layers": num_layers})
    predict(tmp_path / "run", tmp_path / "out.npz", what="embeddings", nodes="val")
    found = torch.from_numpy(np.load(tmp_path / "out.npz")["embeddings"])
    expected = logits_of(store, model)[store.split("val")]
    torch.testing.assert_close(model.convs[-1](found).detach(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["ids.txt", "ids.csv", "ids.npy"])
def test_nodes_are_written_in_the_order_of_a_file(
    tmp_path: Path, store: StoredGraph, name: str
) -> None:
    model = run_of(tmp_path / "run", store, SAGE)
    wanted = [31, 7, 0, 31]
    path = tmp_path / name
    ids = [IDS[i] for i in wanted]
    if name == "ids.npy":
        np.save(path, np.array(ids))
    elif name == "ids.txt":
        path.write_text("\n".join(["id", *ids]), encoding="utf-8")
    else:
        pd.DataFrame({"other": "x", "id": ids}).to_csv(path, index=False)
    predict(tmp_path / "run", tmp_path / "out.npz", what="logits", nodes=path)
    found = np.load(tmp_path / "out.npz")
    assert found["node"].tolist() == [IDS[i] for i in wanted]
    np.testing.assert_allclose(found["logits"], logits_of(store, model)[wanted], rtol=1e-5)
    assert found["class_names"].tolist() == NAMES


def test_what_cannot_be_is_told_before_anything_is_computed(
    tmp_path: Path, store: StoredGraph
) -> None:
    run_of(tmp_path / "run", store, SAGE)
    (tmp_path / "old.csv").write_text("precious")
    (tmp_path / "ids.txt").write_text("who\nnode 1\nnode 99\n")
    refused: dict[str, dict[str, Any]] = {
        "old.csv is there already; nothing was overwritten": {"out": "old.csv"},
        "the ending '.xls' does not say": {"out": "x.xls"},
        "There is no folder": {"out": "no/where.csv"},
        "--what clas is not known": {"what": "clas"},
        "--nodes nobody: there is no such file": {"nodes": "nobody"},
        r"(?s)2 bad rows .*ids.txt row 0: node 'who' is not in the graph": {
            "nodes": tmp_path / "ids.txt"
        },
    }
    for message, options in refused.items():
        given = {"out": "x.csv", **options}
        with pytest.raises(UserError, match=message):
            predict(tmp_path / "run", tmp_path / given.pop("out"), **given)
    assert (tmp_path / "old.csv").read_text() == "precious"
    assert not (tmp_path / "x.csv").exists()


@pytest.mark.parametrize("ending", [".csv", ".npz"])
def test_a_full_disk_gives_a_sentence_and_leaves_nothing(
    tmp_path: Path, store: StoredGraph, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_of(tmp_path / "run", store, SAGE)
    write = prediction._WRITERS[ending]

    def fill(file: Any, result: prediction.Result) -> None:
        write(file, result)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prediction, "_WRITERS", {ending: fill})
    with pytest.raises(RunError, match="No space left"):
        predict(tmp_path / "run", tmp_path / f"out{ending}")
    assert not list(tmp_path.glob("*out*"))


def test_predictions_join_the_file_that_the_nodes_are_from(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids = [f"{i:05}" for i in range(40)]
    users = pd.DataFrame({"id": ids, "x": rng.normal(size=40), "label": ["01", "1"] * 20})
    users.to_csv(tmp_path / "nodes.csv", index=False)
    ends = {"source": rng.choice(ids, 150), "target": rng.choice(ids, 150)}
    pd.DataFrame(ends).to_csv(tmp_path / "edges.csv", index=False)
    files: dict[str, Any] = {
        "edges": str(tmp_path / "edges.csv"),
        "features": str(tmp_path / "nodes.csv"),
    }
    store = prepare_store(FilesConfig(**files, store_dir=str(tmp_path / "stores"))).store
    run_of(tmp_path / "run", store, SAGE)
    wanted = tmp_path / "wanted.txt"
    wanted.write_text("00007\n00003\n")
    predict(tmp_path / "run", tmp_path / "out.csv", nodes=wanted)
    found = columns(tmp_path / "out.csv")
    assert found["node"] == ["00007", "00003"]
    assert set(found["class"]) <= {"01", "1"}
    wanted.write_text("7\n")
    with pytest.raises(UserError, match="row 0: node '7' is not in the graph, which has '00007'"):
        predict(tmp_path / "run", tmp_path / "other.csv", nodes=wanted)


def test_another_graph_is_prepared_as_the_runs_was() -> None:
    saved = from_dict({"dataset": {"to_undirected": True, "num_nodes": 500}}).to_dict()
    cora = predicting_config(saved, ["dataset=cora"]).dataset
    assert (cora.name, cora.to_undirected, cora.normalize_features) == ("cora", True, False)
    asked = predicting_config(saved, ["dataset=cora", "dataset.to_undirected=false"]).dataset
    assert not asked.to_undirected


def test_keys_that_would_make_another_model_are_refused() -> None:
    saved = from_dict({}).to_dict()
    assert predicting_config(saved, ["trainer.gpus=0"]).trainer.gpus == 0
    with pytest.raises(UserError, match=r"model.dropout"):
        predicting_config(saved, ["model.dropout=0.1"])
    elsewhere = from_dict({"trainer": {"gpus": 99}, "sampler": {"backend": "triton"}}).to_dict()
    assert predicting_config(elsewhere, ["evaluation.memory_limit=1"]).trainer.gpus == 99


def test_files_below_a_root_are_looked_for_here_or_below_another_root(here: Path) -> None:
    for folder in ("old", "new", "."):
        (here / folder).mkdir(exist_ok=True)
        for name in ("edges.csv", "features.csv"):
            (here / folder / name).touch()
    files = {"edges": "edges.csv", "features": "features.csv"}
    saved = from_dict({"dataset": {"name": "mine", "root": "old", **files}}).to_dict()

    def paths(*keys: str) -> list[str]:
        found = predicting_config(saved, keys).dataset
        assert isinstance(found, FilesConfig)
        return [str(Path(str(p)).relative_to(here)) for p in (found.edges, found.features)]

    assert paths("dataset.features=features.csv") == ["old/edges.csv", "features.csv"]
    assert paths("dataset.root=new") == ["new/edges.csv", "new/features.csv"]


def table_of_people(path: Path, standardize: bool) -> list[str]:
    """A table to train on and a ring of edges; keys that read it."""
    rng = np.random.default_rng(0)
    people = pd.DataFrame({"id": [f"p{at}" for at in range(60)]})
    people["income"] = rng.normal(50, 5, 60).round(2)
    people["age"] = rng.integers(20, 60, 60)
    people["member"] = rng.integers(0, 2, 60)
    people["year"] = 2025
    people["country"] = rng.choice(["de", "fr"], 60)
    people["label"] = rng.choice(["no", "yes", "maybe"], 60)
    people["town"] = ["a"] * 5 + ["b"] * 40 + [None] * 15
    people.to_csv(path / "seen.csv", index=False)
    ring = pd.DataFrame({"source": people["id"], "target": np.roll(people["id"], 1)})
    ring.to_csv(path / "edges.csv", index=False)
    keys = ["dataset=files", f"dataset.root={path}", "dataset.edges=edges.csv", "trainer.epochs=1"]
    keys += ["dataset.features=seen.csv", "dataset.categorical=[country,town]"]
    keys += ["dataset.missing=mean", "trainer.gpus=0"]
    return [*keys, f"dataset.standardize={standardize}"]


@pytest.mark.parametrize(("standardize", "dtype"), [(False, "float32"), (True, "bfloat16")])
def test_another_graph_that_is_unlike_the_runs_is_told(
    here: Path, capfd: pytest.CaptureFixture[str], standardize: bool, dtype: str
) -> None:
    keys = [*table_of_people(here, standardize), f"dataset.feature_dtype={dtype}"]
    assert main([*keys, "run.dir=run"]) == 0

    strict = ["predict", "run", "--strict", "dataset.edges=edges.csv", "dataset.features=new.csv"]
    strict += ["dataset.missing=mean", "--out"]

    def predicted(edges: str = "edges.csv") -> list[str]:
        """The warnings."""
        asked = ["predict", "run", f"dataset.edges={edges}", "dataset.features=new.csv"]
        capfd.readouterr()
        Path("values.csv").unlink(missing_ok=True)
        assert main([*asked, "dataset.missing=mean", "--out", "values.csv"]) == 0
        assert not pd.read_csv("values.csv").isna().any(axis=None)
        return capfd.readouterr().err.splitlines()

    def told(edges: str = "edges.csv", **changes: Any) -> list[str]:
        """The warnings of a graph with other columns."""
        people = pd.read_csv("seen.csv").drop(columns="label")
        people.assign(**changes).to_csv("new.csv", index=False)
        return predicted(edges)

    assert told() == []
    assert told(income=np.linspace(40, 60, 60)) == []
    assert main([*strict, "kept.csv"]) == 0
    (line,) = told(income=np.linspace(40, 60, 60) * 100)
    assert ["income" in line for line in predicted()] == [True]  # by the store of the files
    assert "income" in line
    assert "deviations" in line
    assert "year" in told(year=2026)[0]
    assert main([*strict, "refused.csv"]) == 2
    assert not Path("refused.csv").exists()
    (line,) = told(income=np.nan)
    assert "income" in line
    assert "empty" in line
    (line,) = told(age=[True, False] * 30, member=[True, False] * 30)
    assert "age" in line
    assert "member" not in line
    (line,) = told(country=["at"] * 15 + ["de"] * 45)
    assert "country: 25.0% of the nodes" in line
    assert told(town=["b"] * 35 + [None] * 25) == []  # a quarter had none in training
    (line,) = told(town=["b"] * 20 + [None] * 40)
    assert "town: 66.7% of the nodes" in line
    Path("none.csv").write_text("source,target\n")
    (line,) = told("none.csv")
    assert "no edges" in line


def test_values_to_fill_in_for_a_run_that_had_none_missing_are_refused(tmp_path: Path) -> None:
    data = {"x": np.ones((9, 2)), "y": np.arange(9) % 3, "edge_index": np.zeros((2, 1), int)}
    keys = FilesConfig(store_dir=str(tmp_path / "stores"))
    config = Config(dataset=keys, trainer=TrainerConfig(epochs=1, gpus=0))
    run = train(config, data=data)["run"]
    np.savez(tmp_path / "new.npz", x=np.full((9, 2), np.nan), edge_index=data["edge_index"])
    new = FilesConfig(data=str(tmp_path / "new.npz"), missing="mean")
    with pytest.raises(UserError, match=r"dataset.missing=mean: .* without missing"):
        infer(run, config=config.changed(dataset=new))


def test_features_normalized_for_a_model_are_normalized_alike_for_another_graph(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lower value elsewhere in the other graph changes nothing, nor in an exported model."""
    rng, ring = np.random.default_rng(0), np.arange(60)
    x, y = rng.normal(0, 1, (60, 3)), rng.integers(0, 3, 60)
    edges = np.stack([ring, np.roll(ring, 1)])
    more = np.vstack([x, [-50, 1, 2]])  # without an edge
    dataset = FilesConfig(normalize_features=True, standardize=True, store_dir=str(here / "stores"))
    config = Config(dataset=dataset, trainer=TrainerConfig(epochs=1, gpus=0))
    run = train(config, data={"x": x, "y": y, "edge_index": edges})["run"]
    expected = infer(run).logits
    found = infer(run, data={"x": more, "edge_index": edges}).logits
    torch.testing.assert_close(found[:60], expected)
    export(run, here / "export")
    monkeypatch.syspath_prepend(here / "export")
    monkeypatch.delitem(sys.modules, "model", raising=False)
    exported: Any = import_module("model")
    inputs = exported.prepare(more), torch.from_numpy(edges)
    torch.testing.assert_close(exported.load()(*inputs)[:60], expected)
    del sys.modules["model"]
