"""The GPU sampler's kernels, in Triton: what `kernels` specifies, one thread an edge or a node.

A hop runs in passes, a kernel each, with a prefix sum after the first and after the fifth:

    count_edges → offsets → draw… → claim → mark → ranks → number

Two things bring equal arrays, not merely equal sets, out of threads that run in any order. An
edge's place in the hop is known before it is drawn (the prefix sum over counts). And a new node
belongs to the first edge that leads to it: `claim` takes the minimum, over the edges from a node,
of `base + edge` in `local[node]`, where `base` is above every number given so far, so that nodes
which have a number keep it. The rank of a new node among those first edges is its number.

No kernel needs a size that only the device knows: buffers and grids have the largest size that
the fan-outs allow, and the true sizes are read from device memory (`sizes`: the number of known
nodes before hop 0, 1, …, after the last; then, for each hop, its edges and those of them that go to
destinations which drew in the hop before as well; then the seeds that are no nodes). Places beyond
them hold nothing of use.

With `TRITON_INTERPRET=1` set before Triton is imported the same code runs in NumPy on the CPU.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gnntrain.sampling import kernels

BLOCK = 1024
"""Edges or nodes a program."""

UNKNOWN = 2**31 - 1
"""What `local` holds for a node that is not in the batch."""

_UNKNOWN = tl.constexpr(UNKNOWN)
_GOLDEN = tl.constexpr(int(kernels.GOLDEN))
_MULTIPLIER_1 = tl.constexpr(int(kernels.MULTIPLIER_1))
_MULTIPLIER_2 = tl.constexpr(int(kernels.MULTIPLIER_2))
_LOW_32 = tl.constexpr(int(kernels.LOW_32))


@triton.jit
def mix64(x):
    """See `kernels.mix64`; uint64, like everything down to `bounded`."""
    x = (x ^ (x >> 30)) * _MULTIPLIER_1
    x = (x ^ (x >> 27)) * _MULTIPLIER_2
    return x ^ (x >> 31)


@triton.jit
def node_key(keys, hop, node):
    """See `kernels.node_key`; `keys` holds every hop's key in two halves, int32, the low one first.

    They lie in device memory, so that a recorded batch is drawn anew by writing others there.
    """
    low = tl.load(keys + 2 * hop).to(tl.uint32).to(tl.uint64)
    high = tl.load(keys + 2 * hop + 1).to(tl.uint32).to(tl.uint64)
    return mix64(((high << 32) | low) ^ (node.to(tl.uint64) * _GOLDEN))


@triton.jit
def draw(stream, index):
    """See `kernels.draw`."""
    return mix64(stream + (index.to(tl.uint64) + 1) * _GOLDEN)


@triton.jit
def bounded(value, num_values):
    """See `kernels.bounded`; int64 in and out."""
    r = num_values.to(tl.uint64)
    high = (value >> 32) * r
    low = ((value & _LOW_32) * r) >> 32
    return ((high + low) >> 32).to(tl.int64)


@triton.jit
def row_of(edge, offsets, num_rows, STEPS: tl.constexpr):
    """The destination that takes each edge: the last row that starts at or before it.

    `STEPS` halvings must narrow `num_rows` rows down to one.
    """
    low = edge * 0
    high = low + num_rows
    for _step in range(STEPS):
        middle = low + (high - low) // 2
        is_after = tl.load(offsets + middle) > edge
        high = tl.where(is_after, middle, high)
        low = tl.where(is_after, low, middle)
    return low


@triton.jit(do_not_specialize=["num_seeds", "num_nodes", "bad_at"])
def register_seeds(seeds, num_seeds, num_nodes, nodes, local, sizes, bad_at, BLOCK: tl.constexpr):
    """Number the seeds; a repeated one is known by its first place.

    In the place of seeds that are no nodes node 0 is sampled; `sizes[bad_at]` counts them.
    """
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_seed = row < num_seeds
    seed = tl.load(seeds + row, mask=is_seed, other=0)
    is_bad = is_seed & ((seed < 0) | (seed >= num_nodes))
    node = tl.where(is_bad, 0, seed)
    tl.store(nodes + row, node, mask=is_seed)
    tl.atomic_min(local + node, row, mask=is_seed, sem="relaxed")
    tl.atomic_add(sizes + bad_at, tl.sum(is_bad.to(tl.int64), 0), sem="relaxed")
    if tl.program_id(0) == 0:
        tl.store(sizes, num_seeds.to(tl.int64))


@triton.jit(do_not_specialize=["hop", "num_dst", "fan_out"])
def count_edges(
    indptr, nodes, sizes, hop, num_dst, fan_out, counts, REPLACE: tl.constexpr, BLOCK: tl.constexpr
):
    """Write how many edges destination i takes to `counts[i + 1]`, and 0 to `counts[0]`."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_known = row < tl.load(sizes + hop)
    node = tl.load(nodes + row, mask=is_known, other=0)
    start = tl.load(indptr + node, mask=is_known, other=0)
    degree = tl.load(indptr + node + 1, mask=is_known, other=0) - start
    most = tl.where(fan_out < 0, degree, fan_out)
    count = tl.where(degree > 0, most, 0) if REPLACE else tl.minimum(degree, most)
    tl.store(counts + 1 + row, count, mask=row < num_dst)
    if tl.program_id(0) == 0:
        tl.store(counts, 0)


