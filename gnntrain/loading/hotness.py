"""Hot nodes: the nodes whose rows batches read most, to be cached on a GPU or a machine.

SALIENT++ (Kaler et al., 2023) and GNNLab (Yang et al., 2022) found that sampling some epochs in
advance predicts reads better than degrees do: reads depend on the training nodes and the fan-outs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.loader import SeedPlan
from gnntrain.sampling.base import Int64Array, SampleKey
from gnntrain.sampling.kernels import count_in_table, new_table, put_counts

# Epochs sampled in advance must differ from training's.
_ADVANCE_STREAM = 0x484F5453

_NODES_AT_ONCE = 1 << 22
_LEAST_COUNTED = 1 << 12

_Nodes = TypeVar("_Nodes")

Draw = Callable[[Int64Array, SampleKey], _Nodes]
"""Samples a batch's nodes, int64, each once, from its seeds and key."""


def presampled(
    draw: Draw[Tensor],
    plan: SeedPlan,
    num_nodes: int,
    num_epochs: int,
) -> Tensor:
    """The number of a rank's batches that would read each node's row.

    Args:
        draw: See `Draw`.
        plan: The rank's seeds.
        num_nodes: Of the graph.
        num_epochs: Epochs to sample in advance.

    Returns:
        int64 `[num_nodes]`, on the device of `draw`'s nodes.
    """
    plan = replace(plan, seed=plan.seed ^ _ADVANCE_STREAM)
    counts: Tensor | None = None
    for nodes in dry_epochs(draw, plan, num_epochs):
        if counts is None:
            counts = torch.zeros(num_nodes, dtype=torch.int64, device=nodes.device)
        counts.index_add_(0, nodes, torch.ones_like(nodes))
    return torch.zeros(num_nodes, dtype=torch.int64) if counts is None else counts


def dry_epochs(draw: Draw[_Nodes], plan: SeedPlan, num_epochs: int) -> Iterator[_Nodes]:
    """The nodes of the batches that training draws in its first epochs, batch by batch."""
    for epoch in range(1, num_epochs + 1):  # the trainer counts from 1
        order = plan.order(epoch)
        for step in range(plan.num_steps):
            yield draw(plan.rank_batch(order, step).seeds, plan.key(epoch, step))


class ReadCounts(Protocol):
    """Counts how often the row of each node is read."""

    def add(self, nodes: Int64Array) -> None:
        """Count one read of each of `nodes`, which are distinct."""
        ...

    def between(self, start: int, stop: int) -> Int64Array:
        """The reads of the nodes `start … stop − 1`, int64 `[stop − start]`."""
        ...


class DenseReadCounts:
    """The reads of all nodes, in an array as long as the graph; see `ReadCounts`."""

    def __init__(self, num_nodes: int) -> None:
        self._counts = np.zeros(num_nodes, np.int32)

    def add(self, nodes: Int64Array) -> None:
        """See `ReadCounts.add`."""
        self._counts[nodes] += 1

    def between(self, start: int, stop: int) -> Int64Array:
        """See `ReadCounts.between`."""
        return self._counts[start:stop].astype(np.int64)


class HashedReadCounts:
    """The reads of some nodes, in a hash table; see `ReadCounts`.

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
        """See `ReadCounts.add`."""
        done, self._sorted = 0, None
        while True:
            table = self._table, self._shift
            done, self._num_counted = count_in_table(
                nodes, done, *table, self._num_counted, self._room
            )
            if done == len(nodes):
                return
            self._make_room()

    def between(self, start: int, stop: int) -> Int64Array:
        """See `ReadCounts.between`."""
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

    def _make_room(self) -> None:
        nodes, counts = self._items()
        if len(nodes) >= self._limit:
            kept = most_read(counts, self._limit // 2)
            nodes, counts = nodes[kept], counts[kept]
        self._build(nodes, counts)

    def _build(self, nodes: Int64Array, counts: Int64Array) -> None:
        self._num_counted = len(nodes)
        self._table, self._shift = new_table(max(_LEAST_COUNTED, len(nodes)))
        self._room = min(len(self._table) // 4, self._limit)
        put_counts(nodes, counts, self._table, self._shift)


def hottest_on_machine(
    counts: ReadCounts, num_rows: int, num_nodes: int, context: DistributedContext
) -> Int64Array:
    """The `num_rows` nodes that the ranks of this machine, together, read most.

    Collective among these ranks. Of nodes that were read equally often, those with smaller numbers.

    Args:
        counts: This rank's.
        num_rows: The same on all ranks.
        num_nodes: Of the graph.
        context: This rank.

    Returns:
        int64 `[n]`, ascending, the same on these ranks; fewer than `num_rows` if fewer were read.
    """
    hot, hot_reads = np.empty((2, 0), np.int64)
    for start in range(0, num_nodes, _NODES_AT_ONCE):
        stop = min(start + _NODES_AT_ONCE, num_nodes)
        own = torch.from_numpy(counts.between(start, stop)).to(context.device)
        summed = context.machine_sum(own).cpu().numpy()
        read = np.flatnonzero(summed)
        hot, hot_reads = np.append(hot, read + start), np.append(hot_reads, summed[read])
        kept = most_read(hot_reads, num_rows)
        hot, hot_reads = hot[kept], hot_reads[kept]
    return hot


def most_read(counts: Int64Array, number: int) -> Int64Array:
    """The positions of the `number` largest counts, ascending; of equal ones the first."""
    return np.sort(np.argsort(-counts, kind="stable")[:number])


def hottest(counts: Tensor, num_rows: int) -> Tensor:
    """The `num_rows` nodes with the largest counts, int64, ascending; equal ones by number."""
    order = torch.sort(counts, descending=True, stable=True).indices
    return order[:num_rows].sort().values
