"""The compiled inner loops of the CPU sampler, and the random numbers that every sampler shares.

Random numbers
--------------
A draw is a pure function of a key; there is no state between draws. Every sampler, on whatever
device, must use exactly these functions, so that one key names one set of edges everywhere. They
need only 64-bit unsigned multiplications, additions, exclusive-ors and shifts, modulo 2^64:

1. `mix64`, the finaliser of SplitMix64 (Steele, Lea & Flood 2014; constants of D. Stafford's
   variant 13), a bijection in which every input bit flips every output bit with probability ~1/2;
2. `hop_key = f(f(f(f(0, seed), epoch), step), hop)` with `f(h, x) = mix64((h ^ x) + GOLDEN)`;
   of edge type r (0, 1, …) of a typed graph it is `type_key = hop_key ^ mix64(r)`;
3. `node_key = mix64(hop_key ^ (node * GOLDEN))`, `node` the global number of the destination;
4. draw `i` (0, 1, …) of that node is `mix64(node_key + (i + 1) * GOLDEN)`: the SplitMix64 stream
   that starts at `node_key`;
5. `bounded(draw, r) = floor(draw * r / 2^64)` for 1 ≤ r < 2^32, computed in two halves. Some
   values are drawn more often than others by a factor of at most 1 + r / 2^64, below 1 + 2^-32.

How draws become neighbours, for a destination of degree d and a fan-out k (positions are relative
to the destination's first in-edge, in CSC order):

- k = −1, or d ≤ k without replacement: 0, 1, …, d − 1, no draw is made;
- with replacement, d > 0: position i is `bounded(draw i, d)` for i = 0 … k − 1;
- without, d > k: Floyd's algorithm (Bentley & Floyd 1987). For i = 0 … k − 1 let
  m = d − k + i and t = `bounded(draw i, m + 1)`; position i is t, or m if t is taken already.

Where the edge types of a typed graph share a fan-out, the positions are those among the in-edges of
all types, one type after the other, and r is the number of the destination's node type.

Passes
------
One hop runs in separate passes (degrees, draws, loads of the drawn in-neighbours, relabelling),
because a loop of nothing but independent random loads keeps many cache misses in flight, where a
loop that draws, loads and relabels edge by edge waits for them one after the other. The passes
over edges go chunk by chunk, so that intermediate results stay in the core's own cache.

All compiled functions that call one another live in this file: Numba's cache on disk notices a
change of the file of the function it loads, but not of another file that this one calls into.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gnntrain.data.graph import Int64Array
from gnntrain.jit import jit

Int32Array = npt.NDArray[np.int32]
IndexArray = npt.NDArray[np.int32] | npt.NDArray[np.int64]

CHUNK_EDGES = 4096
"""Edges between two passes: 12 bytes each, a fraction of a core's second-level cache."""

SCAN_LIMIT = 24
"""Up to this fan-out a linear scan finds repeated draws faster than a hash table."""

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
ONE = np.uint64(1)
LOW_6 = np.uint64(63)
LOW_32 = np.uint64(0xFFFFFFFF)
SHIFT_27 = np.uint64(27)
SHIFT_30 = np.uint64(30)
SHIFT_31 = np.uint64(31)
SHIFT_32 = np.uint64(32)


@jit
def mix64(x: np.uint64) -> np.uint64:
    """Scramble 64 bits; `mix64(0) == 0`."""
    x = (x ^ (x >> SHIFT_30)) * MULTIPLIER_1
    x = (x ^ (x >> SHIFT_27)) * MULTIPLIER_2
    return x ^ (x >> SHIFT_31)


@jit
def hop_key(seed: np.uint64, epoch: np.uint64, step: np.uint64, hop: np.uint64) -> np.uint64:
    """The common key of all destinations of one hop (0: next to the seeds) of one batch."""
    key = mix64(seed + GOLDEN)
    key = mix64((key ^ epoch) + GOLDEN)
    key = mix64((key ^ step) + GOLDEN)
    return mix64((key ^ hop) + GOLDEN)


@jit
def type_key(hop_key: np.uint64, number: np.uint64) -> np.uint64:
    """The common key of all destinations of one edge type; of type 0 the hop's own."""
    return hop_key ^ mix64(number)


