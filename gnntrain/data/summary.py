"""Summary of the files that a graph was made of, for consoles, reports, cards and summaries; and
warnings about a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

if TYPE_CHECKING:
    from gnntrain.data.graph import AnyArray, Graph, GraphData, PrepareOptions

EDGES_ALONE = "models of typed graphs read edges alone"
"""The reason why features, weights and times of typed edges are left out."""

_SHOWN_NAMES = 10
_LABELS = ("ids", "labels", "features", "edges", "split")


class Meta(BaseModel):
    """A record in a file. Strict and frozen: unknown fields and wrong types are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class DataSummary(Meta):
    """How a user's files became a graph; each value is a short phrase without a full stop."""

    ids: str = ""  # their source: "column fips of nodes.csv"; empty for a published data set
    labels: str = ""  # columns, kind, number and names, or ranges; how many nodes have none
    features: str = ""  # number, names, preprocessing
    edges: str = ""  # number given, columns of both ends, direction, weight
    split: str = ""  # its source, or how it was drawn (ratio, seed, number); sizes
    left_out: Mapping[str, str] = {}  # columns that were not used, each with the reason

    def lines(self, *, besides: str | None = None) -> list[tuple[str, str]]:
        """A label and a phrase for each value that is not empty; what was left out for the reason
        `besides` is said elsewhere."""
        lines = [(label, getattr(self, label)) for label in _LABELS]
        reasons = self.left_out.items()
        left_out = [f"{name} ({reason})" for name, reason in reasons if reason != besides]
        lines.append(("left out", first_names(left_out)))
        return [(label, text) for label, text in lines if text]


def summary_of(data: GraphData, options: PrepareOptions) -> DataSummary:
    """The summary of a graph's builder, completed from the arrays and `options`."""
    is_typed, nodes, edges = not data.is_homogeneous, data.nodes, data.edges
    widths = {name: of_type.num_features for name, of_type in nodes.items()}
    words = [f"{n:,} a node{f' of type {name}' * is_typed}" for name, n in widths.items() if n]
    if without := [name for name, width in widths.items() if not width]:
        words.append("none" + f" of type {first_names(without)}" * is_typed)
    names = next(iter(nodes.values())).feature_names if len(nodes) == 1 else None
    features = ", ".join(words) + (f": {first_names(names)}" if names else "")
    counts = [f"{'/'.join(k)} " * is_typed + f"{len(of.src):,}" for k, of in edges.items()]
    weighted = any(of.weight is not None for of in edges.values())
    found = {"features": features, "edges": f"{first_names(counts)} given{', weighted' * weighted}"}
    if data.labelled:
        found |= {"labels": _labels(data), "split": split_sizes(data.splits)}
    given = data.summary or DataSummary()
    texts = {key: getattr(given, key) or text for key, text in found.items()}
    if options.normalize_features:
        texts["features"] += ", scaled to a sum of 1 a node"
    if options.feature_dtype != "float32":
        texts["features"] += f", stored as {options.feature_dtype}"
    if data.reverse or options.to_undirected or any(of.symmetric for of in edges.values()):
        texts["edges"] += ", stored in both directions"
    if options.add_self_loops and any(src == dst for src, _, dst in edges):
        texts["edges"] += ", self-loops added"
    return given.model_copy(update=texts)


def _labels(data: GraphData) -> str:
    """Kind, number, names or ranges of the labels, and how many nodes have none."""
    labels, count = data.labels, data.num_classes
    given = () if data.class_names is None else data.class_names.tolist()
    names = [name.decode() if isinstance(name, bytes) else name for name in given]
    if data.task == "continuous":
        ends = (fold.reduce(labels, axis=0).tolist() for fold in (np.fmin, np.fmax))
        of_each = zip(names or range(count), *ends, strict=True)
        ranges = [f"{name} from {lowest:g} to {highest:g}" for name, lowest, highest in of_each]
        words = "a quantity: " if count == 1 else f"{count:,} quantities: "
        words += first_names(ranges)
        num_missing = int(np.isnan(labels).all(axis=1).sum())
    else:
        kind = "labels, each 0 or 1" if data.task == "multilabel" else "classes"
        words = f"{count:,} {kind}" + (f": {first_names(names)}" if names else "")
        num_missing = 0 if data.task == "multilabel" else int((~(labels >= 0)).sum())
    return words + f"; {num_missing:,} of {len(labels):,} nodes have none" * bool(num_missing)


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


# Warnings about a graph, logged once at the start of a run.


def dataset_warnings(store: Graph) -> Iterator[str]:
    """Warnings: no edges, no validation nodes; types that no model can learn from, and types whose
    rows are learnt."""
    yield from edge_warnings(store)
    learnt = [name for name, width in store.schema.num_features.items() if width == 0]
    if store.is_hetero and learnt:
        yield (
            f"Nodes without features ({first_names(learnt)}) have learnt rows: the model knows no "
            "new nodes of these types."
        )
    if len(store.split("val")) == 0:
        yield "There are no validation nodes: the last epoch counts as the best."


def edge_warnings(store: Graph) -> Iterator[str]:
    """Warnings: no edges; types that no model can learn from."""
    if store.num_edges == 0:
        yield "The graph has no edges: all that the model sees of a node are its own features."
        return
    if not store.is_hetero:
        return
    for edge_type, number in store.edge_counts.items():
        if number == 0:
            yield f"The edge type {'/'.join(edge_type)} has no edge."
    reaching, new = set[str](), {store.target}  # by a path of edge types
    while new:
        reaching |= new
        new = {kind[0] for kind in store.schema.edge_types if kind[2] in new} - reaching
    for name in sorted(store.nodes.keys() - reaching):
        yield (
            f"No path leads from the node type {name} to {store.target}, so no model reads its "
            "nodes: add reverse edge types, or leave it out."
        )


def unread_edges(store: Graph, model: str, *, reads_weights: bool) -> Iterator[str]:
    """A warning of what is known of edges and the model of this name does not read."""
    given = {} if store.summary is None else store.summary.left_out
    unread = [name for name, reason in given.items() if reason == EDGES_ALONE]
    if not reads_weights and any(edges.weight is not None for edges in store.edges.values()):
        unread.append("the weights of edges")
    if unread:
        yield f"The model {model} does not read {first_names(unread)}."
