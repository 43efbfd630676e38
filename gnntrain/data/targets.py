"""A task's targets: the scale of quantities, and what a task, a model or a number cannot choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gnntrain.config import Config, PluginConfig
from gnntrain.config.models import model_names, model_section
from gnntrain.config.problems import did_you_mean
from gnntrain.errors import UserError
from gnntrain.metrics import LabelKind

if TYPE_CHECKING:
    from gnntrain.data.graph import Graph


@dataclass(frozen=True)
class TargetScale:
    """How standardised targets become quantities in the user's units: `value * std + mean`."""

    mean: list[float]  # of each target, over the training nodes that have it; 0 without one
    std: list[float]  # likewise; 1 for a target that does not vary

    @classmethod
    def of(cls, graph: Graph) -> TargetScale:
        """The scale of a graph's quantities, over its training nodes alone."""
        targets = np.asarray(graph.labels[graph.split("train")], np.float64)
        columns = [column[~np.isnan(column)] for column in targets.T]
        return cls(
            mean=[float(column.mean()) if len(column) else 0.0 for column in columns],
            # Of equal numbers, rounding alone gives a deviation.
            std=[float(c.std()) if len(c) and c.min() < c.max() else 1.0 for c in columns],
        )


def refuse_other_labels(config: Config, dataset: str, kind: LabelKind) -> None:
    """Raise a UserError if labels are quantities and `task.type` learns classes, or vice versa."""
    is_regression = config.task.type == "node_regression"
    if is_regression == (kind == "continuous"):
        return
    fitting = "node_classification" if is_regression else "node_regression"
    found = "classes" if is_regression else "quantities"
    raise UserError(
        f"task.type={config.task.type}: the labels of {dataset} are {found}.",
        f"Set task.type={fitting}.",
    )


def refuse_other_types(config: Config, graph: Graph) -> None:
    """Raise a UserError for a target type that is not there or has no labels; and, with a model of
    one type, for a graph that is typed or has no features."""
    target, model = config.task.target, config.model
    if target is not None and target not in graph.nodes:
        raise UserError(
            f"task.target={target}: {graph.dataset} has the node types {', '.join(graph.nodes)}.",
            did_you_mean(target, graph.nodes, "Choose one of them."),
        )
    if target not in (None, graph.target):
        raise UserError(
            f"task.target={target}: {graph.dataset} has labels of {graph.target} alone.",
            f"Set task.target={graph.target}, or leave it out.",
        )
    if graph.is_hetero and not (model.is_hetero or isinstance(model, PluginConfig)):
        fitting = ", ".join(name for name in model_names() if model_section(name).is_hetero)
        raise UserError(
            f"model={model.name} computes on one type of nodes and edges, and {graph.dataset} has "
            f"more: nodes of type {', '.join(graph.nodes)}; {len(graph.edges)} edge types.",
            f"Choose a model of typed graphs: {fitting}.",
        )
    if not (graph.is_hetero or model.is_hetero or graph.schema.num_features[graph.target]):
        raise UserError(
            f"{graph.dataset} has no features x.",
            "Give every node some, at least x = torch.ones(num_nodes, 1).",
        )


def check_split_number(dataset: str, number: int, splits: Sequence[int]) -> None:
    """Raise a UserError unless `number` is one of the data set's splits."""
    if number not in splits:
        numbers = ", ".join(map(str, splits[:20])) + ", …" * (len(splits) > 20)
        raise UserError(
            f"dataset.split={number}: {dataset} has no such split.",
            f"Its splits have the numbers {numbers}.",
        )
