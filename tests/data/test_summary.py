"""What is told of a graph: its summary, where it stands; warnings; what a task cannot choose."""

from __future__ import annotations

import html
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnntrain.cli import main
from gnntrain.config import from_dict
from gnntrain.data.feature_statistics import FeatureStatistics
from gnntrain.data.graph import EdgeData, Nodes, PrepareOptions
from gnntrain.data.summary import dataset_warnings, from_plain
from gnntrain.data.targets import refuse_other_types
from gnntrain.errors import UserError
from gnntrain.report.writing import write_report
from gnntrain.results.export import export
from gnntrain.run import prepare, train
from tests.graphs import random_graph, stored
from tests.hetero_graphs import hetero_graph, random_hetero_data

PLAIN = PrepareOptions()


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


def test_a_graph_without_edges_and_one_without_validation_nodes_are_told(tmp_path: Path) -> None:
    assert list(dataset_warnings(stored(tmp_path / "usual"))) == []
    none = np.empty(0, np.int64)
    splits = {"train": np.arange(6), "val": none, "test": np.arange(9, 12)}
    graph = random_graph(12, 30, src=none, dst=none, splits=splits)
    edges, validation = dataset_warnings(stored(tmp_path / "store", graph))
    assert "no edges" in edges
    assert "last epoch counts as the best" in validation


def test_types_whose_rows_are_learnt_empty_ones_and_those_without_a_path_are_told() -> None:
    (learnt,) = dataset_warnings(hetero_graph())
    assert "venue" in learnt
    assert "paper" not in learnt
    data = random_hetero_data(reverse=False)
    none = np.empty(0, np.int64)
    edges = {**data.edges, ("author", "knows", "author"): EdgeData(none, none)}
    empty, apart, _ = dataset_warnings(hetero_graph(replace(data, edges=edges)))
    assert "author/knows/author" in empty
    assert "venue" in apart


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "unread"),
    [
        (["model=sage", "dataset.weight_column=amount"], ["the weights of edges"]),
        (["model=gcn", "dataset.weight_column=amount"], []),
        (["model=rgcn", "dataset.schema=graph.yaml"], ["amount", "since"]),
    ],
    ids=["sage", "gcn", "rgcn"],
)
def test_a_run_says_once_what_its_model_does_not_read(
    words: list[str], unread: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    nodes = "".join(f"{i},{'xyz'[i % 3]},{i % 7}\n" for i in range(30))
    Path("nodes.csv").write_text(f"id,label,a\n{nodes}")
    edges = "".join(f"{i},{(i + 1) % 30},0.5,{i}\n" for i in range(30))
    Path("edges.csv").write_text(f"source,target,amount,since\n{edges}")
    Path("graph.yaml").write_text(
        "nodes: {user: {files: nodes.csv, label: label}}\n"
        "edges: {user/pays/user: {files: edges.csv}}\n"
    )
    is_typed = "model=rgcn" in words
    files = [] if is_typed else ["dataset.edges=edges.csv", "dataset.features=nodes.csv"]
    usual = ["dataset=files", "trainer.gpus=0", "trainer.epochs=1", "run.dir=run"]
    assert main([*usual, *files, *words]) == 0
    told = "".join(capfd.readouterr())
    (warning, *more) = [line for line in told.splitlines() if "does not read" in line] or [""]
    assert not more
    assert bool(warning) == bool(unread)
    assert all(name in warning for name in unread)
    assert not is_typed or told.count("since") == 1  # at no other place
    if unread:
        assert main(["evaluate", "run"]) == main(["predict", "run", "--out", "p.csv"]) == 0
        told = "".join(capfd.readouterr())
        assert not any(name in told for name in unread)


@pytest.mark.parametrize(
    ("columns", "far"),
    [
        ({"age": 15, "income": 2e4}, [0, 1]),
        ({"income": 2e4, "age": 15, "debt": 1e4, "flag": "binary"}, [0, 1, 2]),
        ({"flag": "binary", "income": 2e4, "other": "binary", "rate": 0.1}, [1]),
        ({"age": 15, "flag": "binary", "other": "binary", "constant": "constant"}, []),
        ({"embedding": 1, "more": 0.5, "dead": 1e-4}, []),
    ],
)
def test_features_of_far_spread(columns: dict[str, float | str], far: list[int]) -> None:
    rng = np.random.default_rng(0)
    drawn = {"binary": rng.random(500) < 0.01, "constant": np.full(500, 7.0)}
    rows = [
        drawn[spread] if isinstance(spread, str) else rng.normal(5, spread, 500)
        for spread in columns.values()
    ]
    nodes = Nodes(np.stack(rows, axis=1).astype(np.float32))
    assert FeatureStatistics.of(nodes, None).apart(None) == [f"feature {at}" for at in far]


def test_a_bag_of_words_has_no_far_spread() -> None:
    rng = np.random.default_rng(0)
    words = rng.poisson(rng.pareto(1, 300) / 100, (2000, 300)).astype(np.float32)
    share = words / words.sum(axis=1, keepdims=True).clip(1)
    for rows in (words, share):
        assert FeatureStatistics.of(Nodes(rows), None).apart(None) == []


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"task": {"target": "papers"}}, ["task.target=papers", "mean paper?"]),
        ({"task": {"target": "author"}}, ["labels of paper", "task.target=paper"]),
        ({"model": {"name": "sage"}}, ["model=sage", "rgcn"]),
        ({"task": {"target": "paper"}}, []),
        ({}, []),
    ],
    ids=str,
)
def test_a_target_without_labels_and_a_model_of_one_type_are_refused(
    keys: dict[str, dict[str, str]], words: list[str]
) -> None:
    config = from_dict({"model": {"name": "rgcn"}} | keys)
    if not words:
        refuse_other_types(config, hetero_graph())
        return
    with pytest.raises(UserError) as caught:
        refuse_other_types(config, hetero_graph())
    assert not [word for word in words if word not in str(caught.value)]
