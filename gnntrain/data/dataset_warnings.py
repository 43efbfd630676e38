"""Warnings about a graph, logged once at the start of a run."""

from __future__ import annotations

from collections.abc import Iterator

from gnntrain.data.graph import Graph, GraphSchema, NodeType


def dataset_warnings(store: Graph) -> Iterator[str]:
    """Warnings: no edges, no validation nodes; types that no model can learn from."""
    if store.num_edges == 0:
        yield "The graph has no edges: all that the model sees of a node are its own features."
    elif store.is_hetero:
        yield from _useless_types(store)
    if len(store.split("val")) == 0:
        yield "There are no validation nodes: the last epoch counts as the best."


def _useless_types(graph: Graph) -> Iterator[str]:
    for edge_type, number in graph.edge_counts.items():
        if number == 0:
            yield f"The edge type {'/'.join(edge_type)} has no edge."
    for name in sorted(graph.nodes.keys() - _reaching(graph.schema)):
        yield (
            f"No path leads from the node type {name} to {graph.target}, so no model reads its "
            "nodes: add reverse edge types, or leave it out."
        )


def _reaching(schema: GraphSchema) -> set[NodeType]:
    """The node types from which a path of edge types leads to the target type."""
    found, new = {schema.target}, {schema.target}
    while new:
        new = {source for source, _, destination in schema.edge_types if destination in new} - found
        found |= new
    return found
