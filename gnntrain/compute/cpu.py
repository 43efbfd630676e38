"""The operators on a CPU: the Numba kernels of `kernels`, on all threads.

Rows are cut into tasks, one thread each, and these into chunks that fit a core's cache. The cuts do
not depend on the number of threads, so neither do the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnntrain.compute import attention_kernels, kernels, reference
from gnntrain.compute.buffers import BUFFERS
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.ops import Edges, Sum
from gnntrain.compute.workers import parallel_for

Array = npt.NDArray[Any]

_NO_NUMBERS: npt.NDArray[np.int64] = np.empty(0, np.int64)
_NO_FLOATS: npt.NDArray[np.float32] = np.empty(0, np.float32)
_NO_WEIGHTS: npt.NDArray[np.float32] = np.empty((0, 1), np.float32)
_NO_SLOTS: npt.NDArray[np.int32] = np.empty(0, np.int32)
_NO_TIES: npt.NDArray[np.int32] = np.empty((0, 0), np.int32)

_BITS = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}

# Rows of a chunk: its intermediate results stay in the core's cache.
CHUNK_ROWS = 512
# Rows of a task, with edges counted as rows: large enough to make the overhead negligible, small
# enough to balance the threads.
_TASK_WORK = 4096
_EDGES_A_ROW = 8
_MAX_TASKS = 32
_STEPS = 1 << 16  # of dropout's probability


class Table:
    """Rows in the kernels' form: source u has `width` numbers of `data` from number
    `nodes[u] · stride` on, or from `u · stride` without `nodes`. Some columns of a wider matrix are
    read in place.

    Rows of several matrices are read in place, too: `data` then spans the memory from the matrix
    that lies first, of which only the matrices themselves are read; `nodes` are places in it.
    """

    def __init__(self, features: LazyFeatures) -> None:
        self.width = features.num_features
        if features.slots is None and features.parts is None:
            self.rows, self.stride = features.rows, features.rows.stride(0)
            length = (len(self.rows) - 1) * self.stride + self.width if self.rows.numel() else 0
            self.data = array_of(self.rows.as_strided((length,), (1,)))
            self.nodes = _NO_NUMBERS if features.nodes is None else features.nodes.numpy()
        else:
            self.rows = features.rows.contiguous()
            self._held = [part.contiguous() for part in features.held]
            self.data, self.stride = _memory_from([self.rows, *self._held]), 1
            self.nodes = self._places(features)

    @property
    def arguments(self) -> tuple[Array, int, npt.NDArray[np.int64]]:
        """The first arguments of the kernels."""
        return self.data, self.stride, self.nodes

    def _places(self, features: LazyFeatures) -> npt.NDArray[np.int64]:
        first, *bases = (
            (part.data_ptr() - self.data.ctypes.data) // part.element_size() if len(part) else 0
            for part in (self.rows, *self._held)
        )
        nodes = _NO_NUMBERS if features.nodes is None else features.nodes.numpy()
        slots = _NO_SLOTS if features.slots is None else features.slots.numpy()
        layout = first, self.width, np.array(bases, np.int64), max(1, features.part_rows)
        places = np.empty(len(features), np.int64)
        by_rows(
            len(places), 0, lambda a, b: kernels.place_rows(nodes, slots, *layout, a, b, places)
        )
        return places

    def put(self, first: int, start: int, stop: int, out: Tensor, column: int = 0) -> None:
        """Copy the sources `first + start … first + stop − 1` into `out`, on this thread.

        The first goes to row 0 of `out`, from `column` on.
        """
        rows = array_of(out), column, self.width
        kernels.gather_rows(*self.arguments, first, start, stop, *rows)


class Reduction:
    """`Sum` in the kernel's form."""

    def __init__(self, table: Table, total: Sum, root: str) -> None:
        self.num_dst = total.num_dst
        self.num_edges = len(table.rows if total.indices is None else total.indices)
        self.width = table.width // 2 if root == "added" else table.width
        self._table, self._root, self._own = table, root, total.dst_offset
        weight, source_scale = total.edge_weight, total.source_scale
        if total.source_indptr is not None:
            # In the sums' precision: otherwise the kernels would widen every row.
            exact = torch.promote_types(table.rows.dtype, torch.float32)
            share = 1 / total.source_indptr.diff().clamp(min=1).to(exact)
            source_scale = share if source_scale is None else share * source_scale
        self._arguments = (
            *table.arguments,
            total.indptr.numpy(),
            _NO_NUMBERS if total.indices is None else total.indices.numpy(),
            total.indices is None,
            _NO_NUMBERS if total.edge_ids is None else total.edge_ids.numpy(),
            _NO_WEIGHTS if weight is None else _factors(weight.view(-1, total.heads)),
            _floats(source_scale),
            _floats(total.scale),
            total.is_mean,
            total.dst_offset,
            total.skip_own,
            _floats(total.loop),
            total.first_loop,
            len(table.rows) if root == "added" else 0,
        )

    def put(self, start: int, stop: int, out: Tensor) -> None:
        """Reduce for the destinations `start … stop − 1` into the rows of `out`, on this thread."""
        is_double = torch.float64 in (self._table.rows.dtype, out.dtype)
        memory = np.empty(self.width, np.float64 if is_double else np.float32)
        kernels.reduce_rows(*self._arguments, start, stop, array_of(out), memory)
        if self._root == "beside":
            self._table.put(self._own, start, stop, out, column=self.width)


