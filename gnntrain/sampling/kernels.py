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

from typing import Any

import numpy as np
import numpy.typing as npt

from gnntrain.jit import jit

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
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


@jit
def register_seeds(seeds: Int64Array, nodes: Int64Array, local: Int32Array, base: int) -> None:
    """Number the seeds by position; a repeated seed is known by its first position."""
    for i in range(len(seeds)):
        node = seeds[i]
        nodes[i] = node
        if local[node] < base:
            local[node] = np.int32(base + i)


@jit
def count_edges_of_type(
    indptr: Int64Array,
    destinations: Int64Array,
    fan_out: int,
    replace: bool,
    starts: Int64Array,
    degrees: Int64Array,
    offsets: Int64Array,
) -> int:
    """Write each destination's first in-edge and degree, and where its drawn edges will lie.

    `offsets[0]` is 0 already. Returns the most edges that one destination takes.
    """
    for i in range(len(destinations)):
        node = destinations[i]
        start = indptr[node]
        starts[i] = start
        degrees[i] = indptr[node + 1] - start
    total = 0
    most = 0
    for i in range(len(destinations)):
        count = degrees[i]
        if fan_out >= 0 and (count > fan_out or (replace and count > 0)):
            count = fan_out
        most = max(most, count)
        total += count
        offsets[i + 1] = total
    return most


@jit
def draw_edges_of_type(
    indices: IndexArray,
    destinations: Int64Array,
    key: np.uint64,
    all_edges: bool,
    replace: bool,
    starts: Int64Array,
    degrees: Int64Array,
    offsets: Int64Array,
    positions: Int64Array,
    sources: IndexArray,
    table: Int64Array,
    local: Int32Array,
    base: int,
    nodes: Int64Array,
    num_nodes: int,
    out: Int32Array,
    edge_ids: Int64Array,
) -> int:
    """Draw the in-edges of `destinations`, number their sources; returns the new `num_nodes`.

    `positions` and `sources` are scratch for one chunk, `table` for one destination. `nodes` must
    have room for every new node and one more. `edge_ids` of length 0: not wanted.
    """
    stop = 0
    while stop < len(destinations):
        begin, stop = stop, chunk_end(offsets, stop)
        chunk = offsets[begin]
        draw_chunk(
            destinations,
            begin,
            stop,
            key,
            all_edges,
            replace,
            starts,
            degrees,
            offsets,
            table,
            positions,
        )
        num_edges = offsets[stop] - chunk
        for e in range(num_edges):
            sources[e] = indices[positions[e]]
        if len(edge_ids) > 0:
            for e in range(num_edges):
                edge_ids[chunk + e] = positions[e]
        num_nodes = relabel(sources, num_edges, local, base, nodes, num_nodes, out, chunk)
    return num_nodes


@jit
def count_edges(
    indptr: Int64Array,
    first_offset: Int64Array,
    ends: Int64Array,
    nodes: Int64Array,
    room: Int64Array,
    fan_outs: Int64Array,
    replace: bool,
    rows: Int64Array,
    starts: Int64Array,
    degrees: Int64Array,
    offsets: Int64Array,
) -> int:
    """`count_edges_of_type` for each edge type; for the arguments see `draw_hop`."""
    most = 0
    for r in range(len(fan_outs)):
        begin, end = rows[r], rows[r + 1]
        first = room[ends[1, r]]
        most_of_type = count_edges_of_type(
            indptr[first_offset[r] : first_offset[r + 1]],
            nodes[first : first + end - begin - 1],
            fan_outs[r],
            replace,
            starts[begin : end - 1],
            degrees[begin : end - 1],
            offsets[begin:end],
        )
        most = max(most, most_of_type)
    return most


