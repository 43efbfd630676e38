"""Scores of a classification: by class, and the most frequent mistakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support, roc_curve

from gnntrain.data.graph import SPLITS, Graph
from gnntrain.metrics import LabelKind
from gnntrain.report.projection import Floats, Ints, Projection

SCORED_SPLITS = ("val", "test")
_CURVE_POINTS = 300


@dataclass(frozen=True)
class SplitScores:
    """Scores of the labelled nodes of a split by class (or label).

    Attributes:
        num_nodes: Labelled nodes.
        precision, recall, f1: float64 `[num_classes]`; NaN where the denominator is 0.
        support: int64 `[num_classes]`, nodes of each class.
        confusion: int64 `[num_classes, num_classes]`, nodes by true and by predicted class; None
            where a node may have several labels.
        roc: float64 `[2, num_points]`, false and true positive rate of a binary task, by its
            positive class.
    """

    num_nodes: int
    precision: Floats
    recall: Floats
    f1: Floats
    support: Ints
    confusion: Ints | None = None
    roc: Floats | None = None


@dataclass(frozen=True)
class ClassFindings:
    """A model's predictions of classes against the truth.

    Attributes:
        kind: Kind of labels.
        names: Names of the classes (or labels).
        scores: By split, of those with a labelled node.
        projection: Some labelled nodes in the plane; None where they could not be placed.
        classes: int64 `[n]`, their labels; of several the most frequent in the graph.
        predicted: int64 `[n]`, their predicted classes; None where nodes have several labels.
        positive: Name of the positive class; None: the task is not binary.
    """

    kind: LabelKind
    names: Sequence[str]
    scores: Mapping[str, SplitScores]
    projection: Projection | None
    classes: Ints
    predicted: Ints | None
    positive: str | int | None = None

    @classmethod
    def of(
        cls,
        graph: Graph,
        logits: npt.NDArray[Any],
        rows: npt.NDArray[Any] | None,
        positive: str | int | None,
    ) -> ClassFindings:
        """The findings of a model.

        Args:
            graph: The graph.
            logits: Of all nodes, `[num_nodes, num_outputs]`.
            rows: The input of its last layer, `[num_nodes, width]`, where there are such rows.
            positive: Name of the positive class; None: the task is not binary.
        """
        names = [*(graph.class_names or range(graph.num_classes))]
        number = 1 if positive is None else names.index(positive)
        scores = {}
        for split in SCORED_SPLITS:
            nodes = graph.split(split)
            labels = graph.labels[nodes]
            scores[split] = score_split(
                logits[nodes], labels, graph.task, graph.num_classes, number
            )
        everyone = np.unique(np.concatenate([graph.split(name) for name in SPLITS]))
        labelled = everyone[_one_class(graph, everyone) >= 0]
        projection = Projection.of(graph, labelled, logits, rows)
        placed = labelled[:0] if projection is None else projection.nodes
        predicted = predicted_classes(logits[placed], graph.task)
        return cls(
            kind=graph.task,
            names=[str(name) for name in names],
            scores={split: scored for split, scored in scores.items() if scored is not None},
            projection=projection,
            classes=_one_class(graph, placed),
            predicted=None if graph.task == "multilabel" else predicted,
            positive=positive,
        )

    @property
    def scored_splits(self) -> set[str]:
        """The splits with a labelled node."""
        return {*self.scores}


def _one_class(graph: Graph, nodes: Ints) -> Ints:
    """A class for the colour of each node, −1 without a label."""
    labels = graph.labels[nodes]
    if graph.task != "multilabel":
        return labels.astype(np.int64)
    frequency = labels.sum(axis=0, dtype=np.int64) + 1
    chosen: Ints = (labels * frequency).argmax(axis=1)
    return np.where(labels.any(axis=1), chosen, -1)


def predicted_classes(logits: npt.NDArray[Any], task: LabelKind) -> Ints:
    """The predicted classes of logits `[n, num_outputs]`: `[n]`, or 0/1 `[n, num_classes]`."""
    if task == "multiclass":
        best: Ints = logits.argmax(axis=1)
        return best
    chosen = (logits > 0).astype(np.int64)
    return chosen[:, 0] if task == "binary" else chosen


def score_split(
    logits: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    task: LabelKind,
    num_classes: int,
    positive: int = 1,
) -> SplitScores | None:
    """The scores of one split; None where it has no labelled node.

    Args:
        logits: `[n, num_outputs]`.
        labels: `[n]`, −1 without a label; multi-label: 0/1 `[n, num_classes]`.
        task: Kind of labels.
        num_classes: Number of classes, or of labels.
        positive: The positive class of two.
    """
    if task != "multilabel":
        is_labelled = labels >= 0
        logits, labels = logits[is_labelled], labels[is_labelled]
    if len(labels) == 0:
        return None
    labels, classes = labels.astype(np.int64), range(num_classes)
    predicted = predicted_classes(logits, task)
    precision, recall, f1, support = precision_recall_fscore_support(
        labels, predicted, labels=classes, zero_division=np.nan
    )
    if task == "multilabel":
        return SplitScores(len(labels), precision, recall, f1, support)
    confusion = confusion_matrix(labels, predicted, labels=classes)
    roc = None
    if task == "binary":
        roc = _roc(logits[:, 0] if positive == 1 else -logits[:, 0], labels == positive)
    return SplitScores(len(labels), precision, recall, f1, support, confusion, roc)


def _roc(logits: npt.NDArray[Any], is_positive: npt.NDArray[np.bool_]) -> Floats | None:
    if len(np.unique(is_positive)) < 2 or not np.isfinite(logits).all():
        return None
    false_rate, true_rate, _ = roc_curve(is_positive, logits)
    points = np.stack([false_rate, true_rate])
    chosen = np.linspace(0, points.shape[1] - 1, _CURVE_POINTS).round().astype(np.int64)
    return points[:, np.unique(chosen)]


def top_mistakes(confusion: Ints, limit: int) -> list[tuple[int, int, int]]:
    """The most frequent mistakes: true class, predicted class, number of nodes; at most `limit`."""
    wrong = confusion.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(wrong, axis=None, kind="stable")[::-1][:limit]
    pairs = (divmod(place, len(wrong)) for place in order.tolist())
    return [(true, other, int(wrong[true, other])) for true, other in pairs if wrong[true, other]]
