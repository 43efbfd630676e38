"""How many nodes of a split have each class."""

from __future__ import annotations

import numpy as np

from gnntrain.data.graph import Graph, Int64Array

_CHUNK_NODES = 1 << 18


def class_counts(graph: Graph, split: str) -> Int64Array:
    """The number of a split's nodes with each class or label, int64 `[num_classes]`."""
    counts = np.zeros(graph.num_classes, np.int64)
    nodes = graph.split(split)
    for start in range(0, len(nodes), _CHUNK_NODES):
        labels = graph.labels[nodes[start : start + _CHUNK_NODES]]
        if graph.task == "multilabel":
            counts += labels.sum(axis=0, dtype=np.int64)
        else:
            counts += np.bincount(labels[labels >= 0], minlength=graph.num_classes)
    return counts
