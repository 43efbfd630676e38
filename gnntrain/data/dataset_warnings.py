"""Warnings about a graph, logged once at the start of a run."""

from __future__ import annotations

from collections.abc import Iterator

from gnntrain.data.graph import Graph


def dataset_warnings(store: Graph) -> Iterator[str]:
    """Warnings: no edges, no validation nodes."""
    if store.num_edges == 0:
        yield "The graph has no edges: all that the model sees of a node are its own features."
    if len(store.split("val")) == 0:
        yield "There are no validation nodes: the last epoch counts as the best."
