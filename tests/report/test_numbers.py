"""The numbers of a page: scores, places in the plane, seconds by phase, bins of degrees."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support, roc_auc_score

from gnntrain.metrics import LabelKind
from gnntrain.report.figures import degree_bins
from gnntrain.report.findings import project, score_split
from gnntrain.report.tables import phase_seconds
from tests.examples import examples
from tests.report.samples import records_of

SECONDS = st.floats(0, 100)


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
    found = (scores.precision, scores.recall, scores.f1, scores.support)
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, other)
    assert scores.num_nodes == known.sum()
    if task != "multilabel":
        confusion = confusion_matrix(labels[known], predicted[known])
        np.testing.assert_array_equal(scores.confusion, confusion)
    if task == "binary":
        assert scores.roc is not None
        area = np.trapezoid(scores.roc[1], scores.roc[0])
        assert area == pytest.approx(roc_auc_score(labels[known], logits[known, 0]), abs=0.01)


def test_clusters_stay_apart_in_the_plane_and_places_can_be_repeated() -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 20)) * 20
    classes = np.repeat(np.arange(3), 30)
    rows = (centres[classes] + rng.normal(size=(90, 20))).astype(np.float32)
    places = project(rows)
    assert places is not None
    means = np.stack([places[classes == i].mean(axis=0) for i in range(3)])
    nearest = np.linalg.norm(places[:, None] - means, axis=2).argmin(axis=1)
    assert (nearest == classes).all()
    np.testing.assert_array_equal(places, project(rows))
    for odd in (np.ones((9, 4)), np.full((9, 4), np.nan), np.zeros((3, 4))):
        assert project(odd) is None


@given(SECONDS, SECONDS, SECONDS, SECONDS)
@examples(20)
def test_phases_add_up_to_the_epoch(
    forward: float, backward: float, untimed: float, evaluation: float
) -> None:
    (record,) = records_of(0.5)
    time = {"forward": forward, "backward": backward, "evaluation": evaluation}
    seconds = forward + backward + untimed
    record = dataclasses.replace(record, time=time, seconds=seconds)
    assert phase_seconds([record]).to_numpy().sum() == pytest.approx(seconds + evaluation)


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=60))
@examples(50)
def test_low_degrees_are_counted_one_by_one_and_none_is_lost(degrees: list[int]) -> None:
    middles, nodes = degree_bins(np.array(degrees))
    shown = dict(zip(middles.round(6), nodes, strict=True))
    for degree in (1, 2, 3):
        assert shown.get(degree, 0) == degrees.count(degree)
    # a bin holds at least a node, and no more than there are
    assert all(0 < number <= len(degrees) for number in nodes)
    assert ((middles >= 1) & (middles <= max(degrees))).all()
