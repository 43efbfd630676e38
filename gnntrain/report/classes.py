"""What a report says of a classification: which classes are told, and which are mistaken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gnntrain.data.graph import SPLITS, Graph
from gnntrain.metrics import LabelKind
from gnntrain.report import figures
from gnntrain.report.content import Block, Confusion, Figure, Section, Table
from gnntrain.report.findings import SCORED_SPLITS, projection_caption, unlabelled_note
from gnntrain.report.scores import SplitScores, predicted_classes, score_split, top_mistakes
from gnntrain.report.shape import Ints, Projection, projection_of
from gnntrain.reporting.text import format_metric

_MATRIX_CLASSES = 12
_HEATMAP_CLASSES = 50
_TOP_MISTAKES = 20


@dataclass(frozen=True)
class ClassFindings:
    """What a model says of the classes of nodes.

    Attributes:
        kind: Kind of labels.
        names: What the classes (or labels) are called.
        scores: By split, of those with a labelled node.
        projection: Some labelled nodes in the plane; None where they could not be placed.
        classes: int64 `[n]`, their labels; of several the most frequent in the graph.
        predicted: int64 `[n]`, their predicted classes; None where nodes have several labels.
        notes: See `Findings`.
    """

    kind: LabelKind
    names: Sequence[str]
    scores: Mapping[str, SplitScores]
    projection: Projection | None
    classes: Ints
    predicted: Ints | None
    notes: Sequence[str] = field(default_factory=tuple)

    @classmethod
    def of(
        cls, graph: Graph, logits: npt.NDArray[Any], rows: npt.NDArray[Any] | None
    ) -> ClassFindings:
        """The findings of a model.

        Args:
            graph: The graph.
            logits: Of all nodes, `[num_nodes, num_outputs]`.
            rows: What enters its last layer, `[num_nodes, width]`, where there are such rows.
        """
        scores = {}
        for split in SCORED_SPLITS:
            nodes = graph.split(split)
            scores[split] = score_split(
                logits[nodes], graph.labels[nodes], graph.task, graph.num_classes
            )
        splits = {name: graph.split(name) for name in SPLITS}
        everyone = np.unique(np.concatenate(list(splits.values())))
        labelled = everyone[_one_class(graph, everyone) >= 0]
        projection = projection_of(splits, labelled, logits, rows)
        placed = np.zeros(0, np.int64) if projection is None else projection.nodes
        predicted = predicted_classes(logits[placed], graph.task)
        return cls(
            kind=graph.task,
            names=[str(name) for name in graph.class_names or range(graph.num_classes)],
            scores={split: scored for split, scored in scores.items() if scored is not None},
            projection=projection,
            classes=_one_class(graph, placed),
            predicted=None if graph.task == "multilabel" else predicted.astype(np.int64),
            notes=[unlabelled_note(split) for split, scored in scores.items() if scored is None],
        )

    def sections(self, epoch: int | None) -> list[Section]:
        """See `Findings.sections`."""
        sections = []
        if self.scores:
            sections.append(_class_section(self.kind, self.names, self.scores, epoch))
        if self.projection is not None:
            sections.append(
                _projection_section(self.projection, self.classes, self.predicted, self.names)
            )
        return sections


def _class_section(
    kind: LabelKind, names: Sequence[str], scores: Mapping[str, SplitScores], epoch: int | None
) -> Section:
    blocks: list[Block] = []
    for split, scored in scores.items():
        if scored.confusion is not None:
            blocks += _confusion_blocks(split, scored, names)
    if any(scored.roc is not None for scored in scores.values()):
        caption = "True over false positive rate, at every threshold."
        blocks.append(Figure("ROC curve", caption, figures.roc_figure(dict(scores)), wide=True))
    blocks.append(_score_table(names, scores))
    text = f"The best model, of epoch {epoch}, over all in-neighbours."
    if kind != "multiclass":
        text += " A label counts as predicted where its probability is above 0.5."
    return Section("Classes" if kind != "multilabel" else "Labels", blocks, text)


def _confusion_blocks(split: str, scored: SplitScores, names: Sequence[str]) -> Iterator[Block]:
    assert scored.confusion is not None
    title, caption = f"Confusion on {split}", f"{scored.num_nodes:,} nodes, by true class (rows)."
    if len(names) <= _MATRIX_CLASSES:
        shares = scored.confusion / scored.support.clip(min=1)[:, None]
        yield Confusion(title, caption, names, scored.confusion.tolist(), shares.tolist())
        return
    if len(names) <= _HEATMAP_CLASSES:
        spec = figures.confusion_figure(scored, names)
        yield Figure(title, caption, spec, height="tall")
    mistakes = top_mistakes(scored.confusion, _TOP_MISTAKES)
    rows = [
        [names[m.true], names[m.predicted], f"{m.num_nodes:,}", f"{m.share:.1%}"] for m in mistakes
    ]
    heads = ["true", "predicted", "nodes", "of the class"]
    yield Table(f"Most frequent mistakes on {split}", caption, heads, rows, texts=frozenset({0, 1}))


def _score_table(names: Sequence[str], scores: Mapping[str, SplitScores]) -> Table:
    heads = ["class"]
    for split in scores:
        heads += [f"{split} {name}" for name in ("precision", "recall", "F1", "support")]
    rows = []
    for i, name in enumerate(names):
        row = [name]
        for scored in scores.values():
            numbers = (scored.precision[i], scored.recall[i], scored.f1[i])
            row += [
                *(format_metric(float(number)) for number in numbers),
                f"{scored.support[i]:,}",
            ]
        rows.append(row)
    caption = "“-” where a class was never predicted, or has no node."
    return Table("Scores by class", caption, heads, rows, wide=True)


def _projection_section(
    projection: Projection, classes: Ints, predicted: Ints | None, names: Sequence[str]
) -> Section:
    caption = projection_caption(projection)
    if predicted is not None:
        caption += " Rings are nodes that are told wrongly."
    spec = figures.projection_figure(projection, classes, predicted, names)
    figure = Figure("Nodes as the model sees them", caption, spec, wide=True, height="tall")
    return Section("Embeddings", [figure])


def _one_class(store: Graph, nodes: Ints) -> Ints:
    """A class for each node to be coloured by, −1 without a label."""
    labels = store.labels[nodes]
    if store.task != "multilabel":
        return labels.astype(np.int64)
    frequency = labels.sum(axis=0, dtype=np.int64) + 1
    chosen: Ints = (labels * frequency).argmax(axis=1)
    return np.where(labels.any(axis=1), chosen, -1)
