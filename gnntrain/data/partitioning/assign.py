"""Which node goes to which part: by Fennel, by METIS, or at random.

Fennel reads the nodes one after the other, each with its in-neighbours, and needs some bytes of
memory a node. As in Fennel (Tsourakakis, Gkantsidis, Radunovic & Vojnovic, WSDM 2014), a node goes
to the part with the highest score among those that have room for it: the number of its
in-neighbours there, minus what the part's cost α·load^γ would grow by, with γ = 1.5 and
α = m·k^(γ − 1)/n^γ for n nodes, m undirected edges and k parts. As in restreaming (Nishimura &
Ugander, KDD 2013), all nodes are read again several times, and placed by where their neighbours are
now.

The load is threefold: nodes, in-edges, and training nodes, each in units of an equal share. The
cost is then (m/k)·load^γ of each of the three; for the nodes it is Fennel's. No part takes more
than `SLACK` times an equal share of any, unless no part has room; then the least loaded one does.
The cost's factor falls from pass to pass: a balanced start leaves room for exchanges later.
"""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt

from gnntrain.data.graph import Float64Array, Graph, Int64Array, IntArray
from gnntrain.data.pair_draws import splitmix64
from gnntrain.data.partitioned_graph import Method
from gnntrain.errors import RunError, UserError
from gnntrain.jit import jit
from gnntrain.limits import available_memory

PartIndex = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

MAX_PARTS = 256
"""A node's part fits in a byte, and a file of each part is open at once."""

SLACK = 1.1
"""A part's load may be that many times an equal share."""

_METIS_BYTES_AN_EDGE = 130  # measured on graphs with edges both ways
_METIS_BYTES_A_NODE = 200

_NODES_AT_ONCE = 1 << 18  # Ctrl-C is noticed between two calls
_FACTORS = (4.0, 4.0, 2.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25)


def assign(graph: Graph, num_parts: int, method: Method) -> PartIndex:
    """The part of each node: uint8 `[num_nodes]`; every part has a node.

    Args:
        graph: The graph.
        num_parts: Number of parts.
        method: "metis" cuts few edges, and needs the graph several times over in memory;
            "streaming" cuts more of them, in bounded memory; "random" deals the nodes out like
            cards, by a hash.

    Raises:
        UserError: There are more parts than nodes, or than `MAX_PARTS`, or none.
        RunError: METIS failed, or the system has killed it.
    """
    refuse_number(graph, num_parts)
    part_of = np.zeros(graph.num_nodes, np.uint8)
    if num_parts > 1 and method == "random":
        deal_nodes(train_flags(graph), len(graph.split("train")), num_parts, part_of)
    elif num_parts > 1:
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


def refuse_number(graph: Graph, num_parts: int) -> None:
    """Raise a UserError unless the graph can be cut into so many parts."""
    most = min(MAX_PARTS, graph.num_nodes)
    if not 1 <= num_parts <= most:
        nodes = f", which has {graph.num_nodes:,} nodes" if most < MAX_PARTS else ""
        raise UserError(
            f"{graph.dataset}{nodes} cannot be cut into {num_parts:,} parts",
            f"Give --parts a number from 1 to {most}.",
        )


def refuse_metis(graph: Graph) -> None:
    """Raise a UserError where pymetis is not installed, or the graph is too large for memory."""
    if find_spec("pymetis") is None:
        raise UserError(
            "--method metis needs the package pymetis, which is not installed",
            "Run `pip install 'gnntrain[partition]'`, or leave --method out.",
        )
    needed = graph.num_edges * _METIS_BYTES_AN_EDGE + graph.num_nodes * _METIS_BYTES_A_NODE
    available = available_memory()
    if needed > available:
        raise UserError(
            f"METIS needs about {needed / 2**30:,.1f} GiB of memory for {graph.dataset}; "
            f"{available / 2**30:,.1f} GiB are free",
            "Leave --method out: the streaming partitioner needs little memory.",
        )


def _by_metis(graph: Graph, num_parts: int) -> PartIndex:
    """The part of each node by METIS (Karypis & Kumar 1998): uint8 `[num_nodes]`.

    METIS runs in a process of its own: it holds Python's lock and catches SIGTERM, so that a
    signal would end nothing before METIS itself ends.
    """
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
        ones = np.ones(graph.num_edges, np.int64)
        shape = graph.num_nodes, graph.num_nodes
        edges = csr_array((ones, graph.indices, graph.indptr), shape=shape)
        both_ways = (edges + edges.T).tocsr()  # an edge in both directions weighs 2
        both_ways.setdiag(0)
        both_ways.eliminate_zeros()
        ends, sources = both_ways.indptr.astype(np.int64), both_ways.indices.astype(np.int64)
        found = pymetis.part_graph(
            num_parts,
            pymetis.CSRAdjacency(ends, sources),
            vweights=np.maximum(1, np.diff(graph.indptr)),
            eweights=both_ways.data,
            recursive=False,
            options=pymetis.Options(seed=0),
        )
        sender.send_bytes(np.asarray(found.vertex_part).astype(np.uint8).tobytes())


def train_flags(graph: Graph) -> Flags:
    """Whether each node is a training node: bool `[num_nodes]`."""
    flags = np.zeros(graph.num_nodes, np.bool_)
    flags[graph.split("train")] = True
    return flags


def stream(graph: Graph, num_parts: int, start: PartIndex | None = None) -> PartIndex:
    """The part of each node by Fennel: uint8 `[num_nodes]`.

    Args:
        graph: The graph.
        num_parts: Number of parts.
        start: uint8 `[num_nodes]`, where to begin: nodes are moved until no load is too high, and
            where fewer edges are cut. None: with the nodes one by one.
    """
    num_nodes, is_train = graph.num_nodes, train_flags(graph)
    num_in_edges = np.diff(graph.indptr)
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
    arrays = graph.indptr, graph.indices, is_train
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
    graph: tuple[Int64Array, IntArray, Flags],
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
        part_of: uint8 `[num_nodes]`, is updated.
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


@jit
def deal_nodes(is_train: Flags, num_train: int, num_parts: int, part_of: PartIndex) -> None:
    """Deal nodes out to parts like cards: first the training nodes, then the others.

    Each round gives every part a node, in an order that is a hash of the round's number. So parts
    differ by one node and by one training node at most.

    Args:
        is_train: bool `[num_nodes]`.
        num_train: How many nodes are training nodes.
        num_parts: Number of parts.
        part_of: uint8 `[num_nodes]`, receives the part of each node.
    """
    orders = np.empty((2, num_parts), np.uint8)
    dealt = np.array([num_train, 0])  # of the others, of the training nodes
    for node in range(len(is_train)):
        kind = 1 if is_train[node] else 0
        turn, place = divmod(dealt[kind], num_parts)
        if place == 0 or dealt[0] == num_train:  # shuffle 0, 1, … (Fisher-Yates)
            order = orders[kind]
            for i in range(num_parts):
                order[i] = i
            stream_of_turn = np.uint64(turn) << np.uint64(8)  # of fewer than 256 numbers
            for i in range(num_parts - 1, 0, -1):
                number = splitmix64(np.uint64(0), stream_of_turn + np.uint64(i))
                j = np.int64(number % np.uint64(i + 1))
                order[i], order[j] = order[j], order[i]
        part_of[node] = orders[kind, place]
        dealt[kind] += 1
