"""The compiled inner loops over feature rows: gather, reduce, activate, drop out.

Rows are plain floats (float32 or float64), or 16-bit floats as the bits that hold them, which
Numba cannot compute with and which are therefore widened and rounded here; sums are kept in
float32 (float64 for float64 rows). All of these are bound by memory: rows are read once, several at
a time so that their cache misses overlap, and the next ones are prefetched.

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
UInt64Array = npt.NDArray[np.uint64]

Kind = int | None
PLAIN: Kind = None
BFLOAT16, FLOAT16 = 1, 2
"""What the numbers of a table are: floats, or the bits of 16-bit floats as uint16.

Numba knows the type of None: of `if kind is None` it compiles the one branch that is taken.
"""

CACHE_LINE = 64
LANES = 4
"""Random 16-bit numbers in one 64-bit draw."""

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
LOW_16 = np.uint64(0xFFFF)


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
def float_of(_: Any, bits: Any) -> Any:  # noqa: ARG001
    """The float32 with these 32 bits."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic  # type: ignore[untyped-decorator]
def bits_of(_: Any, number: Any) -> Any:  # noqa: ARG001
    """The 32 bits of a float32."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@jit
def from_bfloat16(bits: np.uint16) -> np.float32:
    """Widen: a bfloat16 is the upper half of a float32."""
    return float_of(np.uint32(np.uint32(bits) << np.uint32(16)))  # type: ignore[no-any-return]


@jit
def to_bfloat16(number: np.float32) -> np.uint16:
    """Round to the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = bits_of(np.float32(number))
    rounded = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.uint16((np.uint32(0x7FC00000) if is_nan else rounded) >> np.uint32(16))


@jit
def from_float16(bits: np.uint16) -> np.float32:
    """Widen: move exponent and fraction to their places, then correct the exponent by a product."""
    magnitude = np.uint32(np.uint32(bits & np.uint16(0x7FFF)) << np.uint32(13))
    is_finite = (bits & np.uint16(0x7C00)) != np.uint16(0x7C00)
    scaled = float_of(magnitude) * np.float32(2.0**112)
    number = scaled if is_finite else float_of(np.uint32(magnitude | np.uint32(0x7F800000)))
    signed: np.float32 = -number if bits & np.uint16(0x8000) else number
    return signed


@jit
def to_float16(number: np.float32) -> np.uint16:
    """Round to the nearest float16, ties to even; NaN stays NaN."""
    bits = bits_of(np.float32(number))
    magnitude = np.uint32(bits & np.uint32(0x7FFFFFFF))
    if magnitude >= np.uint32(0x47800000):  # 2^16 and more: infinite, or NaN
        rounded = np.uint32(0x7E00 if magnitude > np.uint32(0x7F800000) else 0x7C00)
    elif magnitude < np.uint32(0x38800000):  # under 2^-14: a sum with 0.5 rounds to 2^-24
        rounded = np.uint32(bits_of(float_of(magnitude) + np.float32(0.5)) - np.uint32(0x3F000000))
    else:
        odd = (magnitude >> np.uint32(13)) & np.uint32(1)
        rounded = np.uint32(magnitude - np.uint32(0x38000000) + np.uint32(0xFFF) + odd)
        rounded = np.uint32(rounded >> np.uint32(13))
    return np.uint16(rounded | ((bits >> np.uint32(16)) & np.uint32(0x8000)))


@jit
def widened(bits: np.uint16, kind: int) -> np.float32:
    """The value of the bits of a 16-bit float of this kind."""
    return from_bfloat16(bits) if kind == BFLOAT16 else from_float16(bits)


@jit
def narrowed(number: np.float32, kind: int) -> np.uint16:
    """The bits of a number, rounded to a 16-bit float of this kind."""
    return to_bfloat16(number) if kind == BFLOAT16 else to_float16(number)


@jit
def fetch_row(table: Array, place: Any, width: int) -> None:
    """Prefetch the first `width` numbers of the row that begins at number `place`."""
    for byte in range(0, width * table.itemsize, CACHE_LINE):
        fetch_ahead(table, place, byte)


@jit
def add_row(row: Array, kind: Kind, weight: float, total: Array) -> None:
    """`total += weight * row`."""
    if kind is None:
        for f in range(len(total)):
            total[f] += weight * row[f]
    elif kind == BFLOAT16:
        for f in range(len(total)):
            total[f] += weight * from_bfloat16(np.uint16(row[f]))
    else:
        for f in range(len(total)):
            total[f] += weight * from_float16(np.uint16(row[f]))


