"""What a report says of a regression: predicted against true, and where the model errs most."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnntrain.data.graph import SPLITS, Graph
from gnntrain.metrics import get_metric
from gnntrain.report import figures
from gnntrain.report.content import Block, Figure, Section, Table
from gnntrain.report.findings import SCORED_SPLITS, projection_caption, unlabelled_note
from gnntrain.report.shape import Floats, Ints, Points, Projection, projection_of, sampled_nodes
from gnntrain.reporting.text import format_metric, shown_metric
from gnntrain.tasks import Task

_DRAWN_TARGETS = 4
_WORST_NODES = 10
_BINS = 40
_METRICS = ("r2", "rmse", "mae")


@dataclass(frozen=True)
class TargetFindings:
    """What a model says of one target, in its own units; by split, of those with a node that has
    the target.

    Attributes:
        name: In the user's words.
        num_nodes: Nodes that have it.
        scores: The metrics `_METRICS`.
        drawn: As many nodes as a picture shows.
        residuals: See `figures.residual_figure`; the outermost bins hold what lies beyond.
        worst: The nodes with the largest errors, the largest first.
    """

    name: str
    num_nodes: Mapping[str, int]
    scores: Mapping[str, Sequence[float]]
    drawn: Mapping[str, Points]
    residuals: Mapping[str, tuple[Floats, Floats]]
    worst: Mapping[str, Points]

    @classmethod
    def of(
        cls, name: str, graph: Graph, target: int, predicted: npt.NDArray[Any]
    ) -> TargetFindings | None:
        """The findings about one target; None where no node of a scored split has it.

        Args:
            name: In the user's words.
            graph: The graph.
            target: Its column.
            predicted: Its predicted values of all nodes, `[num_nodes]`.
        """
        nodes = {split: graph.split(split) for split in SCORED_SPLITS}
        known = {split: ids[~np.isnan(graph.labels[ids, target])] for split, ids in nodes.items()}
        known = {split: ids for split, ids in known.items() if len(ids)}
        if not known:
            return None

        def points(ids: Ints) -> Points:
            true = graph.labels[ids, target].astype(np.float64)
            return Points(_shown_ids(graph, ids), true, predicted[ids].astype(np.float64))

        errors = {
            split: predicted[ids].astype(np.float64) - graph.labels[ids, target]
            for split, ids in known.items()
        }
        worst = {
            split: np.argsort(-np.abs(error), kind="stable")[:_WORST_NODES]
            for split, error in errors.items()
        }
        return cls(
            name=name,
            num_nodes={split: len(ids) for split, ids in known.items()},
            scores={
                split: _scores(predicted[ids], graph.labels[ids, target])
                for split, ids in known.items()
            },
            drawn={split: points(sampled_nodes(ids)) for split, ids in known.items()},
            residuals=histograms(errors),
            worst={split: points(ids[worst[split]]) for split, ids in known.items()},
        )


def histograms(errors: Mapping[str, Floats]) -> dict[str, tuple[Floats, Floats]]:
    """The middles of equal bins, and the share of the errors in each; the hundredth that lies
    outermost counts in the bins at the ends."""
    low, high = np.quantile(np.concatenate(list(errors.values())), [0.005, 0.995])
    edges = np.linspace(low, high, _BINS + 1) if low < high else np.array([low - 1, low + 1])
    middles = (edges[:-1] + edges[1:]) / 2
    return {
        split: (middles, np.histogram(error.clip(low, high), edges)[0] / len(error))
        for split, error in errors.items()
    }


@dataclass(frozen=True)
class ValueFindings:
    """What a model says of the quantities of nodes.

    Attributes:
        targets: Those that a node of a scored split has.
        projection: Some nodes that have the first of `targets`, in the plane; None where they could
            not be placed.
        values: float64 `[n]`, this target of theirs.
        notes: See `Findings`.
    """

    targets: Sequence[TargetFindings]
    projection: Projection | None
    values: Floats
    notes: Sequence[str] = field(default_factory=tuple)

    @classmethod
    def of(
        cls, graph: Graph, task: Task, outputs: Tensor, rows: npt.NDArray[Any] | None
    ) -> ValueFindings:
        """The findings of a model.

        Args:
            graph: The graph.
            task: The regression.
            outputs: Of all nodes, `[num_nodes, num_outputs]`.
            rows: What enters its last layer, `[num_nodes, width]`, where there are such rows.
        """
        written = task.predictions()["value"]()
        predicted = written.columns[0].values(outputs)
        splits = {name: graph.split(name) for name in SPLITS}
        everyone = np.unique(np.concatenate(list(splits.values())))
        found = [
            TargetFindings.of(name, graph, i, predicted[:, i])
            for i, name in enumerate(written.notes["target_names"].tolist())
        ]
        targets = [target for target in found if target is not None]
        has_label = {split for target in targets for split in target.num_nodes}
        first = next((i for i, target in enumerate(found) if target is not None), 0)
        labelled = everyone[~np.isnan(graph.labels[everyone, first])]
        projection = projection_of(splits, labelled, outputs.numpy(), rows)
        placed = np.zeros(0, np.int64) if projection is None else projection.nodes
        return cls(
            targets=targets,
            projection=projection,
            values=graph.labels[placed, first].astype(np.float64),
            notes=[unlabelled_note(split) for split in SCORED_SPLITS if split not in has_label],
        )

    def sections(self, epoch: int | None) -> list[Section]:
        """See `Findings.sections`."""
        sections = []
        if self.targets:
            drawn = self.targets[:_DRAWN_TARGETS]
            blocks = [block for target in drawn for block in _drawn(target)]
            blocks.append(_score_table(self.targets))
            blocks += [_worst_table(target) for target in drawn]
            text = (
                f"The best model, of epoch {epoch}, over all in-neighbours, in the targets' units."
            )
            sections.append(Section("Predictions", blocks, text))
        if self.projection is not None:
            name = self.targets[0].name if self.targets else "value"
            spec = figures.value_projection_figure(self.projection, self.values, name)
            caption = f"{projection_caption(self.projection)} Coloured by {name}."
            title = "Nodes as the model sees them"
            figure = Figure(title, caption, spec, wide=True, height="tall")
            sections.append(Section("Embeddings", [figure]))
        return sections


def _shown_ids(graph: Graph, nodes: Ints) -> list[str]:
    """The nodes as the user calls them."""
    ids = nodes if graph.node_ids is None else graph.node_ids[nodes]
    return [name.decode() if isinstance(name, bytes) else str(name) for name in ids.tolist()]


def _scores(predicted: npt.NDArray[Any], true: npt.NDArray[Any]) -> list[float]:
    outputs, targets = (
        torch.from_numpy(values.astype(np.float64))[:, None] for values in (predicted, true)
    )
    return [get_metric(name).compute(outputs, targets) for name in _METRICS]


def _drawn(target: TargetFindings) -> Iterator[Block]:
    shown = sum(len(points.nodes) for points in target.drawn.values())
    number = sum(target.num_nodes.values())
    of = f"{shown:,} of {number:,} nodes" if shown < number else f"{number:,} nodes"
    caption = f"{of}; on the dotted line both are equal."
    spec = figures.prediction_figure(target.drawn, target.name)
    yield Figure(f"Predicted and true {target.name}", caption, spec)
    caption = "Predicted minus true; the bins at the ends hold what lies beyond."
    spec = figures.residual_figure(target.residuals, target.name)
    yield Figure(f"Errors of {target.name}", caption, spec)


def _score_table(targets: Sequence[TargetFindings]) -> Table:
    heads = ["target"]
    for split in SCORED_SPLITS:
        heads += [*(f"{split} {shown_metric(name)}" for name in _METRICS), f"{split} nodes"]
    rows = []
    for target in targets:
        row = [target.name]
        for split in SCORED_SPLITS:
            scores = target.scores.get(split, [math.nan] * len(_METRICS))
            row += [*map(format_metric, scores), f"{target.num_nodes.get(split, 0):,}"]
        rows.append(row)
    caption = "“-” where a target does not vary, or no node has it."
    return Table("Scores by target", caption, heads, rows, wide=True)


def _worst_table(target: TargetFindings) -> Table:
    split = "test" if "test" in target.worst else "val"
    found = target.worst[split]
    numbers = zip(found.nodes, found.true.tolist(), found.predicted.tolist(), strict=True)
    rows = [
        [node, f"{true:.6g}", f"{predicted:.6g}", f"{predicted - true:+.6g}"]
        for node, true, predicted in numbers
    ]
    caption = f"{len(rows)} of {target.num_nodes[split]:,} nodes."
    heads = ["node", "true", "predicted", "error"]
    return Table(f"Largest errors of {target.name} on {split}", caption, heads, rows)
