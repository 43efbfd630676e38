"""What can be trained on, but will surprise: said once, when a run begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from gnntrain.data.graph import SPLITS, Graph, Int64Array

_NUM_SHOWN = 5
_CHUNK_NODES = 1 << 18
_RANKING = ("roc_auc", "average_precision")

Counts = Mapping[str, Int64Array]
"""By split, how many of its nodes have each class."""


def dataset_warnings(store: Graph) -> list[str]:
    """A sentence for each: no edges, classes that no training node has, no validation nodes, a
    metric that a split cannot give."""
    counts = {split: _count(store, split) for split in SPLITS}
    return [
        *_no_edges(store),
        *_unseen_classes(store, counts),
        *_no_validation(store),
        *_undefined_metric(store, counts),
    ]


def _count(store: Graph, split: str) -> Int64Array:
    """int64 `[num_classes]`."""
    counts = np.zeros(store.num_classes, np.int64)
    nodes = store.split(split)
    for start in range(0, len(nodes), _CHUNK_NODES):
        labels = store.labels[nodes[start : start + _CHUNK_NODES]]
        if store.task == "multilabel":
            counts += labels.sum(axis=0, dtype=np.int64)
        else:
            counts += np.bincount(labels[labels >= 0], minlength=store.num_classes)
    return counts


def _no_edges(store: Graph) -> Iterator[str]:
    if store.num_edges == 0:
        yield "The graph has no edges: all that the model sees of a node are its own features."


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


def _no_validation(store: Graph) -> Iterator[str]:
    if len(store.split("val")) == 0:
        yield "There are no validation nodes: the last epoch counts as the best."


def _undefined_metric(store: Graph, counts: Counts) -> Iterator[str]:
    if store.metric not in _RANKING:
        return
    for split in ("val", "test"):
        size = len(store.split(split))
        # What can be ranked has nodes with and without it; of two classes either will do.
        can_rank = (counts[split] > 0) & (counts[split] < size)
        if size == 0 or can_rank.any():
            continue
        then = "; the last epoch counts as the best" if split == "val" else ""
        yield f"{store.metric} is not defined on {split}, where all nodes have one class{then}."