@jit
def add_4_rows(
    rows: tuple[Array, Array, Array, Array],
    kind: Kind,
    weights: tuple[float, float, float, float],
    total: Array,
) -> None:
    """`total += Σ weights[i] * rows[i]`: the total is read and written once for four rows."""
    r0, r1, r2, r3 = rows
    w0, w1, w2, w3 = weights
    if kind is None:
        for f in range(len(total)):
            total[f] += (w0 * r0[f] + w1 * r1[f]) + (w2 * r2[f] + w3 * r3[f])
    elif kind == BFLOAT16:
        for f in range(len(total)):
            left = w0 * from_bfloat16(np.uint16(r0[f])) + w1 * from_bfloat16(np.uint16(r1[f]))
            right = w2 * from_bfloat16(np.uint16(r2[f])) + w3 * from_bfloat16(np.uint16(r3[f]))
            total[f] += left + right
    else:
        for f in range(len(total)):
            left = w0 * from_float16(np.uint16(r0[f])) + w1 * from_float16(np.uint16(r1[f]))
            right = w2 * from_float16(np.uint16(r2[f])) + w3 * from_float16(np.uint16(r3[f]))
            total[f] += left + right


@jit
def number_of(value: Any, kind: Kind) -> float:
    """The value of an entry of a table of this kind."""
    number: Any = value if kind is None else widened(np.uint16(value), kind)
    return number  # type: ignore[no-any-return]


@jit
def raise_to_row(row: Array, kind: Kind, total: Array) -> None:
    """`total = max(total, row)`; NaN is the largest."""
    for f in range(len(total)):
        if kind is None:
            value = row[f]
        elif kind == BFLOAT16:
            value = from_bfloat16(np.uint16(row[f]))
        else:
            value = from_float16(np.uint16(row[f]))
        total[f] = value if value > total[f] or value != value else total[f]


@jit
def put_row(total: Array, factor: float, out: Array, kind: Kind) -> None:
    """`out = factor * total`, rounded to the kind of `out`."""
    if kind is None:
        for f in range(len(total)):
            out[f] = factor * total[f]
    else:
        for f in range(len(total)):
            out[f] = narrowed(np.float32(factor * total[f]), kind)


