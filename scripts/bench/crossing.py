"""What ranks must ask of other machines: computed from the batches themselves, without a run.

A rank draws in each hop for all nodes that it knows. For those of another machine it sends an id
and gets a count and the sources; for each node of another machine that is not in the cache it sends
an id and gets a feature row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from operator import add

import numpy as np
import numpy.typing as npt
import torch

from gnntrain.data.graph import EDGE, NODE, Graph
from gnntrain.loading.loader import SeedPlan
from gnntrain.loading.read_counts import most_read
from gnntrain.sampling.base import NO_TARGETS, SampleKey, Seeds
from gnntrain.sampling.block import Sample
from gnntrain.sampling.cpu import CPUSampler

Int64Array = npt.NDArray[np.int64]

ID_BYTES = 4
COUNT_BYTES = 1
EPOCH = 1


@dataclass(frozen=True)
class Traffic:
    """What ranks ask of other machines: numbers, summed over some batches or averaged.

    Attributes:
        ids: Destinations that another machine draws for, over all hops.
        edges: Edges that they get.
        rows: Nodes whose features come from another machine.
        remote: Nodes of another machine: those of `rows`, and those in the cache.
        nodes: All nodes.
    """

    ids: float = 0
    edges: float = 0
    rows: float = 0
    remote: float = 0
    nodes: float = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*map(add, astuple(self), astuple(other)))

    def over(self, count: int) -> Traffic:
        """An equal part of it."""
        return Traffic(*(value / count for value in astuple(self)))

    def id_bytes(self) -> float:
        """Bytes of node ids, for draws and for rows."""
        return ID_BYTES * (self.ids + self.rows)

    def edge_bytes(self) -> float:
        """Bytes of drawn edges and of their counts."""
        return ID_BYTES * self.edges + COUNT_BYTES * self.ids

    def row_bytes(self, row: int) -> float:
        """Bytes of feature rows, each of `row` bytes."""
        return row * self.rows

    def bytes(self, row: int) -> float:
        return self.id_bytes() + self.edge_bytes() + self.row_bytes(row)

    def hit_rate(self) -> float:
        """Share of the nodes of other machines that the cache has."""
        return 1 - self.rows / self.remote if self.remote else 1.0


@dataclass(frozen=True)
class Batches:
    """The batches of a run's first epoch, of any rank.

    Attributes:
        graph: The whole graph.
        fan_outs: See `Sampler`.
        batch_size: Seeds a rank a step.
        world_size: Ranks that train.
        seed: `trainer.seed`.
    """

    graph: Graph
    fan_outs: Sequence[int]
    batch_size: int
    world_size: int
    seed: int = 0

    @property
    def num_steps(self) -> int:
        return self._plan(0).num_steps

    def of(self, rank: int, steps: Iterable[int]) -> Iterator[Sample]:
        """A rank's batches in some steps."""
        sampler = CPUSampler(self.graph.fused, {EDGE: tuple(self.fan_outs)})
        plan = self._plan(rank)
        order = plan.order(EPOCH)
        for step in steps:
            seeds = torch.from_numpy(plan.rank_batch(order, step).seeds)
            yield sampler.sample(
                Seeds({NODE: seeds}, NO_TARGETS), SampleKey(self.seed, EPOCH, step)
            )

    def _plan(self, rank: int) -> SeedPlan:
        seeds = self.graph.split("train")
        return SeedPlan(seeds, self.batch_size, rank, self.world_size, seed=self.seed)


def cached_nodes(
    batches: Batches, ranks: Sequence[int], is_remote: npt.NDArray[np.bool_], num_rows: int
) -> npt.NDArray[np.bool_]:
    """Whether each node is in the cache of a machine: the remote nodes that its ranks read most.

    Args:
        batches: All batches of the epoch are counted.
        ranks: The machine's ranks.
        is_remote: bool `[num_nodes]`.
        num_rows: Rows of the cache.
    """
    counts = np.zeros(batches.graph.num_nodes, np.int64)
    for rank in ranks:
        for batch in batches.of(rank, range(batches.num_steps)):
            counts[batch.nodes[NODE].numpy()] += 1  # a batch has each node once
    counts[~is_remote] = 0
    is_cached = np.zeros(batches.graph.num_nodes, np.bool_)
    nodes = most_read(counts, num_rows)
    is_cached[nodes[counts[nodes] > 0]] = True
    return is_cached


def traffic(
    batches: Batches,
    rank: int,
    steps: Sequence[int],
    is_remote: npt.NDArray[np.bool_],
    is_cached: npt.NDArray[np.bool_],
    *,
    edges_are_local: bool,
) -> Traffic:
    """What a rank asks of other machines in some steps, together.

    Args:
        batches: The run's batches.
        rank: The rank.
        steps: Steps of the first epoch.
        is_remote: Whether another machine holds a node, bool `[num_nodes]`.
        is_cached: Whether its row is in the machine's cache, bool `[num_nodes]`.
        edges_are_local: Whether each machine has all edges.
    """
    total = Traffic()
    for batch in batches.of(rank, steps):
        nodes = batch.nodes[NODE].numpy()
        remote = is_remote[nodes]
        ids = edges = 0
        for hop in () if edges_are_local else batch.hops:
            block = hop.edges[EDGE]
            asked = remote[: block.num_dst]
            ids += int(asked.sum())
            edges += int(block.indptr.diff().numpy()[asked].sum())
        rows = int((remote & ~is_cached[nodes]).sum())
        total += Traffic(ids, edges, rows, int(remote.sum()), len(nodes))
    return total
