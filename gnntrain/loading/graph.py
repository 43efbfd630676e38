"""The arrays of a graph that mini-batches need, without its features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gnntrain.data.graph import EdgeType, Graph, GraphSchema, Int64Array, NodeType
from gnntrain.sampling.base import SampleKey, Seeds
from gnntrain.sampling.block import Block, BlockNeeds, Hop, Sample

_HOST = torch.device("cpu")
_INT32_MAX = 2**31 - 1


ValueName = Literal["targets", "norm", "degree", "weight"]


class BatchValues(ABC):
    """Gives a mini-batch's targets, weights, degrees and norms.

    Attributes:
        schema: The types of the graph.
        device: The device that makes batches.
    """

    schema: GraphSchema
    device: torch.device

    @abstractmethod
    def read(self, name: ValueName, of: Any, ids: Tensor | None) -> Tensor | None:
        """The targets of nodes of a type; or, of an edge type, the norms of sources, the degrees of
        destinations in the whole graph, or the weights of edges, see `Block`. None: there are none,
        or the sampler gives them."""

    def targets_of(self, seeds: Tensor) -> Tensor:
        """The targets of nodes (int64 `[n]`), see `Task.targets`."""
        targets = self.read("targets", self.schema.target, seeds)
        assert targets is not None
        return targets

    def row_ids(self, sample: Sample) -> Mapping[NodeType, Tensor]:
        """The nodes of each type as a model's rows for them are numbered."""
        return sample.nodes

    def filled(self, sample: Sample, needs: BlockNeeds) -> tuple[Hop, ...]:
        """The sample's hops with the weights, degrees and norms that the model reads. Where owners
        have drawn, blocks have weights, and those of the first hop degrees, already."""
        norms: dict[EdgeType, Tensor | None] = {}
        degrees: dict[EdgeType, Tensor | None] = {}
        # The first hop has the nodes of all others.
        for name, block in sample.hops[0].edges.items() if sample.hops else ():
            degrees[name] = block.degree
            if needs.norm:
                norms[name] = self.read("norm", name, sample.nodes[name[0]])
            if needs.degree and block.degree is None:
                nodes = sample.nodes[name[2]][: block.num_dst]
                degrees[name] = self.read("degree", name, nodes)

        def filled(name: EdgeType, block: Block) -> Block:
            norm, degree, weight = norms.get(name), degrees.get(name), block.weight
            if needs.weight and weight is None:
                weight = self.read("weight", name, block.edge_ids)
            return replace(
                block,
                weight=weight,
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

    def in_edges(self, start: int, stop: int, ends: tuple[int, int]) -> Block:
        """The block of all in-edges of the nodes `start … stop − 1`, over all nodes as sources;
        without norms, and with views of the edges where possible.

        `ends` are `indptr[start]` and `indptr[stop]`, for which a GPU would be waited for.
        """
        first, last = ends
        sources = self.indices[first:last]
        # torch's CSR needs offsets and indices of one type; a model may add a loop a destination.
        if last - first + stop - start > _INT32_MAX:
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
        return torch.from_numpy((ends.numpy() - starts.numpy()).astype(np.float32))  # as in `take`


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
        """A graph's arrays, those that the model reads, on the device that makes batches.

        Args:
            indices: Those of the only edge type, in memory that the device can read; None: copy
                them to the device.
            targets: By node, on the CPU; None: the graph's labels.
        """
        edges = {}
        for name, stored in graph.edges.items():
            weight = stored.weight if needs.weight else None
            norm = stored.gcn_norm if needs.norm else None
            edges[name] = EdgeTensors(
                torch.from_numpy(stored.indptr).to(device),
                torch.from_numpy(stored.indices).to(device) if indices is None else indices,
                len(graph.nodes[name[0]]),
                None if norm is None else torch.from_numpy(norm).to(device),
                None if weight is None else torch.from_numpy(weight).to(device),
            )
        targets = torch.from_numpy(graph.labels) if targets is None else targets
        # An empty tensor's device has the index that "cuda" stands for.
        device = torch.empty(0, device=device).device
        return cls(graph.schema, edges, targets.to(device), device)

    @property
    def only_edges(self) -> EdgeTensors:
        """Those of the only edge type."""
        (edges,) = self.edges.values()
        return edges

    def read(self, name: ValueName, of: Any, ids: Tensor | None) -> Tensor | None:
        """See `BatchValues.read`."""
        if name == "targets":
            return None if ids is None else take(self.targets, ids)
        edges = self.edges[of]
        values = {"norm": edges.norm, "degree": edges.indptr, "weight": edges.weight}[name]
        if values is None:
            return None
        assert ids is not None, "a weighted model's sampler must give edge ids"
        return edges.degrees(ids) if name == "degree" else take(values, ids)


def node_seeds(examples: Int64Array, key: SampleKey, values: BatchValues) -> Seeds:
    """The seeds of examples that are nodes of the target type, see `Task.seeds`."""
    del key
    nodes = torch.from_numpy(examples)
    return Seeds({values.schema.target: nodes}, values.targets_of(nodes))


def take(values: Tensor, index: Tensor) -> Tensor:
    """`values[index]`, on one thread of the CPU.

    For loaders' background threads: torch's indexing would start more threads, which would compete
    with the training step for the cores.
    """
    if values.device.type != "cpu":
        return values[index.to(values.device, non_blocking=True)]
    return torch.from_numpy(values.numpy()[index.numpy()])