@triton.jit(do_not_specialize=["hop"])
def draw_by_row(
    indptr,
    nodes,
    offsets,
    sizes,
    hop,
    keys,
    positions,
    FAN_OUT: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Distinct draws for small fan-outs: `ROWS` destinations a program, side by side.

    `WIDTH` is a power of two, at least `FAN_OUT`.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    is_known = row < tl.load(sizes + hop)
    node = tl.load(nodes + row, mask=is_known, other=0)
    start = tl.load(indptr + node, mask=is_known, other=0)
    degree = tl.load(indptr + node + 1, mask=is_known, other=0) - start
    stream = node_key(keys, hop, node)
    taken = tl.full([ROWS, WIDTH], -1, tl.int64)
    for i in range(FAN_OUT):
        last = degree - FAN_OUT + i
        value = bounded(draw(stream, row * 0 + i), last + 1)
        is_taken = tl.max((taken == value[:, None]).to(tl.int32), axis=1) > 0
        value = tl.where(is_taken, last, value)
        value = tl.where(degree > FAN_OUT, value, i)
        taken = tl.where(column[None, :] == i, value[:, None], taken)
    first = tl.load(offsets + row, mask=is_known, other=0)
    is_edge = is_known[:, None] & (column[None, :] < tl.minimum(degree, FAN_OUT)[:, None])
    place = first[:, None] + column[None, :]
    tl.store(positions + place, start[:, None] + taken, mask=is_edge)


@triton.jit(do_not_specialize=["num_dst", "hop"])
def draw_by_edge(
    indptr,
    nodes,
    offsets,
    num_dst,
    hop,
    keys,
    positions,
    TAKE_ALL: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """All in-edges, or draws with replacement: edges do not depend on one another."""
    edge = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_edge = edge < tl.load(offsets + num_dst)
    row = row_of(edge, offsets, num_dst, STEPS)
    node = tl.load(nodes + row, mask=is_edge, other=0)
    start = tl.load(indptr + node, mask=is_edge, other=0)
    place = edge - tl.load(offsets + row)
    if not TAKE_ALL:
        degree = tl.load(indptr + node + 1, mask=is_edge, other=0) - start
        place = bounded(draw(node_key(keys, hop, node), place), degree)
    tl.store(positions + edge, start + place, mask=is_edge)


@triton.jit(do_not_specialize=["num_dst", "num_edges", "fan_out", "hop"])
def draw_with_twins(
    indptr,
    nodes,
    offsets,
    num_dst,
    num_edges,
    fan_out,
    hop,
    keys,
    values,
    twins,
    positions,
    fallbacks,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The first half of distinct draws for large fan-outs; `gpu.resolve_draws` is the other.

    Writes, int64 `[num_edges]`: `values`, equal for two edges where one destination drew the same
    number t twice; `twins`, the earlier edge of the destination that may have fallen back to t,
    or the edge itself; `positions`, the edge's if t was free; `fallbacks`, its position if not.
    """
    edge = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_edge = edge < tl.load(offsets + num_dst)
    row = row_of(edge, offsets, num_dst, STEPS)
    node = tl.load(nodes + row, mask=is_edge, other=0)
    start = tl.load(indptr + node, mask=is_edge, other=0)
    degree = tl.load(indptr + node + 1, mask=is_edge, other=0) - start
    first = tl.load(offsets + row)
    place = edge - first
    fallback = degree - fan_out + place
    is_drawn = is_edge & (degree > fan_out)
    drawn = bounded(draw(node_key(keys, hop, node), place), fallback + 1)
    value = tl.where(is_drawn, drawn, place)
    twin = value - (degree - fan_out)
    has_twin = is_drawn & (twin >= 0) & (twin < place)
    in_buffer = edge < num_edges
    tl.store(values + edge, (row.to(tl.int64) << 32) | value, mask=in_buffer)
    tl.store(twins + edge, tl.where(has_twin, first + twin, edge), mask=in_buffer)
    tl.store(positions + edge, start + value, mask=in_buffer)
    tl.store(fallbacks + edge, start + fallback, mask=in_buffer)


@triton.jit(do_not_specialize=["num_dst", "base"])
def claim(indices, positions, offsets, num_dst, base, sources, local, BLOCK: tl.constexpr):
    """Load every edge's source; mark those without a number with their first edge."""
    edge = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_edge = edge < tl.load(offsets + num_dst)
    position = tl.load(positions + edge, mask=is_edge, other=0)
    source = tl.load(indices + position, mask=is_edge, other=0).to(tl.int64)
    tl.store(sources + edge, source, mask=is_edge)
    tl.atomic_min(local + source, base + edge, mask=is_edge, sem="relaxed")


@triton.jit(do_not_specialize=["num_dst", "num_edges", "base"])
def mark(sources, local, offsets, num_dst, num_edges, base, codes, is_first, BLOCK: tl.constexpr):
    """Copy what `local` says of every edge's source, and whether the edge is the first from it."""
    edge = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_edge = edge < tl.load(offsets + num_dst)
    source = tl.load(sources + edge, mask=is_edge, other=0)
    code = tl.load(local + source, mask=is_edge, other=-1)
    tl.store(codes + edge, code, mask=is_edge)
    tl.store(is_first + edge, (code == base + edge).to(tl.int32), mask=edge < num_edges)


@triton.jit(do_not_specialize=["num_dst", "num_edges", "base", "hop", "num_hops"])
def number(
    sources,
    codes,
    ranks,
    offsets,
    num_dst,
    num_edges,
    base,
    hop,
    num_hops,
    sizes,
    nodes,
    local,
    indices,
    BLOCK: tl.constexpr,
):
    """Write the local numbers of the sources to `indices`, append new nodes, write the sizes.

    `ranks` is the running sum of `is_first`.
    """
    edge = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    num_drawn = tl.load(offsets + num_dst)
    is_edge = edge < num_drawn
    num_known = tl.load(sizes + hop).to(tl.int32)
    code = tl.load(codes + edge, mask=is_edge, other=0)
    source = tl.load(sources + edge, mask=is_edge, other=0)
    first_edge = code - base
    is_new = is_edge & (first_edge >= 0)
    rank = tl.load(ranks + first_edge, mask=is_new, other=0)
    label = tl.where(is_new, num_known + rank - 1, code)
    tl.store(indices + edge, label, mask=is_edge)
    is_first = is_new & (first_edge == edge)
    tl.store(nodes + label, source, mask=is_first)
    tl.store(local + source, label, mask=is_first)
    if tl.program_id(0) == 0:
        num_new = tl.load(ranks + num_edges - 1)
        tl.store(sizes + hop + 1, (num_known + num_new).to(tl.int64))
        num_old = tl.load(sizes + hop - 1, mask=hop > 0, other=0)
        tl.store(sizes + num_hops + 1 + 2 * hop, num_drawn)
        tl.store(sizes + num_hops + 2 + 2 * hop, tl.load(offsets + num_old))


@triton.jit(do_not_specialize=["num_hops"])
def forget(nodes, sizes, num_hops, local, BLOCK: tl.constexpr):
    """Take the numbers of a batch's nodes out of `local`."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_known = row < tl.load(sizes + num_hops)
    node = tl.load(nodes + row, mask=is_known, other=0)
    tl.store(local + node, _UNKNOWN, mask=is_known)