@jit
def draw_hop(
    indices: IndexArray,
    first_edge: Int64Array,
    ends: Int64Array,
    key: np.uint64,
    fan_outs: Int64Array,
    replace: bool,
    rows: Int64Array,
    starts: Int64Array,
    degrees: Int64Array,
    offsets: Int64Array,
    first_drawn: Int64Array,
    positions: Int64Array,
    sources: IndexArray,
    table: Int64Array,
    local: Int32Array,
    first_node: Int64Array,
    base: int,
    nodes: Int64Array,
    room: Int64Array,
    num_nodes: Int64Array,
    out: Int32Array,
    edge_ids: Int64Array,
) -> None:
    """`draw_edges_of_type` for each edge type in turn; updates `num_nodes`.

    Args:
        indices, first_edge: The in-edges, see `data.graph.FusedCSC`.
        ends: `[2, R]`: source and destination node type of each edge type.
        key: Of the hop.
        fan_outs: `[R]`.
        replace: Draw with replacement.
        rows: `[R + 1]`: where the entries of each edge type begin in `starts`, `degrees` and
            `offsets`: one for each destination, and one more.
        starts, degrees, offsets: See `count_edges_of_type`; they count from the type's first
            edge.
        first_drawn: `[R + 1]`: where the drawn edges of each edge type begin in `out` and
            `edge_ids`.
        positions, sources, table: Scratch, see `draw_edges_of_type`.
        local, first_node: Of node v of type t, `local[first_node[t] + v] - base` is its number.
        base: See `relabel`.
        nodes, room: The known nodes of type t begin at `nodes[room[t]]`, and have room up to
            `room[t + 1]`.
        num_nodes: Number of known nodes of each type.
        out: `[first_drawn[R]]`: numbers of the sources.
        edge_ids: `[first_drawn[R]]`: positions among the edges of the type; of length 0: not
            wanted.
    """
    for r in range(len(fan_outs)):
        begin, end = rows[r], rows[r + 1]
        source, first = ends[0, r], room[ends[1, r]]
        num_nodes[source] = draw_edges_of_type(
            indices[first_edge[r] : first_edge[r + 1]],
            nodes[first : first + end - begin - 1],
            type_key(key, np.uint64(r)),
            fan_outs[r] < 0,
            replace,
            starts[begin : end - 1],
            degrees[begin : end - 1],
            offsets[begin:end],
            positions,
            sources,
            table,
            local[first_node[source] : first_node[source + 1]],
            base,
            nodes[room[source] : room[source + 1]],
            num_nodes[source],
            out[first_drawn[r] : first_drawn[r + 1]],
            edge_ids[first_drawn[r] : first_drawn[r + 1]],
        )


@jit
def draw_by_node(
    first_into: Int64Array,
    into: Int64Array,
    key: np.uint64,
    fan_outs: Int64Array,
    replace: bool,
    ids: Int64Array,
    room: Int64Array,
    rows: Int64Array,
    starts: Int64Array,
    degrees: Int64Array,
    table: Int64Array,
    offsets: Int64Array,
    drawn: Int64Array,
    positions: Int64Array,
) -> None:
    """Draw in-edges of each destination, each fan-out from those of all edge types together.

    For the other arguments see `draw_hop`.

    Args:
        first_into, into: `into[first_into[t] : first_into[t + 1]]` are the edge types into node
            type t.
        fan_outs: `[T]`.
        ids: The destinations of type t are `ids[room[t]:]`; they are for the keys alone.
        offsets: Zeros; becomes what `count_edges` writes.
        drawn: Scratch for all drawn edges.
        positions: Becomes the drawn edges' positions among those of their type, type by type.
    """
    at = 0
    for t in range(len(fan_outs)):
        relations = into[first_into[t] : first_into[t + 1]]
        if len(relations) == 0:
            continue
        fan_out = int(fan_outs[t])
        for i in range(rows[relations[0] + 1] - rows[relations[0]] - 1):
            degree = 0
            for r in relations:
                degree += degrees[rows[r] + i]
            takes_all = fan_out < 0 or degree == 0 or (not replace and degree <= fan_out)
            count = degree if takes_all else fan_out
            if takes_all:
                for e in range(count):
                    drawn[at + e] = e
            else:
                stream = node_key(type_key(key, np.uint64(t)), np.uint64(ids[room[t] + i]))
                draw_positions(
                    stream, np.int64(0), np.int64(degree), replace, table, drawn, at, count
                )
            for e in range(at, at + count):
                r, _ = edge_type_at(drawn[e], i, relations, rows, degrees)
                offsets[rows[r] + i + 1] += 1
            at += count
    place_by_type(first_into, into, rows, starts, degrees, offsets, drawn, positions)


