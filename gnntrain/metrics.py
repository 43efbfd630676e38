"""Metrics: each is one function, registered with its name and its direction.

    @metric("error_rate", higher_is_better=False, label_kinds=("multiclass",))
    def error_rate(outputs: Tensor, targets: Tensor) -> float:
        return float((outputs.argmax(dim=1) != targets).double().mean())

Another package offers such a function by an entry point in the group `gnntrain.metrics`; the entry
point has the metric's name. The best epoch, early stopping, schedules, pruning, sweeps and reports
ask the registry which values are better.

Importing this module does not import torch (two seconds): sweeps and reports need only the
directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

from gnntrain.errors import UserError, may_mend
from gnntrain.plugins import METRICS, find_plugin, load_plugin, plugin_names, told

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
logits, a single one for two classes), and the targets, `[n]` or `[n, num_labels]`, on one device;
`n` is at least 1. Of two classes, the logit and target 1 are those of the positive class. Of
quantities, both are float64 `[n, num_targets]` in the targets' units, NaN where a target is
missing. The value may be a tensor of one number; NaN: not defined for these targets."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A registered metric."""

    name: str  # as in `metrics.jsonl`
    function: Callable[..., float]  # see `Compute`; where it has `counts`, of their sum
    higher_is_better: bool
    label_kinds: frozenset[str]
    # Of nodes that come in pieces, in bounded memory: from outputs and targets of a piece, counts
    # that add up. None: it needs all outputs at once.
    counts: Callable[[Tensor, Tensor], Tensor] | None = None

    def compute(self, outputs: Tensor, targets: Tensor) -> float:
        """The value as Python's number, as JSON and checkpoints take it; a UserError where another
        package's code fails, or returns no number."""
        inputs = (outputs, targets) if self.counts is None else (self.counts(outputs, targets),)
        try:
            if isinstance(value := self.function(*inputs), str):
                raise TypeError(f"it returned {value!r}")
            return float(value)
        except Exception as error:  # its code may raise any
            lacks_memory = "memory" in str(error) and isinstance(error, RuntimeError)
            if self.name in BUILT_IN_METRICS or lacks_memory or may_mend(error):
                raise
            raise UserError(
                f"The metric {self.name!r} cannot be computed: {told(error)}",
                f"It takes outputs and targets, here {list(outputs.shape)} and "
                f"{list(targets.shape)}, and returns a number.",
            ) from error

    def cost(self, value: float) -> float:
        """The value with the sign for which less is better, for sorting and comparing."""
        return -value if self.higher_is_better else value

    def is_better(self, value: float, than: float) -> bool:
        """Whether `value` is strictly better; NaN is better than nothing."""
        return self.cost(value) < self.cost(than)


def metric(
    name: str, *, higher_is_better: bool, label_kinds: Collection[str]
) -> Callable[[Compute], Compute]:
    """Register the decorated function as a metric.

    Args:
        name: Its name in the configuration, in records and in reports.
        higher_is_better: Its direction: True for an accuracy, False for an error.
        label_kinds: The kinds of labels that it supports, of `LABEL_KINDS`.

    Raises:
        ValueError: Another function has the name; or it is for no kind of `LABEL_KINDS`.
    """

    def register(compute: Compute) -> Compute:
        known = _REGISTERED.get(name)
        if known is not None and known.function.__module__ != compute.__module__:
            raise ValueError(f"another module has registered a metric {name!r}")
        if frozenset(label_kinds).isdisjoint(LABEL_KINDS):
            raise ValueError(f"label_kinds of {name!r} have none of {', '.join(LABEL_KINDS)}")
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


def metrics_for(kind: str) -> tuple[str, ...]:
    """Names of the metrics that support this kind of labels: the built-in ones, then those of
    installed packages, which it imports. A UserError where one has a built-in metric's name."""
    of_packages = plugin_names(METRICS)
    for name in set(of_packages) & set(BUILT_IN_METRICS):
        point = find_plugin(METRICS, name).value
        raise UserError(
            f"The metric {name!r} of {point} has the name of a built-in metric.",
            "Give it another name, in its entry point and its decorator.",
        )
    names = (*BUILT_IN_METRICS, *of_packages)
    return tuple(name for name in names if kind in get_metric(name).label_kinds)


def outside_metrics(kind: str) -> tuple[str, ...]:
    """Those of `metrics_for` that other packages offer."""
    return tuple(name for name in metrics_for(kind) if name not in BUILT_IN_METRICS)


def _share(part: Tensor, whole: Tensor) -> float:
    """The sum of `part` over that of `whole`."""
    return float(part.sum()) / max(1.0, float(whole.sum()))


def predicted_classes(outputs: Tensor) -> Tensor:
    """Class numbers `[n]`, of the logits of one class of many, or of two."""
    return (outputs[:, 0] > 0).long() if outputs.shape[1] == 1 else outputs.argmax(dim=1)


def _predicted(outputs: Tensor, targets: Tensor) -> Tensor:
    """Class numbers `[n]`, or 0/1 flags `[n, num_labels]`."""
    return (outputs > 0).long() if targets.ndim == 2 else predicted_classes(outputs)


def _class_counts(outputs: Tensor, targets: Tensor) -> Tensor:
    """By class or label the right predictions, all predictions, and the true ones: int64
    `[3, num_classes]`."""
    import torch

    predicted = _predicted(outputs, targets)
    if targets.ndim == 2:
        return torch.stack([part.sum(dim=0) for part in (predicted * targets, predicted, targets)])
    parts, num_classes = (targets[predicted == targets], predicted, targets), outputs.shape[1]
    return torch.stack([part.bincount(minlength=max(2, num_classes)) for part in parts])


