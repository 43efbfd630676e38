"""Metrics: each is one function, registered with its name and its direction.

    @metric("error_rate", higher_is_better=False, label_kinds=("multiclass",))
    def error_rate(outputs: Tensor, targets: Tensor) -> float:
        return float((outputs.argmax(dim=1) != targets).double().mean())

Another package offers such a function by an entry point in the group `gnntrain.metrics`; the entry
point has the metric's name. The best epoch, early stopping, schedules, pruning, sweeps and reports
ask the registry which values are better.

Importing this module imports neither torch nor torchmetrics (two seconds): sweeps and reports need
only the directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from gnntrain.errors import UserError
from gnntrain.plugins import METRICS, load_plugin, plugin_names

if TYPE_CHECKING:
    from torch import Tensor

ClassKind = Literal["multiclass", "binary", "multilabel"]
LabelKind = Literal[ClassKind, "continuous"]
CLASS_KINDS: tuple[ClassKind, ...] = get_args(ClassKind)
LABEL_KINDS: tuple[LabelKind, ...] = get_args(LabelKind)

DEFAULT_METRICS: Mapping[LabelKind, str] = {
    "multiclass": "accuracy",
    "binary": "roc_auc",
    "multilabel": "f1_micro",
    "continuous": "r2",
}
"""By which metric labels are judged where nothing else is asked for."""

RANKING_METRICS = ("roc_auc", "average_precision")
"""Metrics that are not defined where all nodes have one class."""

Compute = Callable[["Tensor", "Tensor"], float]
"""`(outputs, targets) -> value`: float32 `[n, num_outputs]` as the model gives them (of classes:
logits, a single one for two classes), and the targets, `[n]` or `[n, num_labels]`, on one device.
Of quantities, both are float64 `[n, num_targets]` in the targets' units, NaN where a target is
missing.
`n` is at least 1. NaN says that the metric is not defined for these targets."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A registered metric.

    Attributes:
        name: As in `metrics.jsonl`.
        compute: The function.
        higher_is_better: Its direction.
        label_kinds: The kinds of labels that it supports.
    """

    name: str
    compute: Compute
    higher_is_better: bool
    label_kinds: frozenset[str]

    def cost(self, value: float) -> float:
        """The value with the sign for which less is better, for sorting and comparing."""
        return -value if self.higher_is_better else value

    def is_better(self, value: float, than: float) -> bool:
        """Whether `value` is strictly better; NaN is better than nothing."""
        return self.cost(value) < self.cost(than)


_REGISTERED: dict[str, Metric] = {}


def metric(
    name: str, *, higher_is_better: bool, label_kinds: Collection[str]
) -> Callable[[Compute], Compute]:
    """Register the decorated function as a metric.

    Args:
        name: Its name in the configuration, in records and in reports.
        higher_is_better: Its direction: True for an accuracy, False for an error.
        label_kinds: The kinds of labels that it supports, of `LABEL_KINDS` or of your own task.

    Raises:
        ValueError: Another function has the name.
    """

    def register(compute: Compute) -> Compute:
        known = _REGISTERED.get(name)
        if known is not None and known.compute.__module__ != compute.__module__:
            raise ValueError(f"{known.compute.__module__} has registered a metric {name!r}")
        _REGISTERED[name] = Metric(name, compute, higher_is_better, frozenset(label_kinds))
        return compute

    return register


def get_metric(name: str) -> Metric:
    """The metric of this name; imports the package that offers it if necessary.

    Raises:
        UserError: There is none, or its package cannot be imported.
    """
    if name not in _REGISTERED:
        load_plugin(METRICS, name)  # its decorator registers it
    if name not in _REGISTERED:
        raise UserError(f"The entry point {name!r} of {METRICS} registers no metric of that name.")
    return _REGISTERED[name]


def metric_names() -> tuple[str, ...]:
    """Names of all metrics: the built-in ones, then those of installed packages; imports none."""
    return tuple(dict.fromkeys((*BUILT_IN_METRICS, *plugin_names(METRICS))))


def metrics_for(kind: str) -> tuple[str, ...]:
    """Names of the metrics that support this kind of labels, in the order of `metric_names`."""
    return tuple(name for name in metric_names() if kind in get_metric(name).label_kinds)


def outside_metrics(kind: str) -> tuple[str, ...]:
    """Those of `metrics_for` that other packages offer."""
    return tuple(name for name in metrics_for(kind) if name not in BUILT_IN_METRICS)


@metric("accuracy", higher_is_better=True, label_kinds=CLASS_KINDS)
def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of right classes; of several labels a node, the share of right flags."""
    return float((_predicted(outputs, targets) == targets).double().mean())


@metric("roc_auc", higher_is_better=True, label_kinds=("binary", "multilabel"))
def roc_auc(outputs: Tensor, targets: Tensor) -> float:
    """Area under the ROC curve; of several labels, their mean."""
    from torchmetrics.functional.classification import binary_auroc

    return _mean_over_labels(binary_auroc, outputs, targets)


