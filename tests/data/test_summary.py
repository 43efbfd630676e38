"""What a graph's summary says, and where it is told."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnntrain.config import from_dict
from gnntrain.data.graph import GraphData, PrepareOptions
from gnntrain.data.summary import DataSummary, from_plain, summary_of
from gnntrain.report.writing import write_report
from gnntrain.results.export import export
from gnntrain.run import prepare, train
from tests.graphs import random_graph
from tests.hetero_graphs import random_hetero_data

PLAIN = PrepareOptions()
ALL = PrepareOptions(
    to_undirected=True, add_self_loops=True, normalize_features=True, feature_dtype="float16"
)
TYPED = random_hetero_data()
CLASSES = {
    "labels": np.array([0, 1, 2, -1] * 15),
    "class_names": np.array([b"red", "grün".encode(), b"blue"]),
}
RATES = np.full((60, 2), 3.0, np.float32)
RATES[0], RATES[1, 1] = [1.5, -2.0], np.nan
QUANTITIES = {
    **{"task": "continuous", "labels": RATES, "num_classes": 2},
    "class_names": np.array([b"income", b"rate"]),
}
FEATURES = {"num_features": 11, "feature_names": [f"f{i}" for i in range(11)]}
EDGES = "author/writes/paper 160, paper/cites/paper 120, paper/appears_in/venue 40 given"


@pytest.mark.parametrize(
    ("given", "options", "key", "text"),
    [
        (CLASSES, PLAIN, "labels", "3 classes: red, grün, blue; 15 of 60 nodes have none"),
        (
            *(QUANTITIES, PLAIN, "labels"),
            "2 quantities: income from 1.5 to 3, rate from -2 to 3; 1 of 60 nodes have none",
        ),
        (
            *(FEATURES, ALL, "features"),
            "11 a node: f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, …, scaled to a sum of 1 a node, "
            "stored as float16",
        ),
        (
            *({"edge_weight": np.ones(240, np.float32)}, ALL, "edges"),
            "240 given, weighted, stored in both directions, self-loops added",
        ),
        (
            *(TYPED, PLAIN, "features"),
            "5 a node of type paper, 3 a node of type author, none of type venue",
        ),
        (TYPED, ALL, "edges", f"{EDGES}, stored in both directions, self-loops added"),
        ({"labelled": False}, PLAIN, "labels", ""),
    ],
)
def test_what_the_arrays_say(given: Any, options: PrepareOptions, key: str, text: str) -> None:
    data = given if isinstance(given, GraphData) else random_graph(**given)
    assert getattr(summary_of(data, options), key) == text


def test_a_builders_own_words_stay_and_gaps_are_filled() -> None:
    own = DataSummary(ids="column name of a.csv", labels="column y", left_out={"z": "text"})
    read = summary_of(random_graph(summary=own), PLAIN)
    assert read.lines() == [
        ("ids", "column name of a.csv"),
        ("labels", "column y"),
        ("features", "5 a node"),
        ("edges", "240 given"),
        ("split", "30 train, 15 val, 15 test"),
        ("left out", "z (text)"),
    ]


def test_what_is_no_summary_is_none() -> None:
    assert from_plain(None) is from_plain({"split_sizes": {}}) is from_plain({"ids": 3}) is None


def test_a_run_tells_what_was_read_everywhere(tmp_path: Path) -> None:
    """Of a user's own files: in what `prepare` and `train` return, in the run, card and report."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "features": rng.normal(size=(60, 3)).astype(np.float32),
        "edges": rng.integers(0, 60, (240, 2)),
        "labels": rng.integers(0, 3, 60),
    }
    files = {name: str(tmp_path / f"{name}.npy") for name in arrays}
    for name, array in arrays.items():
        np.save(files[name], array)
    keys = {"name": "files", "store_dir": str(tmp_path), "to_undirected": True}
    config = from_dict(
        {
            "dataset": {**keys, **files},
            "trainer": {"epochs": 1, "gpus": 0},
            "model": {"hidden_channels": 4},
            "run": {"dir": str(tmp_path / "run")},
        }
    )
    told = train(config)["data"]
    assert prepare(config)["data"] == told
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["data"] == told
    assert sum(told["split_sizes"].values()) == 60
    read = from_plain(told)
    assert read is not None
    assert "3 classes" in read.labels
    assert read.edges.count("both directions") == 1  # the reader and the store could say it
    card = (export(tmp_path / "run", tmp_path / "model").path / "README.md").read_text()
    page = html.unescape(write_report([tmp_path / "run"], tmp_path / "r.html").read_text())
    for _, phrase in read.lines():
        assert phrase in card
        assert phrase in page
