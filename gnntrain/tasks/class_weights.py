"""Weights of classes in the loss, by their rarity in the training split."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gnntrain.data.graph import Graph


def balanced_weights(graph: Graph) -> Tensor:
    """Weights that give all classes equal influence: n / (K * n_c), scikit-learn's `balanced`.

    n is the number of training nodes, K the number of classes among them, n_c the number of
    training nodes of class c. So the mean weight of a training node is 1. A class without a
    training node has weight 0. If a node has several labels, each label is weighed as a binary
    class.

    Returns:
        float32 `[num_classes]`; several labels: `[num_labels, 2]`, without and with the label.
    """
    counts = graph.class_counts("train").astype(np.float64)
    if graph.task == "multilabel":
        counts = np.stack([len(graph.split("train")) - counts, counts], axis=1)
    total = counts.sum(axis=-1, keepdims=True)
    num_present = (counts > 0).sum(axis=-1, keepdims=True)
    weights = np.divide(total, num_present * counts, out=np.zeros_like(counts), where=counts > 0)
    return torch.from_numpy(weights.astype(np.float32))