@jit
def place_by_type(
    first_into: Int64Array,
    into: Int64Array,
    rows: Int64Array,
    starts: Int64Array,
    degrees: Int64Array,
    offsets: Int64Array,
    drawn: Int64Array,
    positions: Int64Array,
) -> None:
    """Sort what `draw_by_node` has drawn by edge type; sum up `offsets`, which are counts so far.

    For the arguments see `draw_by_node`.
    """
    nexts = np.zeros(len(rows) - 1, np.int64)
    first = np.int64(0)
    for number in range(len(rows) - 1):
        nexts[number] = first
        for i in range(rows[number] + 1, rows[number + 1]):
            offsets[i] += offsets[i - 1]
        first += offsets[rows[number + 1] - 1]
    at = 0
    for t in range(len(first_into) - 1):
        relations = into[first_into[t] : first_into[t + 1]]
        if len(relations) == 0:
            continue
        for i in range(rows[relations[0] + 1] - rows[relations[0]] - 1):
            count = 0
            for r in relations:
                count += offsets[rows[r] + i + 1] - offsets[rows[r] + i]
            for e in range(at, at + count):
                r, position = edge_type_at(drawn[e], i, relations, rows, degrees)
                positions[nexts[r]] = starts[rows[r] + i] + position
                nexts[r] += 1
            at += count


@jit
def edge_type_at(
    position: np.int64, i: int, relations: Int64Array, rows: Int64Array, degrees: Int64Array
) -> tuple[np.int64, np.int64]:
    """The edge type of destination i's in-edge at a position, and the position in that type."""
    for r in relations:
        degree = degrees[rows[r] + i]
        if position < degree:
            return r, position
        position -= degree
    return np.int64(-1), position


@jit
def number_sources(
    indices: IndexArray,
    first_edge: Int64Array,
    ends: Int64Array,
    first_drawn: Int64Array,
    positions: Int64Array,
    sources: IndexArray,
    local: Int32Array,
    first_node: Int64Array,
    base: int,
    nodes: Int64Array,
    room: Int64Array,
    num_nodes: Int64Array,
    out: Int32Array,
) -> None:
    """Number the sources of the edges at `positions` of each edge type; updates `num_nodes`.

    For the arguments see `draw_by_node` and `draw_hop`.
    """
    for r in range(len(first_edge) - 1):
        source = ends[0, r]
        of_type = indices[first_edge[r] : first_edge[r + 1]]
        for begin in range(first_drawn[r], first_drawn[r + 1], CHUNK_EDGES):
            num_edges = min(CHUNK_EDGES, first_drawn[r + 1] - begin)
            for e in range(num_edges):
                sources[e] = of_type[positions[begin + e]]
            num_nodes[source] = relabel(
                sources,
                num_edges,
                local[first_node[source] : first_node[source + 1]],
                base,
                nodes[room[source] : room[source + 1]],
                num_nodes[source],
                out,
                begin,
            )


@jit
def draw_sources(
    indices: IndexArray,
    weight: Float32Array,
    ids: Int64Array,
    key: np.uint64,
    all_edges: bool,
    replace: bool,
    starts: Int64Array,
    degrees: Int64Array,
    offsets: Int64Array,
    positions: Int64Array,
    table: Int64Array,
    sources: IndexArray,
    weights: Float32Array,
) -> None:
    """Draw the in-edges of the nodes `ids`, as `draw_edges_of_type` does, and number nothing.

    `starts` may count from another edge than the graph's first: `ids` are for the keys alone.
    `weights` of length 0: not wanted.
    """
    stop = 0
    while stop < len(ids):
        begin, stop = stop, chunk_end(offsets, stop)
        draw_chunk(
            ids, begin, stop, key, all_edges, replace, starts, degrees, offsets, table, positions
        )
        chunk = offsets[begin]
        for e in range(offsets[stop] - chunk):
            sources[chunk + e] = indices[positions[e]]
        if len(weights) > 0:
            for e in range(offsets[stop] - chunk):
                weights[chunk + e] = weight[positions[e]]


