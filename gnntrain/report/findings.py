"""A run's graph, and the predictions of its best model against the truth."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support, roc_curve
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.config import from_dict
from gnntrain.data.graph import SPLITS, Graph
from gnntrain.devices import alone_in_process
from gnntrain.errors import GnntrainError
from gnntrain.inference import load_best
from gnntrain.metrics import LabelKind, get_metric, predicted_classes
from gnntrain.models import PlainModel
from gnntrain.report.runs import ReportedRun
from gnntrain.run_store import open_run_store
from gnntrain.tasks import Task

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

SCORED_SPLITS = ("val", "test")
METRICS = ("r2", "rmse", "mae")
SHOWN_NODES = 1000
_CURVE_POINTS = 300
_PCA_COLUMNS = 50
_PERPLEXITY = 30
# Less exact than scikit-learn's defaults: the divergence of 1,000 nodes is 1 to 4 % higher, after
# two thirds of the time.
_ITERATIONS = 400
_ANGLE = 0.8


@dataclass(frozen=True)
class SplitScores:
    """Scores of the labelled nodes of a split by class (or label), `[num_classes]`."""

    num_nodes: int  # labelled
    precision: Floats  # NaN where the denominator is 0, as of recall and F1
    recall: Floats
    f1: Floats
    support: Ints  # nodes of each class
    # nodes by true and by predicted class; None where a node may have several labels
    confusion: Ints | None = None
    roc: Floats | None = None  # `[2, num_points]`, false and true positive rate of a binary task


@dataclass(frozen=True)
class Projection:
    """Some labelled nodes in the plane: neighbours in the last hidden layer are side by side."""

    places: Floats  # `[n, 2]`
    texts: Sequence[str]  # `[n]`, node and split of each
    source: str  # the rows that were projected, in words
    num_labelled: int  # nodes of all splits, of which these were drawn
    labels: Array  # `[n]`: classes, of several the most frequent in the graph; or a target's values
    predicted: Ints | None  # `[n]`, classes; None where nodes have several labels, or values


@dataclass
class Findings:
    """A run's graph and the predictions of its best model."""

    graph: Graph | None = None  # None where it is gone
    notes: list[str] = field(default_factory=list)  # missing parts and the reason, in sentences
    names: Sequence[str] = ()  # of the classes (or labels); of the target that the plane shows
    scores: Mapping[str, SplitScores] = field(default_factory=dict)  # by split with a labelled node
    positive: str | int | None = None  # name of the positive class; None: the task is not binary
    # of a regression: each target's name, and by split the nodes that have it, a row each: `node`
    # (the user's id), `true` and `predicted`
    targets: Sequence[tuple[str, Mapping[str, Any]]] = ()
    projection: Projection | None = None  # None where nodes could not be placed


def findings_of(run: ReportedRun) -> Findings:
    """Compute the predictions of a run's best model for every node of its graph.

    Where the graph or the checkpoint is gone, the notes name the missing parts.
    """
    graph, missing = None, "Degrees, scores and embeddings are missing"
    try:
        config = from_dict(run.run.config(), saved=True)
        graph = open_run_store(run.run.store_record(), config.dataset).store
        missing = "Scores and embeddings are missing"
        with alone_in_process():
            best = load_best(run.run.path)
            found = best.infer(embed=not isinstance(best.model, PlainModel))
            rows = found.embeddings
            # The input of a single layer are the features.
            hidden = None if rows is None or isinstance(rows, LazyFeatures) else rows.numpy()
            return judge(best.graph, best.task, found.outputs, hidden, best.positive_class)
    except GnntrainError as error:
        text = " ".join(error.message.split()).rstrip(".")
        return Findings(graph, [f"{missing}: {text}. {error.hint or ''}".rstrip()])


def judge(
    graph: Graph, task: Task, outputs: Tensor, hidden: Any, positive: str | int | None = None
) -> Findings:
    """Compare a model's outputs for all nodes, `[num_nodes, num_outputs]`, with the truth.

    `hidden` is the input of the last layer, `[num_nodes, width]`, or None; `positive` the name of
    the positive class of a binary task.
    """
    logits, found = outputs.numpy(), Findings(graph, positive=positive)
    everyone = np.unique(np.concatenate([graph.split(name) for name in SPLITS]))
    predicted = None
    if graph.task == "continuous":
        targets = _targets(graph, task, outputs)
        found.targets = [(name, points) for name, points in targets if points]
        column = next((i for i, (_, points) in enumerate(targets) if points), 0)
        found.names = [targets[column][0]]
        labels = graph.labels[everyone, column].astype(np.float64)
        is_labelled = ~np.isnan(labels)
        scored = {split for _, points in found.targets for split in points}
    else:
        found.names = [str(name) for name in graph.class_names or range(graph.num_classes)]
        number = 1 if positive is None else found.names.index(str(positive))
        kind, parts = (graph.task, graph.num_classes, number), map(graph.split, SCORED_SPLITS)
        scores = [score_split(logits[nodes], graph.labels[nodes], *kind) for nodes in parts]
        found.scores = {s: one for s, one in zip(SCORED_SPLITS, scores, strict=True) if one}
        labels = graph.labels[everyone].astype(np.int64)
        if graph.task == "multilabel":
            frequency = graph.labels[everyone].sum(axis=0, dtype=np.int64) + 1
            labels = np.where(labels.any(axis=1), (labels * frequency).argmax(axis=1), -1)
        else:
            predicted = predicted_classes(outputs[torch.from_numpy(everyone)]).numpy()
        is_labelled = labels >= 0
        scored = {*found.scores}
    unlabelled = [split for split in SCORED_SPLITS if split not in scored]
    found.notes += [f"No node of the {split} split has a label." for split in unlabelled]
    shown = sampled(np.flatnonzero(is_labelled))
    nodes = everyone[shown]
    places = project((logits if hidden is None else hidden)[nodes])
    if places is None:
        found.notes.append("Embeddings are missing: too few nodes or columns, or no finite values.")
        return found
    members = {name: nodes[np.isin(nodes, graph.split(name))].tolist() for name in SPLITS}
    split_of = {node: name for name, several in members.items() for node in several}
    named = zip(graph.names(nodes), nodes.tolist(), strict=True)
    texts = [f"node {name} ({split_of[node]})" for name, node in named]
    source = "outputs" if hidden is None else "input of the last layer"
    chosen, number = None if predicted is None else predicted[shown], int(is_labelled.sum())
    found.projection = Projection(places, texts, source, number, labels[shown], chosen)
    return found


