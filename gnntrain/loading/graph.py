"""The arrays of a graph that mini-batches need, without its features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gnntrain.compute.features import as_tensor
from gnntrain.data.graph import EdgeType, Graph, GraphSchema, Int64Array, NodeType
from gnntrain.sampling.base import SampleKey, Seeds
from gnntrain.sampling.block import Block, BlockNeeds, Hop, Sample

_HOST = torch.device("cpu")
_INT32_MAX = 2**31 - 1


class BatchValues(ABC):
    """Gives a mini-batch's targets, weights, degrees and norms.

    Attributes:
        schema: The types of the graph.
        device: The device that makes batches.
    """

    schema: GraphSchema
    device: torch.device

    @abstractmethod
    def targets_of(self, seeds: Tensor) -> Tensor:
        """The targets of nodes (int64 `[n]`), see `Task.targets`."""

    @abstractmethod
    def norms_of(self, edge_type: EdgeType, nodes: Tensor) -> Tensor | None:
        """The norms of sources, see `Block.norm`; None: the edge type has none."""

    @abstractmethod
    def degrees_of(self, edge_type: EdgeType, nodes: Tensor) -> Tensor:
        """The in-edges of destinations in the whole graph, float32."""

    @abstractmethod
    def weights_of(self, edge_type: EdgeType, edge_ids: Tensor | None) -> Tensor | None:
        """The weights of edges, float32; None: all are 1, or the model does not read them."""

    def row_ids(self, sample: Sample) -> Mapping[NodeType, Tensor]:
        """The nodes of each type as a model's rows for them are numbered."""
        return sample.nodes

    def filled(self, sample: Sample, needs: BlockNeeds) -> tuple[Hop, ...]:
        """The sample's hops with the weights, degrees and norms that the model reads.

        Where owners have drawn, blocks have their weights, and those of the first hop their
        degrees, already.
        """
        norms: dict[EdgeType, Tensor | None] = {}
        degrees: dict[EdgeType, Tensor] = {}
        # The first hop has the nodes of all others.
        for name, block in sample.hops[0].edges.items() if sample.hops else ():
            if needs.norm:
                norms[name] = self.norms_of(name, sample.nodes[name[0]])
            if block.degree is not None:
                degrees[name] = block.degree
            elif needs.degree:
                degrees[name] = self.degrees_of(name, sample.nodes[name[2]][: block.num_dst])

        def filled(name: EdgeType, block: Block) -> Block:
            norm, degree, weight = norms.get(name), degrees.get(name), block.weight
            return replace(
                block,
                weight=self.weights_of(name, block.edge_ids) if weight is None else weight,
                degree=None if degree is None else degree[: block.num_dst],
                norm=None if norm is None else norm[: block.num_src],
                edge_ids=None,  # they stay in the sample, which does not move to a GPU
            )

        return tuple(
            replace(hop, edges={name: filled(name, block) for name, block in hop.edges.items()})
            for hop in sample.hops
        )


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
class GraphTensors(BatchValues):
    """A graph without its features, on the device that makes mini-batches.

    In host memory the tensors are views of the store's memory maps, not copies. On a GPU they are
    in its memory; `indices` may be in pinned host memory instead.

    Attributes:
        schema: The types of the graph.
        edges: The edges of each type.
        targets: By node of the target type, see `Task.targets`.
        device: See above.
    """

    schema: GraphSchema
    edges: Mapping[EdgeType, EdgeTensors]
    targets: Tensor
    device: torch.device

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
        edges = {}
        for name, stored in graph.edges.items():
            weight = stored.weight if needs.weight else None
            norm = stored.gcn_norm if needs.norm else None
            edges[name] = EdgeTensors(
                as_tensor(stored.indptr).to(device),
                as_tensor(stored.indices).to(device) if indices is None else indices,
                len(graph.nodes[name[0]]),
                None if norm is None else as_tensor(norm).to(device),
                None if weight is None else as_tensor(weight).to(device),
            )
        targets = as_tensor(graph.labels) if targets is None else targets
        # An empty tensor's device has the index that "cuda" stands for.
        device = torch.empty(0, device=device).device
        return cls(graph.schema, edges, targets.to(device), device)

    @property
    def only_edges(self) -> EdgeTensors:
        """Those of the only edge type."""
        (edges,) = self.edges.values()
        return edges

    def targets_of(self, seeds: Tensor) -> Tensor:
        """See `BatchValues.targets_of`."""
        return take(self.targets, seeds)

    def norms_of(self, edge_type: EdgeType, nodes: Tensor) -> Tensor | None:
        """See `BatchValues.norms_of`."""
        norm = self.edges[edge_type].norm
        return None if norm is None else take(norm, nodes)

    def degrees_of(self, edge_type: EdgeType, nodes: Tensor) -> Tensor:
        """See `BatchValues.degrees_of`."""
        return self.edges[edge_type].degrees(nodes)

    def weights_of(self, edge_type: EdgeType, edge_ids: Tensor | None) -> Tensor | None:
        """See `BatchValues.weights_of`."""
        weight = self.edges[edge_type].weight
        if weight is None:
            return None
        assert edge_ids is not None, "a weighted model's sampler must give edge ids"
        return take(weight, edge_ids)


def node_seeds(examples: Int64Array, key: SampleKey, values: BatchValues) -> Seeds:
    """The seeds of examples that are nodes of the target type, see `Task.seeds`."""
    del key
    nodes = as_tensor(examples)
    return Seeds({values.schema.target: nodes}, values.targets_of(nodes))


def take(values: Tensor, index: Tensor) -> Tensor:
    """`values[index]`, on one thread of the CPU.

    For loaders' background threads: torch's indexing would start more threads, which would compete
    with the training step for the cores.
    """
    if values.device.type != "cpu":
        return values[index]
    return torch.from_numpy(values.numpy()[index.numpy()])
