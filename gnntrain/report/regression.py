"""Scores of a regression: predicted against true values, and the largest errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnntrain.data.graph import SPLITS, Graph
from gnntrain.metrics import get_metric
from gnntrain.report.classification import SCORED_SPLITS
from gnntrain.report.projection import Floats, Ints, Projection, sampled_nodes
from gnntrain.tasks import Task

METRICS = ("r2", "rmse", "mae")
_WORST_NODES = 10
_BINS = 40


@dataclass(frozen=True)
class Points:
    """Nodes with a true and a predicted value.

    Attributes:
        nodes: The user's ids of the nodes.
        true, predicted: float64 `[n]`.
    """

    nodes: Sequence[str]
    true: Floats
    predicted: Floats


@dataclass(frozen=True)
class TargetFindings:
    """A model's predictions of one target, in its own units; by split, of the splits with a node
    that has the target.

    Attributes:
        name: The user's name of the target.
        num_nodes: Nodes that have it.
        scores: The metrics `METRICS`.
        drawn: The nodes of a figure.
        errors: See `histograms`.
        worst: The nodes with the largest errors, the largest first.
    """

    name: str
    num_nodes: Mapping[str, int]
    scores: Mapping[str, Sequence[float]]
    drawn: Mapping[str, Points]
    errors: Mapping[str, tuple[Floats, Floats]]
    worst: Mapping[str, Points]

    @classmethod
    def of(
        cls, name: str, graph: Graph, target: int, predicted: npt.NDArray[Any]
    ) -> TargetFindings | None:
        """The findings about one target; None where no node of a scored split has it.

        Args:
            name: The user's name of the target.
            graph: The graph.
            target: Its column.
            predicted: Its predicted values of all nodes, `[num_nodes]`.
        """
        known = {}
        for split in SCORED_SPLITS:
            nodes = graph.split(split)
            nodes = nodes[~np.isnan(graph.labels[nodes, target])]
            if len(nodes):
                known[split] = nodes
        if not known:
            return None
        true = {split: graph.labels[ids, target].astype(np.float64) for split, ids in known.items()}
        errors = {split: predicted[known[split]] - values for split, values in true.items()}

        def points(nodes: Ints) -> Points:
            values = graph.labels[nodes, target].astype(np.float64)
            return Points(_shown_ids(graph, nodes), values, predicted[nodes].astype(np.float64))

        def worst(split: str) -> Ints:
            order = np.argsort(-np.abs(errors[split]), kind="stable")
            nodes: Ints = known[split][order[:_WORST_NODES]]
            return nodes

        return cls(
            name=name,
            num_nodes={split: len(nodes) for split, nodes in known.items()},
            scores={split: _scores(predicted[known[split]], true[split]) for split in known},
            drawn={split: points(sampled_nodes(nodes)) for split, nodes in known.items()},
            errors=histograms(errors),
            worst={split: points(worst(split)) for split in known},
        )


def _shown_ids(graph: Graph, nodes: Ints) -> list[str]:
    """The user's ids of nodes."""
    ids = nodes if graph.node_ids is None else graph.node_ids[nodes]
    return [name.decode() if isinstance(name, bytes) else str(name) for name in ids.tolist()]


def _scores(predicted: npt.NDArray[Any], true: Floats) -> list[float]:
    outputs, targets = (
        torch.from_numpy(values.astype(np.float64))[:, None] for values in (predicted, true)
    )
    return [get_metric(name).compute(outputs, targets) for name in METRICS]


def histograms(errors: Mapping[str, Floats]) -> dict[str, tuple[Floats, Floats]]:
    """By split the edges `[n + 1]` of equal bins, and the share of errors `[n]` in each.

    The outermost hundredth counts in the bins at the ends.
    """
    low, high = np.quantile(np.concatenate(list(errors.values())), [0.005, 0.995])
    edges = np.linspace(low, high, _BINS + 1) if low < high else np.array([low - 1, low + 1])
    return {
        split: (edges, np.histogram(error.clip(low, high), edges)[0] / len(error))
        for split, error in errors.items()
    }


@dataclass(frozen=True)
class ValueFindings:
    """A model's predictions of the quantities of nodes.

    Attributes:
        targets: The targets that a node of a scored split has.
        projection: Some nodes that have the first of `targets`, in the plane; None where they could
            not be placed.
        values: float64 `[n]`, this target of theirs.
    """

    targets: Sequence[TargetFindings]
    projection: Projection | None
    values: Floats

    @classmethod
    def of(
        cls, graph: Graph, task: Task, outputs: Tensor, rows: npt.NDArray[Any] | None
    ) -> ValueFindings:
        """The findings of a model.

        Args:
            graph: The graph.
            task: The regression.
            outputs: Of all nodes, `[num_nodes, num_outputs]`.
            rows: The input of its last layer, `[num_nodes, width]`, where there are such rows.
        """
        written = task.predictions()["value"]()
        predicted = written.columns[0].values(outputs)
        found = [
            TargetFindings.of(name, graph, i, predicted[:, i])
            for i, name in enumerate(written.notes["target_names"].tolist())
        ]
        first = next((i for i, target in enumerate(found) if target is not None), 0)
        everyone = np.unique(np.concatenate([graph.split(name) for name in SPLITS]))
        labelled = everyone[~np.isnan(graph.labels[everyone, first])]
        projection = Projection.of(graph, labelled, outputs.numpy(), rows)
        placed = labelled[:0] if projection is None else projection.nodes
        return cls(
            targets=[target for target in found if target is not None],
            projection=projection,
            values=graph.labels[placed, first].astype(np.float64),
        )

    @property
    def scored_splits(self) -> set[str]:
        """The splits with a node that has a target."""
        return {split for target in self.targets for split in target.num_nodes}
