"""The compiled loops over nodes and edges of partitioning."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gnntrain.data.graph import Float32Array, Int64Array, IntArray
from gnntrain.jit import jit

PartIndex = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Float64Array = npt.NDArray[np.float64]


@jit
def number_nodes(part_of: PartIndex, next_number: Int64Array, new: IntArray) -> None:
    """Number the nodes part by part, in their order.

    Args:
        part_of: uint8 `[num_nodes]`.
        next_number: int64 `[num_parts]`, the first number of each part; counts up.
        new: `[num_nodes]`, receives each node's number.
    """
    for node in range(len(part_of)):
        part = part_of[node]
        new[node] = next_number[part]
        next_number[part] += 1


@jit
def route_edges(
    edges: tuple[IntArray, Float32Array],
    destinations: tuple[Int64Array, int, int],
    parts: tuple[PartIndex, PartIndex],
    new: IntArray,
    ends: Int64Array,
    routed: tuple[IntArray, Float32Array],
) -> int:
    """Sort a chunk of edges by the part of their destination, in their order.

    Args:
        edges: Source nodes `[num_edges]` of the chunk, and float32 `[num_edges]` or `[0]`.
        destinations: The graph's indptr; the chunk's first edge, and that edge's destination.
        parts: uint8 `[num_dst]` and `[num_src]`, the parts of destinations and of sources.
        new: `[num_src]`, each source's new number.
        ends: int64 `[num_parts]`, receives the end of each part's edges in `routed`.
        routed: `[num_edges]` new numbers of the sources, and their weights.

    Returns:
        How many of the edges have their source in another part.
    """
    indices, weight = edges
    indptr, first_edge, first_node = destinations
    new_indices, new_weight = routed
    part_of, part_of_source = parts
    ends[:] = 0
    node = first_node
    for i in range(len(indices)):
        while indptr[node + 1] <= first_edge + i:
            node += 1
        ends[part_of[node]] += 1
    total = 0
    for part in range(len(ends)):
        total += ends[part]
        ends[part] = total - ends[part]
    cut = 0
    node = first_node
    for i in range(len(indices)):
        while indptr[node + 1] <= first_edge + i:
            node += 1
        part, source = part_of[node], indices[i]
        place = ends[part]
        ends[part] += 1
        new_indices[place] = new[source]
        if len(weight):
            new_weight[place] = weight[i]
        cut += part_of_source[source] != part
    return cut


@jit
def join_edges(
    indptr: Int64Array, indices: IntArray, first_source: int, ends: Int64Array, joined: IntArray
) -> None:
    """Append the in-edges of one edge type to those of its destinations.

    Args:
        indptr: int64 `[num_dst + 1]`.
        indices: `[num_edges]`, sources.
        first_source: The number of the first source among the nodes of all types.
        ends: int64 `[num_dst]`, where the in-edges of each destination end so far; is updated.
        joined: Receives the sources.
    """
    for node in range(len(ends)):
        end = ends[node]
        for edge in range(indptr[node], indptr[node + 1]):
            joined[end] = first_source + indices[edge]
            end += 1
        ends[node] = end


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
        if place == 0 or dealt[0] == num_train:
            _shuffle(turn, orders[kind])
        part_of[node] = orders[kind, place]
        dealt[kind] += 1


@jit
def _shuffle(key: int, order: PartIndex) -> None:
    """Write 0, 1, …, shuffled by the stream of SplitMix64 that starts at `key` (Fisher-Yates)."""
    for i in range(len(order)):
        order[i] = i
    for i in range(len(order) - 1, 0, -1):
        number = _random(np.uint64(key), np.uint64(i))
        j = np.int64(number % np.uint64(i + 1))
        order[i], order[j] = order[j], order[i]


@jit
def _random(key: np.uint64, index: np.uint64) -> np.uint64:
    """SplitMix64 (Steele, Lea & Flood 2014) at the key and index of a number."""
    mixed = (key << np.uint64(8)) + index + np.uint64(1)  # of fewer than 256 numbers a key
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@jit
def count_loads(indptr: Int64Array, is_train: Flags, part_of: PartIndex, loads: Int64Array) -> None:
    """Add each part's nodes, in-edges and training nodes to int64 `[3, num_parts]`."""
    for node in range(len(part_of)):
        part = part_of[node]
        loads[0, part] += 1
        loads[1, part] += indptr[node + 1] - indptr[node]
        loads[2, part] += is_train[node]


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

    See `gnntrain.data.partitioning.streaming` for the score.

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
