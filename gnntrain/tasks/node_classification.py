"""Classifying nodes: one class of many, one of two, or several labels a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gnntrain.config.problems import did_you_mean
from gnntrain.data.graph import SPLITS, AnyArray, Graph
from gnntrain.data.ogb import ogb_nodeproppred
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.errors import UserError
from gnntrain.metrics import (
    BASE_RATE,
    RANKING_METRICS,
    LabelKind,
    Metric,
    get_metric,
    outside_metrics,
    predicted_classes,
    top_metrics,
)
from gnntrain.tasks.base import Column, Columns, Labels, NodeTask, listed

# Computed for every split; the deciding metric comes before them.
_REPORTED: Mapping[LabelKind, tuple[str, ...]] = {
    "multiclass": ("accuracy", "f1_macro"),
    "binary": (*RANKING_METRICS, "accuracy", "f1_macro", "precision", "recall", "f1"),
    "multilabel": ("f1_micro", "f1_macro", "accuracy"),
}
# Of these the positive class is, for everybody, the one that sorts last.
_PLAIN_NAMES = (("0", "1"), ("false", "true"), ("no", "yes"))


class NodeClassification(NodeTask):
    """Classifies the nodes of a graph.

    Args:
        graph: Nodes, splits and labels.
        labels: The labels to predict; None: those of `graph`. A trained model may predict for a
            graph without labels.
        label_smoothing: Share of the target spread evenly over the classes (Szegedy et al., 2016).
        balanced: Whether the loss weights classes by their rarity in the training split.
        positive: The positive class of two, 0 or 1.
        top_k: Of how many nodes precision@k and recall@k of two classes are.

    Attributes:
        kind: The kind of labels: "multiclass", "binary" or "multilabel".
        num_outputs: A logit a class; a single one for two classes.
        metric: The deciding metric.

    Raises:
        UserError: No installed package has the metric.
    """

    def __init__(
        self,
        graph: Graph,
        labels: Labels | None = None,
        *,
        label_smoothing: float = 0.0,
        balanced: bool = False,
        positive: int = 1,
        top_k: int = 100,
    ) -> None:
        labels = labels or graph
        num_outputs = 1 if labels.task == "binary" else labels.num_classes
        super().__init__(graph, num_outputs)
        self._label_smoothing = label_smoothing
        self._balanced = balanced
        self._positive = positive
        self._top_k = top_k
        self._weights: Tensor | None = None
        self._num_classes = labels.num_classes
        self._class_names = labels.class_names
        self.kind: LabelKind = labels.task
        self.metric: Metric = get_metric(labels.metric)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Softmax cross-entropy of one class of many; else the logistic loss, of several labels
        their mean. In float32 whatever the logits are.

        Weights of classes multiply the terms of the sum, which is divided by the number of seeds,
        not by their weights: so the loss does not depend on which rank has which seeds. Over the
        whole training split both are the same, since the mean weight is 1.
        """
        logits, smoothing = outputs.float(), self._label_smoothing
        weights = self._weights_on(logits.device) if self._balanced else None
        if self.kind == "multiclass":
            return F.cross_entropy(
                logits, targets.long(), weights, reduction="sum", label_smoothing=smoothing
            )
        flags = targets.float().view_as(logits) * (1 - smoothing) + smoothing / 2
        if weights is None:
            losses = F.binary_cross_entropy_with_logits(logits, flags, reduction="none")
        else:
            without, with_label = weights.unbind(-1)
            losses = -with_label * flags * F.logsigmoid(logits)
            losses -= without * (1 - flags) * F.logsigmoid(-logits)
        return losses.mean(dim=1).sum()

    def _weights_on(self, device: torch.device) -> Tensor:
        """Weights that give all classes equal influence: n / (K * n_c), scikit-learn's `balanced`;
        computed and copied in the first step, before a recording.

        n is the number of training nodes, K the number of classes among them, n_c the number of
        training nodes of class c. So the mean weight of a training node is 1. A class without a
        training node has weight 0. If a node has several labels, each label is weighed as a binary
        class: `[num_labels, 2]`, without and with the label.
        """
        if self._weights is None or self._weights.device != device:
            counts = self._graph.class_counts("train").astype(np.float64)
            if self._graph.task == "multilabel":
                counts = np.stack([len(self._graph.split("train")) - counts, counts], axis=1)
            total = counts.sum(axis=-1, keepdims=True)
            num_present = (counts > 0).sum(axis=-1, keepdims=True)
            none = np.zeros_like(counts)
            weights = np.divide(total, num_present * counts, out=none, where=counts > 0)
            self._weights = torch.from_numpy(weights.astype(np.float32)).to(device)
        return self._weights

    @cached_property
    def reported(self) -> Sequence[Metric]:
        """See `Task.reported`."""
        own = _REPORTED[self.kind]
        # Ranking sorts once a label: only if it is the deciding metric.
        ranking = RANKING_METRICS if self.metric.name in RANKING_METRICS else ()
        names = dict.fromkeys((*own, *ranking, *outside_metrics(self.kind)))
        names.pop(self.metric.name, None)
        deciding = self.metric if self._graph.ogb_name is None else self._metric_of_ogb()
        reported = [deciding, *map(get_metric, names)]
        if self.kind == "binary":
            ranked = [metric.name for metric in reported].index("average_precision")
            reported.insert(ranked + 1, BASE_RATE)
            reported += top_metrics(self._top_k)
        return reported

    def metric_inputs(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """See `Task.metric_inputs`: float32 and int64; of two classes, the positive class's."""
        if self.kind != "multilabel":
            is_labelled = targets >= 0
            outputs, targets = outputs[is_labelled], targets[is_labelled]
        outputs, targets = outputs.float(), targets.long()
        if self.kind == "binary" and self._positive == 0:
            # A logit of 0 predicts the first class: negated, it must be above 0.
            above = torch.full_like(outputs, torch.inf)
            return torch.nextafter(-outputs, above), 1 - targets
        return outputs, targets

    def _metric_of_ogb(self) -> Metric:
        """The deciding metric, computed by OGB's own evaluator."""
        assert self._graph.ogb_name is not None
        is_class = self.kind == "multiclass"
        if is_class and isinstance(self._graph, PartitionedGraph):
            # OGB counts the right ones, too: no rank needs all outputs of parts.
            accuracy = get_metric("accuracy")
            return replace(self.metric, function=accuracy.function, counts=accuracy.counts)
        compute = partial(_ogb_metric, self._graph.ogb_name, is_class=is_class)
        return replace(self.metric, function=compute, counts=None)

    def predictions(self) -> Mapping[str, Callable[[], Columns]]:
        """Classes, their probabilities, or logits."""
        return {
            "class": self._classes,
            "probabilities": lambda: self._matrix(
                "probabilities", "probability", self._probabilities
            ),
            "logits": lambda: self._matrix("logits", "logit", lambda logits: logits.numpy()),
        }

    def warnings(self) -> list[str]:
        """Classes without a training node; a metric that is not defined on a split."""
        graph, found = self._graph, []
        counts = {split: graph.class_counts(split) for split in SPLITS}
        val, test = counts["val"], counts["test"]
        unseen = np.flatnonzero((counts["train"] == 0) & (val + test > 0)).tolist()
        if unseen:
            one, many = ("label", "labels") if self.kind == "multilabel" else ("class", "classes")
            names = graph.class_names or range(graph.num_classes)
            shown = listed(
                [f"{one} {names[n]} ({val[n]} val and {test[n]} test nodes)" for n in unseen]
            )
            found.append(
                f"No training node has {len(unseen)} of {graph.num_classes} {many}, which cannot "
                f"be learnt: {shown}."
            )
        name = self.metric.name
        for split in ("val", "test") if name in ("precision", "recall", "f1") else ():
            if len(graph.split(split)) and counts[split][self._positive] == 0:
                then = "; the first epoch counts as the best" if split == "val" else ""
                found.append(
                    f"{name} is 0 on {split}, where no node is of the positive class{then}."
                )
        for split in ("val", "test") if name in RANKING_METRICS else ():
            # Ranking needs nodes with the label and nodes without; for two classes, nodes of both.
            size = len(graph.split(split))
            can_rank = (counts[split] > 0) & (counts[split] < size)
            if size and not can_rank.any():
                then = "; the last epoch counts as the best" if split == "val" else ""
                found.append(
                    f"{name} is not defined on {split}, where all nodes have one class{then}."
                )
        return found

    def _classes(self) -> Columns:
        names = self._names()
        if self.kind == "multilabel":
            flags = lambda logits: (logits > 0).numpy().astype(np.uint8)  # noqa: E731
            return self._matrix("class", "class", flags, np.uint8)
        best = lambda logits: names[predicted_classes(logits)]  # noqa: E731
        largest = lambda logits: self._probabilities(logits).max(1)  # noqa: E731
        return Columns(
            [
                Column("class", names.dtype, best),
                Column("probability", np.dtype(np.float32), largest),
            ]
        )

    def _matrix(
        self,
        name: str,
        title: str,
        values: Callable[[Tensor], AnyArray],
        dtype: type[np.generic] = np.float32,
    ) -> Columns:
        """A column a class."""
        names = self._names()
        titles = [f"{title}_{name}" for name in names.tolist()]
        if name == "logits" and self.kind == "binary":
            titles = [title]
        return Columns([Column(name, np.dtype(dtype), values, titles)], {"class_names": names})

    def _names(self) -> AnyArray:
        """Names of the classes: texts, or numbers."""
        return np.array(self._class_names or range(self._num_classes))

    def _probabilities(self, logits: Tensor) -> AnyArray:
        """The probabilities of the classes, `[n, num_classes]`."""
        if self.kind == "multiclass":
            return np.asarray(logits.softmax(1).numpy())
        found = logits.sigmoid().numpy()
        return np.concatenate([1 - found, found], axis=1) if self.kind == "binary" else found


def _ogb_metric(name: str, logits: Tensor, labels: Tensor, *, is_class: bool) -> float:
    """The metric of an OGB data set, by OGB's evaluator."""
    predicted = logits.argmax(dim=1, keepdim=True) if is_class else logits
    answer: dict[str, float] = (
        ogb_nodeproppred()
        .Evaluator(name)
        .eval(
            {
                "y_true": labels.view(predicted.shape).cpu().numpy(),
                "y_pred": predicted.cpu().numpy(),
            }
        )
    )
    (value,) = answer.values()
    return float(value)


def positive_class(labels: Labels, name: str | None) -> int | None:
    """The number of the positive class of two, 0 or 1, which precision, recall and average
    precision are of; None: the task is not binary. A model's one logit is that of the class that
    sorts last, whichever is the positive one.

    Args:
        labels: The labels.
        name: The key `task.positive_class`; None: the class that sorts last.

    Raises:
        UserError: There is no class of this name, or there are not two classes.
    """
    if labels.task != "binary":
        if name is None:
            return None
        raise UserError(
            f"task.positive_class={name}: these labels are {labels.task}; only one of two classes "
            "is the positive one.",
            "Leave it out.",
        )
    if name is None:
        return 1
    names = [str(known) for known in labels.class_names or range(2)]
    if name in names:
        return names.index(name)
    folded = [known.casefold() for known in names]
    if folded.count(name.casefold()) == 1:  # Hydra and YAML read True and TRUE as truth values
        return folded.index(name.casefold())
    raise UserError(
        f"task.positive_class={name}: the two classes are {names[0]} and {names[1]}.",
        did_you_mean(name, names, f"Set it to {names[0]} or {names[1]}, in a YAML file in quotes."),
    )


def positive_name(labels: Labels, name: str | None) -> str | int | None:
    """As `positive_class`, but the name of the class."""
    number = positive_class(labels, name)
    return None if number is None else (labels.class_names or range(2))[number]


def positive_phrase(labels: Labels, name: str | None) -> str:
    """The positive class for the console; where it may be the wrong one, how to choose the other.
    Empty without one."""
    if labels.task != "binary":
        return ""
    other, last = (str(known) for known in labels.class_names or range(2))
    if name is None and (other.casefold(), last.casefold()) not in _PLAIN_NAMES:
        return f"{last}, which sorts last; task.positive_class={other} takes the other class"
    return str(positive_name(labels, name))
