"""The block at a run's start."""

from __future__ import annotations

import pytest

from gnntrain.data.summary import DataSummary
from gnntrain.reporting.blocks import start_block
from gnntrain.reporting.text import UNICODE
from tests.reporting.samples import info

READ = DataSummary(
    labels="3 classes", features="2 a node", edges="6 given", split="4 train, 1 val, 2 test"
)


def labels_of(data: DataSummary | None) -> list[str]:
    return [label for label, text in start_block(info(data=data), UNICODE) if text]


def test_a_users_own_graph_is_told_line_by_line() -> None:
    own = READ.model_copy(update={"ids": "row numbers", "left_out": {"z": "text"}})
    told = ["ids", "labels", "features", "edges", "split", "left out"]
    assert labels_of(own)[2:8] == told


def test_a_published_graph_takes_one_line_more_and_an_old_store_none() -> None:
    assert set(labels_of(READ)) - set(labels_of(None)) == {"split"}


@pytest.mark.parametrize(
    ("task", "number", "words"),
    [
        ("multiclass", 3, "3 classes"),
        ("binary", 2, "2 classes"),
        ("multilabel", 12, "12 labels"),
        ("continuous", 1, "1 target"),
    ],
)
def test_what_is_learnt_has_its_own_word(task: str, number: int, words: str) -> None:
    rows = dict(start_block(info(label_kind=task, num_classes=number), UNICODE))
    assert rows["graph"].endswith(words)
