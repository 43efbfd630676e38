"""The arrays of a graph that mini-batches need, without its features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gnntrain.compute.features import as_tensor
from gnntrain.data.graph import (
    Edges,
    EdgeType,
    Float32Array,
    Graph,
    Int64Array,
    IntArray,
    NodeType,
)
from gnntrain.sampling.base import SampleKey, Seeds
from gnntrain.sampling.block import Block, BlockNeeds, Hop, Sample

_HOST = torch.device("cpu")
_INT32_MAX = 2**31 - 1


class BatchValues(Protocol):
    """Gives a mini-batch's targets, weights, degrees and norms."""

    @property
    def device(self) -> torch.device:
        """The device that makes batches."""
        ...

    @property
    def target(self) -> NodeType:
        """The node type that has targets."""
        ...

    def targets_of(self, seeds: Tensor) -> Tensor:
        """The targets of nodes (int64 `[n]`), see `Task.targets`."""
        ...

    def row_ids(self, sample: Sample) -> Mapping[NodeType, Tensor]:
        """The nodes of each type as a model's rows for them are numbered."""
        ...

    def filled(self, sample: Sample, needs: BlockNeeds) -> tuple[Hop, ...]:
        """The sample's hops with the weights, degrees and norms that the model reads."""
        ...


@dataclass(frozen=True, slots=True)
class EdgeTensors:
    """The in-edges of one type on the device that makes mini-batches.

    Attributes:
        indptr: int64 `[num_dst + 1]`.
        indices: int32 or int64 `[num_edges]`.
        num_src: Number of nodes of the source type.
        norm: float32 `[num_nodes]`, or None if the model does not read it, see `Block`.
        weight: float32 `[num_edges]`, or None likewise.
    """

    indptr: Tensor
    indices: Tensor
    num_src: int
    norm: Tensor | None = None
    weight: Tensor | None = None

    def in_edges(self, start: int, stop: int, ends: tuple[int, int] | None = None) -> Block:
        """The block of all in-edges of the nodes `start … stop − 1`, over all nodes as sources.

        Its edges are views where possible. Norms are left to the caller.

        Args:
            start, stop: See above.
            ends: `indptr[start]` and `indptr[stop]`, for which a GPU would be waited for.
        """
        first, last = ends or self.indptr[[start, stop]].tolist()
        sources = self.indices[first:last]
        if last - first > _INT32_MAX:  # torch's CSR needs offsets and indices of one type
            sources = sources.long()
        return Block(
            indptr=(self.indptr[start : stop + 1] - first).to(sources.dtype),
            indices=sources,
            num_src=self.num_src,
            dst_offset=start,
            weight=None if self.weight is None else self.weight[first:last],
        )

    def degrees(self, nodes: Tensor) -> Tensor:
        """The in-edges of `nodes` (int64 `[n]`) in the whole graph: float32 `[n]`."""
        starts, ends = take(self.indptr, nodes), take(self.indptr[1:], nodes)
        if self.indptr.device.type != "cpu":
            return (ends - starts).float()
        return as_tensor((ends.numpy() - starts.numpy()).astype(np.float32))  # as in `take`


