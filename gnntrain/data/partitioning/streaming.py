"""Fennel: parts by streaming over the nodes, in some bytes of memory a node.

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
    PartIndex,
    count_loads,
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
    num_nodes, is_train = graph.num_nodes, train_flags(graph)
    part_of = np.zeros(num_nodes, np.uint8) if start is None else start.copy()
    arrays = graph.indptr, graph.indices, is_train
    most = np.array([1, np.diff(graph.indptr).max(), 1])  # of one node, which must fit in
    totals = np.array([num_nodes, graph.num_edges, len(graph.split("train"))])
    shares = totals / num_parts
    limits = np.maximum(most, np.maximum(np.ceil(shares), SLACK * shares)).astype(np.int64)
    units = np.divide(1.0, shares, out=np.zeros(3), where=totals > 0)
    cost = max(graph.num_edges, 1) / 2 / num_parts
    for number, factor in enumerate(_FACTORS):
        is_first = number == 0 and start is None
        loads = np.zeros((3, num_parts), np.int64)
        if not is_first:
            count_loads(graph.indptr, is_train, part_of, loads)
        # The derivative of load^1.5 is 1.5·√load.
        scale = units, 1.5 * cost * factor
        for first in range(0, num_nodes, _NODES_AT_ONCE):
            nodes = first, min(first + _NODES_AT_ONCE, num_nodes)
            place_nodes(arrays, nodes, part_of, loads, limits, scale, is_first)
    return part_of


def train_flags(graph: Graph) -> Flags:
    """Whether each node is a training node: bool `[num_nodes]`."""
    flags = np.zeros(graph.num_nodes, np.bool_)
    flags[graph.split("train")] = True
    return flags