@jit
def reduce_rows(
    table: Array,
    stride: int,
    kind: Kind,
    nodes: Int64Array,
    indptr: Array,
    indices: Array,
    by_edge: bool,
    edge_ids: Array,
    edge_weight: Array,
    source_scale: Array,
    row_scale: Array,
    is_mean: bool,
    own: int,
    skip_own: bool,
    loop: Array,
    first_loop: int,
    num_added: int,
    start: int,
    stop: int,
    out: Array,
    out_kind: Kind,
    total: Array,
) -> None:
    """Sum the rows of the in-neighbours of the destinations `start … stop − 1`; see `ops.Sum`.

    out[v] = row_scale[v] · Σ_e edge_weight[e] · source_scale[u] · row(u) + loop[v] · row(own + v),
    where e runs over the in-edges of v and u is the source of e; `row` reads the first `width`
    numbers. With `is_mean` the sum is divided by the number of in-edges.

    Args:
        table, kind: The rows, one after the other; source u is row `nodes[u]`, or u without
            `nodes`.
        stride: Row r begins at number `r · stride` of `table`.
        by_edge: Edge e comes from source e; `indices` is not read.
        edge_ids: The number of each edge in `edge_weight`; empty: as they lie.
        edge_weight: `[num_edges]`.
        own: Source number of destination 0: destination v is source `own + v`.
        skip_own: Leave out edges from a node to itself.
        loop: `loop[i]` belongs to destination `first_loop + i`; others have none.
        num_added: So many destinations from `first_loop` on add the second `width` numbers of
            their own row.
        out: Destination `start` goes to its row 0.
        total: Working memory; its length is `width`, its type that of the sums.
    """
    width = len(total)
    direct = len(nodes) == 0
    has_weight = len(edge_weight) > 0
    has_ids = len(edge_ids) > 0
    has_scale = len(source_scale) > 0
    number = total.dtype.type  # sums and weights in one type: no conversions in the loop
    zero, one = number(0), number(1)
    for v in range(start, stop):
        first: Any = np.int64(indptr[v])
        last: Any = np.int64(indptr[v + 1])
        total[:] = zero
        e = first
        while e < last:
            group = min(4, last - e)
            # Prefetch the next four while these four are added.
            for i in range(e + group, min(e + group + 4, last)):
                source = i if by_edge else np.int64(indices[i])
                fetch_row(table, (source if direct else nodes[source]) * stride, width)
            if group == 4:
                s0, s1, s2, s3 = e, e + 1, e + 2, e + 3
                if not by_edge:
                    s0, s1 = np.int64(indices[e]), np.int64(indices[e + 1])
                    s2, s3 = np.int64(indices[e + 2]), np.int64(indices[e + 3])
                w0, w1, w2, w3 = one, one, one, one
                if has_weight:
                    e0, e1, e2, e3 = e, e + 1, e + 2, e + 3
                    if has_ids:
                        e0, e1 = np.int64(edge_ids[e]), np.int64(edge_ids[e + 1])
                        e2, e3 = np.int64(edge_ids[e + 2]), np.int64(edge_ids[e + 3])
                    w0, w1 = number(edge_weight[e0]), number(edge_weight[e1])
                    w2, w3 = number(edge_weight[e2]), number(edge_weight[e3])
                if has_scale:
                    w0, w1 = number(w0 * source_scale[s0]), number(w1 * source_scale[s1])
                    w2, w3 = number(w2 * source_scale[s2]), number(w3 * source_scale[s3])
                if skip_own:
                    w0, w1 = zero if s0 == own + v else w0, zero if s1 == own + v else w1
                    w2, w3 = zero if s2 == own + v else w2, zero if s3 == own + v else w3
                n0, n1, n2, n3 = s0, s1, s2, s3
                if not direct:
                    n0, n1, n2, n3 = nodes[s0], nodes[s1], nodes[s2], nodes[s3]
                n0, n1, n2, n3 = n0 * stride, n1 * stride, n2 * stride, n3 * stride
                rows = (
                    table[n0 : n0 + width],
                    table[n1 : n1 + width],
                    table[n2 : n2 + width],
                    table[n3 : n3 + width],
                )
                add_4_rows(rows, kind, (w0, w1, w2, w3), total)
            else:
                for i in range(e, e + group):
                    source = i if by_edge else np.int64(indices[i])
                    place = (source if direct else nodes[source]) * stride
                    row = table[place : place + width]
                    weight = one
                    if has_weight:
                        weight = number(edge_weight[np.int64(edge_ids[i]) if has_ids else i])
                    if has_scale:
                        weight = number(weight * source_scale[source])
                    if skip_own and source == own + v:
                        weight = zero
                    add_row(row, kind, weight, total)
            e += group
        factor = one
        if is_mean and last > first:
            factor = one / number(last - first)
        if len(row_scale) > 0:
            factor = number(factor * row_scale[v])
        i = v - first_loop
        if 0 <= i < max(len(loop), num_added):
            for f in range(width):
                total[f] *= factor
            factor = one
            place = (np.int64(own + v) if direct else nodes[own + v]) * stride
            if i < len(loop):
                add_row(table[place : place + width], kind, number(loop[i]), total)
            if i < num_added:
                add_row(table[place + width : place + 2 * width], kind, one, total)
        put_row(total, factor, out[v - start, 0:width], out_kind)


