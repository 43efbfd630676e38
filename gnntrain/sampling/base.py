"""What a neighbour sampler promises, and what it hands back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SampleKey:
    """Names one draw: with a hop and a destination node it fixes which in-neighbours are taken.

    Nothing else enters: not the thread, nor the rank, nor the other nodes of the batch.
    """

    seed: int
    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class SampledHop:
    """The in-edges drawn for all nodes found before this hop.

    Destinations are the first `num_dst` nodes of the subgraph, sources the first `num_src`.

    Attributes:
        indptr: int64 `[num_dst + 1]`, offsets into `indices`.
        indices: int32 `[num_edges]`, local numbers of the source nodes.
        edge_ids: int64 `[num_edges]`, positions in the store's `indices`; None unless asked for.
        num_src: Nodes known after this hop.
    """

    indptr: Int64Array
    indices: Int32Array
    edge_ids: Int64Array | None
    num_src: int

    @property
    def num_dst(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        return len(self.indices)


@dataclass(frozen=True, slots=True)
class SampledSubgraph:
    """A sampled multi-hop neighbourhood.

    For PyG's models it is also one directed graph, in which every node has the in-edges that it
    drew when it was new: `edge_index`, `edge_ids`, `num_sampled_nodes` and `num_sampled_edges`
    mean what they mean in PyG's mini-batches, and `torch_geometric.utils.trim_to_layer` works on
    them. With fan-outs of −1 nothing is lost by this view: a node's draws are all alike.

    Attributes:
        nodes: int64 `[num_nodes]`, global ids in order of discovery, the seeds first and as given.
        num_seeds: How many of `nodes` are seeds.
        hops: The hop next to the seeds first. Every hop draws anew for *all* nodes found so far,
            so that what a layer computes for a node does not depend on the rest of the batch.
            (Walks in PyG's way are the exception, see `cumulative_hops`.)
    """

    nodes: Int64Array
    num_seeds: int
    hops: tuple[SampledHop, ...]

    @property
    def num_sampled_nodes(self) -> list[int]:
        """The number of seeds, then of the nodes that each hop found."""
        known = [self.num_seeds, *(hop.num_src for hop in self.hops)]
        return [
            known[0],
            *(after - before for before, after in pairwise(known)),
        ]

    @property
    def num_sampled_edges(self) -> list[int]:
        """For each hop, the edges to the destinations that the hop before found (or the seeds)."""
        return [hop.num_edges - int(hop.indptr[oldest]) for hop, oldest in self._new_parts()]

    @property
    def edge_index(self) -> Int64Array:
        """int64 `[2, sum(num_sampled_edges)]`: local sources, local destinations; made anew."""
        edge_index = np.empty((2, sum(self.num_sampled_edges)), np.int64)
        at = 0
        for hop, oldest in self._new_parts():
            new = slice(int(hop.indptr[oldest]), None)
            end = at + hop.num_edges - int(hop.indptr[oldest])
            edge_index[0, at:end] = hop.indices[new]
            edge_index[1, at:end] = np.repeat(
                np.arange(oldest, hop.num_dst), np.diff(hop.indptr[oldest:])
            )
            at = end
        return edge_index

    @property
    def edge_ids(self) -> Int64Array | None:
        """int64, positions in the store's `indices` of the edges of `edge_index`; None: unknown."""
        parts: list[Int64Array] = [np.empty(0, np.int64)]
        for hop, oldest in self._new_parts():
            if hop.edge_ids is None:
                return None
            parts.append(hop.edge_ids[hop.indptr[oldest] :])
        return np.concatenate(parts)

    def _new_parts(self) -> Iterator[tuple[SampledHop, int]]:
        """Each hop with the first of its destinations that had not drawn in an earlier hop."""
        oldest = 0
        for hop in self.hops:
            yield hop, oldest
            oldest = hop.num_dst


def cumulative_hops(
    indptr: Int64Array,
    indices: Int32Array,
    edge_ids: Int64Array | None,
    num_known: Sequence[int],
) -> tuple[SampledHop, ...]:
    """The hops of a walk in which each node drew once, when it was new (PyG's way).

    All hops are views of one CSC: hop h has the first `num_known[h]` nodes as destinations and
    `num_known[h + 1]` as sources; older destinations bring the edges that they drew earlier.

    Args:
        indptr: int64 `[num_known[-2] + 1]`.
        indices: int32 `[num_edges]`, local numbers of sources, by destination.
        edge_ids: int64 `[num_edges]` or None.
        num_known: Number of seeds, then of the nodes known after each hop.
    """
    hops = []
    for num_dst, num_src in pairwise(num_known):
        num_edges = int(indptr[num_dst])
        hops.append(
            SampledHop(
                indptr[: num_dst + 1],
                indices[:num_edges],
                None if edge_ids is None else edge_ids[:num_edges],
                num_src,
            )
        )
    return tuple(hops)


class NeighborSampler(Protocol):
    """Draws in-neighbours hop by hop."""

    @property
    def fan_outs(self) -> tuple[int, ...]:
        """In-neighbours a node, the hop next to the seeds first; −1 takes all."""
        ...

    def sample(self, seeds: Int64Array, *, key: SampleKey) -> SampledSubgraph:
        """Draw the neighbourhood of `seeds` (int64 `[num_seeds]`, global ids). Thread-safe."""
        ...