@jit
def chunk_end(offsets: Int64Array, begin: int) -> int:
    """Where the chunk ends that begins at a destination: of CHUNK_EDGES, or of one destination."""
    stop = begin + 1
    while stop < len(offsets) - 1 and offsets[stop + 1] - offsets[begin] <= CHUNK_EDGES:
        stop += 1
    return stop


@jit
def draw_chunk(
    destinations: Int64Array,
    begin: int,
    stop: int,
    key: np.uint64,
    all_edges: bool,
    replace: bool,
    starts: Int64Array,
    degrees: Int64Array,
    offsets: Int64Array,
    table: Int64Array,
    positions: Int64Array,
) -> None:
    """Write the drawn edge positions of the destinations `begin … stop - 1` to `positions`."""
    for i in range(begin, stop):
        at = offsets[i] - offsets[begin]
        count = offsets[i + 1] - offsets[i]
        if all_edges or (not replace and count == degrees[i]):
            for j in range(count):
                positions[at + j] = starts[i] + j
            continue
        stream = node_key(key, np.uint64(destinations[i]))
        draw_positions(stream, starts[i], degrees[i], replace, table, positions, at, count)


@jit
def draw_positions(
    stream: np.uint64,
    start: np.int64,
    degree: np.int64,
    replace: bool,
    table: Int64Array,
    positions: Int64Array,
    at: int,
    count: int,
) -> None:
    """Write `count` drawn edge positions of one destination to `positions[at:]`."""
    if replace:
        for i in range(count):
            value = bounded(draw(stream, np.uint64(i)), np.uint64(degree))
            positions[at + i] = start + np.int64(value)
    elif count <= SCAN_LIMIT:
        draw_distinct_by_scan(stream, start, degree, positions, at, count)
    else:
        draw_distinct_by_table(stream, start, degree, table, positions, at, count)


@jit
def draw_distinct_by_scan(
    stream: np.uint64, start: np.int64, degree: np.int64, positions: Int64Array, at: int, count: int
) -> None:
    """Floyd's algorithm (see above), looking for repeats among the positions drawn so far.

    A filter of 64 bits, one for each value modulo 64, tells most draws that they repeat none.
    """
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


@jit
def draw_distinct_by_table(
    stream: np.uint64,
    start: np.int64,
    degree: np.int64,
    table: Int64Array,
    positions: Int64Array,
    at: int,
    count: int,
) -> None:
    """Floyd's algorithm (see above), looking for repeats in a hash table with linear probing.

    `table` must have at least `2 * count` entries; those in use are cleared first.
    """
    size = 1
    while size < 2 * count:
        size *= 2
    table[:size] = -1
    for i in range(count):
        last = degree - count + i
        value = np.int64(bounded(draw(stream, np.uint64(i)), np.uint64(last + 1)))
        slot = value & (size - 1)
        while table[slot] >= 0 and table[slot] != value:
            slot = (slot + 1) & (size - 1)
        if table[slot] == value:
            value = last
            slot = value & (size - 1)
            while table[slot] >= 0:
                slot = (slot + 1) & (size - 1)
        table[slot] = value
        positions[at + i] = start + value


@jit
def relabel(
    sources: IndexArray,
    num_edges: int,
    local: Int32Array,
    base: int,
    nodes: Int64Array,
    num_nodes: int,
    out: Int32Array,
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
def copy_segments(
    values: npt.NDArray[Any], begins: Int64Array, offsets: Int64Array, out: npt.NDArray[Any]
) -> None:
    """Write the segments of `values` that begin at `begins` to `out`, one after the other."""
    for i in range(len(begins)):
        begin, at = begins[i], offsets[i]
        for j in range(offsets[i + 1] - at):
            out[at + j] = values[begin + j]
