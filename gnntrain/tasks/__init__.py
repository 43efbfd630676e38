"""Tasks: seeds, targets, head, loss, metrics, and the columns that `predict` writes."""

from gnntrain.tasks.base import Column, Columns, NodeTask, Task
from gnntrain.tasks.node_classification import NodeClassification
from gnntrain.tasks.node_regression import NodeRegression

__all__ = ["Column", "Columns", "NodeClassification", "NodeRegression", "NodeTask", "Task"]
