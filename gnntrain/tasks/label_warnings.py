"""Warnings about labels that can be trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from gnntrain.data.graph import SPLITS, Graph, Int64Array
from gnntrain.metrics import RANKING_METRICS

_NUM_SHOWN = 5

Counts = Mapping[str, Int64Array]
"""By split, how many of its nodes have each class."""


def label_warnings(store: Graph, metric: str) -> list[str]:
    """Warnings: classes without a training node; a metric that is not defined on a split.

    Args:
        store: The graph.
        metric: Name of the deciding metric.
    """
    counts = {split: store.class_counts(split) for split in SPLITS}
    return [*_unseen_classes(store, counts), *_undefined_metric(store, metric, counts)]


def _unseen_classes(store: Graph, counts: Counts) -> Iterator[str]:
    unseen = np.flatnonzero((counts["train"] == 0) & (counts["val"] + counts["test"] > 0))
    if len(unseen) == 0:
        return
    kind = "label" if store.task == "multilabel" else "class"
    names = store.class_names or range(store.num_classes)
    val, test = counts["val"], counts["test"]
    shown = ", ".join(
        f"{kind} {names[number]} ({val[number]} val and {test[number]} test nodes)"
        for number in unseen[:_NUM_SHOWN].tolist()
    )
    more = ", …" if len(unseen) > _NUM_SHOWN else ""
    of_all = f"{len(unseen)} of {store.num_classes} {'labels' if kind == 'label' else 'classes'}"
    yield f"No training node has {of_all}, which cannot be learnt: {shown}{more}."


def _undefined_metric(store: Graph, metric: str, counts: Counts) -> Iterator[str]:
    if metric not in RANKING_METRICS:
        return
    for split in ("val", "test"):
        size = len(store.split(split))
        # Ranking needs nodes with the label and nodes without; for two classes, nodes of both.
        can_rank = (counts[split] > 0) & (counts[split] < size)
        if size == 0 or can_rank.any():
            continue
        then = "; the last epoch counts as the best" if split == "val" else ""
        yield f"{metric} is not defined on {split}, where all nodes have one class{then}."
