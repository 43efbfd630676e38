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
    """The key of a draw: with a hop and a destination node it determines the drawn in-neighbours.

    The draw depends neither on the thread, nor on the rank, nor on the other nodes of the batch.

    Attributes:
        by_node: One draw a node, the same in every hop with the same fan-out: what a model sees of
            a node then does not depend on the hop that found it.
    """

    seed: int
    epoch: int
    step: int
    by_node: bool = False


@dataclass(frozen=True, slots=True)
class SampledSubgraph:
    """A sampled multi-hop neighbourhood, in host or device memory.

    The models of gnntrain compute on `blocks`, one a layer. For PyG's models the subgraph is also
    one directed graph, in which every node has the in-edges of its first draw: `edge_index`,
    `edge_ids`, `num_sampled_nodes` and `num_sampled_edges` mean what they mean in PyG's
    mini-batches, and `torch_geometric.utils.trim_to_layer` works on them. With fan-outs of −1 this
    view is complete: all draws of a node are equal.

    On a GPU the tensors may be views of larger buffers, filled on the current stream; another
    stream must wait for it.

    Attributes:
        nodes: int64 `[num_nodes]`, global ids in order of discovery, the seeds first and as given.
        num_seeds: Number of seeds.
        blocks: One `Block` a hop, in the order of a model's layers: the hop farthest from the seeds
            first. The destinations of a block are the first `num_dst` of `nodes`, its sources the
            first `num_src`. Every hop draws again for *all* nodes found so far, so that a layer's
            output for a node does not depend on the rest of the batch. (Exception: PyG's way, see
            `pyg.blocks_of`.)
        num_sampled_edges: For each hop, the one next to the seeds first: the edges to the nodes
            that the hop before found (or to the seeds).
        size: If `nodes` is padded: the number of sampled nodes, int64 on the device.
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
        """int64 `[2, sum(num_sampled_edges)]`: local sources, local destinations; computed
        at every access, without synchronisation.
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

        None: the sampler was made without `edge_ids`.
        """
        ids = [self.nodes.new_empty(0)]
        for block, _, num_new in self._new_edges():
            if block.edge_ids is None:
                return None
            ids.append(block.edge_ids[block.num_edges - num_new :])
        return torch.cat(ids)

    def _new_edges(self) -> Iterator[tuple[Block, int, int]]:
        """By hop: the block, its first destination without an earlier draw, its new edges."""
        oldest = 0
        for block, num_new in zip(reversed(self.blocks), self.num_sampled_edges, strict=True):
            yield block, oldest, num_new
            oldest = block.num_dst


class Sampler(ABC):
    """Draws the neighbourhood of seed nodes.

    A package adds a sampler by an entry point of the group `gnntrain.samplers` that names a
    subclass; `sampler.backend` chooses it by the entry point's name. See `sampling.registry`.

    Args:
        indptr: int64 `[num_nodes + 1]`, where each node's in-edges start in `indices`.
        indices: int32 or int64 `[num_edges]`, the source node of each edge. Both are only read.
        fan_outs: In-neighbours a node, the hop next to the seeds first; −1 takes all.
        replace: Draw with replacement.
        edge_ids: Also return each edge's position in `indices`.

    Attributes:
        on_gpu: Whether it samples on a GPU: `indptr` is then in its memory, `indices` there or in
            pinned host memory. Otherwise both are in host memory, mapped from the store.
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
            key: Key of the draw. Equal seeds and keys give equal subgraphs.
        """
