"""Summary of the files that a graph was made of: for consoles, reports, cards and summaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

if TYPE_CHECKING:
    from gnntrain.data.graph import (
        AnyArray,
        AnyGraphData,
        Graph,
        GraphData,
        HeteroGraphData,
        PrepareOptions,
    )

EDGES_ALONE = "models of typed graphs read edges alone"
"""The reason why features, weights and times of typed edges are left out."""

_SHOWN_NAMES = 10
_LABELS = ("ids", "labels", "features", "edges", "split")


class DataSummary(BaseModel):
    """How a user's files became a graph; each value is a short phrase without a full stop.

    Attributes:
        ids: Where the nodes' ids come from: "column fips of nodes.csv", "row numbers". Empty for
            a data set that is not a user's own.
        labels: The column or columns, their kind (classes, their number and names; or the range
            of a quantity), how many nodes have none.
        features: Their number, their names, and their preprocessing.
        edges: Number given, the columns of both ends, direction, weight.
        split: Where it comes from, or how it was drawn (ratio, seed, number); sizes of train, val
            and test.
        left_out: Columns that were not used, each with the reason.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    ids: str = ""
    labels: str = ""
    features: str = ""
    edges: str = ""
    split: str = ""
    left_out: Mapping[str, str] = {}

    def lines(self, *, besides: str | None = None) -> list[tuple[str, str]]:
        """A label and a phrase for each value that is not empty; what was left out for the reason
        `besides` is said elsewhere."""
        lines = [(label, getattr(self, label)) for label in _LABELS]
        reasons = self.left_out.items()
        left_out = [f"{name} ({reason})" for name, reason in reasons if reason != besides]
        lines.append(("left out", first_names(left_out)))
        return [(label, text) for label, text in lines if text]


def summary_of(data: AnyGraphData, options: PrepareOptions) -> DataSummary:
    """The summary of a graph's builder, completed from the arrays and `options`."""
    from gnntrain.data.graph import GraphData  # which imports this module

    given = data.summary or DataSummary()
    if isinstance(data, GraphData):
        found, target = {"features": _features(data), "edges": _edges(data)}, data
        both_ways, loops = data.symmetric, options.add_self_loops
    else:
        found = {"features": _typed_features(data), "edges": _typed_edges(data)}
        target, both_ways = data.target_data(), data.reverse
        # Between two node types there is no loop.
        within = any(source == target_type for source, _, target_type in data.edges)
        loops = options.add_self_loops and within
    if data.labelled:
        found |= {"labels": _labels(target), "split": split_sizes(data.splits)}
    texts = {key: getattr(given, key) or text for key, text in found.items()}
    both_ways |= options.to_undirected
    done = {"features": _done_to_features(options), "edges": _done_to_edges(both_ways, loops)}
    texts |= {key: ", ".join([texts[key], *words]) for key, words in done.items()}
    return given.model_copy(update=texts)


def plain_summary(graph: Graph) -> dict[str, Any]:
    """The summary of a graph and the sizes of its splits, as plain JSON."""
    phrases = {} if graph.summary is None else graph.summary.model_dump(mode="json")
    return phrases | {"split_sizes": {k: len(ids) for k, ids in graph.target_nodes.splits.items()}}


def from_plain(plain: object) -> DataSummary | None:
    """The summary in a result of `plain_summary`; None if there is none."""
    if not isinstance(plain, Mapping):
        return None
    phrases = {key: plain[key] for key in DataSummary.model_fields if key in plain}
    try:
        return DataSummary.model_validate(phrases) if phrases else None
    except ValidationError:  # of a file that was changed
        return None


def split_sizes(splits: Mapping[str, Sequence[int] | AnyArray]) -> str:
    """The sizes of splits: "140 train, 500 val, 1,000 test"."""
    return ", ".join(f"{len(ids):,} {name}" for name, ids in splits.items())


def first_names(names: Sequence[object]) -> str:
    """The first ten names, and whether there are more."""
    return ", ".join(map(str, names[:_SHOWN_NAMES])) + ", …" * (len(names) > _SHOWN_NAMES)


def _labels(data: GraphData) -> str:
    """Kind, number, names or ranges of the labels, and how many nodes have none."""
    names = _class_names(data)
    if data.task == "continuous":
        words = _quantities(data.labels, names or range(data.num_classes))
        num_missing = int(np.isnan(data.labels).any(axis=1).sum())
    else:
        kind = "labels, each 0 or 1" if data.task == "multilabel" else "classes"
        words = f"{data.num_classes:,} {kind}" + (f": {first_names(names)}" if names else "")
        num_missing = 0 if data.task == "multilabel" else int((~(data.labels >= 0)).sum())
    return words + (f"; {num_missing:,} of {data.num_nodes:,} nodes have none" * bool(num_missing))


def _class_names(data: GraphData) -> list[object]:
    if data.class_names is None:
        return []
    names = data.class_names.tolist()
    return [name.decode() if isinstance(name, bytes) else name for name in names]


def _quantities(values: AnyArray, names: Sequence[object]) -> str:
    """Names and ranges of the columns of float `[num_nodes, num_targets]`."""
    ranges = []
    for name, column in zip(names[:_SHOWN_NAMES], values.T, strict=False):
        known = column[~np.isnan(column)]
        between = f" from {known.min():g} to {known.max():g}" if len(known) else ""
        ranges.append(f"{name}{between}")
    number = "a quantity" if len(names) == 1 else f"{len(names):,} quantities"
    return f"{number}: {', '.join(ranges)}" + ", …" * (len(names) > _SHOWN_NAMES)


def _features(data: GraphData) -> str:
    names = f": {first_names(data.feature_names)}" if data.feature_names else ""
    return f"{data.num_features:,} a node{names}"


def _edges(data: GraphData) -> str:
    return f"{len(data.src):,} given" + ", weighted" * (data.edge_weight is not None)


def _done_to_features(options: PrepareOptions) -> list[str]:
    words = ["scaled to a sum of 1 a node"] if options.normalize_features else []
    kept = options.feature_dtype
    return words if kept == "float32" else [*words, f"stored as {kept}"]


def _typed_features(data: HeteroGraphData) -> str:
    widths = {name: nodes.num_features for name, nodes in data.nodes.items()}
    words = [f"{width:,} a node of type {name}" for name, width in widths.items() if width]
    without = [name for name, width in widths.items() if not width]
    return ", ".join([*words, f"none of type {first_names(without)}"] if without else words)


def _typed_edges(data: HeteroGraphData) -> str:
    counts = [f"{'/'.join(name)} {len(src):,}" for name, (src, _) in data.edges.items()]
    return f"{first_names(counts)} given"


def _done_to_edges(both_ways: bool, loops: bool) -> list[str]:
    words = ["stored in both directions"] if both_ways else []
    return [*words, "self-loops added"] if loops else words