@jit
def reduce_heads(
    table: Array,
    stride: int,
    kind: Kind,
    nodes: Int64Array,
    indptr: Array,
    indices: Array,
    edge_ids: Array,
    edge_weight: Array,
    start: int,
    stop: int,
    out: Array,
    out_kind: Kind,
    total: Array,
) -> None:
    """`reduce_rows` with edge weights by head, `[num_edges, H]`, and without other factors.

    Head h weighs the columns `[h·width/H, (h + 1)·width/H)`.
    """
    width, heads = len(total), edge_weight.shape[1]
    part = width // heads
    direct = len(nodes) == 0
    has_ids = len(edge_ids) > 0
    number = total.dtype.type
    for v in range(start, stop):
        first: Any = np.int64(indptr[v])
        last: Any = np.int64(indptr[v + 1])
        total[:] = number(0)
        e = first
        while e < last:
            group = min(4, last - e)
            for i in range(e + group, min(e + group + 4, last)):
                source = np.int64(indices[i])
                fetch_row(table, (source if direct else nodes[source]) * stride, width)
            if group == 4:
                n0, n1 = np.int64(indices[e]), np.int64(indices[e + 1])
                n2, n3 = np.int64(indices[e + 2]), np.int64(indices[e + 3])
                if not direct:
                    n0, n1, n2, n3 = nodes[n0], nodes[n1], nodes[n2], nodes[n3]
                n0, n1, n2, n3 = n0 * stride, n1 * stride, n2 * stride, n3 * stride
                e0, e1, e2, e3 = e, e + 1, e + 2, e + 3
                if has_ids:
                    e0, e1 = np.int64(edge_ids[e]), np.int64(edge_ids[e + 1])
                    e2, e3 = np.int64(edge_ids[e + 2]), np.int64(edge_ids[e + 3])
                for h in range(heads):
                    a, b = h * part, (h + 1) * part
                    rows = (
                        table[n0 + a : n0 + b],
                        table[n1 + a : n1 + b],
                        table[n2 + a : n2 + b],
                        table[n3 + a : n3 + b],
                    )
                    weights = (
                        number(edge_weight[e0, h]),
                        number(edge_weight[e1, h]),
                        number(edge_weight[e2, h]),
                        number(edge_weight[e3, h]),
                    )
                    add_4_rows(rows, kind, weights, total[a:b])
            else:
                for i in range(e, e + group):
                    source = np.int64(indices[i])
                    place = (source if direct else nodes[source]) * stride
                    edge = np.int64(edge_ids[i]) if has_ids else i
                    for h in range(heads):
                        a, b = h * part, (h + 1) * part
                        weight = number(edge_weight[edge, h])
                        add_row(table[place + a : place + b], kind, weight, total[a:b])
            e += group
        put_row(total, number(1), out[v - start], out_kind)


@partial(jit, any_order=True)
def edge_products(
    table: Array,
    stride: int,
    kind: Kind,
    nodes: Int64Array,
    grad: Array,
    indptr: Array,
    indices: Array,
    start: int,
    stop: int,
    out: Array,
) -> None:
    """row(u) · grad[v] by head, of every in-edge of the destinations `start … stop − 1`.

    Args:
        table, stride, kind, nodes: See `reduce_rows`.
        grad: `[num_dst, width]`.
        indptr, indices: The in-edges.
        out: `[num_edges, H]`, in the type of `grad`.
    """
    width, heads = grad.shape[1], out.shape[1]
    part = width // heads
    direct = len(nodes) == 0
    number = out.dtype.type
    for v in range(start, stop):
        first: Any = np.int64(indptr[v])
        last: Any = np.int64(indptr[v + 1])
        given = grad[v]
        for e in range(first, last):
            for i in range(e + 3, min(e + 4, last)):
                ahead = np.int64(indices[i])
                fetch_row(table, (ahead if direct else nodes[ahead]) * stride, width)
            source = np.int64(indices[e])
            place = (source if direct else nodes[source]) * stride
            for h in range(heads):
                row, other = table[place + h * part : place + (h + 1) * part], given[h * part :]
                total = number(0)
                if kind is None:
                    for f in range(part):
                        total += row[f] * other[f]
                elif kind == BFLOAT16:
                    for f in range(part):
                        total += from_bfloat16(np.uint16(row[f])) * other[f]
                else:
                    for f in range(part):
                        total += from_float16(np.uint16(row[f])) * other[f]
                out[e, h] = total


@jit
def max_rows(
    table: Array,
    stride: int,
    kind: Kind,
    nodes: Int64Array,
    indptr: Array,
    indices: Array,
    start: int,
    stop: int,
    out: Array,
    out_kind: Kind,
    ties: npt.NDArray[np.int32],
    total: Array,
) -> None:
    """The largest numbers of the in-neighbours of the destinations `start … stop − 1`.

    NaN is the largest; without in-edges the result is 0. `ties` (or empty) is set to the number of
    in-edges with the largest number. Destination `start` goes to row 0 of `out` and `ties`.
    """
    width = len(total)
    direct = len(nodes) == 0
    for v in range(start, stop):
        first: Any = np.int64(indptr[v])
        last: Any = np.int64(indptr[v + 1])
        total[:] = -np.inf if last > first else 0.0
        for e in range(first, last):
            for i in range(e + 4, min(e + 5, last)):
                ahead = np.int64(indices[i])
                fetch_row(table, (ahead if direct else nodes[ahead]) * stride, width)
            source = np.int64(indices[e])
            place = (source if direct else nodes[source]) * stride
            raise_to_row(table[place : place + width], kind, total)
        put_row(total, total.dtype.type(1), out[v - start], out_kind)
        if len(ties) > 0:
            counts = ties[v - start]
            counts[:] = 0
            for e in range(first, last):
                source = np.int64(indices[e])
                place = (source if direct else nodes[source]) * stride
                row = table[place : place + width]
                for f in range(width):
                    counts[f] += number_of(row[f], kind) == total[f]