@jit
def node_key(hop_key: np.uint64, node: np.uint64) -> np.uint64:
    """The start of the stream of draws of one destination node."""
    return mix64(hop_key ^ (node * GOLDEN))


@jit
def draw(node_key: np.uint64, index: np.uint64) -> np.uint64:
    """Draw number `index` of a destination: uniform on all 64-bit numbers."""
    return mix64(node_key + (index + np.uint64(1)) * GOLDEN)


@jit
def bounded(draw: np.uint64, num_values: np.uint64) -> np.uint64:
    """Map a draw to 0 … num_values − 1, for 1 ≤ num_values < 2^32."""
    high = (draw >> SHIFT_32) * num_values
    low = ((draw & LOW_32) * num_values) >> SHIFT_32
    return (high + low) >> SHIFT_32


class InEdges(NamedTuple):
    """The in-edges of all types: the arrays of a `data.graph.FusedCSC`, read-only.

    `ends` is int64 `[2, R]`: source and destination node type of each edge type, by number.
    """

    indptr: Int64Array
    first_offset: Int64Array
    indices: IndexArray
    first_edge: Int64Array
    ends: Int64Array


class HopOptions(NamedTuple):
    """How a hop draws.

    Attributes:
        key: Of the hop.
        fan_outs: `[R]`.
        shares: Whether all edge types into a node share a fan-out; theirs are then equal.
        replace: Draw with replacement.
    """

    key: np.uint64
    fan_outs: Int64Array
    shares: bool
    replace: bool


class HopEdges(NamedTuple):
    """The destinations of one hop and the edges that they take.

    Attributes:
        ids, room: The destinations of node type t are `ids[room[t]:]`, by their ids for the keys.
        rows: `[R + 1]`: where the entries of each edge type begin in the arrays below: one for
            each destination, and one more.
        starts, degrees: A destination's first in-edge among those of the type, and their number.
        offsets: Where the taken edges of each destination begin among those of the edge type, and
            the end.
    """

    ids: Int64Array
    room: Int64Array
    rows: Int64Array
    starts: Int64Array
    degrees: Int64Array
    offsets: Int64Array


class Numbers(NamedTuple):
    """The nodes of a batch and their numbers.

    Attributes:
        local, first_node: `local[first_node[t] + v] - base` is the number of node v of type t,
            negative if it has none.
        nodes, room: The numbered nodes of type t begin at `nodes[room[t]]`; up to `room[t + 1]`
            there must be room for every new node and one more.
        num_nodes: Number of numbered nodes of each type.
    """

    local: Int32Array
    first_node: Int64Array
    base: int
    nodes: Int64Array
    room: Int64Array
    num_nodes: Int64Array


@jit
def register_seeds(seeds: Int64Array, nodes: Int64Array, local: Int32Array, base: int) -> None:
    """Number the seeds by position; a repeated seed is known by its first position."""
    for i in range(len(seeds)):
        node = seeds[i]
        nodes[i] = node
        if local[node] < base:
            local[node] = np.int32(base + i)


@jit
def num_taken(degree: np.int64, fan_out: np.int64, replace: bool) -> np.int64:
    """How many in-edges a destination takes."""
    is_drawn = fan_out >= 0 and (degree > fan_out or (replace and degree > 0))
    return fan_out if is_drawn else degree


@jit
def count_edges(edges: InEdges, options: HopOptions, hop: HopEdges, nodes: Int64Array) -> None:
    """Fill the hop's `starts`, `degrees` and `offsets`.

    `nodes` are the destinations as `indptr` counts them, at the places of `hop.ids`.
    """
    for r in range(len(options.fan_outs)):
        begin, end = hop.rows[r], hop.rows[r + 1]
        indptr = edges.indptr[edges.first_offset[r] : edges.first_offset[r + 1]]
        destinations = nodes[hop.room[edges.ends[1, r]] :]
        starts, degrees = hop.starts[begin:end], hop.degrees[begin:end]
        offsets = hop.offsets[begin:end]
        for i in range(end - begin - 1):
            node = destinations[i]
            start = indptr[node]
            starts[i] = start
            degrees[i] = indptr[node + 1] - start
        total = np.int64(0)
        offsets[0] = 0
        for i in range(end - begin - 1):
            total += num_taken(degrees[i], options.fan_outs[r], options.replace)
            offsets[i + 1] = total


