"""The interface of samplers: a sampler takes seeds and a key, and returns a subgraph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnntrain.sampling.block import Block

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SampleKey:
    """Names one draw: with a hop and a destination node it fixes the in-neighbours that are drawn.

    Nothing else enters: not the thread, nor the rank, nor the other nodes of the batch.
    """

    seed: int
    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class SampledSubgraph:
    """A sampled multi-hop neighbourhood, in host or device memory.

    Our models compute on `blocks`, one a layer. For PyG's models the subgraph is also one directed
    graph, in which every node has the in-edges that it drew when it was new: `edge_index`,
    `edge_ids`, `num_sampled_nodes` and `num_sampled_edges` mean what they mean in PyG's
    mini-batches, and `torch_geometric.utils.trim_to_layer` works on them. With fan-outs of −1 this
    view loses nothing: all draws of a node are equal.

    On a GPU the tensors may be views of larger buffers. They were filled on the stream that was
    current; another stream must wait for that one.

    Attributes:
        nodes: int64 `[num_nodes]`, global ids in order of discovery, the seeds first and as given.
        num_seeds: Number of seeds.
        blocks: One `Block` a hop, in the order of a model's layers: the hop farthest from the seeds
            first. The destinations of a block are the first `num_dst` of `nodes`, its sources the
            first `num_src`. Every hop draws anew for *all* nodes found so far, so that a layer's
            output for a node does not depend on the rest of the batch. (PyG's walks are the
            exception, see `cumulative_blocks`.)
        num_sampled_edges: For each hop, the one next to the seeds first: the edges to the nodes
            that the hop before found (or to the seeds).
        size: Where padding follows the nodes that were drawn: their number, int64 on the device.
    """

    nodes: Tensor
    num_seeds: int
    blocks: tuple[Block, ...]
    num_sampled_edges: list[int]
    size: Tensor | None = None

    @property
    def num_sampled_nodes(self) -> list[int]:
        """The number of seeds, then of the nodes that each hop found."""
        known = [self.num_seeds, *(block.num_src for block in reversed(self.blocks))]
        return [known[0], *(after - before for before, after in pairwise(known))]

    @property
    def edge_index(self) -> Tensor:
        """int64 `[2, sum(num_sampled_edges)]`: local sources, local destinations; made anew.

        The host does not wait for the device.
        """
        edges = [self.nodes.new_empty(2, 0)]
        for block, oldest, num_new in self._new_edges():
            numbers = torch.arange(oldest, block.num_dst, device=self.nodes.device)
            destinations = numbers.repeat_interleave(
                block.indptr[oldest:].diff(), output_size=num_new
            )
            sources = block.indices[block.num_edges - num_new :].long()
            edges.append(torch.stack([sources, destinations]))
        return torch.cat(edges, 1)

    @property
    def edge_ids(self) -> Tensor | None:
        """int64, the positions in the graph's `indices` of the edges of `edge_index`.

        None: the sampler was not asked for them.
        """
        ids = [self.nodes.new_empty(0)]
        for block, _, num_new in self._new_edges():
            if block.edge_ids is None:
                return None
            ids.append(block.edge_ids[block.num_edges - num_new :])
        return torch.cat(ids)

    def _new_edges(self) -> Iterator[tuple[Block, int, int]]:
        """Each hop's block, its first destination that had not drawn before, its new edges."""
        oldest = 0
        for block, num_new in zip(reversed(self.blocks), self.num_sampled_edges, strict=True):
            yield block, oldest, num_new
            oldest = block.num_dst


def cumulative_blocks(
    indptr: Tensor, indices: Tensor, edge_ids: Tensor | None, num_known: Sequence[int]
) -> tuple[Block, ...]:
    """The blocks of a walk in which each node draws once, when it is new (PyG's way).

    All blocks are views of one CSC: hop h has the first `num_known[h]` nodes as destinations and
    `num_known[h + 1]` as sources; older destinations bring the edges that they drew earlier.

    Args:
        indptr: int32 `[num_known[-2] + 1]`.
        indices: int32 `[num_edges]`, local numbers of sources, by destination.
        edge_ids: int64 `[num_edges]` or None.
        num_known: Number of seeds, then of the nodes known after each hop.
    """
    blocks = []
    for num_dst, num_src in pairwise(num_known):
        num_edges = int(indptr[num_dst])
        ids = None if edge_ids is None else edge_ids[:num_edges]
        block = Block(indptr[: num_dst + 1], indices[:num_edges], num_src, edge_ids=ids)
        blocks.append(block)
    return tuple(reversed(blocks))


class Sampler(ABC):
    """Draws the neighbourhood of seed nodes.

    A new sampler is one class in one file: a subclass, offered as an entry point of the group
    `gnntrain.samplers`, whose name `sampler.backend` then takes. See `sampling.registry`.

    Args:
        indptr: int64 `[num_nodes + 1]`, where each node's in-edges start in `indices`.
        indices: int32 or int64 `[num_edges]`, the source node of each edge. Both are only read.
        fan_outs: In-neighbours a node, the hop next to the seeds first; −1 takes all.
        replace: Draw with replacement.
        edge_ids: Also return each edge's position in `indices`.

    Attributes:
        on_gpu: Whether it samples on a GPU: `indptr` then lies in its memory, `indices` there or in
            pinned host memory. Otherwise both lie in host memory, mapped from the store.
        thread_safe: Whether `sample` may be called in background threads, several at a time.
    """

    on_gpu: ClassVar[bool] = False
    thread_safe: ClassVar[bool] = True

    @abstractmethod
    def __init__(
        self,
        indptr: Tensor,
        indices: Tensor,
        fan_outs: Sequence[int],
        *,
        replace: bool = False,
        edge_ids: bool = False,
    ) -> None: ...

    @abstractmethod
    def sample(self, seeds: Tensor, key: SampleKey) -> SampledSubgraph:
        """Draw the neighbourhood of `seeds`.

        Args:
            seeds: Integers `[num_seeds]`, global node ids.
            key: Names the draw. Equal seeds and keys give equal subgraphs.
        """
