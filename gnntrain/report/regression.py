"""Scores of a regression: predicted against true values, and the largest errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnntrain.data.graph import SPLITS, AnyArray, Graph
from gnntrain.metrics import get_metric
from gnntrain.report.classification import SCORED_SPLITS
from gnntrain.report.projection import Floats, Ints, Projection
from gnntrain.tasks import Task

METRICS = ("r2", "rmse", "mae")
_BINS = 40


@dataclass(frozen=True)
class Points:
    """Nodes with a true and a predicted value.

    Attributes:
        nodes: `[n]`, the user's ids of the nodes.
        true, predicted: float64 `[n]`.
    """

    nodes: AnyArray
    true: Floats
    predicted: Floats

    @property
    def errors(self) -> Floats:
        """Predicted minus true."""
        return self.predicted - self.true

    def take(self, places: Ints) -> Points:
        """The points at some places."""
        return Points(self.nodes[places], self.true[places], self.predicted[places])

    def rows(self) -> Iterator[tuple[str, float, float]]:
        """Id, true and predicted value of each node."""
        for node, true, predicted in zip(self.nodes, self.true, self.predicted, strict=True):
            yield node.decode() if isinstance(node, bytes) else str(node), true, predicted

    def scores(self) -> list[float]:
        """The metrics `METRICS`."""
        predicted, true = (torch.from_numpy(v)[:, None] for v in (self.predicted, self.true))
        return [get_metric(name).compute(predicted, true) for name in METRICS]


@dataclass(frozen=True)
class TargetFindings:
    """A model's predictions of one target, in its own units.

    Attributes:
        name: The user's name of the target.
        points: By split the nodes that have it; without splits in which no node has it.
    """

    name: str
    points: Mapping[str, Points]

    @classmethod
    def of(
        cls, name: str, graph: Graph, target: int, predicted: npt.NDArray[Any]
    ) -> TargetFindings:
        """The findings about one target.

        Args:
            name: The user's name of the target.
            graph: The graph.
            target: Its column.
            predicted: Its predicted values of all nodes, `[num_nodes]`.
        """
        points = {}
        for split in SCORED_SPLITS:
            nodes = graph.split(split)
            true = graph.labels[nodes, target].astype(np.float64)
            ids = nodes if graph.node_ids is None else graph.node_ids[nodes]
            whole = Points(ids, true, predicted[nodes].astype(np.float64))
            if not np.isnan(true).all():
                points[split] = whole.take((~np.isnan(true)).nonzero()[0])
        return cls(name, points)


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
        first = next((i for i, target in enumerate(found) if target.points), 0)
        everyone = np.unique(np.concatenate([graph.split(name) for name in SPLITS]))
        labelled = everyone[~np.isnan(graph.labels[everyone, first])]
        projection = Projection.of(graph, labelled, outputs.numpy(), rows)
        placed = labelled[:0] if projection is None else projection.nodes
        return cls(
            targets=[target for target in found if target.points],
            projection=projection,
            values=graph.labels[placed, first].astype(np.float64),
        )

    @property
    def scored_splits(self) -> set[str]:
        """The splits with a node that has a target."""
        return {split for target in self.targets for split in target.points}
