"""The nodes whose rows batches read most, to be cached on a GPU or a machine.

SALIENT++ (Kaler et al., 2023) and GNNLab (Yang et al., 2022) found that sampling some epochs in
advance predicts reads better than degrees do: reads depend on the training nodes and the fan-outs.
"""

from __future__ import annotations

import numpy as np
import torch

from gnntrain.distributed.context import DistributedContext
from gnntrain.sampling.base import Int64Array
from gnntrain.sampling.kernels import count_in_table, new_table, put_counts

_NODES_AT_ONCE = 1 << 22
_LEAST_COUNTED = 1 << 12


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


class HashedReadCounts:
    """The reads of some nodes, in a hash table; otherwise as `DenseReadCounts`.

    Args:
        limit: The most nodes that are counted, at least 1. Before one more is counted, the half
            that was read least is forgotten; a forgotten node is counted from 0 again.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._num_counted = 0
        self._sorted: tuple[Int64Array, Int64Array] | None = None
        self._build(*np.empty((2, 0), np.int64))

    def add(self, nodes: Int64Array) -> None:
        """See `DenseReadCounts.add`."""
        done, self._sorted = 0, None
        while True:
            table = self._table, self._shift
            done, self._num_counted = count_in_table(
                nodes, done, *table, self._num_counted, self._capacity
            )
            if done == len(nodes):
                return
            self._grow_or_forget()

    def between(self, start: int, stop: int) -> Int64Array:
        """See `DenseReadCounts.between`."""
        nodes, reads = self._sorted = self._sorted or self._items()
        counts = np.zeros(stop - start, np.int64)
        part = slice(*np.searchsorted(nodes, (start, stop)))
        counts[nodes[part] - start] = reads[part]
        return counts

    def _items(self) -> tuple[Int64Array, Int64Array]:
        """The nodes that were read, ascending, and how often: int64 `[n]` each."""
        slots = self._table.reshape(-1, 2)
        nodes, counts = slots[slots[:, 1] > 0].T
        order = np.argsort(nodes)
        return nodes[order], counts[order]

    def _grow_or_forget(self) -> None:
        nodes, counts = self._items()
        if len(nodes) >= self._limit:
            kept = most_read(counts, self._limit // 2)
            nodes, counts = nodes[kept], counts[kept]
        self._build(nodes, counts)

    def _build(self, nodes: Int64Array, counts: Int64Array) -> None:
        self._num_counted = len(nodes)
        self._table, self._shift = new_table(max(_LEAST_COUNTED, len(nodes)))
        self._capacity = min(len(self._table) // 4, self._limit)
        put_counts(nodes, counts, self._table, self._shift)


def most_read_nodes(
    counts: DenseReadCounts | HashedReadCounts,
    num_rows: int,
    num_nodes: int,
    context: DistributedContext | None = None,
) -> Int64Array:
    """The `num_rows` nodes that were read most. Of those read equally often, the first ones.

    Args:
        counts: This rank's.
        num_rows: The same on all ranks of the machine.
        num_nodes: Of the graph.
        context: Sum the reads of the ranks of its machine: collective among these; None: those of
            this rank alone.

    Returns:
        int64 `[n]`, ascending, the same on these ranks; fewer than `num_rows` if fewer were read.
    """
    most, most_reads = np.empty((2, 0), np.int64)
    for start in range(0, num_nodes, _NODES_AT_ONCE):
        reads = counts.between(start, min(start + _NODES_AT_ONCE, num_nodes))
        if context is not None:
            reads = context.machine_sum(torch.from_numpy(reads).to(context.device)).cpu().numpy()
        read = np.flatnonzero(reads)
        most, most_reads = np.append(most, read + start), np.append(most_reads, reads[read])
        kept = most_read(most_reads, num_rows)
        most, most_reads = most[kept], most_reads[kept]
    return most


def most_read(counts: Int64Array, number: int) -> Int64Array:
    """The positions of the `number` largest counts, ascending; of equal ones the first."""
    return np.sort(np.argsort(-counts, kind="stable")[:number])