@jit
def spread_maximum(
    rows: Array,
    tops: Array,
    ties: npt.NDArray[np.int32],
    grad: Array,
    kind: Kind,
    indptr: Array,
    indices: Array,
    start: int,
    stop: int,
    out: Array,
    total: Array,
) -> None:
    """The gradient behind `max_rows` of the sources `start … stop − 1`, over their out-edges.

    In-edges that share a maximum share its gradient evenly. `rows`, `tops`, `grad` and `out` are of
    one `kind`.
    """
    for u in range(start, stop):
        total[:] = 0
        row = rows[u]
        for e in range(indptr[u], indptr[u + 1]):
            v = np.int64(indices[e])
            top, given, count = tops[v], grad[v], ties[v]
            for f in range(len(total)):
                if count[f] > 0 and number_of(row[f], kind) == number_of(top[f], kind):
                    total[f] += number_of(given[f], kind) / total.dtype.type(count[f])
        put_row(total, total.dtype.type(1), out[u - start], kind)


@jit
def gather_rows(
    table: Array,
    stride: int,
    kind: Kind,
    nodes: Int64Array,
    first: int,
    start: int,
    stop: int,
    out: Array,
    out_kind: Kind,
    column: int,
    width: int,
) -> None:
    """Copy the rows of the sources `first + start … first + stop − 1`, converted to `out`'s kind.

    `table`, `stride` and `nodes` are those of `reduce_rows`. The first row goes to row 0 of `out`,
    to the `width` columns from `column` on.
    """
    direct = len(nodes) == 0
    for i in range(start, stop):
        if not direct and i + 4 < stop:
            fetch_row(table, nodes[first + i + 4] * stride, width)
        place = (np.int64(first + i) if direct else nodes[first + i]) * stride
        row = table[place : place + width]
        target = out[i - start, column : column + width]
        if kind is None:
            put_row(row, row.dtype.type(1), target, out_kind)
        elif out_kind is None:
            for f in range(width):
                target[f] = widened(np.uint16(row[f]), kind)
        elif kind == out_kind:
            for f in range(width):
                target[f] = row[f]
        elif out_kind == BFLOAT16:
            for f in range(width):
                target[f] = to_bfloat16(from_float16(np.uint16(row[f])))
        else:
            for f in range(width):
                target[f] = to_float16(from_bfloat16(np.uint16(row[f])))


@jit
def place_rows(
    nodes: Int64Array,
    slots: npt.NDArray[np.int32],
    first: int,
    stride: int,
    bases: Int64Array,
    part_rows: int,
    start: int,
    stop: int,
    places: Int64Array,
) -> None:
    """Where the rows of the sources `start … stop − 1` begin, in numbers; see `LazyFeatures`.

    Args:
        nodes: The node of each source; empty: the source's own number.
        slots: The row of each node among the cached rows, negative where it is not there; empty:
            no row is cached.
        first: Where the cached rows begin.
        stride: Numbers from a row to the next.
        bases: Where each part begins.
        part_rows: Nodes of a part.
        places: Likewise for all sources; the result.
    """
    for i in range(start, stop):
        node = nodes[i] if len(nodes) > 0 else np.int64(i)
        slot = np.int64(slots[node]) if len(slots) > 0 else np.int64(-1)
        if slot >= 0:
            places[i] = first + slot * stride
        else:
            part = node // part_rows
            places[i] = bases[part] + (node - part * part_rows) * stride


