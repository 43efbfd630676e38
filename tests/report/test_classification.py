from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import (
    confusion_matrix,
    precision_recall_fscore_support,
    roc_auc_score,
)

from gnntrain.metrics import LabelKind
from gnntrain.report.findings import SplitScores, score_split
from gnntrain.report.tables import mistakes_table


@pytest.mark.parametrize("task", ["multiclass", "binary", "multilabel"])
def test_scores_are_scikit_learns(task: LabelKind) -> None:
    rng = np.random.default_rng(0)
    num_classes = 2 if task == "binary" else 4
    logits = rng.normal(size=(200, 1 if task == "binary" else num_classes))
    if task == "multilabel":
        labels = rng.integers(0, 2, (200, num_classes))
        predicted = (logits > 0).astype(int)
    else:
        labels = rng.integers(-1, num_classes, 200)
        predicted = (logits[:, 0] > 0).astype(int) if task == "binary" else logits.argmax(1)
    scores = score_split(logits, labels, task, num_classes)
    assert scores is not None
    known = np.ones(200, bool) if task == "multilabel" else labels >= 0
    expected = precision_recall_fscore_support(
        labels[known], predicted[known], labels=range(num_classes), zero_division=np.nan
    )
    for own, other in zip(
        (scores.precision, scores.recall, scores.f1, scores.support), expected, strict=True
    ):
        np.testing.assert_allclose(own, other)
    assert scores.num_nodes == known.sum()
    if task != "multilabel":
        np.testing.assert_array_equal(
            scores.confusion, confusion_matrix(labels[known], predicted[known])
        )
    if task == "binary":
        assert scores.roc is not None
        area = np.trapezoid(scores.roc[1], scores.roc[0])
        assert area == pytest.approx(roc_auc_score(labels[known], logits[known, 0]), abs=0.01)


def test_a_class_that_is_never_there_has_no_numbers() -> None:
    scores = score_split(np.array([[1.0, 0, 0]]), np.array([0]), "multiclass", 3)
    assert scores is not None
    assert (scores.precision[0], scores.recall[0], scores.f1[0]) == (1, 1, 1)
    assert np.isnan(scores.precision[1:]).all()


def test_the_most_frequent_mistakes_come_first() -> None:
    def rows(confusion: np.ndarray) -> list[list[str]]:
        none = np.zeros(0)
        scores = SplitScores(0, none, none, none, confusion.sum(1), confusion)
        return [list(row) for row in mistakes_table(scores, "abc").rows]

    assert rows(np.array([[8, 2, 0], [5, 5, 0], [0, 1, 9]])) == [
        ["b", "a", "5", "50.0%"],
        ["a", "b", "2", "20.0%"],
        ["c", "b", "1", "10.0%"],
    ]
    assert rows(np.diag([3, 4])) == []
