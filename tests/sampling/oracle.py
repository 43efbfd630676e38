"""A slow, obvious sampler in plain Python integers: what `gnntrain.sampling` must agree with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gnntrain.data.graph import EdgeType, FusedCSC, NodeType
from gnntrain.sampling.base import FanOuts, SampleKey
from tests.sampling.graphs import target_of

MODULUS = 2**64
Edge = tuple[int, int]
"""Number of the source among the batch's nodes of its type, and position among its edge type."""


def mix64(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % MODULUS
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % MODULUS
    return x ^ (x >> 31)


def hop_key(key: SampleKey, hop: int) -> int:
    h = 0
    for part in (key.seed, key.epoch, key.step, hop):
        h = mix64(((h ^ (part % MODULUS)) + 0x9E3779B97F4A7C15) % MODULUS)
    return h


def draw(key: SampleKey, hop: int, node: int, index: int, num_values: int, number: int = 0) -> int:
    """Draw `index` of a destination, mapped to 0 … num_values − 1; `number` is that of its type."""
    of_type = hop_key(key, hop) ^ mix64(number)
    start = mix64(of_type ^ (node * 0x9E3779B97F4A7C15 % MODULUS))
    bits = mix64((start + (index + 1) * 0x9E3779B97F4A7C15) % MODULUS)
    return bits * num_values // MODULUS


def draw_positions(
    key: SampleKey, hop: int, node: int, degree: int, fan_out: int, replace: bool, number: int
) -> list[int]:
    """Which of the in-edges 0 … degree − 1 of `node` are taken, in order."""
    if fan_out == -1 or degree == 0:
        return list(range(degree))
    if replace:
        return [draw(key, hop, node, i, degree, number) for i in range(fan_out)]
    if degree <= fan_out:
        return list(range(degree))
    taken: list[int] = []
    for i in range(fan_out):
        last = degree - fan_out + i
        position = draw(key, hop, node, i, last + 1, number)
        taken.append(last if position in taken else position)
    return taken


@dataclass
class OracleSample:
    """`edges[h][edge type]` holds, for each destination of hop h, its edges.

    `num_known[h]`: the number of nodes of each type before hop h.
    """

    nodes: dict[NodeType, list[int]]
    edges: list[dict[EdgeType, list[list[Edge]]]] = field(default_factory=list)
    num_known: list[dict[NodeType, int]] = field(default_factory=list)


def sample(
    graph: FusedCSC,
    seeds: Sequence[int],
    fan_outs: FanOuts,
    key: SampleKey,
    *,
    scope: str = "relation",
    replace: bool = False,
) -> OracleSample:
    """Walk hop by hop, in a hop edge type by edge type; all nodes found so far draw again."""
    edges = {name: graph.part(number) for number, name in enumerate(graph.edge_types)}
    result = OracleSample({name: [] for name in graph.num_nodes})
    result.nodes[target_of(graph)] += seeds
    # Finding a source by a list's `index` would take minutes for a hub.
    places: dict[NodeType, dict[int, int]] = {name: {} for name in graph.num_nodes}
    for place, seed in enumerate(seeds):
        places[target_of(graph)].setdefault(seed, place)
    result.num_known.append({name: len(nodes) for name, nodes in result.nodes.items()})
    for hop in range(len(next(iter(fan_outs.values())))):
        result.edges.append({})
        for number, name in enumerate(graph.edge_types):
            source_type, _, destination_type = name
            indptr, indices = edges[name]
            into = {
                other: edges[other][0] for other in graph.edge_types if other[2] == destination_type
            }
            result.edges[-1][name] = []
            for node in result.nodes[destination_type][: result.num_known[-1][destination_type]]:
                degrees = {
                    other: int(offsets[node + 1] - offsets[node]) for other, offsets in into.items()
                }
                rest = fan_outs[name][hop], replace
                if scope == "relation":
                    positions = draw_positions(key, hop, node, degrees[name], *rest, number)
                else:
                    type_number = list(graph.num_nodes).index(destination_type)
                    degree = sum(degrees.values())
                    drawn = draw_positions(key, hop, node, degree, *rest, type_number)
                    positions = _of_type(name, degrees, drawn)
                found = []
                for position in positions:
                    edge = int(indptr[node]) + position
                    source = int(indices[edge])
                    place = places[source_type].setdefault(source, len(result.nodes[source_type]))
                    if place == len(result.nodes[source_type]):
                        result.nodes[source_type].append(source)
                    found.append((place, edge))
                result.edges[-1][name].append(found)
        result.num_known.append({name: len(nodes) for name, nodes in result.nodes.items()})
    return result


def _of_type(name: EdgeType, degrees: Mapping[EdgeType, int], drawn: Sequence[int]) -> list[int]:
    """Of positions among the in-edges of all types, those of one type, as positions in it."""
    first = 0
    for other, degree in degrees.items():
        if other == name:
            return [position - first for position in drawn if first <= position < first + degree]
        first += degree
    raise AssertionError(name)
