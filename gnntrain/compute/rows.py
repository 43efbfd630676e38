"""Tables of feature rows, and reductions over the in-edges of a block: the kernels, with types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnntrain.compute import kernels
from gnntrain.compute.workers import parallel_for

Array = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]

NO_NODES: Int64Array = np.empty(0, np.int64)
NO_FLOATS: npt.NDArray[np.float32] = np.empty(0, np.float32)

_KINDS = {
    torch.float32: kernels.PLAIN,
    torch.float64: kernels.PLAIN,
    torch.bfloat16: kernels.BFLOAT16,
    torch.float16: kernels.FLOAT16,
}

# Rows that a thread works on at a time: the intermediate results of so many stay in its cache.
CHUNK_ROWS = 512
# A task's rows, and edges counted as rows: few enough tasks that handing them out costs nothing,
# enough of them that threads end together.
_TASK_WORK = 4096
_EDGES_A_ROW = 8
_MAX_TASKS = 32


@dataclass(frozen=True, slots=True)
class Table:
    """Rows to read: source u is row `nodes[u]` of `words`, or row u without `nodes`.

    Attributes:
        words: `[num_rows, width]` float32 or float64, or uint16 that holds 16-bit floats.
        dtype: What the numbers are.
        nodes: int64 `[num_sources]`, or empty.
    """

    words: Array
    dtype: torch.dtype
    nodes: Int64Array = field(default_factory=lambda: NO_NODES)

    @property
    def kind(self) -> int:
        """See `kernels.PLAIN`."""
        return _KINDS[self.dtype]

    @property
    def width(self) -> int:
        return int(self.words.shape[1])

    def gather(self, start: int, stop: int, out: Tensor) -> None:
        """Copy the sources `start … stop − 1` to `out` `[stop − start, width]`, on all threads.

        `out` is float32, bfloat16, or of the table's own type.
        """
        by_rows(stop - start, 0, lambda a, b: self.put(start, a, b, out[a:b]))

    def put(self, first: int, start: int, stop: int, out: Tensor, column: int = 0) -> None:
        """Copy the sources `first + start … first + stop − 1` into `out`, on this thread.

        The first goes to row 0 of `out`, from `column` on.
        """
        rows = words_of(out), kind_of(out), column
        kernels.gather_rows(self.words, self.kind, self.nodes, first, start, stop, *rows)


def table_of(rows: Tensor) -> Table:
    """The rows of a tensor on the CPU, `[num_rows, width]`; no copy where it is contiguous."""
    rows = rows.detach().contiguous()
    return Table(words_of(rows), rows.dtype)


def words_of(rows: Tensor) -> Array:
    """The tensor's memory as an array that the kernels take."""
    if rows.dtype in (torch.bfloat16, torch.float16):
        rows = rows.view(torch.uint16)
    array: Array = rows.detach().numpy()
    return array


def kind_of(rows: Tensor) -> int:
    """What the tensor's numbers are to the kernels, see `kernels.PLAIN`."""
    return _KINDS[rows.dtype]


def array_of(tensor: Tensor | None) -> Array:
    """A tensor's own memory, or an empty array for None."""
    return NO_FLOATS if tensor is None else tensor.detach().numpy()


@dataclass(frozen=True, slots=True)
class Transposed:
    """The out-edges of every source.

    Attributes:
        indptr, indices: By source, the destinations; in the type of the block's indices.
        edges: Which in-edge each is, in the same type.
    """

    indptr: Array
    indices: Array
    edges: Array

    @classmethod
    def of(cls, indptr: Array, indices: Array, num_src: int) -> Transposed:
        """Transpose the in-edges of some destinations over `num_src` sources."""
        parts = cls(
            np.zeros(num_src + 1, indices.dtype), np.empty_like(indices), np.empty_like(indices)
        )
        kernels.transpose(indptr, indices, parts.indptr, parts.indices, parts.edges)
        return parts


