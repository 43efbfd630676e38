"""The nodes whose rows batches read most, to be cached on a GPU or a machine.

SALIENT++ (Kaler et al., 2023) and GNNLab (Yang et al., 2022) found that sampling some epochs in
advance predicts reads better than degrees do: reads depend on the training nodes and the fan-outs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from gnntrain.data.graph import Int64Array
from gnntrain.distributed.context import DistributedContext

_NODES_AT_ONCE = 1 << 22
_LEAST_PENDING = 1 << 16


class DenseReadCounts:
    """The reads of all nodes, in an array as long as the graph."""

    def __init__(self, num_nodes: int) -> None:
        self._counts = np.zeros(num_nodes, np.int32)

    def add(self, nodes: Int64Array) -> None:
        """Count one read of each of `nodes`, which are distinct."""
        self._counts[nodes] += 1

    def between(self, start: int, stop: int) -> Int64Array:
        """The reads of the nodes `start … stop − 1`, int64 `[stop − start]`."""
        return self._counts[start:stop].astype(np.int64)


class SparseReadCounts:
    """The reads of the nodes that were read at all; otherwise as `DenseReadCounts`.

    Args:
        limit: The most nodes that are counted. Where more were read, only the half of `limit` that
            was read most is kept; a forgotten node is counted from 0 again.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._nodes, self._reads = np.empty((2, 0), np.int64)  # nodes ascending
        self._pending: list[Int64Array] = []

    def add(self, nodes: Int64Array) -> None:
        """See `DenseReadCounts.add`."""
        self._pending.append(nodes)
        # Merging sorts all counted nodes: it waits until there are as many new reads.
        if sum(map(len, self._pending)) > max(_LEAST_PENDING, len(self._nodes)):
            self._merge()

    def between(self, start: int, stop: int) -> Int64Array:
        """See `DenseReadCounts.between`."""
        self._merge()
        counts = np.zeros(stop - start, np.int64)
        part = slice(*np.searchsorted(self._nodes, (start, stop)))
        counts[self._nodes[part] - start] = self._reads[part]
        return counts

    def _merge(self) -> None:
        if not self._pending:
            return
        pending = np.concatenate(self._pending)
        self._pending.clear()
        reads = np.concatenate([self._reads, np.ones_like(pending)])
        nodes, number = np.unique(np.concatenate([self._nodes, pending]), return_inverse=True)
        reads = np.bincount(number, reads, len(nodes)).astype(np.int64)
        if len(nodes) > self._limit:
            kept = most_read(reads, self._limit // 2)
            nodes, reads = nodes[kept], reads[kept]
        self._nodes, self._reads = nodes, reads


def most_read_nodes(
    reads_between: Callable[[int, int], Int64Array],
    num_rows: int,
    num_nodes: int,
    context: DistributedContext | None = None,
) -> Int64Array:
    """The `num_rows` nodes (or fewer) that were read most, ascending; of those read equally often
    the first. `reads_between` gives the reads of a range of nodes. With `context` those of all
    ranks of its machine are summed: collective among these."""
    most, most_reads = np.empty((2, 0), np.int64)
    for start in range(0, num_nodes, _NODES_AT_ONCE):
        stop = min(start + _NODES_AT_ONCE, num_nodes)
        reads = reads_between(start, stop)
        if context is not None:
            reads = context.on_machine.sum(torch.from_numpy(reads).to(context.device)).cpu().numpy()
        read = np.flatnonzero(reads)
        most, most_reads = np.append(most, read + start), np.append(most_reads, reads[read])
        if stop == num_nodes or len(most) > 2 * num_rows:  # sorting each time would take long
            kept = most_read(most_reads, num_rows)
            most, most_reads = most[kept], most_reads[kept]
    return most


def most_read(counts: Int64Array, number: int) -> Int64Array:
    """The positions of the `number` largest counts, ascending; of equal ones the first."""
    return np.sort(np.argsort(-counts, kind="stable")[:number])