@jit
def transpose(
    indptr: Array,
    indices: Array,
    out_indptr: Array,
    out_indices: Array,
    edges: Array,
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
def mix64(x: np.uint64) -> np.uint64:
    """SplitMix64's finaliser, as in the sampler's kernels."""
    x = (x ^ (x >> np.uint64(30))) * MULTIPLIER_1
    x = (x ^ (x >> np.uint64(27))) * MULTIPLIER_2
    return x ^ (x >> np.uint64(31))


@jit
def drop_row(row: Array, kind: Kind, threshold: int, factor: float, words: UInt64Array) -> None:
    """Set numbers whose draw is less than `threshold` to 0, multiply the others by `factor`."""
    width, num_words = len(row), len(words)
    zero, scale = row.dtype.type(0), row.dtype.type(factor)
    for lane in range(LANES):
        shift = np.uint64(16 * lane)
        first = lane * num_words
        for w in range(min(num_words, width - first)):
            is_kept = np.int64((words[w] >> shift) & LOW_16) >= threshold
            if kind is None:
                row[first + w] = row[first + w] * scale if is_kept else zero
            elif kind == BFLOAT16:
                scaled = to_bfloat16(from_bfloat16(np.uint16(row[first + w])) * np.float32(factor))
                row[first + w] = scaled if is_kept else zero
            else:
                scaled = to_float16(from_float16(np.uint16(row[first + w])) * np.float32(factor))
                row[first + w] = scaled if is_kept else zero


@jit
def relu_row(row: Array, kind: Kind) -> None:
    """Set numbers that are not positive to 0; NaN stays."""
    zero = row.dtype.type(0)
    if kind is None:
        for f in range(len(row)):
            row[f] = zero if row[f] <= zero else row[f]
    else:
        lowest = np.uint16(0xFF80 if kind == BFLOAT16 else 0xFC00)  # −∞; above it: NaN
        for f in range(len(row)):
            row[f] = zero if np.uint16(0x8000) <= np.uint16(row[f]) <= lowest else row[f]


@jit
def activate_rows(
    rows: Array,
    kind: Kind,
    relu: bool,
    threshold: int,
    factor: float,
    key: np.uint64,
    start: int,
    stop: int,
) -> None:
    """ReLU where `relu`, then dropout where `threshold > 0`, in place.

    Number j of row v is dropped where its own 16 random bits, a pure function of (key, v, j), are
    less than `threshold`, independently of chunks and threads.
    """
    width = rows.shape[1]
    words = np.empty((width + LANES - 1) // LANES, np.uint64)
    for v in range(start, stop):
        row = rows[v]
        if relu:
            relu_row(row, kind)
        if threshold > 0:
            stream = mix64(key ^ (np.uint64(v) * GOLDEN))
            for w in range(len(words)):
                words[w] = mix64(stream + np.uint64(w + 1) * GOLDEN)
            drop_row(row, kind, threshold, factor, words)


@jit
def mask_rows(
    grad: Array, rows: Array, kind: Kind, factor: float, start: int, stop: int, out: Array
) -> None:
    """The gradient behind `activate_rows` with ReLU: `grad * factor` where its result is positive.

    Row `start` goes to row 0 of `out`.
    """
    width, zero, scale = rows.shape[1], rows.dtype.type(0), rows.dtype.type(factor)
    for v in range(start, stop):
        row, given, target = rows[v], grad[v], out[v - start]
        if kind is None:
            for f in range(width):
                target[f] = given[f] * scale if row[f] > zero else zero
        else:
            for f in range(width):
                bits = np.uint16(row[f])
                is_positive = bits != np.uint16(0) and bits < np.uint16(0x8000)
                value = widened(np.uint16(given[f]), kind) * np.float32(factor)
                target[f] = narrowed(value, kind) if is_positive else zero


@jit
def adam_rows(
    weight: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    nodes: Int64Array,
    grad: Array,
    factors: Array,
) -> None:
    """See `adam_rows` in `ops.SCHEMAS`.

    `factors` are 1 − beta1, beta2, 1 − beta2 and its other numbers, of the matrices' type.
    """
    new_first, beta2, new_second, decay, l2, step_size, root, eps = factors
    for i in range(len(nodes)):
        node, given = nodes[i], grad[i]
        row, first, second = weight[node], exp_avg[node], exp_avg_sq[node]
        for f in range(len(row)):
            g = given[f] + l2 * row[f]
            first[f] += new_first * (g - first[f])
            second[f] = beta2 * second[f] + new_second * g * g
            row[f] = decay * row[f] - step_size * first[f] / (np.sqrt(second[f]) / root + eps)