@jit
def degree_into(hop: HopEdges, relations: Int64Array, i: int) -> np.int64:
    """The in-edges of destination i of all types together."""
    degree = np.int64(0)
    for r in relations:
        degree += hop.degrees[hop.rows[r] + i]
    return degree


@jit
def draw_by_node(edges: InEdges, options: HopOptions, hop: HopEdges) -> Int64Array:
    """Draw for each destination from its in-edges of all types together; sets `hop.offsets`.

    Returns:
        The positions of the taken edges among those of their type, type by type.
    """
    key, fan_outs, replace = options.key, options.fan_outs, options.replace
    types = np.unique(edges.ends[1])
    total = most = np.int64(0)
    for t in types:
        relations = np.nonzero(edges.ends[1] == t)[0]
        r = relations[0]
        for i in range(hop.rows[r + 1] - hop.rows[r] - 1):
            count = num_taken(degree_into(hop, relations, i), fan_outs[r], replace)
            total += count
            most = max(most, count)
    found, relation_of = np.empty(total, np.int64), np.empty(total, np.int32)
    table = np.empty(4 * most, np.int64)
    hop.offsets[:] = 0
    at = np.int64(0)
    for t in types:
        relations = np.nonzero(edges.ends[1] == t)[0]
        r = relations[0]
        fan_out = fan_outs[r]
        for i in range(hop.rows[r + 1] - hop.rows[r] - 1):
            degree = degree_into(hop, relations, i)
            count = num_taken(degree, fan_out, replace)
            if fan_out < 0 or (not replace and count == degree):
                for e in range(count):
                    found[at + e] = e
            else:
                stream = node_key(type_key(key, np.uint64(t)), np.uint64(hop.ids[hop.room[t] + i]))
                draw_positions(stream, np.int64(0), degree, replace, table, found, at, count)
            for e in range(at, at + count):
                # Which type, and where among the in-edges of that type.
                position = found[e]
                row = np.int64(0)
                for r in relations:
                    row = hop.rows[r] + i
                    if position < hop.degrees[row]:
                        break
                    position -= hop.degrees[row]
                found[e] = hop.starts[row] + position
                relation_of[e] = r
                hop.offsets[row + 1] += 1
            at += count
    # Sort them by type: within a type they have the order of the destinations already.
    nexts = np.zeros(len(fan_outs), np.int64)
    at = np.int64(0)
    for r in range(len(fan_outs)):
        nexts[r] = at
        for i in range(hop.rows[r] + 1, hop.rows[r + 1]):
            hop.offsets[i] += hop.offsets[i - 1]
        at += hop.offsets[hop.rows[r + 1] - 1]
    positions = np.empty(total, np.int64)
    for e in range(total):
        r = relation_of[e]
        positions[nexts[r]] = found[e]
        nexts[r] += 1
    return positions


