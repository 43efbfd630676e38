"""Which node goes to which part: by Fennel, by METIS, or at random.

As in Fennel (Tsourakakis, Gkantsidis, Radunovic & Vojnovic, WSDM 2014), nodes are read one by one,
and each goes to the part with the highest score among those that have room for it: the number of
its in-neighbours there, minus what the part's cost (m/k)·load^1.5 would grow by, for m undirected
edges and k parts. As in restreaming (Nishimura & Ugander, KDD 2013), all nodes are placed again
several times, by where their neighbours are now.

The load is threefold: nodes, in-edges, and training nodes, each in units of an equal share. No part
takes more than `SLACK` times an equal share of any, unless no part has room; then the least loaded
one does. The cost's factor falls from pass to pass: a balanced start leaves room for exchanges.
"""

from __future__ import annotations

from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt

from gnntrain.data.graph import BoolArray, Float64Array, Graph, Int64Array, IntArray
from gnntrain.data.partitioned_graph import Method
from gnntrain.errors import RunError
from gnntrain.jit import jit

PartIndex = npt.NDArray[np.uint8]

MAX_PARTS = 256
"""A node's part fits in a byte, and a file of each part is open at once."""

SLACK = 1.1
"""A part's load may be that many times an equal share."""

_NODES_AT_ONCE = 1 << 18  # Ctrl-C is noticed between two calls
_FACTORS = (4.0, 4.0, 2.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25)


def assign(graph: Graph, num_parts: int, method: Method) -> PartIndex:
    """The part of each node: uint8 `[num_nodes]`; each of the parts, at most `MAX_PARTS`, has one.

    "metis" needs the graph several times over in memory; RunError where it failed, or was killed.
    """
    if num_parts == 1:
        return np.zeros(graph.num_nodes, np.uint8)
    if method == "random":
        part_of = _deal(graph, num_parts)
    else:
        # METIS balances the in-edges; pymetis has no place for more than one weight a node. Then
        # nodes are moved until the other loads are balanced too.
        start = _by_metis(graph, num_parts) if method == "metis" else None
        part_of = stream(graph, num_parts, start)
    # Each part without a node gets the last node of the largest one.
    sizes = np.bincount(part_of, minlength=num_parts)
    for part in np.flatnonzero(sizes == 0):
        largest = sizes.argmax()
        part_of[np.flatnonzero(part_of == largest)[-1]] = part
        sizes[largest] -= 1
        sizes[part] += 1
    return part_of


