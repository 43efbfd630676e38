"""Weights of classes in the loss, by their rarity in the training split."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gnntrain.data.graph import Graph
from gnntrain.tasks.label_warnings import class_counts


def balanced_weights(graph: Graph) -> Tensor:
    """Weights with which all classes count alike: n / (K * n_c), scikit-learn's `balanced`.

    n is the number of training nodes, K that of classes which any of them has, n_c that of the
    nodes of class c. The mean weight of a training node is so 1. A class without a training
    node weighs 0. Where a node has several labels, each label is such a choice between two.

    Returns:
        float32 `[num_classes]`; several labels: `[num_labels, 2]`, without and with the label.
    """
    counts = class_counts(graph, "train").astype(np.float64)
    if graph.task == "multilabel":
        counts = np.stack([len(graph.split("train")) - counts, counts], axis=1)
    total = counts.sum(axis=-1, keepdims=True)
    num_present = (counts > 0).sum(axis=-1, keepdims=True)
    weights = np.divide(total, num_present * counts, out=np.zeros_like(counts), where=counts > 0)
    return torch.from_numpy(weights.astype(np.float32))
