"""The figures a data set is judged by, from exact or sampled predictions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnntrain.data.graph import Task
from gnntrain.data.ogb import ogb_evaluator

Metrics = dict[str, float]

# OGB's evaluators name their figures differently.
_OGB_NAMES = {"acc": "accuracy", "rocauc": "roc_auc", "ap": "average_precision"}


def compute_metrics(
    logits: Tensor, labels: Tensor, task: Task, metric: str, ogb_name: str | None = None
) -> Metrics:
    """The metrics of one split, fractions between 0 and 1, the data set's own first.

    Args:
        logits: float `[n, num_outputs]`, on the CPU or a GPU, where the metrics are computed.
        labels: `[n]` class numbers, or 0/1 `[n, num_classes]` (multi-label), beside the logits.
            Nodes labelled −1 are left out.
        task: What is predicted.
        metric: The data set's own metric.
        ogb_name: Name of an OGB data set: its metric then comes from OGB's own evaluator.

    Returns:
        By name; empty where the split has no labelled node. A metric that the split cannot give
        (ROC AUC of a single class) is NaN.
    """
    if task != "multilabel":
        labelled = labels >= 0
        logits, labels = logits[labelled], labels[labelled]
    if len(labels) == 0:
        return {}
    logits, labels = logits.float(), labels.long()
    if task == "multiclass":
        metrics = _by_class(logits.argmax(dim=1), labels, logits.shape[1])
    elif task == "binary":
        # Probabilities, since torchmetrics guesses from the range whether it was given logits.
        scores = logits[:, 0].sigmoid()
        metrics = _ranking(scores, labels) | _by_class((scores > 0.5).long(), labels, 2)
    else:
        ranking = metric in ("roc_auc", "average_precision")
        metrics = _multilabel(logits.sigmoid(), labels, with_ranking=ranking)
    if ogb_name is not None:
        metrics |= _ogb(ogb_name, logits, labels, task)
    if task != "multilabel" and metric == "f1_micro":
        # each node has one class, so every false positive is one false negative
        metrics["f1_micro"] = metrics["accuracy"]
    return {metric: metrics[metric]} | metrics


# torchmetrics takes longer to import than a small run to train: where it is used, and so on the
# one rank that uses it.


def _by_class(predicted: Tensor, labels: Tensor, num_classes: int) -> Metrics:
    from torchmetrics.functional import classification

    score = classification.multiclass_f1_score
    return {
        "accuracy": float((predicted == labels).double().mean()),
        "f1_macro": float(score(predicted, labels, num_classes, average="macro")),
    }


def _ranking(scores: Tensor, labels: Tensor) -> Metrics:
    if not 0 < int(labels.sum()) < len(labels):
        return {"roc_auc": float("nan"), "average_precision": float("nan")}
    from torchmetrics.functional import classification

    return {
        "roc_auc": float(classification.binary_auroc(scores, labels)),
        "average_precision": float(classification.binary_average_precision(scores, labels)),
    }


def _multilabel(scores: Tensor, labels: Tensor, *, with_ranking: bool) -> Metrics:
    from torchmetrics.functional import classification

    num_labels = labels.shape[1]
    score = classification.multilabel_f1_score
    metrics = {
        "f1_micro": float(score(scores, labels, num_labels, average="micro")),
        "f1_macro": float(score(scores, labels, num_labels, average="macro")),
        "accuracy": float(((scores > 0.5) == labels.bool()).double().mean()),
    }
    if with_ranking:  # a sort for each label: only where the data set is judged by it
        # A label that all nodes have, or none, has no ranking; torchmetrics would count it as 0.
        num_positive = labels.sum(dim=0)
        ranked = [
            _ranking(scores[:, i], labels[:, i])
            for i in torch.nonzero((num_positive > 0) & (num_positive < len(labels))).flatten()
        ]
        for name in ("roc_auc", "average_precision"):
            values = [ranking[name] for ranking in ranked]
            metrics[name] = sum(values) / len(values) if values else float("nan")
    return metrics


def _ogb(name: str, logits: Tensor, labels: Tensor, task: Task) -> Metrics:
    predicted = logits.argmax(dim=1, keepdim=True) if task == "multiclass" else logits
    answer: dict[str, Any] = ogb_evaluator(name).eval(
        {"y_true": _host(labels.view(predicted.shape)), "y_pred": _host(predicted)}
    )
    return {_OGB_NAMES.get(key, key): float(value) for key, value in answer.items()}


def _host(values: Tensor) -> Any:
    return values.cpu().numpy()