def gather(features: LazyFeatures, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """See `ops.SCHEMAS`, as for all functions that are named as operators."""
    table = Table(features)
    out = BUFFERS.empty((stop - start, table.width), dtype)
    by_rows(stop - start, 0, lambda a, b: table.put(start, a, b, out[a:b]))
    return out


def transpose(indptr: Tensor, indices: Tensor, num_src: int) -> tuple[Tensor, Tensor, Tensor]:
    out_indptr = indices.new_zeros(num_src + 1)
    out = out_indptr, torch.empty_like(indices), torch.empty_like(indices)
    kernels.transpose(indptr.numpy(), indices.numpy(), *(part.numpy() for part in out))
    for part in out[1:]:
        part[int(indptr[-1]) :] = 0  # padding, which torch's operators read too
    return out


def aggregate(features: LazyFeatures, total: Sum, root: str, dtype: torch.dtype) -> Tensor:
    reduction = Reduction(Table(features), total, root)
    across = 2 * reduction.width if root == "beside" else reduction.width
    out = BUFFERS.empty((reduction.num_dst, across), dtype)
    by_rows(len(out), reduction.num_edges, lambda a, b: reduction.put(a, b, out[a:b]))
    return out


def edge_products(rows: Tensor, grad: Tensor, total: Sum) -> Tensor:
    """The products by head, then the factors of edges."""
    weight, indices = total.edge_weight, total.indices
    assert weight is not None
    assert indices is not None
    exact = torch.promote_types(torch.promote_types(rows.dtype, grad.dtype), torch.float32)
    scale, table = reference.row_factors(total, exact), Table(LazyFeatures.of(rows))
    scaled = array_of((grad if scale is None else grad * scale).to(exact).contiguous())
    out = _by_edge(torch.empty(0, total.heads, dtype=exact), total.indptr, indices)
    edges = total.indptr.numpy(), indices.numpy()

    def task(start: int, stop: int) -> None:
        kernels.edge_products(*table.arguments, scaled, *edges, start, stop, array_of(out))

    by_rows(total.num_dst, len(indices), task)
    factors = reference.edge_factors(total._replace(edge_weight=None), indices, exact)
    if factors is not None:
        out *= factors
    return out.view(weight.shape).to(weight.dtype)


def edge_softmax(
    score: Tensor,
    target: Tensor | None,
    loop_score: Tensor | None,
    slope: float,
    dst_offset: int,
    edges: Edges,
) -> tuple[Tensor, Tensor]:
    indptr, indices, _ = edges
    alpha = _by_edge(score, indptr, indices)
    second = score.new_empty(edges.num_dst, score.shape[1])
    given = array_of(score), _rows_or_none(target, score), slope, _rows_or_none(loop_score, score)
    adjacency = dst_offset, indptr.numpy(), indices.numpy()
    outs = array_of(alpha), array_of(second)

    def task(start: int, stop: int) -> None:
        attention_kernels.softmax_rows(*given, *adjacency, start, stop, *outs)

    by_rows(edges.num_dst, len(indices), task)
    return alpha, second


def edge_softmax_backward(
    grad: Tensor,
    loop_grad: Tensor,
    alpha: Tensor,
    loop_alpha: Tensor,
    score: Tensor | None,
    target: Tensor | None,
    slope: float,
    edges: Edges,
) -> tuple[Tensor, Tensor]:
    indptr, indices, _ = edges
    out, loop_out = _by_edge(alpha, indptr, indices), torch.empty_like(loop_alpha)
    grads = array_of(grad.contiguous()), array_of(loop_grad.contiguous())
    given = *grads, array_of(alpha), array_of(loop_alpha)
    sums = _rows_or_none(score, alpha), _rows_or_none(target, alpha), slope
    adjacency, outs = (indptr.numpy(), indices.numpy()), (array_of(out), array_of(loop_out))

    def task(start: int, stop: int) -> None:
        attention_kernels.softmax_gradient_rows(*given, *sums, *adjacency, start, stop, *outs)

    by_rows(edges.num_dst, len(alpha), task)
    return out, loop_out


def _by_edge(like: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """Memory for a number an edge and head; 0 in padding."""
    out = BUFFERS.empty((len(indices), like.shape[1]), like.dtype)
    out[int(indptr[-1]) :] = 0
    return out


def _rows_or_none(rows: Tensor | None, like: Tensor) -> Array:
    return array_of(like.new_empty(0, 0) if rows is None else rows)


def aggregate_max(
    features: LazyFeatures, edges: Edges, dtype: torch.dtype, count: bool
) -> tuple[Tensor, Tensor]:
    table, indptr, indices = Table(features), edges.indptr, edges.indices
    out = BUFFERS.empty((edges.num_dst, table.width), dtype)
    ties = BUFFERS.empty(out.shape if count else (0, 0), torch.int32)
    given = *table.arguments, indptr.numpy(), indices.numpy()
    number = np.float64 if torch.float64 in (table.rows.dtype, dtype) else np.float32

    def task(start: int, stop: int) -> None:
        counts = ties[start:stop].numpy() if count else _NO_TIES
        rows = array_of(out[start:stop]), counts, np.empty(table.width, number)
        kernels.max_rows(*given, start, stop, *rows)

    by_rows(len(out), len(indices), task)
    return out, ties


def aggregate_max_backward(
    grad: Tensor, rows: Tensor, out: Tensor, ties: Tensor, indptr: Tensor, indices: Tensor
) -> Tensor:
    grad_rows = BUFFERS.empty(rows.shape, rows.dtype)
    given = array_of(rows), array_of(out), ties.numpy(), array_of(grad)
    edges = indptr.numpy(), indices.numpy()
    number = np.float64 if rows.dtype == torch.float64 else np.float32

    def task(start: int, stop: int) -> None:
        memory = np.empty(rows.shape[1], number)
        target = array_of(grad_rows[start:stop])
        kernels.spread_maximum(*given, *edges, start, stop, target, memory)

    by_rows(len(rows), len(indices), task)
    return grad_rows


def aggregate_linear(
    features: LazyFeatures,
    total: Sum,
    weight: Tensor,
    bias: Tensor,
    has_root: bool,
    dropout: float | None,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """A layer in one pass: a thread computes all of it for a chunk of rows in its cache.

    Computed by separate operators, block-sized tensors would be written and read several times.
    """
    reduction = Reduction(Table(features), total, "beside" if has_root else "none")
    num_dst, across = reduction.num_dst, weight.t()
    drop = None if dropout is None else Drop.draw(dropout)
    inputs = BUFFERS.empty((num_dst if keep else 0, weight.shape[1]), weight.dtype)
    out = BUFFERS.empty((num_dst, weight.shape[0]), weight.dtype)

    def task(start: int, stop: int) -> None:
        part = inputs[start:stop] if keep else inputs.new_empty(stop - start, weight.shape[1])
        reduction.put(start, stop, part)
        torch.addmm(bias, part, across, out=out[start:stop])
        if drop is not None:
            drop.apply(out, start, stop, relu=True)

    by_rows(num_dst, reduction.num_edges, task)
    return out, inputs


def aggregate_linear_backward(
    grad: Tensor,
    weight: Tensor,
    inputs: Tensor,
    out: Tensor | None,
    dropout: float | None,
    dtype: torch.dtype,
    needs_inputs: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The mask of ReLU and dropout are the positive numbers of the result."""
    grad, exact = grad.contiguous(), torch.promote_types(weight.dtype, torch.float32)
    factor = 1.0 if dropout is None else Drop.of(dropout).factor
    count = num_tasks(len(inputs), 0)
    # A sum for each task: the order of additions does not depend on the threads.
    weight_sums = [torch.zeros(weight.shape, dtype=exact) for _ in range(count)]
    bias_sums = [torch.zeros(len(weight), dtype=exact) for _ in range(count)]
    grad_inputs = BUFFERS.empty(inputs.shape if needs_inputs else (0,), inputs.dtype)

    def task(number: int, start: int, stop: int) -> None:
        # A 16-bit product cannot be accumulated in place: one product for the whole task.
        in_place = exact == weight.dtype
        for a, b in chunks(start, stop) if in_place else [(start, stop)]:
            part = grad[a:b]
            if out is not None:
                part = torch.empty_like(part)
                kernels.mask_rows(array_of(grad), array_of(out), factor, a, b, array_of(part))
            if in_place:
                weight_sums[number].addmm_(part.t(), inputs[a:b])
            else:
                weight_sums[number] += part.t() @ inputs[a:b]
            bias_sums[number] += part.sum(0, dtype=exact)
            if needs_inputs:
                torch.mm(part, weight, out=grad_inputs[a:b])

    for_tasks(len(inputs), 0, task)
    return grad_inputs, _total(weight_sums, weight, dtype), _total(bias_sums, weight[:, 0], dtype)


def _total(parts: list[Tensor], like: Tensor, dtype: torch.dtype) -> Tensor:
    total = parts[0] if parts else torch.zeros_like(like)
    for part in parts[1:]:
        total += part
    return total.to(dtype)


@dataclass(frozen=True, slots=True)
class Drop:
    """A dropout mask, as a pure function of its key.

    torch's dropout on a CPU is bound by its generator, which draws one number after the other.

    Attributes:
        threshold: Of 2^16 equally likely draws, those below it are dropped.
        key: Key of the mask.
    """

    threshold: int
    key: int = 0

    @classmethod
    def of(cls, p: float, key: int = 0) -> Drop:
        """Dropout with probability `p`, in steps of 2^-16."""
        return cls(min(round(p * _STEPS), _STEPS - 1), key)

    @classmethod
    def draw(cls, p: float) -> Drop:
        """Dropout with probability `p` and a key from torch's generator."""
        return cls.of(p, int(torch.randint(2**63 - 1, ())) if p > 0 else 0)

    @property
    def factor(self) -> float:
        """The factor of kept numbers, which preserves the mean."""
        return _STEPS / (_STEPS - self.threshold)

    def apply(self, rows: Tensor, start: int, stop: int, *, relu: bool = False) -> None:
        """Apply it to the rows `start … stop − 1` in place, after a ReLU if `relu`."""
        key = np.uint64(self.key)
        given = array_of(rows), relu, self.threshold, self.factor, key
        kernels.activate_rows(*given, start, stop)

    def applied(self, x: Tensor) -> Tensor:
        """`x` after dropout, `[rows, …]`."""
        out = BUFFERS.empty(x.shape, x.dtype).copy_(x)
        rows = out.view(len(out), -1)
        by_rows(len(rows), 0, lambda a, b: self.apply(rows, a, b))
        return out


def dropout(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """See `ops.SCHEMAS`."""
    drop = Drop.draw(p)
    return drop.applied(x), torch.tensor(drop.key)


def dropout_backward(grad: Tensor, key: Tensor, p: float) -> Tensor:
    return Drop.of(p, int(key)).applied(grad)


def adam_rows(
    weight: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    nodes: Tensor,
    grad: Tensor,
    beta1: float,
    beta2: float,
    *factors: float,
) -> None:
    arrays = array_of(weight), array_of(exp_avg), array_of(exp_avg_sq)
    places, gradient = nodes.numpy(), array_of(grad.to(weight.dtype).contiguous())
    shares = 1 - beta1, beta2, 1 - beta2  # not subtracted in float32
    numbers = np.array([*shares, *factors], arrays[0].dtype)
    by_rows(
        len(places),
        0,
        lambda a, b: kernels.adam_rows(*arrays, places[a:b], gradient[a:b], numbers),
    )


def array_of(rows: Tensor) -> Array:
    """The tensor's memory as a NumPy array; 16-bit floats as the integers that `kernels` takes."""
    integers = _BITS.get(rows.dtype)
    array: Array = (rows if integers is None else rows.view(integers)).detach().numpy()
    return array


def _memory_from(matrices: Sequence[Tensor]) -> Array:
    """The memory from the matrix that lies first to the end of the last one, one-dimensional.

    What lies between them does not belong to it, and may not even be mapped.
    """
    filled = [matrix for matrix in matrices if matrix.numel()]
    if not filled:
        return array_of(matrices[0]).reshape(-1)
    first = array_of(min(filled, key=Tensor.data_ptr)).reshape(-1)
    end = max(matrix.data_ptr() + matrix.nbytes for matrix in filled)
    length = (end - first.ctypes.data) // first.itemsize
    return np.lib.stride_tricks.as_strided(first, (length,))


def _floats(tensor: Tensor | None) -> Array:
    """Factors as one row of float32 or float64, or an empty array for None."""
    return _NO_FLOATS if tensor is None else _factors(tensor.reshape(-1))


def _factors(tensor: Tensor) -> Array:
    tensor = tensor.detach().contiguous()
    array: Array = (tensor.float() if tensor.dtype.itemsize == 2 else tensor).numpy()
    return array


def by_rows(num_rows: int, num_edges: int, task: Callable[[int, int], None]) -> None:
    """Call `task(start, stop)` for all chunks of rows, on all threads; see `for_tasks`."""

    def chunked(_: int, start: int, stop: int) -> None:
        for a, b in chunks(start, stop):
            task(a, b)

    for_tasks(num_rows, num_edges, chunked)


def for_tasks(num_rows: int, num_edges: int, task: Callable[[int, int, int], None]) -> None:
    """Call `task(number, start, stop)` for `num_tasks` ranges of rows, on all threads.

    The cuts do not depend on the number of threads.
    """
    count = num_tasks(num_rows, num_edges)
    parallel_for(
        lambda number: task(number, num_rows * number // count, num_rows * (number + 1) // count),
        count,
    )


def num_tasks(num_rows: int, num_edges: int) -> int:
    """The number of tasks for these numbers of rows and edges."""
    work = num_rows + num_edges // _EDGES_A_ROW
    return min(_MAX_TASKS, num_rows, -(-work // _TASK_WORK))


def chunks(start: int, stop: int) -> list[tuple[int, int]]:
    """The ranges of at most `CHUNK_ROWS` rows from `start` to `stop`."""
    return [(a, min(a + CHUNK_ROWS, stop)) for a in range(start, stop, CHUNK_ROWS)]
