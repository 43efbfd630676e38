"""How well each class is told, and which are taken for which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_curve

from gnntrain.metrics import LabelKind

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_CURVE_POINTS = 300


@dataclass(frozen=True)
class SplitScores:
    """What a model says of the labelled nodes of a split, by class (or label).

    Attributes:
        num_nodes: Labelled nodes.
        support: int64 `[num_classes]`, nodes of each class.
        precision, recall, f1: float64 `[num_classes]`; NaN where there is nothing to divide by.
        confusion: int64 `[num_classes, num_classes]`, nodes by true and by predicted class; None
            where a node may have several labels.
        roc: float64 `[2, num_points]`, false over true positive rate, of a binary task.
    """

    num_nodes: int
    support: Ints
    precision: Floats
    recall: Floats
    f1: Floats
    confusion: Ints | None = None
    roc: Floats | None = None


@dataclass(frozen=True)
class Mistake:
    """Nodes of one class that are taken for another.

    Attributes:
        true, predicted: The classes.
        num_nodes: How many.
        share: Of the nodes of the true class.
    """

    true: int
    predicted: int
    num_nodes: int
    share: float


def predicted_classes(logits: npt.NDArray[Any], task: LabelKind) -> npt.NDArray[Any]:
    """The classes that logits `[n, num_outputs]` stand for: `[n]`, or 0/1 `[n, num_classes]`."""
    if task == "multiclass":
        best: npt.NDArray[Any] = logits.argmax(axis=1)
        return best
    chosen = (logits > 0).astype(np.int64)
    return chosen[:, 0] if task == "binary" else chosen


def score_split(
    logits: npt.NDArray[Any], labels: npt.NDArray[Any], task: LabelKind, num_classes: int
) -> SplitScores | None:
    """The scores of one split; None where it has no labelled node.

    Args:
        logits: `[n, num_outputs]`.
        labels: `[n]`, −1 without a label; multi-label: 0/1 `[n, num_classes]`.
        task: What is predicted.
        num_classes: Number of classes, or of labels.
    """
    if task != "multilabel":
        is_labelled = labels >= 0
        logits, labels = logits[is_labelled], labels[is_labelled].astype(np.int64)
    if len(labels) == 0:
        return None
    predicted = predicted_classes(logits, task)
    if task == "multilabel":
        right = (predicted * labels).sum(axis=0, dtype=np.int64)
        support, chosen = labels.sum(axis=0, dtype=np.int64), predicted.sum(axis=0)
        return SplitScores(len(labels), support, *_scores(right, chosen, support))
    pairs = labels * num_classes + predicted
    confusion = np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)
    right, support = confusion.diagonal(), confusion.sum(axis=1)
    scores = _scores(right, confusion.sum(axis=0), support)
    roc = _roc(logits[:, 0], labels) if task == "binary" else None
    return SplitScores(len(labels), support, *scores, confusion, roc)


def _scores(right: Ints, chosen: Ints, support: Ints) -> tuple[Floats, Floats, Floats]:
    """Precision, recall and F1, from how often a class was right, chosen and true."""
    return _ratio(right, chosen), _ratio(right, support), _ratio(2 * right, chosen + support)


def _ratio(part: Ints, whole: Ints) -> Floats:
    ratio: Floats = np.full(len(whole), np.nan)
    np.divide(part, whole, out=ratio, where=whole > 0)
    return ratio


def _roc(logits: npt.NDArray[Any], labels: Ints) -> Floats | None:
    if len(np.unique(labels)) < 2 or not np.isfinite(logits).all():
        return None
    false_rate, true_rate, _ = roc_curve(labels, logits)
    points = np.stack([false_rate, true_rate])
    chosen = np.linspace(0, points.shape[1] - 1, _CURVE_POINTS).round().astype(np.int64)
    return points[:, np.unique(chosen)]


def top_mistakes(confusion: Ints, limit: int) -> list[Mistake]:
    """The most frequent confusions, at most `limit`."""
    wrong = confusion.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(wrong, axis=None, kind="stable")[::-1][:limit]
    support = confusion.sum(axis=1)
    pairs = (divmod(int(place), len(wrong)) for place in order)
    return [
        Mistake(
            true, predicted, int(wrong[true, predicted]), wrong[true, predicted] / support[true]
        )
        for true, predicted in pairs
        if wrong[true, predicted] > 0
    ]