@dataclass(frozen=True, slots=True)
class GraphTensors:
    """A graph without its features, on the device that makes mini-batches.

    In host memory the tensors are views of the store's memory maps, not copies. On a GPU they are
    in its memory; `indices` may be in pinned host memory instead.

    Attributes:
        edges: The edges of each type.
        target: The node type that has targets.
        targets: By node of this type, see `Task.targets`.
        device: See above.
    """

    edges: Mapping[EdgeType, EdgeTensors]
    target: NodeType
    targets: Tensor
    device: torch.device = _HOST

    @classmethod
    def of(
        cls,
        graph: Graph,
        needs: BlockNeeds,
        device: torch.device = _HOST,
        *,
        indices: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> GraphTensors:
        """Put a graph's arrays on a device.

        Args:
            graph: The graph.
            needs: The fields that the model reads.
            device: The device that makes batches.
            indices: Those of the only edge type, in memory that the device can read; None: copy
                them to the device.
            targets: By node, on the CPU; None: the graph's labels.
        """

        def tensors(name: EdgeType, own: Edges) -> EdgeTensors:
            weight = own.weight if needs.weight else None
            norm = own.gcn_norm if needs.norm else None
            return EdgeTensors(
                as_tensor(own.indptr).to(device),
                as_tensor(own.indices).to(device) if indices is None else indices,
                len(graph.nodes[name[0]]),
                None if norm is None else as_tensor(norm).to(device),
                None if weight is None else as_tensor(weight).to(device),
            )

        return cls(
            {name: tensors(name, own) for name, own in graph.edges.items()},
            graph.target,
            (as_tensor(graph.labels) if targets is None else targets).to(device),
            torch.empty(0, device=device).device,
        )

    @property
    def only_edges(self) -> EdgeTensors:
        """Those of the only edge type."""
        (edges,) = self.edges.values()
        return edges

    def targets_of(self, seeds: Tensor) -> Tensor:
        """See `BatchValues.targets_of`."""
        return take(self.targets, seeds)

    def row_ids(self, sample: Sample) -> Mapping[NodeType, Tensor]:
        """See `BatchValues.row_ids`."""
        return sample.nodes

    def filled(self, sample: Sample, needs: BlockNeeds) -> tuple[Hop, ...]:
        """See `BatchValues.filled`."""
        norms: dict[EdgeType, Tensor] = {}
        degrees: dict[EdgeType, Tensor] = {}
        if sample.hops:  # the first has the nodes of all others
            for name, block in sample.hops[0].edges.items():
                own = self.edges[name]
                if needs.norm and own.norm is not None:
                    norms[name] = take(own.norm, sample.nodes[name[0]])
                if needs.degree:
                    degrees[name] = own.degrees(sample.nodes[name[2]][: block.num_dst])
        return tuple(
            replace(
                hop,
                edges={
                    name: replace(
                        block,
                        weight=self._weight(name, block),
                        degree=degrees[name][: block.num_dst] if needs.degree else None,
                        norm=norms[name][: block.num_src] if name in norms else None,
                        edge_ids=None,  # they stay in the sample, which does not move to a GPU
                    )
                    for name, block in hop.edges.items()
                },
            )
            for hop in sample.hops
        )

    def _weight(self, edge_type: EdgeType, block: Block) -> Tensor | None:
        weight = self.edges[edge_type].weight
        if weight is None:
            return None
        assert block.edge_ids is not None, "a weighted model's sampler must give edge ids"
        return take(weight, block.edge_ids)


def node_seeds(examples: Int64Array, key: SampleKey, values: BatchValues) -> Seeds:
    """The seeds of examples that are nodes of the target type, see `Task.seeds`."""
    del key
    nodes = as_tensor(examples)
    return Seeds({values.target: nodes}, values.targets_of(nodes))


def take(values: Tensor, index: Tensor) -> Tensor:
    """`values[index]`, on one thread of the CPU.

    For loaders' background threads: torch's indexing would start more threads, which would compete
    with the training step for the cores.
    """
    if values.device.type != "cpu":
        return values[index]
    return torch.from_numpy(values.numpy()[index.numpy()])


def in_edges(
    indptr: Int64Array, indices: IntArray, weight: Float32Array | None, start: int, stop: int
) -> Block:
    """The block of the in-edges of the nodes `start … stop − 1` of an adjacency, see `Edges`.

    Its indices and weights are views where possible. `num_src` and `dst_offset` are left to the
    caller.
    """
    first, last = int(indptr[start]), int(indptr[stop])
    # torch's CSR needs offsets and indices of one type
    fits = last - first <= np.iinfo(np.int32).max
    sources = indices[first:last].astype(indices.dtype if fits else np.int64, copy=False)
    return Block(
        indptr=as_tensor((indptr[start : stop + 1] - first).astype(sources.dtype)),
        indices=as_tensor(sources),
        num_src=0,
        weight=None if weight is None else as_tensor(weight[first:last]),
    )
