"""What a graph's summary says, and where it is told."""

from __future__ import annotations

import html
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnntrain.config import from_dict
from gnntrain.data.graph import PrepareOptions
from gnntrain.data.store import StoredGraph
from gnntrain.data.summary import DataSummary, from_plain, plain_summary, summary_of
from gnntrain.report.writing import write_report
from gnntrain.results.export import export
from gnntrain.run import prepare, train
from tests.graphs import random_graph, stored
from tests.hetero_graphs import random_hetero_data

PLAIN = PrepareOptions()


def summary(**graph: Any) -> DataSummary:
    task = graph.pop("task", "multiclass")
    return summary_of(replace(random_graph(**graph), task=task), PLAIN)


def quantities(count: int) -> Any:
    values = np.full((60, count), 3.0, np.float32)
    values[0] = 1.5
    values[1, -1] = np.nan
    return values


@pytest.mark.parametrize(
    ("graph", "key", "parts"),
    [
        (
            {
                "labels": np.array([0, 1, 2, -1] * 15),
                "class_names": np.array([b"red", "grün".encode(), b"blue"]),
            },
            "labels",
            ["3 classes: red, grün, blue", "15 of 60 nodes"],
        ),
        (
            {"labels": np.array([0.0, 1.0, np.nan] * 20), "num_classes": 2, "task": "binary"},
            "labels",
            ["2 classes", "20 of 60 nodes"],
        ),
        (
            {
                "labels": quantities(2),
                "task": "continuous",
                "num_classes": 2,
                "class_names": np.array([b"income", b"rate"]),
            },
            "labels",
            ["2 quantities: income from 1.5 to 3, rate from 1.5 to 3", "1 of 60 nodes"],
        ),
        (
            {"labels": quantities(1) * np.nan, "task": "continuous", "num_classes": 1},
            "labels",
            ["a quantity: 0", "60 of 60 nodes"],
        ),
        (
            {"num_features": 11, "feature_names": [f"f{i}" for i in range(11)]},
            "features",
            ["11 a node: f0, f1", "f9, …"],
        ),
        ({"features": None}, "features", ["none"]),
        ({"symmetric": True}, "edges", ["240 given", "both directions"]),
    ],
)
def test_what_the_arrays_say(graph: dict[str, Any], key: str, parts: list[str]) -> None:
    text = getattr(summary(**graph), key)
    assert all(part in text for part in parts)


def test_edges_and_features_as_they_are_stored() -> None:
    options = PrepareOptions(
        to_undirected=True, add_self_loops=True, normalize_features=True, feature_dtype="float16"
    )
    read = summary_of(random_graph(edge_weight=np.ones(240, np.float32)), options)
    assert all(word in read.edges for word in ("240", "weighted", "both directions", "self-loops"))
    assert "sum of 1" in read.features
    assert "float16" in read.features


def test_a_builders_own_words_stay_and_gaps_are_filled() -> None:
    own = DataSummary(ids="column name of a.csv", labels="column y", left_out={"z": "text"})
    read = summary_of(random_graph(summary=own), PLAIN)
    assert (read.ids, read.labels, read.left_out) == (own.ids, own.labels, own.left_out)
    assert "240" in read.edges
    assert "30 train" in read.split
    assert read.lines()[-1] == ("left out", "z (text)")


def test_a_graph_to_predict_for_has_neither_labels_nor_splits() -> None:
    read = summary_of(random_graph(labelled=False), PLAIN)
    assert read.labels == read.split == ""
    assert [label for label, _ in read.lines()] == ["features", "edges"]


def test_a_summary_survives_its_store_and_json(tmp_path: Path) -> None:
    own = DataSummary(ids="column name of a.csv", left_out={"z": "text"})
    stored(tmp_path / "store", random_graph(summary=own))
    store = StoredGraph.open(tmp_path / "store")
    plain = json.loads(json.dumps(plain_summary(store)))
    assert plain["split_sizes"] == {"train": 30, "val": 15, "test": 15}
    assert from_plain(plain) == store.summary
    assert store.summary is not None
    assert store.summary.ids == own.ids


@pytest.mark.parametrize("plain", [None, [], {}, {"split_sizes": {}}, {"ids": 3}, {"left_out": []}])
def test_what_is_no_summary_is_none(plain: object) -> None:
    assert from_plain(plain) is None


@pytest.fixture(scope="module")
def own_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run on a user's own files, and the summary that `train` returned."""
    folder = tmp_path_factory.mktemp("own")
    rng = np.random.default_rng(0)
    np.save(folder / "x.npy", rng.normal(size=(60, 3)).astype(np.float32))
    np.save(folder / "e.npy", rng.integers(0, 60, (240, 2)))
    np.save(folder / "y.npy", rng.integers(0, 3, 60))
    files = {
        "features": str(folder / "x.npy"),
        "edges": str(folder / "e.npy"),
        "labels": str(folder / "y.npy"),
    }
    config = from_dict(
        {
            "dataset": {"name": "files", "store_dir": str(folder), "to_undirected": True, **files},
            "trainer": {"epochs": 1, "gpus": 0},
            "model": {"hidden_channels": 4},
            "run": {"dir": str(folder / "run")},
        }
    )
    summary = train(config)
    assert prepare(config)["data"] == summary["data"]
    return folder, summary


def test_a_run_tells_what_was_read_everywhere(own_run: tuple[Path, dict[str, Any]]) -> None:
    folder, summary = own_run
    told = json.loads((folder / "run" / "summary.json").read_text())
    assert told["data"] == summary["data"]
    assert sum(told["data"]["split_sizes"].values()) == 60
    read = from_plain(told["data"])
    assert read is not None
    assert "3 classes" in read.labels
    assert read.edges.count("both directions") == 1  # the reader and the store could say it
    card = (export(folder / "run", folder / "model").path / "README.md").read_text()
    page = html.unescape(write_report([folder / "run"], folder / "r.html").read_text())
    for _, phrase in read.lines():
        assert phrase in card
        assert phrase in page


def test_a_typed_graph_names_its_types() -> None:
    read = summary_of(random_hetero_data(), PLAIN)
    assert "5 a node of type paper" in read.features
    assert "none of type venue" in read.features
    assert "author/writes/paper 160" in read.edges
    assert "both directions" in read.edges
    assert "20 train" in read.split


def test_loops_are_told_only_where_edges_stay_within_a_type() -> None:
    data, loops = random_hetero_data(), replace(PLAIN, add_self_loops=True)
    assert "self-loops" in summary_of(data, loops).edges
    data.edges = {name: ends for name, ends in data.edges.items() if name[0] != name[2]}
    assert "self-loops" not in summary_of(data, loops).edges
