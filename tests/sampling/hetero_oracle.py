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
    replace: bool = False,
) -> HeteroOracleSample:
    """Walk hop by hop, and in a hop edge type by edge type."""
    result = HeteroOracleSample({name: [] for name in graph.nodes})
    result.nodes[graph.target] += seeds
    known = result.note_known()
    for hop in range(num_hops):
        result.edges.append({})
        for number, edge_type in enumerate(graph.edges):
            fan_out = fan_outs[edge_type][hop]
            result.edges[-1][edge_type] = [
                [
                    _edge(graph, edge_type, result, node, position)
                    for position in _positions(graph, number, node, hop, fan_out, key, replace)
                ]
                for node in result.nodes[edge_type[2]][: known[edge_type[2]]]
            ]
        known = result.note_known()
    return result


def _positions(
    graph: Graph, number: int, node: int, hop: int, fan_out: int, key: SampleKey, replace: bool
) -> list[int]:
    indptr = list(graph.edges.values())[number].indptr
    degree = int(indptr[node + 1] - indptr[node])
    return oracle.draw_positions(key, hop, node, degree, fan_out, replace, relation=number)


def _edge(
    graph: Graph, edge_type: EdgeType, result: HeteroOracleSample, node: int, position: int
) -> Edge:
    edges, nodes = graph.edges[edge_type], result.nodes[edge_type[0]]
    edge = int(edges.indptr[node]) + position
    source = int(edges.indices[edge])
    if source not in nodes:
        nodes.append(source)
    return nodes.index(source), edge
