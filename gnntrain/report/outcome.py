"""What a run's best model says of the graph it was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gnntrain.compute.features import LazyFeatures
from gnntrain.config import from_dict
from gnntrain.data.graph import Graph
from gnntrain.data.summary import DataSummary
from gnntrain.errors import GnntrainError
from gnntrain.inference import load_best
from gnntrain.metrics import LabelKind
from gnntrain.models import PlainModel
from gnntrain.report.runs import ReportedRun
from gnntrain.report.scores import SplitScores, predicted_classes, score_split
from gnntrain.report.shape import Degrees, Floats, Ints, degrees_of, project, sampled_nodes
from gnntrain.run_store import open_run_store
from gnntrain.training.evaluation import SPLITS

SCORED_SPLITS = ("val", "test")


@dataclass(frozen=True)
class GraphSummary:
    """What the graph of a run is.

    Attributes:
        num_nodes, num_edges, num_features: Its sizes.
        task: Kind of labels.
        class_names: What the classes (or labels) are called.
        split_sizes: Nodes of train, val and test.
        degrees: Its in-degrees.
        data: What was read to make it; None where its store does not say.
    """

    num_nodes: int
    num_edges: int
    num_features: int
    task: LabelKind
    class_names: Sequence[str]
    split_sizes: Mapping[str, int]
    degrees: Degrees
    data: DataSummary | None = None


@dataclass(frozen=True)
class Projection:
    """Some labelled nodes in the plane, neighbours in the model's last hidden layer side by side.

    Attributes:
        nodes: int64 `[n]`.
        places: float64 `[n, 2]`.
        classes: int64 `[n]`, the nodes' labels; of several the most frequent in the graph.
        predicted: int64 `[n]`, the predicted classes; None where nodes have several labels.
        splits: `[n]`, the split of each node.
        source: What was projected, in words.
        num_labelled: Labelled nodes of all splits, of which these were drawn.
    """

    nodes: Ints
    places: Floats
    classes: Ints
    predicted: Ints | None
    splits: Sequence[str]
    source: str
    num_labelled: int


@dataclass
class Outcome:
    """What there is to say of a run's graph and best model; what is missing is in `notes`.

    Attributes:
        graph: The graph; None where it is gone.
        scores: By split, of those with a labelled node.
        projection: None where it could not be made.
        notes: What was left out and why, in sentences.
    """

    graph: GraphSummary | None = None
    scores: dict[str, SplitScores] = field(default_factory=dict)
    projection: Projection | None = None
    notes: list[str] = field(default_factory=list)


def outcome_of(run: ReportedRun) -> Outcome:
    """Compute what a run's best model says of every node of its graph.

    A graph or a checkpoint that is gone is no error: the outcome's notes say what is left out.
    """
    outcome = Outcome()
    try:
        store = open_run_store(run.run, from_dict(run.run.config(), saved=True).dataset).store
    except GnntrainError as error:
        left_out = "Degrees, scores by class and the embeddings are left out"
        outcome.notes.append(f"{left_out}: {_sentence(error)}")
        return outcome
    outcome.graph = graph_of(store)
    try:
        logits, rows = _computed(run)
    except GnntrainError as error:
        left_out = "Scores by class and the embeddings are left out"
        outcome.notes.append(f"{left_out}: {_sentence(error)}")
        return outcome
    for split in SCORED_SPLITS:
        nodes = store.split(split)
        scores = score_split(logits[nodes], store.labels[nodes], store.task, store.num_classes)
        if scores is None:
            outcome.notes.append(f"No node of the {split} split has a label.")
        else:
            outcome.scores[split] = scores
    outcome.projection = _projection(store, logits, rows)
    if outcome.projection is None:
        outcome.notes.append("The embeddings are left out: they are too few or not finite.")
    return outcome


def graph_of(store: Graph) -> GraphSummary:
    """The facts of a graph."""
    names = store.class_names
    return GraphSummary(
        num_nodes=store.num_nodes,
        num_edges=store.num_edges,
        num_features=store.num_features,
        task=store.task,
        class_names=[str(name) for name in names or range(store.num_classes)],
        split_sizes={name: len(store.split(name)) for name in SPLITS},
        degrees=degrees_of(store.indptr),
        data=store.summary,
    )


def _sentence(error: GnntrainError) -> str:
    text = " ".join(error.message.split()).rstrip(".")
    return f"{text}. {error.hint}" if error.hint else f"{text}."


def _computed(run: ReportedRun) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
    """Logits of all nodes, and what enters the last layer where the model has such rows."""
    best = load_best(run.run.path)
    found = best.infer(embed=not isinstance(best.model, PlainModel))
    rows = found.embeddings
    if rows is None or isinstance(rows, LazyFeatures):  # a single layer's are the features
        return found.logits.numpy(), None
    return found.logits.numpy(), rows.numpy()


def _projection(
    store: Graph, logits: npt.NDArray[Any], rows: npt.NDArray[Any] | None
) -> Projection | None:
    splits = {name: store.split(name) for name in SPLITS}
    everyone = np.unique(np.concatenate(list(splits.values())))
    classes = _one_class(store, everyone)
    labelled = everyone[classes >= 0]
    nodes = sampled_nodes(labelled)
    places = project((logits if rows is None else rows)[nodes])
    if places is None:
        return None
    predicted = predicted_classes(logits[nodes], store.task)
    return Projection(
        nodes=nodes,
        places=places,
        classes=_one_class(store, nodes),
        predicted=None if store.task == "multilabel" else predicted.astype(np.int64),
        splits=_splits_of(nodes, splits),
        source="the logits" if rows is None else "the rows that enter the last layer",
        num_labelled=len(labelled),
    )


def _one_class(store: Graph, nodes: Ints) -> Ints:
    """A class for each node to be coloured by, −1 without a label."""
    labels = store.labels[nodes]
    if store.task != "multilabel":
        return labels.astype(np.int64)
    frequency = labels.sum(axis=0, dtype=np.int64) + 1
    chosen: Ints = (labels * frequency).argmax(axis=1)
    return np.where(labels.any(axis=1), chosen, -1)


def _splits_of(nodes: Ints, splits: Mapping[str, Ints]) -> list[str]:
    names = np.full(len(nodes), "", dtype="U5")
    for name, members in splits.items():
        names[np.isin(nodes, members)] = name
    return names.tolist()
