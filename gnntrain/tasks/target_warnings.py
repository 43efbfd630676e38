"""Warnings about quantities that can be trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gnntrain.data.graph import Graph

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
    ranges = list(zip(names, graph.target_ranges("train"), strict=True))
    missing = [name for name, found in ranges if found is None]
    if missing:
        yield f"No training node has {_listed(missing)}, which cannot be learnt."
    constant = [
        f"{name} ({found[0]:g})" for name, found in ranges if found and found[0] == found[1]
    ]
    if constant:
        yield f"All training nodes have one value of {_listed(constant)}: it cannot be learnt."


def _undefined_r2(graph: Graph, metric: str, names: Sequence[str]) -> Iterator[str]:
    for split in ("val", "test"):
        if len(graph.split(split)) == 0:
            continue
        ranges = zip(names, graph.target_ranges(split), strict=True)
        undefined = [name for name, found in ranges if found is None or found[0] == found[1]]
        if not undefined:
            continue
        decides = split == "val" and metric == "r2" and len(undefined) == len(names)
        then = "; the last epoch counts as the best" if decides else ""
        yield f"r2 is not defined on {split} for {_listed(undefined)}, which does not vary{then}."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NUM_SHOWN]) + (", …" if len(names) > _NUM_SHOWN else "")
