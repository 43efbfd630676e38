"""Metrics of a split whose outputs come in pieces and lie on several ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gnntrain.distributed.context import DistributedContext
from gnntrain.tasks import Task


class Piece(NamedTuple):
    """A rank's seeds of a slice of a split, with their outputs and targets.

    Attributes:
        places: Places of the rank's seeds in the slice, int64 `[n]`.
        outputs: float32 `[n, num_outputs]`, on the CPU.
        targets: Their rows of `Task.targets`.
    """

    places: Tensor
    outputs: Tensor
    targets: Tensor


Tallied = Mapping[str, Tensor]
"""The tensor of each metric's `Tally`, by the metric's name; empty where there is no seed."""

Judged = tuple[Tensor, Tensor]
"""See `Task.judged`."""

CONSTANT = "constant_outputs"
"""Stands among a split's metrics where a model gives all of its nodes the same outputs."""

# Of equal rows float32 makes these differences: in other chunks a product adds in another order.
_ROUNDING = 1e-6


def marked(metrics: dict[str, float], outputs: Tensor) -> dict[str, float]:
    """The metrics of outputs `[n, num_outputs]`, with `CONSTANT` where all rows are equal."""
    if not metrics or len(outputs) < 2:
        return metrics
    low, high = outputs.aminmax(dim=0)
    size = torch.maximum(low.abs(), high.abs()).clamp(min=1)
    is_constant = bool((high - low <= _ROUNDING * size).all())
    return {**metrics, CONSTANT: 1.0} if is_constant else metrics


def take_marks(metrics: Mapping[str, dict[str, float]]) -> tuple[str, ...]:
    """The splits whose metrics are marked with `CONSTANT`, which is removed."""
    return tuple(split for split, found in metrics.items() if found.pop(CONSTANT, 0))


def split_metrics(
    task: Task, pieces: Iterable[Piece], context: DistributedContext
) -> dict[str, float]:
    """The metrics of a split on rank 0, as `Task.metrics`; empty on other ranks. Collective.

    A metric with a `Tally` takes memory for a piece. For others rank 0 collects all outputs and
    targets of the split, in its order.

    Args:
        task: The task.
        pieces: This rank's, one for each slice of the split; equally many on all ranks.
        context: This rank.
    """
    collects = any(metric.tally is None for metric in task.reported)
    own: Tallied = {}
    ends = torch.empty(0, task.num_outputs)  # the least and the largest outputs so far
    collected: list[Piece] = []
    for piece in pieces:
        own = _merged(task, own, _tallied(task, piece))
        if len(rows := torch.cat([ends, piece.outputs])):
            ends = torch.stack(rows.aminmax(dim=0))[: len(rows)]
        if collects and (everyone := context.gather_to_main(piece)):
            collected.append(_in_order(everyone))
    total: Tallied = {}
    of_ranks = context.gather_to_main((own, ends))
    for tallied, _ in of_ranks:
        total = _merged(task, total, tallied)
    whole: Judged | None = None
    if collected:
        _, outputs, targets = map(torch.cat, zip(*collected, strict=True))
        whole = task.judged(outputs, targets)
    values = _values(task, total, whole)
    return marked(values, torch.cat([ends for _, ends in of_ranks])) if of_ranks else values


def _tallied(task: Task, piece: Piece) -> Tallied:
    judged = task.judged(piece.outputs, piece.targets)
    if len(judged[1]) == 0:
        return {}
    return {
        metric.name: metric.tally.of(*judged)
        for metric in task.reported
        if metric.tally is not None
    }


def _merged(task: Task, one: Tallied, other: Tallied) -> Tallied:
    if not one or not other:
        return one or other
    return {
        metric.name: metric.tally.merged(one[metric.name], other[metric.name])
        for metric in task.reported
        if metric.tally is not None
    }


def _in_order(pieces: Sequence[Piece]) -> Piece:
    """A whole slice from all ranks' pieces of it."""
    places, outputs, targets = map(torch.cat, zip(*pieces, strict=True))
    order = places.argsort()
    return Piece(places[order], outputs[order], targets[order])


def _values(task: Task, total: Tallied, whole: Judged | None) -> dict[str, float]:
    values: dict[str, float] = {}
    for metric in task.reported:
        if metric.name in total and metric.tally is not None:
            values[metric.name] = metric.tally.value(total[metric.name])
        elif whole is not None and len(whole[1]):
            values[metric.name] = metric.compute(*whole)
    return values