@jit
def draw_hop(
    edges: InEdges,
    options: HopOptions,
    hop: HopEdges,
    numbers: Numbers | None,
    out: IndexArray,
    edge_ids: Int64Array,
) -> None:
    """Draw the edges of a hop, load their sources and number them, edge type by edge type.

    Args:
        edges: The in-edges.
        options: How to draw.
        hop: What `count_edges`, and where fan-outs are shared `draw_by_node`, have filled.
        numbers: Receives the new nodes. None: number nothing.
        out: Becomes the numbers of the sources; without `numbers` the sources.
        edge_ids: Becomes the positions among the edges of the type; of length 0: not wanted. Where
            fan-outs are shared it is what `draw_by_node` has returned.
    """
    fan_outs, replace = options.fan_outs, options.replace
    most = np.int64(CHUNK_EDGES)
    for row in range(len(hop.offsets) - 1):
        most = max(most, hop.offsets[row + 1] - hop.offsets[row])
    largest = np.int64(0)
    for r in range(len(fan_outs)):
        largest = max(largest, fan_outs[r])
    table = np.empty(4 * min(most, largest), np.int64)
    positions, sources = np.empty(most, np.int64), np.empty(most, edges.indices.dtype)
    first = np.int64(0)
    for r in range(len(fan_outs)):
        source, destination = edges.ends[0, r], edges.ends[1, r]
        begin, end = hop.rows[r], hop.rows[r + 1]
        starts, degrees = hop.starts[begin:end], hop.degrees[begin:end]
        offsets = hop.offsets[begin:end]
        ids = hop.ids[hop.room[destination] :]
        indices = edges.indices[edges.first_edge[r] : edges.first_edge[r + 1]]
        relation_key = type_key(options.key, np.uint64(r))
        stop = np.int64(0)
        while stop < end - begin - 1:
            # A chunk has CHUNK_EDGES edges at most, or one destination.
            start, stop = stop, stop + 1
            while stop < end - begin - 1 and offsets[stop + 1] - offsets[start] <= CHUNK_EDGES:
                stop += 1
            chunk, num_edges = first + offsets[start], offsets[stop] - offsets[start]
            if options.shares:
                for e in range(num_edges):
                    positions[e] = edge_ids[chunk + e]
            else:
                for i in range(start, stop):
                    at, count = offsets[i] - offsets[start], offsets[i + 1] - offsets[i]
                    if fan_outs[r] < 0 or (not replace and count == degrees[i]):
                        for e in range(count):
                            positions[at + e] = starts[i] + e
                    else:
                        stream = node_key(relation_key, np.uint64(ids[i]))
                        draw_positions(
                            stream, starts[i], degrees[i], replace, table, positions, at, count
                        )
            if len(edge_ids) > 0:
                for e in range(num_edges):
                    edge_ids[chunk + e] = positions[e]
            if numbers is None:
                for e in range(num_edges):
                    out[chunk + e] = indices[positions[e]]
                continue
            for e in range(num_edges):
                sources[e] = indices[positions[e]]
            numbers.num_nodes[source] = relabel(
                sources,
                num_edges,
                numbers.local[numbers.first_node[source] : numbers.first_node[source + 1]],
                numbers.base,
                numbers.nodes[numbers.room[source] : numbers.room[source + 1]],
                numbers.num_nodes[source],
                out,
                chunk,
            )
        first += offsets[-1]


@jit
def draw_positions(
    stream: np.uint64,
    start: np.int64,
    degree: np.int64,
    replace: bool,
    table: Int64Array,
    positions: Int64Array,
    at: np.int64,
    count: np.int64,
) -> None:
    """Write `count` drawn edge positions of one destination to `positions[at:]`.

    `table` has at least `4 * count` entries, those of a hash table with linear probing.
    """
    if replace:
        for i in range(count):
            value = bounded(draw(stream, np.uint64(i)), np.uint64(degree))
            positions[at + i] = start + np.int64(value)
    elif count <= SCAN_LIMIT:
        # Floyd's algorithm, looking for repeats among the positions drawn so far. A filter of 64
        # bits, one for each value modulo 64, tells most draws that they repeat none.
        taken = np.uint64(0)
        for i in range(count):
            last = degree - count + i
            value = bounded(draw(stream, np.uint64(i)), np.uint64(last + 1))
            position = start + np.int64(value)
            bit = ONE << (value & LOW_6)
            if taken & bit:
                for j in range(i):
                    if positions[at + j] == position:
                        position = start + last
                        bit = ONE << (np.uint64(last) & LOW_6)
                        break
            taken |= bit
            positions[at + i] = position
    else:
        # Floyd's algorithm, looking for repeats in the table, whose entries in use are cleared.
        size = 1
        while size < 2 * count:
            size *= 2
        table[:size] = -1
        for i in range(count):
            last = degree - count + i
            drawn = np.int64(bounded(draw(stream, np.uint64(i)), np.uint64(last + 1)))
            slot = drawn & (size - 1)
            while table[slot] >= 0 and table[slot] != drawn:
                slot = (slot + 1) & (size - 1)
            if table[slot] == drawn:
                drawn = last
                slot = drawn & (size - 1)
                while table[slot] >= 0:
                    slot = (slot + 1) & (size - 1)
            table[slot] = drawn
            positions[at + i] = start + drawn


