"""The arrays of a graph that mini-batches need, without its features."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gnntrain.compute.features import as_tensor
from gnntrain.data.graph import Graph
from gnntrain.sampling.base import SampledSubgraph
from gnntrain.sampling.block import Block, BlockNeeds

_HOST = torch.device("cpu")
_INT32_MAX = 2**31 - 1


class BatchValues(Protocol):
    """Gives a mini-batch's targets, weights, degrees and norms."""

    @property
    def device(self) -> torch.device:
        """The device that makes batches."""
        ...

    def targets_of(self, nodes: Tensor) -> Tensor:
        """The targets of `nodes` (int64 `[n]`), see `Task.targets`."""
        ...

    def filled(self, subgraph: SampledSubgraph, needs: BlockNeeds) -> tuple[Block, ...]:
        """The subgraph's blocks with the weights, degrees and norms that the model reads."""
        ...


@dataclass(frozen=True, slots=True)
class GraphTensors:
    """A graph without its features, on the device that makes mini-batches.

    In host memory the tensors are views of the store's memory maps, not copies. On a GPU they are
    in its memory; `indices` may be in pinned host memory instead.

    Attributes:
        indptr: int64 `[num_nodes + 1]`.
        indices: int32 or int64 `[num_edges]`.
        targets: By node, see `Task.targets`.
        norm: float32 `[num_nodes]`, or None if the model does not read it, see `Block`.
        weight: float32 `[num_edges]`, or None likewise.
    """

    indptr: Tensor
    indices: Tensor
    targets: Tensor
    norm: Tensor | None
    weight: Tensor | None

    @classmethod
    def of(
        cls,
        store: Graph,
        needs: BlockNeeds,
        device: torch.device = _HOST,
        indices: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> GraphTensors:
        """Put a store's arrays on a device.

        Args:
            store: The graph.
            needs: The fields that the model reads.
            device: The device that makes batches.
            indices: The store's, in memory that the device can read; None: copy them to the device.
            targets: By node, on the CPU; None: the store's labels.
        """
        weight = store.edge_weight if needs.weight else None
        return cls(
            indptr=as_tensor(store.indptr).to(device),
            indices=as_tensor(store.indices).to(device) if indices is None else indices,
            targets=(as_tensor(store.labels) if targets is None else targets).to(device),
            norm=as_tensor(store.gcn_norm).to(device) if needs.norm else None,
            weight=None if weight is None else as_tensor(weight).to(device),
        )

    @property
    def device(self) -> torch.device:
        """See `BatchValues.device`."""
        return self.indptr.device

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    def in_edges(self, start: int, stop: int, first: int, last: int) -> Block:
        """The block of all in-edges of the nodes `start … stop − 1`, over all nodes as sources.

        Its edges are views where possible. Norms are left to the caller.

        Args:
            start, stop: See above.
            first, last: `indptr[start]` and `indptr[stop]`, for which a GPU would be waited for.
        """
        sources = self.indices[first:last]
        if last - first > _INT32_MAX:  # torch's CSR needs offsets and indices of one type
            sources = sources.long()
        return Block(
            indptr=(self.indptr[start : stop + 1] - first).to(sources.dtype),
            indices=sources,
            num_src=self.num_nodes,
            dst_offset=start,
            weight=None if self.weight is None else self.weight[first:last],
        )

    def targets_of(self, nodes: Tensor) -> Tensor:
        """See `BatchValues.targets_of`."""
        return take(self.targets, nodes)

    def filled(self, subgraph: SampledSubgraph, needs: BlockNeeds) -> tuple[Block, ...]:
        """See `BatchValues.filled`."""
        nodes = subgraph.nodes
        norm = take(self.norm, nodes) if needs.norm and self.norm is not None else None
        # The first block has all other blocks' destinations.
        most = subgraph.blocks[0].num_dst if subgraph.blocks else 0
        degree = self.degrees(nodes[:most]) if needs.degree else None
        return tuple(
            replace(
                block,
                weight=self._weight(block) if needs.weight else None,
                degree=None if degree is None else degree[: block.num_dst],
                norm=None if norm is None else norm[: block.num_src],
                edge_ids=None,  # they stay in `sampled`, which does not move to a GPU with a batch
            )
            for block in subgraph.blocks
        )

    def _weight(self, block: Block) -> Tensor | None:
        if self.weight is None:
            return None
        assert block.edge_ids is not None, "a weighted model's sampler must give edge ids"
        return take(self.weight, block.edge_ids)

    def degrees(self, nodes: Tensor) -> Tensor:
        """The in-edges of `nodes` (int64 `[n]`) in the whole graph: float32 `[n]`."""
        starts, ends = take(self.indptr, nodes), take(self.indptr[1:], nodes)
        if self.device.type != "cpu":
            return (ends - starts).float()
        return as_tensor((ends.numpy() - starts.numpy()).astype(np.float32))  # as in `take`


def take(values: Tensor, index: Tensor) -> Tensor:
    """`values[index]`, on one thread of the CPU.

    For loaders' background threads: torch's indexing would start more threads, which would compete
    with the training step for the cores.
    """
    if values.device.type != "cpu":
        return values[index]
    return torch.from_numpy(values.numpy()[index.numpy()])