@dataclass(frozen=True, slots=True)
class Reduction:
    """A sum, mean or maximum over the in-edges of each destination.

    out[v] = row_scale[v] · Σ_e edge_weight[e] · source_scale[u] · row(u) + loop[v] · row(v), with u
    the source of the in-edge e; what is empty counts as 1, but `loop` as 0.

    Attributes:
        indptr, indices: The in-edges, `[num_dst + 1]` and `[num_edges]`.
        edge_weight: float `[num_edges]` or empty.
        source_scale: float `[num_src]` or empty.
        row_scale: float `[num_dst]` or empty.
        loop: float, of the first destinations, or empty.
        is_mean: Divide the sum by the number of in-edges.
        is_max: Take the largest, unweighted, 0 without in-edges.
        skip_own: Leave out edges from a node to itself.
        own: Source number of destination 0.
    """

    indptr: Array
    indices: Array
    edge_weight: Array = field(default_factory=lambda: NO_FLOATS)
    source_scale: Array = field(default_factory=lambda: NO_FLOATS)
    row_scale: Array = field(default_factory=lambda: NO_FLOATS)
    loop: Array = field(default_factory=lambda: NO_FLOATS)
    is_mean: bool = False
    is_max: bool = False
    skip_own: bool = False
    own: int = 0

    @property
    def num_dst(self) -> int:
        return len(self.indptr) - 1

    def put(
        self,
        table: Table,
        start: int,
        stop: int,
        out: Tensor,
        *,
        width: int,
        loop_column: int = 0,
    ) -> None:
        """Reduce for the destinations `start … stop − 1`, on this thread.

        Reads the first `width` numbers of a row (the loop's from `loop_column` on) and writes them
        to the first of `out`, destination `start` to row 0. `out` is float32, float64 or bfloat16.
        """
        is_double = torch.float64 in (table.dtype, out.dtype)
        kernels.reduce_rows(
            table.words,
            table.kind,
            table.nodes,
            self.indptr,
            self.indices,
            self.edge_weight,
            self.source_scale,
            self.row_scale,
            self.is_mean,
            self.is_max,
            self.own,
            self.skip_own,
            self.loop,
            loop_column,
            start,
            stop,
            words_of(out),
            kind_of(out),
            np.empty(width, np.float64 if is_double else np.float32),
        )

    def transposed(self, edges: Transposed) -> Reduction:
        """Σ over the out-edges: takes the gradient of the destinations to the sources.

        Of a sum or mean whose destinations are the first sources (`own` 0).
        """
        row_scale = self.row_scale
        if self.is_mean:
            # float32, or the kernels would widen every row to float64
            share = (1 / np.maximum(np.diff(self.indptr), 1)).astype(np.float32)
            row_scale = share * row_scale if len(row_scale) else share
        return replace(
            self,
            indptr=edges.indptr,
            indices=edges.indices,
            edge_weight=self.edge_weight[edges.edges] if len(self.edge_weight) else NO_FLOATS,
            source_scale=row_scale,
            row_scale=self.source_scale,
            is_mean=False,
        )


def by_rows(num_rows: int, num_edges: int, task: Callable[[int, int], None]) -> None:
    """Call `task(start, stop)` for all chunks of rows, on all threads; see `for_tasks`."""

    def chunked(_: int, start: int, stop: int) -> None:
        for a, b in chunks(start, stop):
            task(a, b)

    for_tasks(num_rows, num_edges, chunked)


def for_tasks(num_rows: int, num_edges: int, task: Callable[[int, int, int], None]) -> None:
    """Call `task(number, start, stop)` for `num_tasks` ranges of rows, on all threads.

    How the rows are cut does not depend on the number of threads.
    """
    count = num_tasks(num_rows, num_edges)
    parallel_for(
        lambda number: task(number, num_rows * number // count, num_rows * (number + 1) // count),
        count,
    )


def num_tasks(num_rows: int, num_edges: int) -> int:
    """In how many tasks the work on so many rows, with so many edges in all, is shared out."""
    work = num_rows + num_edges // _EDGES_A_ROW
    return min(_MAX_TASKS, num_rows, -(-work // _TASK_WORK))


def chunks(start: int, stop: int) -> list[tuple[int, int]]:
    """The ranges of at most `CHUNK_ROWS` rows from `start` to `stop`."""
    return [(a, min(a + CHUNK_ROWS, stop)) for a in range(start, stop, CHUNK_ROWS)]