def _right_counts(outputs: Tensor, targets: Tensor) -> Tensor:
    """The right classes, or flags of several labels a node, and all of them: int64 `[2]`."""
    import torch

    is_right = _predicted(outputs, targets) == targets
    return torch.stack([is_right.sum(), (is_right >= 0).sum()])


def _f1_macro(counts: Tensor) -> float:
    """The mean over the classes (or labels) that occur in targets or predictions."""
    right, guessed, true = counts.double()
    occurs = guessed + true > 0
    return float((2 * right / (guessed + true))[occurs].mean()) if occurs.any() else 0.0


def _ranked(name: str, outputs: Tensor, targets: Tensor) -> float:
    """ROC AUC or average precision; of several labels the mean of those that can be ranked, which
    neither all nodes have nor none, or NaN. Logits are ranked as they are: of large ones the
    probabilities in float32 are all 1."""
    import torch

    flags, values = targets.view(outputs.shape), []
    for label, flag in enumerate(flags.unbind(1)):
        if not 0 < int(flag.sum()) < len(flag):
            continue
        if outputs[:, label].isnan().any():
            return math.nan
        # The nodes at each distinct logit, the largest logit first: float64 [num_distinct].
        distinct, place = torch.unique(outputs[:, label], return_inverse=True)
        negative, positive = (
            place[flag == which].bincount(minlength=len(distinct)).flip(0).double()
            for which in (0, 1)
        )
        if name == "roc_auc":
            # Of all pairs of a positive and a negative node, those in the right order; ties: half.
            right = (negative * (positive.cumsum(0) - positive / 2)).sum()
            value = right / (positive.sum() * negative.sum())
        else:
            precision = positive.cumsum(0) / (positive + negative).cumsum(0)
            value = (positive * precision).sum() / positive.sum()
        values.append(float(value))
    return sum(values) / len(values) if values else math.nan


def _of_quantities(name: str, outputs: Tensor, targets: Tensor) -> float:
    """A metric in the targets' units, the mean over the targets for which it is defined: those that
    a node has (not NaN), and for r2 those that vary. NaN where there is none."""
    values = []
    for output, target in zip(outputs.double().T, targets.double().T, strict=True):
        is_known = ~target.isnan()
        known, errors = target[is_known], (output - target)[is_known]
        if not len(known) or (name == "r2" and bool((known == known[0]).all())):
            continue
        if name == "r2":
            value = 1 - errors.square().sum() / (known - known.mean()).square().sum()
        else:
            value = errors.square().mean().sqrt() if name == "rmse" else errors.abs().mean()
        values.append(float(value))
    return sum(values) / len(values) if values else math.nan


_ANY, _BINARY = frozenset(CLASS_KINDS), frozenset(["binary"])
_RANKED, _QUANTITIES = frozenset(["binary", "multilabel"]), frozenset(["continuous"])
_BUILT_IN = (
    # Of several labels a node, the share of right flags.
    Metric("accuracy", lambda counts: _share(*counts), True, _ANY, _right_counts),
    Metric("roc_auc", partial(_ranked, "roc_auc"), True, _RANKED),
    Metric("average_precision", partial(_ranked, "average_precision"), True, _RANKED),
    # Of one class a node, the accuracy.
    Metric("f1_micro", lambda c: _share(2 * c[0], c[1] + c[2]), True, _ANY, _class_counts),
    Metric("f1_macro", _f1_macro, True, _ANY, _class_counts),
    Metric("precision", lambda c: _share(c[0, 1], c[1, 1]), True, _BINARY, _class_counts),
    Metric("recall", lambda c: _share(c[0, 1], c[2, 1]), True, _BINARY, _class_counts),
    Metric("f1", lambda c: _share(2 * c[0, 1], c[1:, 1]), True, _BINARY, _class_counts),
    Metric("r2", partial(_of_quantities, "r2"), True, _QUANTITIES),
    Metric("rmse", partial(_of_quantities, "rmse"), False, _QUANTITIES),
    Metric("mae", partial(_of_quantities, "mae"), False, _QUANTITIES),
)
_REGISTERED = {one.name: one for one in _BUILT_IN}
BUILT_IN_METRICS = tuple(_REGISTERED)

BASE_RATE = Metric("base_rate", lambda c: _share(c[2, 1], c[2]), True, _BINARY, _class_counts)
"""The share of the positive class, beside which an average precision is read."""


def top_metrics(k: int) -> list[Metric]:
    """`precision@k` and `recall@k`: of the positive class, among the `k` nodes with its largest
    logits; of fewer nodes, among all.

    Of nodes with equal logits at the k-th place each is as likely to be among them: the values do
    not depend on the order of nodes.
    """

    def share(of_all: bool, outputs: Tensor, targets: Tensor) -> float:
        logits = outputs[:, 0]
        taken = min(k, len(logits))
        least = logits.topk(taken).values[-1]
        is_above = logits > least
        among_equal = (taken - is_above.sum()) * targets[logits == least].double().mean()
        divisor = int(targets.sum()) if of_all else taken
        return float(targets[is_above].sum() + among_equal) / divisor if divisor else math.nan

    return [
        Metric(f"{name}@{k}", partial(share, name == "recall"), True, _BINARY)
        for name in ("precision", "recall")
    ]