def _targets(graph: Graph, task: Task, outputs: Tensor) -> list[tuple[str, dict[str, Any]]]:
    """The name of each target, and its points on the scored splits where a node has it."""
    written = task.predictions()["value"]()
    values, found = written.columns[0].values(outputs), []
    for i, name in enumerate(written.notes["target_names"].tolist()):
        points = {}
        for split in SCORED_SPLITS:
            nodes = graph.split(split)
            columns = {
                "node": graph.names(nodes),
                "true": graph.labels[nodes, i].astype(np.float64),
                "predicted": values[nodes, i].astype(np.float64),
            }
            points[split] = pd.DataFrame(columns).dropna(subset=["true"])
        found.append((name, {split: frame for split, frame in points.items() if len(frame)}))
    return found


def regression_scores(points: Any) -> list[float]:
    """The metrics `METRICS` of a frame with columns `true` and `predicted`."""
    values = [torch.tensor(points[name].to_numpy())[:, None] for name in ("predicted", "true")]
    return [get_metric(name).compute(*values) for name in METRICS]


def score_split(
    logits: Array, labels: Array, task: LabelKind, num_classes: int, positive: int = 1
) -> SplitScores | None:
    """The scores of one split; None where it has no labelled node.

    `logits` are `[n, num_outputs]`, `labels` `[n]`, −1 without a label; multi-label: 0/1
    `[n, num_classes]`. `positive` is the positive class of two.
    """
    if task == "multilabel":
        predicted = (logits > 0).astype(np.int64)
    else:
        is_labelled = labels >= 0
        logits, labels = logits[is_labelled], labels[is_labelled]
        predicted = predicted_classes(torch.from_numpy(logits)).numpy()
    if len(labels) == 0:
        return None
    labels, classes = labels.astype(np.int64), range(num_classes)
    precision, recall, f1, support = precision_recall_fscore_support(
        labels, predicted, labels=classes, zero_division=np.nan
    )
    if task == "multilabel":
        return SplitScores(len(labels), precision, recall, f1, support)
    roc = None
    if task == "binary" and len(np.unique(labels)) == 2 and np.isfinite(logits).all():
        scores = logits[:, 0] if positive == 1 else -logits[:, 0]
        points = np.stack(roc_curve(labels == positive, scores)[:2])
        shown = np.linspace(0, points.shape[1] - 1, _CURVE_POINTS).round().astype(np.int64)
        roc = points[:, np.unique(shown)]
    confusion = confusion_matrix(labels, predicted, labels=classes)
    return SplitScores(len(labels), precision, recall, f1, support, confusion, roc)


def sampled(nodes: Ints) -> Ints:
    """At most `SHOWN_NODES` of the nodes, the same ones in each call, ascending."""
    number = min(len(nodes), SHOWN_NODES)
    return np.sort(np.random.default_rng(0).choice(nodes, number, replace=False))


def project(rows: Array) -> Floats | None:
    """Place rows `[n, width]` in the plane by PCA, then t-SNE (van der Maaten & Hinton, 2008).

    The same rows give the same places.

    Returns:
        float64 `[n, 2]`; None where rows or columns are too few, all the same, or not finite.
    """
    if len(rows) < 4 or rows.shape[1] < 2 or not np.isfinite(rows).all():
        return None
    # a second to import: where it is used
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    rows = rows - rows.mean(axis=0, dtype=np.float64)
    if (scale := rows.std()) == 0:
        return None
    # Several threads wait for each other more than they compute with so few points.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of equal rows, which share a place
        narrow = PCA(min(_PCA_COLUMNS, *rows.shape), random_state=0).fit_transform(rows / scale)
        placed = TSNE(
            perplexity=min(_PERPLEXITY, (len(rows) - 1) / 3),
            init=1e-4 * narrow[:, :2] / narrow[:, 0].std(),  # as "pca", which computes PCA again
            random_state=0,
            max_iter=_ITERATIONS,
            angle=_ANGLE,
        ).fit_transform(narrow)
    return np.asarray(placed, np.float64) if np.isfinite(placed).all() else None
