"""A slow, obvious sampler of typed graphs, in plain Python integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gnntrain.data.graph import EdgeType, Graph, NodeType
from gnntrain.sampling.base import SampleKey
from tests.sampling import oracle

Edge = tuple[int, int]
"""Number of the source among the batch's nodes of its type, and position among its edge type."""


@dataclass
class HeteroOracleSample:
    """`edges[h][edge type]` holds, for each destination of hop h, its edges.

    `num_known[h]`: the number of nodes of each type before hop h.
    """

    nodes: dict[NodeType, list[int]]
    edges: list[dict[EdgeType, list[list[Edge]]]] = field(default_factory=list)
    num_known: list[dict[NodeType, int]] = field(default_factory=list)

    def note_known(self) -> dict[NodeType, int]:
        self.num_known.append({name: len(nodes) for name, nodes in self.nodes.items()})
        return self.num_known[-1]


def sample(
    graph: Graph,
    seeds: Sequence[int],
    fan_outs: Mapping[EdgeType, Sequence[int]],
    key: SampleKey,
    num_hops: int,
    *,
    scope: str = "relation",
    replace: bool = False,
) -> HeteroOracleSample:
    """Walk hop by hop, and in a hop edge type by edge type."""
    result = HeteroOracleSample({name: [] for name in graph.nodes})
    result.nodes[graph.target] += seeds
    known = result.note_known()
    draw = _of_relation if scope == "relation" else _of_all_relations
    for hop in range(num_hops):
        result.edges.append({})
        for edge_type, edges in graph.edges.items():
            result.edges[-1][edge_type] = []
            for node in result.nodes[edge_type[2]][: known[edge_type[2]]]:
                fan_out = fan_outs[edge_type][hop]
                drawn = []
                for position in draw(graph, edge_type, node, fan_out, key, hop, replace):
                    edge = int(edges.indptr[node]) + position
                    source = int(edges.indices[edge])
                    if source not in result.nodes[edge_type[0]]:
                        result.nodes[edge_type[0]].append(source)
                    drawn.append((result.nodes[edge_type[0]].index(source), edge))
                result.edges[-1][edge_type].append(drawn)
        known = result.note_known()
    return result


def degree(graph: Graph, edge_type: EdgeType, node: int) -> int:
    indptr = graph.edges[edge_type].indptr
    return int(indptr[node + 1] - indptr[node])


def _of_relation(
    graph: Graph,
    edge_type: EdgeType,
    node: int,
    fan_out: int,
    key: SampleKey,
    hop: int,
    replace: bool,
) -> list[int]:
    """The positions that a node draws among its in-edges of one type."""
    number = list(graph.edges).index(edge_type)
    own = degree(graph, edge_type, node)
    return oracle.draw_positions(key, hop, node, own, fan_out, replace, number)


def _of_all_relations(
    graph: Graph,
    edge_type: EdgeType,
    node: int,
    fan_out: int,
    key: SampleKey,
    hop: int,
    replace: bool,
) -> list[int]:
    """Those of the positions drawn among the in-edges of all types that are of this type."""
    all_edges = [
        (other, position)
        for other in graph.edges
        if other[2] == edge_type[2]
        for position in range(degree(graph, other, node))
    ]
    number = list(graph.nodes).index(edge_type[2])
    drawn = oracle.draw_positions(key, hop, node, len(all_edges), fan_out, replace, number)
    return [position for other, position in map(all_edges.__getitem__, drawn) if other == edge_type]
