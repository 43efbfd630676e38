"""Exact evaluators of whole graphs, and the metrics of a task by its metrics alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import Graph
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.features import stored_rows
from gnntrain.tasks import NodeClassification, Task
from gnntrain.training.buffers import SharedBuffers
from gnntrain.training.graph_access import WholeGraph
from gnntrain.training.layerwise import LayerwiseEvaluator


def layerwise(
    graph: Graph,
    place: Path | SharedBuffers,
    context: DistributedContext | None = None,
    *,
    task: Task | None = None,
    features: Any = None,
    memory_limit: int = 2**30,
    **options: Any,
) -> LayerwiseEvaluator:
    """The evaluator of a graph, with matrices in a folder or in these buffers; a homogeneous
    graph's features may be given without their type."""
    context = context or DistributedContext()
    buffers = SharedBuffers(context, place, memory_limit) if isinstance(place, Path) else place
    if features is None:
        features = {t: LazyFeatures(rows) for t, rows in stored_rows(graph).items()}
    elif not isinstance(features, dict):
        features = {graph.target: features}
    access = WholeGraph(graph, buffers, features, **options)
    return LayerwiseEvaluator(access, task or NodeClassification(graph))


def metrics_of(task: Task, outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """The metrics of one split by name; empty for a split without targets."""
    outputs, targets = task.metric_inputs(outputs, targets)
    if len(targets) == 0:
        return {}
    return {metric.name: metric.compute(outputs, targets) for metric in task.reported}
