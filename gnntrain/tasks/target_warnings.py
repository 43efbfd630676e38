"""Warnings about quantities that can be trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gnntrain.data.graph import AnyArray, Graph
from gnntrain.data.target_scale import varies

_NUM_SHOWN = 5


def target_warnings(graph: Graph, metric: str, names: Sequence[str]) -> list[str]:
    """Warnings: targets that are constant or missing on the training nodes; targets for which R² is
    not defined on a split.

    Args:
        graph: The graph.
        metric: Name of the deciding metric.
        names: The targets' names.
    """
    return [*_nothing_to_learn(graph, names), *_undefined_r2(graph, metric, names)]


def _nothing_to_learn(graph: Graph, names: Sequence[str]) -> Iterator[str]:
    columns = _known(graph, "train")
    missing = [name for name, column in zip(names, columns, strict=True) if len(column) == 0]
    if missing:
        yield f"No training node has {_listed(missing)}, which cannot be learnt."
    constant = [
        f"{name} ({column[0]:g})"
        for name, column in zip(names, columns, strict=True)
        if len(column) and not varies(column)
    ]
    if constant:
        yield f"All training nodes have one value of {_listed(constant)}: it cannot be learnt."


def _undefined_r2(graph: Graph, metric: str, names: Sequence[str]) -> Iterator[str]:
    for split in ("val", "test"):
        if len(graph.split(split)) == 0:
            continue
        columns = zip(names, _known(graph, split), strict=True)
        undefined = [name for name, column in columns if not varies(column)]
        if not undefined:
            continue
        decides = split == "val" and metric == "r2" and len(undefined) == len(names)
        then = "; the last epoch counts as the best" if decides else ""
        yield f"r2 is not defined on {split} for {_listed(undefined)}, which does not vary{then}."


def _known(graph: Graph, split: str) -> list[AnyArray]:
    """The values of each target on a split, without the missing ones."""
    targets = graph.labels[graph.split(split)]
    return [column[~np.isnan(column)] for column in targets.T]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NUM_SHOWN]) + (", …" if len(names) > _NUM_SHOWN else "")
