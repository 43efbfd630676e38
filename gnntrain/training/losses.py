"""Losses over seeds, as sums: the trainer divides by the global batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from gnntrain.data.graph import Task

Loss = Callable[[Tensor, Tensor], Tensor]


def build_loss(task: Task, label_smoothing: float = 0.0) -> Loss:
    """The task's loss: `(logits, labels) -> scalar`, summed over the seeds.

    Multi-class: softmax cross-entropy of logits `[n, num_classes]` and labels `[n]`. Binary:
    logistic loss of logits `[n, 1]` and labels `[n]`. Multi-label: the mean over the classes of
    the logistic loss, logits and labels `[n, num_classes]`. Label smoothing mixes the target with
    the uniform distribution (Szegedy et al., 2016). Computed in float32 whatever the logits are.
    """

    def multiclass(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(
            logits.float(), labels.long(), reduction="sum", label_smoothing=label_smoothing
        )

    def logistic(logits: Tensor, labels: Tensor) -> Tensor:
        targets = labels.to(torch.float32).view_as(logits)
        targets = targets * (1 - label_smoothing) + label_smoothing / 2
        losses = F.binary_cross_entropy_with_logits(logits.float(), targets, reduction="none")
        return losses.mean(dim=1).sum()

    return multiclass if task == "multiclass" else logistic
