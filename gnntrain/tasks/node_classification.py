"""Classifying nodes: one class of many, one of two, or several labels a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gnntrain.data.graph import AnyArray, Graph
from gnntrain.data.ogb import ogb_nodeproppred
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.metrics import (
    RANKING_METRICS,
    LabelKind,
    Metric,
    base_rate,
    get_metric,
    outside_metrics,
    predicted_classes,
    top_metrics,
)
from gnntrain.tasks.base import Column, Columns
from gnntrain.tasks.class_weights import balanced_weights
from gnntrain.tasks.label_warnings import label_warnings
from gnntrain.tasks.nodes import NodeTask

# Computed for every split; the deciding metric comes before them.
_REPORTED: Mapping[LabelKind, tuple[str, ...]] = {
    "multiclass": ("accuracy", "f1_macro"),
    "binary": (*RANKING_METRICS, "accuracy", "f1_macro", "precision", "recall", "f1"),
    "multilabel": ("f1_micro", "f1_macro", "accuracy"),
}


class Labels(Protocol):
    """The labels of a classification; a graph store and the signature of a trained model have them.

    Attributes:
        task: The kind of labels.
        metric: Name of the deciding metric.
        num_classes: Number of classes, or of labels.
        class_names: The classes as the user calls them; None: 0, 1, ….
    """

    @property
    def task(self) -> LabelKind: ...
    @property
    def metric(self) -> str: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def class_names(self) -> Sequence[str] | Sequence[int] | None: ...


class NodeClassification(NodeTask):
    """Classifies the nodes of a graph.

    Args:
        graph: Nodes, splits and labels.
        labels: The labels to predict; None: those of `graph`. A trained model may predict for a
            graph without labels.
        label_smoothing: Share of the target spread evenly over the classes (Szegedy et al., 2016).
        balanced: Whether the loss weights classes by their rarity in the training split, see
            `balanced_weights`.
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
        """The weights of the classes; computed and copied in the first step, before a recording."""
        if self._weights is None or self._weights.device != device:
            self._weights = balanced_weights(self._graph).to(device)
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
            reported.insert(ranked + 1, base_rate())
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
        compute = partial(_ogb_metric, self._graph.ogb_name, is_class=is_class)
        # Of one class of many, OGB counts the right ones: no rank needs all outputs of parts.
        in_parts = isinstance(self._graph, PartitionedGraph)
        tally = get_metric("accuracy").tally if is_class and in_parts else None
        return replace(self.metric, function=compute, tally=tally)

    def predictions(self) -> Mapping[str, Callable[[], Columns]]:
        """Classes, their probabilities, or logits."""
        return {
            "class": self._classes,
            "probabilities": self._all_probabilities,
            "logits": self._logits,
        }

    def warnings(self) -> list[str]:
        """Classes without a training node; a metric that is not defined on a split."""
        return label_warnings(self._graph, self.metric.name)

    def _classes(self) -> Columns:
        names = self._names()
        if self.kind == "multilabel":
            titles = [f"class_{name}" for name in names.tolist()]
            flags = lambda logits: (logits > 0).numpy().astype(np.uint8)  # noqa: E731
            column = Column("class", np.dtype(np.uint8), flags, titles)
            return Columns([column], {"class_names": names})
        best = lambda logits: names[predicted_classes(logits)]  # noqa: E731
        largest = self._probabilities(lambda p: p.max(1))
        return Columns(
            [
                Column("class", names.dtype, best),
                Column("probability", np.dtype(np.float32), largest),
            ]
        )

    def _all_probabilities(self) -> Columns:
        names = self._names()
        titles = [f"probability_{name}" for name in names.tolist()]
        rows = self._probabilities(lambda p: p)
        column = Column("probabilities", np.dtype(np.float32), rows, titles)
        return Columns([column], {"class_names": names})

    def _logits(self) -> Columns:
        names = self._names()
        titles = [f"logit_{name}" for name in names.tolist()]
        if self.kind == "binary":
            titles = ["logit"]
        column = Column("logits", np.dtype(np.float32), lambda outputs: outputs.numpy(), titles)
        return Columns([column], {"class_names": names})

    def _names(self) -> AnyArray:
        """Names of the classes: texts, or numbers."""
        return np.array(self._class_names or range(self._num_classes))

    def _probabilities(self, then: Callable[[AnyArray], Any]) -> Callable[[Tensor], AnyArray]:
        """A function of logits: their probabilities `[n, num_classes]`, handed on to `then`."""

        def values(logits: Tensor) -> AnyArray:
            if self.kind == "multiclass":
                return np.asarray(then(logits.softmax(1).numpy()))
            found = logits.sigmoid().numpy()
            if self.kind == "binary":
                found = np.concatenate([1 - found, found], axis=1)
            return np.asarray(then(found))

        return values


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
