"""The report of a regression, and the numbers behind it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure as Canvas

from gnntrain.cli import main
from gnntrain.data.graph import AnyArray
from gnntrain.report import figures
from gnntrain.report.figures import Panel
from gnntrain.report.findings import Findings, findings_of, judge, regression_scores
from gnntrain.report.runs import read_run
from gnntrain.report.tables import worst_table
from gnntrain.report.writing import write_report
from gnntrain.run import evaluate
from gnntrain.tasks import NodeRegression
from tests.graphs import random_graph, stored
from tests.hills import install_hills
from tests.report.test_writing import text_of


@pytest.fixture
def trained(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    install_hills(here / "site", monkeypatch, "hills_to_report")
    keys = ["dataset=hills", "task.type=node_regression", "trainer.gpus=0", "trainer.epochs=3"]
    assert main([*keys, "model.hidden_channels=8", "run.dir=run"]) == 0
    return here / "run"


def test_a_page_has_predictions_and_errors_and_no_classes(trained: Path) -> None:
    page = write_report([trained])
    text = text_of(page)
    kinds = ("Predicted and true height", "Errors of slope", "Scores by target", "RMSE")
    for words in (*kinds, "nodes that have height. Distances", "3 of 240 nodes have none"):
        assert words in text
    assert re.search(r"targets\s+2", text)
    for word in ("Confusion", "ROC curve", "Scores by class"):
        assert word not in text


def test_the_scores_are_those_of_evaluate(trained: Path) -> None:
    findings = findings_of(read_run(trained))
    metrics = evaluate(trained)["metrics"]
    for split in ("val", "test"):
        for i, name in enumerate(("r2", "rmse", "mae")):
            scores = [regression_scores(points[split])[i] for _, points in findings.targets]
            mean = np.mean(scores)
            assert mean == pytest.approx(metrics[split][name], rel=1e-4)


def judged(path: Path, labels: AnyArray, **changes: Any) -> Findings:
    """Of a model that predicts the mean of the training nodes everywhere."""
    data = random_graph(task="continuous", num_classes=labels.shape[1], labels=labels, **changes)
    graph = stored(path, data)
    outputs = torch.zeros(labels.shape)
    return judge(graph, NodeRegression(graph), outputs, np.eye(len(labels)))


def test_the_worst_nodes_come_first_in_the_users_words(tmp_path: Path) -> None:
    labels = np.random.default_rng(0).normal(size=(60, 1)).astype(np.float32)
    ids = np.array([f"n{i}".encode() for i in range(60)])
    splits = {"train": np.arange(30), "val": np.arange(30, 45), "test": np.arange(45, 60)}
    labels[50] = 99
    found = judged(tmp_path / "s", labels, node_ids=ids, splits=splits)
    ((_, points),) = found.targets
    assert found.projection is not None
    assert found.projection.texts[0] == "node n0 (train)"
    rows = worst_table(points["test"]).rows
    assert rows[0][0] == "n50"
    errors = [abs(float(row[3])) for row in rows]
    assert errors == sorted(errors, reverse=True)
    assert len(rows) == 10


def test_missing_targets_are_left_out_and_a_target_that_no_node_has_too(tmp_path: Path) -> None:
    labels = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    labels[:, 1] = np.nan
    labels[5:10, 1] = 1
    splits = {"train": np.arange(30), "val": np.arange(30, 60), "test": np.arange(0)}
    found = judged(tmp_path / "s", labels, splits=splits)
    ((name, points),) = found.targets
    assert name == "value_0"
    assert {split: len(frame) for split, frame in points.items()} == {"val": 30}
    assert "No node of the test split has a label." in found.notes
    everyone = {"train": np.arange(60), "val": np.arange(0), "test": np.arange(0)}
    found = judged(tmp_path / "unscored", labels, splits=everyone)
    assert found.projection is not None
    figures.plane(Panel(Canvas().subplots()), found.names, found.projection)


def test_a_histogram_has_every_node_once() -> None:
    rng = np.random.default_rng(0)
    errors = {"val": rng.normal(size=50) * 1e6, "test": np.zeros(1)}
    frames = {
        split: pd.DataFrame({"true": np.zeros(len(error)), "predicted": error})
        for split, error in errors.items()
    }
    for shown in (frames, {"test": frames["test"]}):
        panel = Panel(Canvas().subplots())
        figures.errors(panel, "height", shown)
        for split in shown:
            shares = [y for _, y, _, series in panel.points if series == split]
            assert sum(shares) == pytest.approx(1)