def _deal(graph: Graph, num_parts: int) -> PartIndex:
    """Deal the training nodes out like cards, then the others: each round gives every part a node,
    in a random order. So parts differ by one node and by one training node at most."""
    num_rounds = -(-graph.num_nodes // num_parts)
    cards = np.tile(np.arange(num_parts, dtype=np.uint8), (num_rounds, 1))
    np.random.default_rng(0).permuted(cards, axis=1, out=cards)
    is_train, num_train = _train_flags(graph), len(graph.split("train"))
    part_of = np.empty(graph.num_nodes, np.uint8)
    part_of[is_train] = cards.ravel()[:num_train]
    part_of[~is_train] = cards.ravel()[num_train : graph.num_nodes]
    return part_of


def _by_metis(graph: Graph, num_parts: int) -> PartIndex:
    """The part of each node by METIS (Karypis & Kumar 1998), in a process of its own: METIS holds
    Python's lock and catches SIGTERM, so that a signal would end nothing."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_parts, args=(graph, num_parts, sender), daemon=True)
    process.start()
    sender.close()
    try:
        return np.frombuffer(receiver.recv_bytes(), np.uint8)
    except EOFError:
        process.join()
        raise RunError(
            f"METIS ended without a result (exit code {process.exitcode}); "
            "perhaps the memory was not enough",
            "Leave --method out: the streaming partitioner needs little memory.",
        ) from None
    finally:
        process.kill()
        process.join()


def _send_parts(graph: Graph, num_parts: int, sender: Connection) -> None:
    import pymetis
    from scipy.sparse import csr_array

    with suppress(MemoryError):  # the parent notices that nothing was sent
        given = graph.only_edges
        ones, shape = np.ones(len(given), np.int64), (graph.num_nodes, graph.num_nodes)
        edges = csr_array((ones, given.indices, given.indptr), shape=shape)
        both_ways = (edges + edges.T).tocsr()  # an edge in both directions weighs 2
        both_ways.setdiag(0)
        both_ways.eliminate_zeros()
        ends, sources = both_ways.indptr.astype(np.int64), both_ways.indices.astype(np.int64)
        found = pymetis.part_graph(
            num_parts,
            pymetis.CSRAdjacency(ends, sources),
            vweights=np.maximum(1, np.diff(given.indptr)),
            eweights=both_ways.data,
            recursive=False,
            options=pymetis.Options(seed=0),
        )
        sender.send_bytes(np.asarray(found.vertex_part).astype(np.uint8).tobytes())


def _train_flags(graph: Graph) -> BoolArray:
    flags = np.zeros(graph.num_nodes, np.bool_)
    flags[graph.split("train")] = True
    return flags


def stream(graph: Graph, num_parts: int, start: PartIndex | None = None) -> PartIndex:
    """The part of each node by Fennel; with `start`, nodes are moved from there."""
    num_nodes, is_train, edges = graph.num_nodes, _train_flags(graph), graph.only_edges
    num_in_edges = np.diff(edges.indptr)
    most = np.array([1, num_in_edges.max(), 1])  # of one node, which must fit in
    totals = np.array([num_nodes, graph.num_edges, len(graph.split("train"))])
    shares = totals / num_parts
    limits = np.maximum(most, np.maximum(np.ceil(shares), SLACK * shares)).astype(np.int64)
    units = np.divide(1.0, shares, out=np.zeros(3), where=totals > 0)
    cost = max(graph.num_edges, 1) / 2 / num_parts

    part_of = np.zeros(num_nodes, np.uint8)
    loads = np.zeros((3, num_parts), np.int64)  # nodes, in-edges, training nodes
    if start is not None:
        part_of[:] = start
        for load, of_nodes in zip(loads, (None, num_in_edges, is_train), strict=True):
            load[:] = np.bincount(start, of_nodes, num_parts)
    del num_in_edges
    arrays = edges.indptr, edges.indices, is_train
    for number, factor in enumerate(_FACTORS):
        is_first = number == 0 and start is None
        # The derivative of load^1.5 is 1.5·√load.
        scale = units, 1.5 * cost * factor
        for first in range(0, num_nodes, _NODES_AT_ONCE):
            nodes = first, min(first + _NODES_AT_ONCE, num_nodes)
            place_nodes(arrays, nodes, part_of, loads, limits, scale, is_first)
    return part_of


@jit
def place_nodes(
    graph: tuple[Int64Array, IntArray, BoolArray],
    nodes: tuple[int, int],
    part_of: PartIndex,
    loads: Int64Array,
    limits: Int64Array,
    scale: tuple[Float64Array, float],
    is_first: bool,
) -> None:
    """Put each node of a range where the most of its in-neighbours are, and the load is low.

    Args:
        graph: indptr; sources; whether each node is a training node.
        nodes: The first node, and the one after the last.
        part_of: Is updated.
        loads: int64 `[3, num_parts]`, is updated: nodes, in-edges, training nodes of each part.
        limits: int64 `[3]`, the most that a part may have of each.
        scale: float64 `[3]`, one over an equal share of each; the factor of the penalty.
        is_first: Whether no node of the range, and after it, has a part yet.
    """
    indptr, indices, is_train = graph
    unit, factor = scale
    num_parts = loads.shape[1]
    gain = np.empty(num_parts)
    root = np.empty(loads.shape)
    for i in range(3):
        root[i] = np.sqrt(loads[i] * unit[i])
    own = np.empty(3, np.int64)
    for node in range(nodes[0], nodes[1]):
        own[0] = 1
        own[1] = indptr[node + 1] - indptr[node]
        own[2] = is_train[node]
        if not is_first:
            before = part_of[node]
            for i in range(3):
                loads[i, before] -= own[i]
                root[i, before] = np.sqrt(loads[i, before] * unit[i])
        gain[:] = 0.0
        for edge in range(indptr[node], indptr[node + 1]):
            source = indices[edge]
            if source < node or (source > node and not is_first):
                gain[part_of[source]] += 1.0
        best = 0
        best_excess = np.inf
        best_score = -np.inf
        for part in range(num_parts):
            excess = 0.0
            growth = 0.0
            for i in range(3):
                if own[i] > 0:
                    excess = max(excess, (loads[i, part] + own[i] - limits[i]) * unit[i])
                    growth += own[i] * unit[i] * root[i, part]
            score = gain[part] - factor * growth
            if excess < best_excess or (excess == best_excess and score > best_score):
                best, best_excess, best_score = part, excess, score
        for i in range(3):
            loads[i, best] += own[i]
            root[i, best] = np.sqrt(loads[i, best] * unit[i])
        part_of[node] = best
