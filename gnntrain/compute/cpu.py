"""What the operators share on a CPU: their tensors in the form of Numba's kernels, and threads.

Rows are cut into tasks, one thread each, and these into chunks that fit a core's cache. The cuts do
not depend on the number of threads, so neither do the results.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnntrain.compute import kernels
from gnntrain.compute.buffers import BUFFERS
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.operator import Edges

Array = npt.NDArray[Any]

_BITS = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}

_lock = threading.Lock()

# Rows of a chunk: its intermediate results stay in the core's cache.
CHUNK_ROWS = 512
# Rows of a task, with edges counted as rows: large enough to make the overhead negligible, small
# enough to balance the threads.
_TASK_WORK = 2048
_EDGES_A_ROW = 8
_MAX_TASKS = 32


def table_of(features: LazyFeatures) -> kernels.Table:
    """Rows in the kernels' form; `features` must live as long as it does.

    Rows of several matrices are read in place, too: the table then spans the memory from the matrix
    that lies first, of which only the matrices themselves are read; its nodes are places in it.
    """
    rows, width = features.rows, features.num_features
    nodes = np.empty(0, np.int64) if features.nodes is None else features.nodes.numpy()
    filled = [part for part in (rows, *features.held) if part.numel()]
    if not filled:
        return array_of(rows).reshape(-1), width, nodes
    first, stride = min(filled, key=Tensor.data_ptr), max(filled, key=len).stride(0)
    size = first.element_size()
    ends = [part.data_ptr() + ((len(part) - 1) * stride + width) * size for part in filled]
    # What lies between matrices does not belong to them, and may not even be mapped.
    shape = ((max(ends) - first.data_ptr()) // size,)
    data = np.lib.stride_tricks.as_strided(array_of(first), shape, (size,))
    if features.is_plain:
        return data, stride, nodes
    return data, 1, ((features.addresses() - first.data_ptr()) >> size.bit_length() - 1).numpy()


def number_type(*dtypes: torch.dtype) -> type[np.float32 | np.float64]:
    """In which sums are kept: float32, or float64 of float64 numbers."""
    return np.float64 if torch.float64 in dtypes else np.float32


def numbers_by_edge(edges: Edges, heads: int, dtype: torch.dtype) -> Tensor:
    """Memory for a number an edge and head; 0 in padding."""
    out = BUFFERS.empty((len(edges.indices), heads), dtype)
    out[int(edges.indptr[-1]) :] = 0
    return out


def array_of(rows: Tensor) -> Array:
    """The tensor's memory as a NumPy array; 16-bit floats as the integers that `kernels` takes."""
    integers = _BITS.get(rows.dtype)
    array: Array = (rows if integers is None else rows.view(integers)).detach().numpy()
    return array


def arrays(first: Tensor, *others: Tensor | None) -> Any:
    """The memory of tensors; nothing, of the first one's type and dimensions, for None."""
    array = array_of(first)
    nothing = np.empty((0,) * array.ndim, array.dtype)
    return array, *(nothing if one is None else array_of(one) for one in others)


def factors_of(factors: Tensor | None, *heads: int) -> Array:
    """Factors in float32 or float64, `[n]` or by head `[n, heads]`; an empty array for None."""
    if factors is None:
        return np.empty((0, *heads), np.float32)
    factors = factors.float() if factors.dtype.itemsize == 2 else factors
    return array_of(factors.contiguous()).reshape(-1, *heads)


def by_rows(
    num_rows: int,
    num_edges: int,
    task: Callable[[int, int], None],
    dtype: torch.dtype = torch.float32,
) -> None:
    """Call `task(start, stop)` for all chunks of rows, of a product of `dtype`, each on the thread
    that is free; with little work all on this one."""
    count = num_tasks(num_rows, num_edges)
    size = max(1, min(chunk_rows(dtype), -(-num_rows // max(1, count))))
    starts = range(0, num_rows, size)
    # A chunk each, so that threads end together; they would only begin where one task is all.
    groups = len(starts) if count > 1 else count

    def by_chunk(number: int) -> None:
        for start in starts[number::groups]:
            task(start, min(start + size, num_rows))

    parallel_for(by_chunk, groups)


def for_tasks(num_rows: int, task: Callable[[int, int, int], None], dtype: torch.dtype) -> None:
    """Call `task(number, start, stop)` for the chunks of rows of each of `num_tasks` tasks, of a
    product of `dtype`, on all threads; those of a task in order, on one.

    Tasks of a 16-bit product are multiples of `CHUNK_ROWS` where there are enough rows: there are
    few sizes then, see `padded`.
    """
    count = num_tasks(num_rows, 0)
    step = CHUNK_ROWS if dtype.itemsize == 2 and num_rows >= count * CHUNK_ROWS else 1
    bounds = [num_rows // step * number // count * step for number in range(count)] + [num_rows]
    size = chunk_rows(dtype)

    def by_chunk(number: int) -> None:
        stop = bounds[number + 1]
        for start in range(bounds[number], stop, size):
            task(number, start, min(start + size, stop))

    parallel_for(by_chunk, count)


def chunk_rows(dtype: torch.dtype) -> int:
    """Rows of a chunk, of a product of `dtype`."""
    return 2 * CHUNK_ROWS if dtype.itemsize == 2 else CHUNK_ROWS


def num_tasks(num_rows: int, num_edges: int) -> int:
    """The number of tasks for these numbers of rows and edges."""
    work = num_rows + num_edges // _EDGES_A_ROW
    return min(_MAX_TASKS, num_rows, -(-work // _TASK_WORK))


def padded(rows: Tensor) -> Tensor:
    """The rows of a 16-bit product, with zeros behind them up to a power of two or a whole chunk.

    oneDNN compiles a 16-bit product for each number of rows, which takes ten times as long as the
    product of a chunk; blocks differ in size from step to step.
    """
    number = len(rows)
    if rows.dtype.itemsize != 2 or number % CHUNK_ROWS == 0:
        return rows
    out = rows.new_zeros(1 << (number - 1).bit_length(), rows.shape[1])
    out[:number] = rows
    return out


def parallel_for(task: Callable[[int], None], num_tasks: int) -> None:
    """Call `task(0)` … `task(num_tasks − 1)`, each once, on as many threads as torch may use.

    A thread that has finished a task takes the next one. Within a task torch uses that thread only,
    so that a core's data stays in its cache from one operation to the next.
    Tasks record no gradients, must release the GIL for most of their time, and must not depend on
    the thread: then the results do not depend on the number of threads.

    Called in another thread than the main one (a loader's), or inside a task, it runs all tasks in
    that thread, to leave the other cores to the training step.
    """
    num_threads = min(torch.get_num_threads(), num_tasks)
    numbers = iter(range(num_tasks))  # to take the next is atomic

    def work(alone: bool = True) -> None:
        # All three are thread-local settings.
        if alone:
            torch.set_num_threads(1)
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            for number in numbers:
                task(number)

    is_main = threading.current_thread() is threading.main_thread()
    if num_threads <= 1 or not is_main or not _lock.acquire(blocking=False):
        work(alone=False)
        return
    before, others = torch.get_num_threads(), list[Future[None]]()
    try:
        others += [_pool(num_threads).submit(work) for _ in range(num_threads - 1)]
        work()
    finally:
        errors = [other.exception() for other in others]
        torch.set_num_threads(before)
        _lock.release()
    for error in errors:
        if error is not None:
            raise error


@cache
def _pool(num_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_threads - 1, "gnntrain-compute")
