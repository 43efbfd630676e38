"""The metrics of a task by its metrics alone."""

from __future__ import annotations

from torch import Tensor

from gnntrain.tasks import Task


def metrics_of(task: Task, outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """The metrics of one split by name; empty for a split without targets."""
    outputs, targets = task.metric_inputs(outputs, targets)
    if len(targets) == 0:
        return {}
    return {metric.name: metric.compute(outputs, targets) for metric in task.reported}
