"""Tasks: seeds, targets, head, loss, metrics, and the columns that `predict` writes."""

from gnntrain.tasks.base import Column, Columns, Task
from gnntrain.tasks.node_classification import NodeClassification

__all__ = ["Column", "Columns", "NodeClassification", "Task"]
