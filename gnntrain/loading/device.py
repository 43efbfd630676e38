"""Mini-batches that are sampled on the GPU and made there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnntrain.data.store import GraphStore
from gnntrain.loading.batch import NO_NEEDS, Block, BlockNeeds, MiniBatch
from gnntrain.loading.features import FeatureSource, share
from gnntrain.loading.loader import Position, RankShare, SeedPlan
from gnntrain.phases import Phases
from gnntrain.sampling.base import SampleKey
from gnntrain.sampling.device import DeviceHop, DeviceSubgraph
from gnntrain.sampling.gpu import TritonNeighborSampler


@dataclass(frozen=True, slots=True)
class DeviceGraph:
    """What sampling and mini-batches need of a store, where the GPU reads it.

    Attributes:
        indptr: int64 `[num_nodes + 1]`, on the device.
        indices: `[num_edges]`, on the device or in pinned host memory.
        labels: As in the store, on the device.
        features: `[num_nodes, num_features]` in the store's precision, on the device; None: every
            batch reads its rows from the store.
        norm, degree: float32 `[num_nodes]`, or None where they are not needed, see `Block`.
        weight: float32 `[num_edges]`, or None likewise.
    """

    indptr: Tensor
    indices: Tensor
    labels: Tensor
    features: Tensor | None
    norm: Tensor | None
    degree: Tensor | None
    weight: Tensor | None

    @classmethod
    def of(
        cls, store: GraphStore, needs: BlockNeeds, device: torch.device, room: int
    ) -> DeviceGraph:
        """Place a store.

        Edges, then features, lie on the device if they fit into what is left of `room`; all else,
        little beside them, always does.

        Args:
            store: The graph.
            needs: What the model wants.
            device: Where batches are made.
            room: Bytes of device memory that the graph may take.
        """
        degree = np.diff(store.indptr).astype(np.float32) if needs.degree else None
        norm = store.gcn_norm if needs.norm else None
        weight = store.edge_weight if needs.weight else None
        features = share(store.features)
        if store.feature_dtype == "bfloat16":
            features = features.view(torch.bfloat16)
        always = (store.indptr, store.labels, norm, degree, weight)
        room -= sum(array.nbytes for array in always if array is not None)
        indices = share(store.indices)
        has_edges = indices.nbytes <= room
        room -= indices.nbytes * has_edges
        return cls(
            indptr=share(store.indptr).to(device),
            indices=indices.to(device) if has_edges else indices.pin_memory(),
            labels=share(store.labels).to(device),
            features=features.to(device) if features.nbytes <= room else None,
            norm=None if norm is None else share(norm).to(device),
            degree=None if degree is None else share(degree).to(device),
            weight=None if weight is None else share(weight).to(device),
        )


class DeviceMiniBatch(MiniBatch):
    """A `MiniBatch` whose `drawn` is a `DeviceSubgraph`, in place of `sampled`."""

    def _edges(self) -> Tensor:
        drawn: DeviceSubgraph = self.drawn
        return drawn.edge_index


class DeviceNeighborLoader(Position):
    """`NeighborLoader` on a GPU: equal batches, sampled, cut into blocks and filled there.

    The host only asks for what is to be done, and waits once a batch for its sizes; batches are
    made when they are asked for, in the caller's thread and on its stream.

    Args:
        graph: The store on the device.
        features: Where feature rows come from if they do not lie on the device.
        sampler: Draws the neighbourhoods. Its draws depend on (seed, epoch, step).
        plan: Which seeds to take when.
        needs: What blocks carry beside the edges.
    """

    def __init__(
        self,
        graph: DeviceGraph,
        features: FeatureSource,
        sampler: TritonNeighborSampler,
        plan: SeedPlan,
        *,
        needs: BlockNeeds = NO_NEEDS,
    ) -> None:
        self.plan = plan
        self._graph = graph
        self._features = features
        self._sampler = sampler
        self._needs = needs
        self.phases = Phases(graph.indptr.device)

    def __len__(self) -> int:
        return self.plan.num_steps

    def __iter__(self) -> Iterator[MiniBatch]:
        """The batches from the current position to the end of the epoch."""
        order = self.plan.order(self._epoch)
        for step in range(self._step, len(self)):
            key = SampleKey(self.plan.seed, self._epoch, step if self.plan.redraw else 0)
            self._step += 1
            yield self._batch(self.plan.share(order, step), key)

    def _batch(self, own: RankShare, key: SampleKey) -> DeviceMiniBatch:
        with self.phases("sample"):
            subgraph = self._sampler.sample(own.seeds, key=key)
        with self.phases("gather"):
            return self._filled(own, subgraph)

    def _filled(self, own: RankShare, subgraph: DeviceSubgraph) -> DeviceMiniBatch:
        graph, nodes = self._graph, subgraph.nodes
        return DeviceMiniBatch(
            x=self._rows(nodes),
            y=graph.labels[nodes[: subgraph.num_seeds]],
            n_id=nodes,
            batch_size=subgraph.num_seeds,
            blocks=device_blocks(graph, subgraph, self._needs),
            num_counted=own.num_counted,
            global_batch_size=own.global_batch_size,
            drawn=subgraph,
            num_sampled_nodes=subgraph.num_sampled_nodes,
            num_sampled_edges=subgraph.num_sampled_edges,
        )

    def _rows(self, nodes: Tensor) -> Tensor:
        """The nodes' features, float32."""
        if self._graph.features is not None:
            return self._graph.features[nodes].float()
        return self._features.named(nodes.cpu().numpy()).whole().to(nodes.device)


def device_blocks(
    graph: DeviceGraph, subgraph: DeviceSubgraph, needs: BlockNeeds
) -> tuple[Block, ...]:
    """`loader.blocks_of` on the device: the layers' blocks, the innermost layer first.

    A weighted model's sampler must give edge ids.
    """
    nodes = subgraph.nodes
    norm = graph.norm[nodes] if needs.norm and graph.norm is not None else None
    return tuple(_block(graph, nodes, hop, norm, needs) for hop in reversed(subgraph.hops))


def _block(
    graph: DeviceGraph, nodes: Tensor, hop: DeviceHop, norm: Tensor | None, needs: BlockNeeds
) -> Block:
    degree = weight = None
    if needs.degree and graph.degree is not None:
        degree = graph.degree[nodes[: hop.num_dst]]
    if needs.weight and graph.weight is not None:
        assert hop.edge_ids is not None
        weight = graph.weight[hop.edge_ids]
    return Block(
        # torch's CSR wants offsets and indices of one type
        indptr=hop.indptr.to(hop.indices.dtype),
        indices=hop.indices,
        num_src=hop.num_src,
        weight=weight,
        degree=degree,
        norm=None if norm is None else norm[: hop.num_src],
    )
