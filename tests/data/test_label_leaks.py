"""A feature that is the label under another name is told."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gnntrain.config import FilesConfig
from gnntrain.data.datasets import builder_for

NUM_NODES = 60
CLASSES = np.arange(NUM_NODES) % 3


def warnings_of(
    folder: Path, caplog: pytest.LogCaptureFixture, extra: Any, **options: Any
) -> list[str]:
    nodes = pd.DataFrame(
        {
            "id": [f"n{i}" for i in range(NUM_NODES)],
            "extra": extra,
            "x": np.linspace(0.1, 0.9, NUM_NODES),
            "label": np.array(["a", "b", "c"])[CLASSES],
        }
    )
    nodes.to_csv(folder / "nodes.csv", index=False)
    ends = {"source": nodes["id"], "target": np.roll(nodes["id"], 1)}
    pd.DataFrame(ends).to_csv(folder / "edges.csv", index=False)
    files = {"features": str(folder / "nodes.csv"), "edges": str(folder / "edges.csv")}
    with caplog.at_level(logging.WARNING, "gnntrain"):
        builder_for(FilesConfig.model_validate({**files, **options})).build()
    return [text for text in caplog.messages if "extra" in text]


@pytest.mark.parametrize("codes", [[0, 1, 2], [7.5, -1.0, 0.0]])
def test_numbers_that_stand_for_the_classes_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, codes: list[float]
) -> None:
    (text,) = warnings_of(tmp_path, caplog, np.array(codes)[CLASSES])
    assert "dataset.ignore=[extra]" in text


def test_categories_that_stand_for_the_classes_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = np.array(["one", "two", "three"])[CLASSES]
    assert len(warnings_of(tmp_path, caplog, words, categorical=["extra"])) == 1


@pytest.mark.parametrize(
    "extra",
    [
        np.where(np.arange(NUM_NODES) < 5, 0, CLASSES),  # wrong for some nodes
        CLASSES == 0,  # tells one class alone
        np.arange(NUM_NODES) // 20,  # as many values as classes
        np.arange(NUM_NODES) / 7,
    ],
)
def test_a_feature_that_only_goes_with_the_classes_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, extra: Any
) -> None:
    assert warnings_of(tmp_path, caplog, extra) == []


def test_a_column_that_is_left_out_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of(tmp_path, caplog, CLASSES, ignore=["extra"]) == []