@jit
def relabel(
    sources: IndexArray,
    num_edges: int,
    local: Int32Array,
    base: int,
    nodes: Int64Array,
    num_nodes: int,
    out: IndexArray,
    at: int,
) -> int:
    """Write the local numbers of `sources` to `out[at:]`, append the nodes not yet known.

    `local[node] - base` is the node's number; negative means not yet known. Known or not is a coin
    toss that no branch predictor guesses, hence the stores whether needed or not.
    """
    # Brings the entries of `local` into the cache, all misses at once: a third faster where
    # `local` is larger than the cache. (No entry is negative; asking keeps the loop alive.)
    touched = np.int32(0)
    for e in range(num_edges):
        touched |= local[sources[e]]
    if touched < 0:
        return num_nodes
    for e in range(num_edges):
        node = sources[e]
        number = local[node] - base
        is_new = number < 0
        number = num_nodes if is_new else number
        local[node] = np.int32(base + number)
        nodes[num_nodes] = node
        num_nodes += 1 if is_new else 0
        out[at + e] = np.int32(number)
    return num_nodes


def table_layout(room: int) -> tuple[int, np.uint64]:
    """The length of a hash table for `slot_of`, a power of two, and its `shift`.

    Args:
        room: The nodes that it must hold. The table holds more: a quarter of its length. So half of
            the slots stay free; a slot has two numbers.
    """
    bits = room.bit_length()
    return 4 << bits, np.uint64(64 - bits - 1)


@jit
def slot_of(table: Int64Array, shift: np.uint64, base: int, node: np.int64) -> np.int64:
    """The slot of a node in a hash table, or the free one where it belongs; see `table_layout`.

    Open addressing with linear probing; the first slot by Fibonacci hashing. Slot s is
    `table[2 * s]`, a node, and `table[2 * s + 1]`, `base` plus its number. A number below `base`
    was left by an earlier batch: the slot is free.
    """
    last = len(table) // 2 - 1
    slot = np.int64((np.uint64(node) * GOLDEN) >> shift)
    while table[2 * slot + 1] >= base and table[2 * slot] != node:
        slot = (slot + 1) & last
    return slot


@jit
def register_in_table(
    nodes: Int64Array, num_nodes: int, table: Int64Array, shift: np.uint64, base: int
) -> None:
    """Number `nodes` by position in a hash table; a repeated node by its first position."""
    for i in range(num_nodes):
        slot = slot_of(table, shift, base, nodes[i])
        if table[2 * slot + 1] < base:
            table[2 * slot] = nodes[i]
            table[2 * slot + 1] = base + i


@jit
def find_in_table(
    nodes: Int64Array, table: Int64Array, shift: np.uint64, base: int, numbers: Int64Array
) -> None:
    """Write the number of each node to `numbers`, −1 for a node that has none."""
    for i in range(len(nodes)):
        value = table[2 * slot_of(table, shift, base, nodes[i]) + 1]
        numbers[i] = value - base if value >= base else np.int64(-1)


@jit
def relabel_by_table(
    sources: IndexArray,
    start: int,
    table: Int64Array,
    shift: np.uint64,
    base: int,
    nodes: Int64Array,
    num_nodes: int,
    out: Int32Array,
) -> tuple[int, int]:
    """As `relabel`, by a hash table, for `sources[start:]`, while `nodes` has room.

    Returns:
        How far it came, and the new `num_nodes`.
    """
    while start < len(sources):
        stop = min(start + CHUNK_EDGES, len(sources))
        if num_nodes + stop - start > len(nodes):
            break
        # Brings the first slots into the cache, all misses at once, as in `relabel`.
        touched = np.int64(0)
        for e in range(start, stop):
            touched |= table[2 * np.int64((np.uint64(sources[e]) * GOLDEN) >> shift)]
        if touched < 0:
            break
        for e in range(start, stop):
            node = np.int64(sources[e])
            slot = slot_of(table, shift, base, node)
            if table[2 * slot + 1] < base:
                table[2 * slot] = node
                table[2 * slot + 1] = base + num_nodes
                nodes[num_nodes] = node
                num_nodes += 1
            out[e] = np.int32(table[2 * slot + 1] - base)
        start = stop
    return start, num_nodes


@jit
def copied_segments(
    values: npt.NDArray[Any], begins: Int64Array, offsets: Int64Array
) -> npt.NDArray[Any]:
    """The segments of `values` that begin at `begins`, one after the other."""
    out = np.empty_like(values)
    for i in range(len(begins)):
        begin, at = begins[i], offsets[i]
        for j in range(offsets[i + 1] - at):
            out[at + j] = values[begin + j]
    return out
