"""Fennel: parts by streaming over the nodes, in memory of two bytes a node beside the mapped graph.

The nodes are read one after the other, each with its in-neighbours. As in Fennel (Tsourakakis,
Gkantsidis, Radunovic & Vojnovic, WSDM 2014), a node goes to the part with the highest score among
those that have room for it: the number of its in-neighbours there, minus what the part's cost
α·load^γ would grow by, with γ = 1.5 and α = m·k^(γ − 1)/n^γ for n nodes, m undirected edges and k
parts. As in restreaming (Nishimura & Ugander, KDD 2013), all nodes are read again several times,
and placed by where their neighbours are now.

The load is threefold: nodes, in-edges, and training nodes, each in units of an equal share. The
cost is then (m/k)·load^γ of each of the three; for the nodes it is Fennel's. No part takes more
than `SLACK` times an equal share of any, unless no part has room; then the least loaded one does.
The cost's factor falls from pass to pass: a balanced start leaves room for exchanges later.
"""

from __future__ import annotations

import numpy as np

from gnntrain.data.graph import Graph
from gnntrain.data.partitioning.kernels import (
    Flags,
    Float64Array,
    PartIndex,
    measure_loads,
    place_nodes,
)

SLACK = 1.1
"""A part's load may be that many times an equal share."""

_NODES_AT_ONCE = 1 << 18  # Ctrl-C is noticed between two calls
_FACTORS = (4.0, 4.0, 2.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25)


def stream(graph: Graph, num_parts: int, start: PartIndex | None = None) -> PartIndex:
    """The part of each node by Fennel: uint8 `[num_nodes]`.

    Args:
        graph: The graph.
        num_parts: Number of parts.
        start: uint8 `[num_nodes]`, where to begin: nodes are moved until no load is too high, and
            where fewer edges are cut. None: with the nodes one by one.
    """
    part_of = np.zeros(graph.num_nodes, np.uint8) if start is None else start.copy()
    passes = _Passes(graph, part_of, num_parts)
    for number, factor in enumerate(_FACTORS):
        passes.run(factor, is_first=number == 0 and start is None)
    return part_of


def loads_of(graph: Graph, num_parts: int, part_of: PartIndex) -> Float64Array:
    """Nodes, in-edges and training nodes of each part, in units of an equal share.

    Returns:
        float64 `[3, num_parts]`; 0 where the graph has none.
    """
    loads = np.empty((3, num_parts))
    measure_loads(graph.indptr, train_flags(graph), part_of, loads)
    return loads * _units(graph, num_parts)[:, None]


def train_flags(graph: Graph) -> Flags:
    """Whether each node is a training node: bool `[num_nodes]`."""
    flags = np.zeros(graph.num_nodes, np.bool_)
    flags[graph.split("train")] = True
    return flags


class _Passes:
    """Passes over all nodes, that move them from part to part."""

    def __init__(self, graph: Graph, part_of: PartIndex, num_parts: int) -> None:
        self._arrays = graph.indptr, graph.indices, train_flags(graph)
        self._part_of = part_of
        self._units = _units(graph, num_parts)
        self._limits = _limits(graph, num_parts)
        self._cost = max(graph.num_edges, 1) / 2 / num_parts
        self._loads = loads_of(graph, num_parts, part_of)

    def run(self, factor: float, *, is_first: bool) -> None:
        """Place each node once."""
        if is_first:
            self._loads[:] = 0.0
        # The derivative of load^1.5 is 1.5·√load.
        scale = self._units, self._limits, np.full(3, 1.5 * self._cost * factor)
        num_nodes = len(self._part_of)
        for first in range(0, num_nodes, _NODES_AT_ONCE):
            nodes = first, min(first + _NODES_AT_ONCE, num_nodes)
            place_nodes(self._arrays, nodes, self._part_of, self._loads, scale, is_first)


def _units(graph: Graph, num_parts: int) -> Float64Array:
    """What a node, an in-edge and a training node are of an equal share; 0 where there is none."""
    totals = graph.num_nodes, graph.num_edges, len(graph.split("train"))
    return np.array([num_parts / total if total else 0.0 for total in totals])


def _limits(graph: Graph, num_parts: int) -> Float64Array:
    """The largest load of a part: at least a node with the most in-edges must fit in."""
    units = _units(graph, num_parts)
    shares = np.ceil([graph.num_nodes / num_parts, 0, len(graph.split("train")) / num_parts])
    shares[1] = np.diff(graph.indptr).max()
    return np.maximum(SLACK, shares * units)
