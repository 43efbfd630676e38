"""Warnings about a graph, logged once at the start of a run."""

from __future__ import annotations

from collections.abc import Iterator

from gnntrain.data.graph import Graph, NodeType
from gnntrain.data.summary import EDGES_ALONE, first_names


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
    reaching, new = set[NodeType](), {store.target}  # by a path of edge types
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