@metric("average_precision", higher_is_better=True, label_kinds=("binary", "multilabel"))
def average_precision(outputs: Tensor, targets: Tensor) -> float:
    """Average precision; of several labels, their mean."""
    from torchmetrics.functional.classification import binary_average_precision

    return _mean_over_labels(binary_average_precision, outputs, targets)


@metric("f1_micro", higher_is_better=True, label_kinds=CLASS_KINDS)
def f1_micro(outputs: Tensor, targets: Tensor) -> float:
    """F1 over all labels together."""
    if targets.ndim == 1:
        # A node has one class, so every false positive is one false negative.
        return accuracy(outputs, targets)
    right, counted = _f1(outputs, targets)
    return float(right.sum() / counted.sum().clamp(min=1))


@metric("f1_macro", higher_is_better=True, label_kinds=CLASS_KINDS)
def f1_macro(outputs: Tensor, targets: Tensor) -> float:
    """Mean F1 of the classes (or labels) that occur in targets or predictions."""
    right, counted = _f1(outputs, targets)
    occurs = counted > 0
    return float((right[occurs] / counted[occurs]).double().mean()) if occurs.any() else 0.0


@metric("r2", higher_is_better=True, label_kinds=("continuous",))
def r2(outputs: Tensor, targets: Tensor) -> float:
    """R², the coefficient of determination; of several targets, their mean over those that vary.
    NaN if all targets are constant."""
    return _mean_over_targets(_r2, outputs, targets, is_defined=_varies)


@metric("rmse", higher_is_better=False, label_kinds=("continuous",))
def rmse(outputs: Tensor, targets: Tensor) -> float:
    """Root of the mean squared error, in the targets' units; of several targets, their mean."""
    return _mean_over_targets(lambda y, t: (y - t).square().mean().sqrt(), outputs, targets)


@metric("mae", higher_is_better=False, label_kinds=("continuous",))
def mae(outputs: Tensor, targets: Tensor) -> float:
    """Mean absolute error, in the targets' units; of several targets, their mean."""
    return _mean_over_targets(lambda y, t: (y - t).abs().mean(), outputs, targets)


BUILT_IN_METRICS = tuple(_REGISTERED)


def _mean_over_targets(
    compute: Callable[[Tensor, Tensor], Tensor],
    outputs: Tensor,
    targets: Tensor,
    is_defined: Callable[[Tensor], bool] = lambda target: len(target) > 0,
) -> float:
    """A metric of each target `[n]` over the nodes that have it (not NaN); the mean over the
    targets for which it is defined. In float64: a mean may be far larger than a deviation."""
    outputs, targets = outputs.double(), targets.double()
    values = []
    for output, target in zip(outputs.unbind(dim=1), targets.unbind(dim=1), strict=True):
        is_known = ~target.isnan()
        if is_defined(target[is_known]):
            values.append(float(compute(output[is_known], target[is_known])))
    return sum(values) / len(values) if values else math.nan


def _varies(target: Tensor) -> bool:
    return len(target) > 0 and bool(target.min() < target.max())


def _r2(output: Tensor, target: Tensor) -> Tensor:
    return 1 - (output - target).square().sum() / (target - target.mean()).square().sum()


def _scores(outputs: Tensor) -> Tensor:
    # Probabilities: torchmetrics guesses from the range whether inputs are logits.
    return outputs.sigmoid()


def _predicted(outputs: Tensor, targets: Tensor) -> Tensor:
    """Class numbers `[n]`, or 0/1 flags `[n, num_labels]`."""
    if targets.ndim == 2:
        return (_scores(outputs) > 0.5).long()
    if outputs.shape[1] == 1:
        return (_scores(outputs[:, 0]) > 0.5).long()
    return outputs.argmax(dim=1)


def _f1(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """By class or label: twice the right predictions; the predicted plus the true ones.

    F1 is their ratio. Without torchmetrics, whose import takes as long as training a small graph.
    """
    predicted = _predicted(outputs, targets)
    if targets.ndim == 2:
        return 2 * (predicted * targets).sum(dim=0), (predicted + targets).sum(dim=0)
    num_classes = max(2, outputs.shape[1])
    right, guessed, true = (
        values.bincount(minlength=num_classes)
        for values in (targets[predicted == targets], predicted, targets)
    )
    return 2 * right, guessed + true


def _mean_over_labels(
    compute: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor
) -> float:
    """A ranking metric of each label, their mean; NaN where no label can be ranked.

    A label of all nodes or of no node has no ranking; torchmetrics would count it as 0.
    """
    scores, flags = _scores(outputs), targets.view(outputs.shape)
    num_positive = flags.sum(dim=0)
    can_rank = ((num_positive > 0) & (num_positive < len(flags))).nonzero().flatten().tolist()
    values = [float(compute(scores[:, label], flags[:, label])) for label in can_rank]
    return sum(values) / len(values) if values else math.nan
