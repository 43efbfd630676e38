"""The compiled inner loops over feature rows: gather, reduce, activate, drop out.

Rows are floats (float32 or float64), or 16-bit floats as the bits that hold them, which Numba
cannot compute with: bfloat16 as uint16, float16 as int16, so that the type says what they are. They
are widened and rounded here; sums are kept in float32 (float64 for float64 rows). All of these are
bound by memory: rows are read once, several at a time so that their cache misses overlap, and the
next ones are prefetched. Numbers of a row are read from its table by flat, unsigned places: a slice
would count references, and a signed index might be negative.

An array of length 0 stands for None. All compiled functions that call one another are in this file,
since Numba's cache on disk does not notice changes in another one.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from gnntrain.jit import jit

Array = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]
Table = tuple[Array, int, Int64Array]
"""Rows, one after the other, the numbers from one to the next, and their order: source u is row
`nodes[u]`, or u without nodes."""
Edges = tuple[Array, Array, Array]
"""indptr, indices and edge ids."""

CACHE_LINE = 64
AHEAD = 4
"""Rows that are prefetched beyond those that are added."""
LANES = 4
"""Random 16-bit numbers in one 64-bit draw."""

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
LOW_16 = np.uint64(0xFFFF)

FLOAT16, BFLOAT16 = types.int16, types.uint16  # by the type of their bits


@intrinsic  # type: ignore[untyped-decorator]  # Numba is not typed
def fetch_ahead(_: Any, table: Any, place: Any, byte: Any) -> Any:  # noqa: ARG001
    """Prefetch the cache line at `byte` of the row that begins at number `place` of `table`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        word, line, flag = ir.IntType(64), ir.IntType(8).as_pointer(), ir.IntType(32)
        size = builder.extract_value(array.strides, 0)
        start = builder.add(builder.ptrtoint(array.data, word), builder.mul(arguments[1], size))
        address = builder.inttoptr(builder.add(start, arguments[2]), line)
        kind = ir.FunctionType(ir.VoidType(), [line, flag, flag, flag])
        instruction = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(instruction, [address, flag(0), flag(3), flag(1)])  # to read, to keep, data
        return context.get_dummy_value()

    return types.void(table, types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def number_of(_: Any, value: Any) -> Any:
    """The number that an entry of a table holds."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        (bits,) = arguments
        if value == FLOAT16:
            return builder.fpext(builder.bitcast(bits, ir.HalfType()), ir.FloatType())
        if value == BFLOAT16:  # the upper half of a float32
            word = ir.IntType(32)
            return builder.bitcast(builder.shl(builder.zext(bits, word), word(16)), ir.FloatType())
        return bits

    return (types.float32 if value in (FLOAT16, BFLOAT16) else value)(value), generate


@intrinsic  # type: ignore[untyped-decorator]
def rounded(_: Any, number: Any, rows: Any) -> Any:
    """A number as an entry of `rows`: of 16 bits the nearest, ties to even; NaN stays NaN."""
    kind, word, half = rows.dtype, ir.IntType(32), ir.IntType(16)
    exact = types.float32 if kind in (FLOAT16, BFLOAT16) else kind

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        value = context.cast(builder, arguments[0], number, exact)
        if kind == FLOAT16:
            return builder.bitcast(builder.fptrunc(value, ir.HalfType()), half)
        if kind == BFLOAT16:
            bits = builder.bitcast(value, word)
            is_odd = builder.and_(builder.lshr(bits, word(16)), word(1))
            up = builder.add(builder.add(bits, word(0x7FFF)), is_odd)
            is_nan = builder.fcmp_unordered("uno", value, value)
            bits = builder.select(is_nan, word(0x7FC00000), up)
            return builder.trunc(builder.lshr(bits, word(16)), half)
        return value

    return kind(number, rows), generate


@jit
def place_of(source: Any, nodes: Int64Array, stride: int) -> np.uint64:
    """Where the row of a source begins in its table."""
    return np.uint64((source if len(nodes) == 0 else nodes[source]) * stride)


@jit
def fetch_row(table: Array, place: np.uint64, width: int) -> None:
    """Prefetch the first `width` numbers of the row that begins at number `place`."""
    for byte in range(0, width * table.itemsize, CACHE_LINE):
        fetch_ahead(table, np.int64(place), byte)


@jit
def fetch_sources(
    table: Array,
    stride: int,
    nodes: Int64Array,
    indices: Array,
    begin: Any,
    last: Any,
    end: Any,
    width: int,
) -> Any:
    """Prefetch the rows of the sources of the edges from `begin` on, as long as these are at most
    `AHEAD` behind the edge `last` and before `end`. Returns the next edge."""
    reach = min(last + AHEAD, end)
    for e in range(begin, reach):
        fetch_row(table, place_of(np.int64(indices[e]), nodes, stride), width)
    return reach


@jit
def four(numbers: Array, e: Any, is_range: bool) -> Any:
    """The numbers `e … e + 3`, or where these are a range, e … e + 3."""
    if is_range:
        return e, e + 1, e + 2, e + 3
    return (
        np.int64(numbers[e]),
        np.int64(numbers[e + 1]),
        np.int64(numbers[e + 2]),
        np.int64(numbers[e + 3]),
    )


@jit
def edge_factor(source: Any, source_scale: Array, total: Array) -> Any:
    """What the row of a source counts for in a sum, but for the weights of edges."""
    number = total.dtype.type
    return number(source_scale[source]) if len(source_scale) > 0 else number(1)


@jit
def put_row(total: Array, factor: float, out: Array, row: int) -> None:
    """`out[row] = factor * total`, rounded; `out` may be wider."""
    for f in range(len(total)):
        out[row, f] = rounded(factor * total[f], out)


@jit
def reduce_rows(
    rows: Table,
    edges: Edges,
    factors: tuple[Array, Array, Array],
    start: int,
    stop: int,
    out: Array,
    total: Array,
) -> None:
    """The sums of the destinations `start … stop − 1`, see `Sum`.

    Args:
        rows, edges: See above.
        factors: Edge weights by head, and the scales of sources and destinations.
        start, stop: The destinations.
        out: Destination `start` goes to its row 0.
        total: Working memory; its length is `width`, its type that of the sums.
    """
    (table, stride, nodes), (indptr, indices, edge_ids), width = rows, edges, len(total)
    edge_weight, source_scale, row_scale = factors
    has_weight = len(edge_weight) > 0
    has_ids = has_weight and len(edge_ids) > 0
    heads = edge_weight.shape[1] if has_weight else 1
    part = width // heads
    number = total.dtype.type  # sums and weights in one type: no conversions in the loop
    end: Any = np.int64(indptr[stop])
    fetched: Any = np.int64(indptr[start])
    for v in range(start, stop):
        first: Any = np.int64(indptr[v])
        last: Any = np.int64(indptr[v + 1])
        for f in range(width):
            total[f] = number(0)
        e = first
        while e < last:
            group = min(4, last - e)
            # Also those of the next destinations, while these are added.
            fetched = fetch_sources(table, stride, nodes, indices, fetched, e + group, end, width)
            if group == 4:  # the total is read and written once for four rows
                s0, s1, s2, s3 = four(indices, e, False)
                e0, e1, e2, e3 = four(edge_ids, e, not has_ids)
                c0 = edge_factor(s0, source_scale, total)
                c1 = edge_factor(s1, source_scale, total)
                c2 = edge_factor(s2, source_scale, total)
                c3 = edge_factor(s3, source_scale, total)
                p0, p1 = place_of(s0, nodes, stride), place_of(s1, nodes, stride)
                p2, p3 = place_of(s2, nodes, stride), place_of(s3, nodes, stride)
                for h in range(heads):
                    w0, w1, w2, w3 = c0, c1, c2, c3
                    if has_weight:
                        w0, w1 = number(edge_weight[e0, h]) * c0, number(edge_weight[e1, h]) * c1
                        w2, w3 = number(edge_weight[e2, h]) * c2, number(edge_weight[e3, h]) * c3
                    begin = np.uint64(h * part)
                    for f in range(part):
                        c = begin + np.uint64(f)
                        left = w0 * number_of(table[p0 + c]) + w1 * number_of(table[p1 + c])
                        right = w2 * number_of(table[p2 + c]) + w3 * number_of(table[p3 + c])
                        total[c] += left + right
            else:
                for i in range(e, e + group):
                    source = np.int64(indices[i])
                    edge = np.int64(edge_ids[i]) if has_ids else i
                    place = place_of(source, nodes, stride)
                    factor = edge_factor(source, source_scale, total)
                    for h in range(heads):
                        weight = number(edge_weight[edge, h]) * factor if has_weight else factor
                        begin = np.uint64(h * part)
                        for f in range(part):
                            c = begin + np.uint64(f)
                            total[c] += weight * number_of(table[place + c])
            e += group
        scale = number(row_scale[v]) if len(row_scale) > 0 else number(1)
        put_row(total, scale, out, v - start)


@partial(jit, any_order=True)
def edge_products(
    rows: Table, edges: Edges, grad: Array, start: int, stop: int, out: Array
) -> None:
    """row(u) · grad[v] by head, of every in-edge of the destinations `start … stop − 1`.

    `out` is of the type of `grad`.
    """
    (table, stride, nodes), (indptr, indices, _) = rows, edges
    width, heads = grad.shape[1], out.shape[1]
    part = width // heads
    number = out.dtype.type
    end: Any = np.int64(indptr[stop])
    fetched: Any = np.int64(indptr[start])
    for v in range(start, stop):
        for e in range(np.int64(indptr[v]), np.int64(indptr[v + 1])):
            fetched = fetch_sources(table, stride, nodes, indices, fetched, e + 1, end, width)
            place = place_of(np.int64(indices[e]), nodes, stride)
            for h in range(heads):
                total, begin = number(0), np.uint64(h * part)
                for f in range(part):
                    c = begin + np.uint64(f)
                    total += number_of(table[place + c]) * grad[v, c]
                out[e, h] = total


@partial(jit, any_order=True)
def attention_gradient(
    rows: Table,
    edges: Edges,
    gradients: tuple[Array, Array, Array],
    alphas: tuple[Array, Array],
    slope: float,
    start: int,
    stop: int,
    out: Array,
    edge_grad: Array,
    memory: Array,
) -> None:
    """The gradients behind an attention of the sources `start … stop − 1`, over their out-edges.

    A source's row gets Σ weight · grad[v], and the score of an edge weight · (row(u) · grad[v]) −
    alpha · mean[v]: the sum over a destination's edges of weight · (row · grad) is `mean` already.

    Args:
        rows: See above.
        edges: The out-edges, their destinations and numbers as in-edges.
        gradients: `grad`, its rows one after the other, `mean` and `target`.
        alphas: alpha and weight of the edges.
        slope: Of the leaky ReLU behind the sum of two parts.
        start, stop: The sources.
        out: Source `start` goes to its row 0: `width` numbers, and with a `target` H more.
        edge_grad: The gradients of the scores, or of the sums of two parts.
        memory: `[2, width]`, of the type of the sums.
    """
    (table, stride, _), (indptr, indices, edge_ids) = rows, edges
    (grad, mean, target), (alpha, weight) = gradients, alphas
    width, heads = memory.shape[1], alpha.shape[1]
    part = width // heads
    number = memory.dtype.type
    total, row = memory[0], memory[1]
    score, parts = np.empty(heads, memory.dtype), np.empty(heads, memory.dtype)
    by_node = target.shape[1] > 0  # also of no destination
    end: Any = np.int64(indptr[stop])
    fetched: Any = np.int64(indptr[start])
    for u in range(start, stop):
        place = np.uint64(u * stride)
        for f in range(width):
            total[f] = number(0)
            row[f] = number_of(table[place + np.uint64(f)])
        for h in range(heads):
            score[h] = number(0)
            if by_node:
                parts[h] = number_of(table[place + np.uint64(width + h)])
        i: Any = np.int64(indptr[u])
        last: Any = np.int64(indptr[u + 1])
        while i < last:
            group = 4 if i + 4 <= last else 1
            reach = min(i + group + AHEAD, end)
            for ahead in range(fetched, reach):
                v, e = np.int64(indices[ahead]), np.int64(edge_ids[ahead])
                fetch_row(grad, np.uint64(v * width), width)
                fetch_ahead(mean, v, 0)
                fetch_ahead(target, v, 0)
                fetch_ahead(alpha, e, 0)
                fetch_ahead(weight, e, 0)
                fetch_ahead(edge_grad, e, 0)
            fetched = reach
            if group == 4:  # the total is read and written once for four rows
                e0, e1, e2, e3 = four(edge_ids, i, False)
                v0, v1, v2, v3 = four(indices, i, False)
                b0, b1 = np.uint64(v0 * width), np.uint64(v1 * width)
                b2, b3 = np.uint64(v2 * width), np.uint64(v3 * width)
                for h in range(heads):
                    w0, w1 = number(weight[e0, h]), number(weight[e1, h])
                    w2, w3 = number(weight[e2, h]), number(weight[e3, h])
                    d0, d1, d2, d3 = number(0), number(0), number(0), number(0)
                    first = np.uint64(h * part)
                    for f in range(part):
                        c = first + np.uint64(f)
                        g0, g1 = number_of(grad[b0 + c]), number_of(grad[b1 + c])
                        g2, g3 = number_of(grad[b2 + c]), number_of(grad[b3 + c])
                        x = row[c]
                        d0 += x * g0
                        d1 += x * g1
                        d2 += x * g2
                        d3 += x * g3
                        total[c] += (w0 * g0 + w1 * g1) + (w2 * g2 + w3 * g3)
                    edge_grad[e0, h], edge_grad[e1, h] = w0 * d0, w1 * d1
                    edge_grad[e2, h], edge_grad[e3, h] = w2 * d2, w3 * d3
            else:
                begin, e = np.uint64(np.int64(indices[i]) * width), np.int64(edge_ids[i])
                for h in range(heads):
                    w, d, first = number(weight[e, h]), number(0), np.uint64(h * part)
                    for f in range(part):
                        c = first + np.uint64(f)
                        g = number_of(grad[begin + c])
                        d += row[c] * g
                        total[c] += w * g
                    edge_grad[e, h] = w * d
            for j in range(i, i + group):
                v, e = np.int64(indices[j]), np.int64(edge_ids[j])
                for h in range(heads):
                    change = number(edge_grad[e, h]) - number(alpha[e, h]) * number(mean[v, h])
                    if by_node:
                        change *= number(1) if parts[h] + target[v, h] > 0 else number(slope)
                        score[h] += change
                    edge_grad[e, h] = change
            i += group
        put_row(total, number(1), out, u - start)
        if by_node:
            for h in range(heads):
                out[u - start, width + h] = rounded(score[h], out)


@jit
def softmax_rows(
    scores: tuple[Array, Array, float],
    edges: Edges,
    start: int,
    stop: int,
    alpha: Array,
    log_sum: Array,
) -> None:
    """The softmax of the destinations `start … stop − 1`, see `EdgeSoftmax`; sums are float64."""
    (score, target, slope), (indptr, indices, _) = scores, edges
    by_node, heads = len(target) > 0, alpha.shape[1]
    number = alpha.dtype.type
    top, total, least = np.empty(heads, alpha.dtype), np.empty(heads), number(-np.inf)
    for v in range(start, stop):
        first: Any = np.int64(indptr[v])
        last: Any = np.int64(indptr[v + 1])
        for h in range(heads):
            top[h], total[h] = least, 0.0
        for e in range(first, last):
            u = np.int64(indices[e])
            for h in range(heads):
                value = score[u, h] + target[v, h] if by_node else score[e, h]
                if by_node and value < 0:
                    value = number(value * slope)
                alpha[e, h] = value
                top[h] = max(top[h], value)
        for e in range(first, last):
            for h in range(heads):
                weight = np.exp(alpha[e, h] - top[h])
                alpha[e, h] = weight
                total[h] += weight
        for e in range(first, last):
            for h in range(heads):
                alpha[e, h] = number(alpha[e, h] / total[h])
        for h in range(heads):
            log_sum[v, h] = number(top[h] + np.log(total[h]))


@jit
def max_rows(
    rows: Table, edges: Edges, start: int, stop: int, out: Array, ties: Array, total: Array
) -> None:
    """The largest numbers of the in-neighbours of the destinations `start … stop − 1`.

    NaN is the largest; without in-edges the result is 0. `ties` (or empty) is set to the number of
    in-edges with the largest number. Destination `start` goes to row 0 of `out` and `ties`.
    """
    (table, stride, nodes), (indptr, indices, _), width = rows, edges, len(total)
    end: Any = np.int64(indptr[stop])
    fetched: Any = np.int64(indptr[start])
    for v in range(start, stop):
        first: Any = np.int64(indptr[v])
        last: Any = np.int64(indptr[v + 1])
        total[:] = -np.inf if last > first else 0.0
        for e in range(first, last):
            fetched = fetch_sources(table, stride, nodes, indices, fetched, e + 1, end, width)
            place = place_of(np.int64(indices[e]), nodes, stride)
            for f in range(width):
                value = number_of(table[place + np.uint64(f)])
                total[f] = value if value > total[f] or value != value else total[f]
        put_row(total, total.dtype.type(1), out, v - start)
        if len(ties) > 0:
            for f in range(width):
                ties[v - start, f] = 0
            for e in range(first, last):
                place = place_of(np.int64(indices[e]), nodes, stride)
                for f in range(width):
                    ties[v - start, f] += number_of(table[place + np.uint64(f)]) == total[f]


@jit
def spread_maximum(
    maxima: tuple[Array, Array, Array, Array],
    edges: Edges,
    start: int,
    stop: int,
    out: Array,
    total: Array,
) -> None:
    """The gradient behind `max_rows` of the sources `start … stop − 1`, over their out-edges.

    In-edges that share a maximum share its gradient evenly. `maxima` are the sources' rows and the
    destinations' maxima, ties and gradients.
    """
    (rows, largest, ties, grad), (indptr, indices, _) = maxima, edges
    number = total.dtype.type
    for u in range(start, stop):
        total[:] = 0
        for e in range(indptr[u], indptr[u + 1]):
            v = np.int64(indices[e])
            for f in range(len(total)):
                if ties[v, f] > 0 and number_of(rows[u, f]) == number_of(largest[v, f]):
                    total[f] += number_of(grad[v, f]) / number(ties[v, f])
        put_row(total, number(1), out, u - start)


@jit
def gather_rows(
    rows: Table, first: int, start: int, stop: int, out: Array, column: int, width: int
) -> None:
    """Copy the rows of the sources `first + start … first + stop − 1`, converted to `out`'s type.

    The first row goes to row 0 of `out`, to the `width` columns from `column` on.
    """
    table, stride, nodes = rows
    for i in range(start, stop):
        if i + AHEAD < stop and len(nodes) > 0:
            fetch_row(table, place_of(first + i + AHEAD, nodes, stride), width)
        place = place_of(np.int64(first + i), nodes, stride)
        row = out[i - start]
        for f in range(width):
            number = number_of(table[place + np.uint64(f)])
            row[np.uint64(column) + np.uint64(f)] = rounded(number, out)


@jit
def transpose(
    indptr: Array, indices: Array, out_indptr: Array, out_indices: Array, edges: Array
) -> None:
    """The out-edges of every source: where they start, where they lead, and which edge each is.

    `out_indptr` (`[num_src + 1]`) must be zeros. `indices` may be longer than the number of edges.
    """
    for e in range(indptr[len(indptr) - 1]):
        out_indptr[indices[e] + 1] += 1
    for u in range(len(out_indptr) - 1):
        out_indptr[u + 1] += out_indptr[u]
    for v in range(len(indptr) - 1):
        for e in range(indptr[v], indptr[v + 1]):
            at = out_indptr[indices[e]]
            out_indptr[indices[e]] = at + 1
            out_indices[at] = v
            edges[at] = e
    for u in range(len(out_indptr) - 1, 0, -1):
        out_indptr[u] = out_indptr[u - 1]
    out_indptr[0] = 0


@jit
def add_self_loops(
    indptr: Array,
    indices: Array,
    dst_offset: int,
    out_indptr: Array,
    out_indices: Array,
    edge_ids: Array,
) -> None:
    """See `AddSelfLoops`, of which the last three are the results."""
    num_dst, num_edges = len(indptr) - 1, len(indices)
    at = 0
    for v in range(num_dst):
        out_indptr[v] = at
        for e in range(indptr[v], indptr[v + 1]):
            if indices[e] != dst_offset + v:
                out_indices[at], edge_ids[at] = indices[e], e
                at += 1
        out_indices[at], edge_ids[at] = dst_offset + v, num_edges + v
        at += 1
    out_indptr[num_dst] = at
    out_indices[at:], edge_ids[at:] = 0, 0


@jit
def mix64(x: np.uint64) -> np.uint64:
    """SplitMix64's finaliser, as in the sampler's kernels."""
    x = (x ^ (x >> np.uint64(30))) * MULTIPLIER_1
    x = (x ^ (x >> np.uint64(27))) * MULTIPLIER_2
    return x ^ (x >> np.uint64(31))


@jit
def activate_rows(
    rows: Array, relu: bool, drop: tuple[int, Any, np.uint64], start: int, stop: int
) -> None:
    """ReLU where `relu`, then dropout where its threshold is positive, in place; NaN stays.

    Number j of row v is dropped where its own 16 random bits, a pure function of (key, v, j), are
    less than the threshold, independently of chunks and threads; others are multiplied by the
    factor.
    """
    (threshold, factor, key), width, zero = drop, rows.shape[1], rows.dtype.type(0)
    words = np.empty((width + LANES - 1) // LANES, np.uint64)
    for v in range(start, stop):
        if relu:
            for f in range(width):
                rows[v, f] = zero if number_of(rows[v, f]) <= 0 else rows[v, f]
        if threshold > 0:
            stream = mix64(key ^ (np.uint64(v) * GOLDEN))
            for w in range(len(words)):
                words[w] = mix64(stream + np.uint64(w + 1) * GOLDEN)
            for lane in range(LANES):
                shift, first = np.uint64(16 * lane), lane * len(words)
                for w in range(min(len(words), width - first)):
                    is_kept = np.int64((words[w] >> shift) & LOW_16) >= threshold
                    scaled = rounded(number_of(rows[v, first + w]) * factor, rows)
                    rows[v, first + w] = scaled if is_kept else zero


@jit
def mask_rows(
    grad: Array, rows: Array, factor: Any, start: int, stop: int, out: Array, total: Array
) -> None:
    """The gradient behind `activate_rows` with ReLU: `grad * factor` where its result `rows` is
    positive; and its sum over the rows, which is added to `total`.

    Row `start` goes to row 0 of `out`.
    """
    zero = out.dtype.type(0)
    for v in range(start, stop):
        for f in range(rows.shape[1]):
            value = rounded(number_of(grad[v, f]) * factor, out)
            out[v - start, f] = value if number_of(rows[v, f]) > 0 else zero
        for f in range(len(total)):
            total[f] += number_of(out[v - start, f])


@jit
def adam_rows(
    matrices: tuple[Array, Array, Array], nodes: Int64Array, grad: Array, factors: Array
) -> None:
    """See `AdamRows`.

    `factors` are 1 − beta1, beta2, 1 − beta2 and its other numbers, of the matrices' type.
    """
    (weight, exp_avg, exp_avg_sq) = matrices
    new_first, beta2, new_second, decay, l2, step_size, root, eps = factors
    for i in range(len(nodes)):
        node, given = nodes[i], grad[i]
        row, first, second = weight[node], exp_avg[node], exp_avg_sq[node]
        for f in range(len(row)):
            g = given[f] + l2 * row[f]
            first[f] += new_first * (g - first[f])
            second[f] = beta2 * second[f] + new_second * g * g
            row[f] = decay * row[f] - step_size * first[f] / (np.sqrt(second[f]) / root + eps)
