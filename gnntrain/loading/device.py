"""Mini-batches that are sampled on the GPU and made there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnntrain.data.graph import Graph
from gnntrain.loading.batch import MiniBatch
from gnntrain.loading.device_features import DeviceFeatures
from gnntrain.loading.features import as_tensor
from gnntrain.loading.loader import Position, RankBatch, SeedPlan, made_ahead
from gnntrain.loading.streams import Lane, Made, lane_of
from gnntrain.phases import Phases
from gnntrain.sampling.base import Int64Array, SampleKey
from gnntrain.sampling.block import NO_NEEDS, Block, BlockNeeds
from gnntrain.sampling.device import DeviceHop, DeviceSubgraph
from gnntrain.sampling.gpu import TritonNeighborSampler


@dataclass(frozen=True, slots=True)
class DeviceGraph:
    """What sampling and mini-batches need of a store beside its features, where the GPU reads it.

    Attributes:
        indptr: int64 `[num_nodes + 1]`, on the device.
        indices: `[num_edges]`, on the device or in pinned host memory.
        labels: As in the store, on the device.
        norm, degree: float32 `[num_nodes]`, or None where they are not needed, see `Block`.
        weight: float32 `[num_edges]`, or None likewise.
    """

    indptr: Tensor
    indices: Tensor
    labels: Tensor
    norm: Tensor | None
    degree: Tensor | None
    weight: Tensor | None

    @classmethod
    def of(
        cls, store: Graph, needs: BlockNeeds, device: torch.device, indices: Tensor
    ) -> DeviceGraph:
        """Put a store on a device, but for its features.

        Args:
            store: The graph.
            needs: What the model wants.
            device: Where batches are made.
            indices: The store's, where the device can read them.
        """
        degree = np.diff(store.indptr).astype(np.float32) if needs.degree else None
        norm = store.gcn_norm if needs.norm else None
        weight = store.edge_weight if needs.weight else None
        return cls(
            indptr=as_tensor(store.indptr).to(device),
            indices=indices,
            labels=as_tensor(store.labels).to(device),
            norm=None if norm is None else as_tensor(norm).to(device),
            degree=None if degree is None else as_tensor(degree).to(device),
            weight=None if weight is None else as_tensor(weight).to(device),
        )


class DeviceMiniBatch(MiniBatch):
    """A `MiniBatch` whose `drawn` is a `DeviceSubgraph`, in place of `sampled`."""

    @property
    def is_padded(self) -> bool:  # type: ignore[override]  # known once it is drawn
        drawn: DeviceSubgraph = self.drawn
        return drawn.size is not None

    def _edges(self) -> Tensor:
        drawn: DeviceSubgraph = self.drawn
        return drawn.edge_index


@dataclass(frozen=True, slots=True)
class SeedBatch:
    """A step before its batch is made: all that changes from one to the next.

    Attributes:
        seeds: int64 `[batch_size]`, on the device.
        keys: int32, on the device, see `TritonNeighborSampler.hop_keys`.
        num_counted, global_batch_size: As in `MiniBatch`.
    """

    seeds: Tensor
    keys: Tensor
    num_counted: int
    global_batch_size: int


class DeviceNeighborLoader(Position):
    """`NeighborLoader` on a GPU: equal batches, sampled, cut into blocks and filled there.

    The host only asks for what is to be done, and waits once a batch for its sizes, in a background
    thread and for a stream of its own, while the device computes on the batch before.

    Args:
        graph: The store on the device.
        features: Where feature rows come from.
        sampler: Draws the neighbourhoods. Its draws depend on (seed, epoch, step).
        plan: Which seeds to take when.
        needs: What blocks carry beside the edges.
        threads: Background threads that make batches; 0 makes them in the caller's, on its stream.
        prefetch: Batches made ahead.
    """

    def __init__(
        self,
        graph: DeviceGraph,
        features: DeviceFeatures,
        sampler: TritonNeighborSampler,
        plan: SeedPlan,
        *,
        needs: BlockNeeds = NO_NEEDS,
        threads: int = 1,
        prefetch: int = 2,
    ) -> None:
        self.plan = plan
        self._graph = graph
        self._features = features
        self._sampler = sampler
        self._needs = needs
        self._threads = threads
        self._prefetch = prefetch
        self._lane: Lane[DeviceMiniBatch] = lane_of(self._device, has_own=threads > 0)
        self.phases = Phases(self._device, background=threads > 0)

    def __len__(self) -> int:
        return self.plan.num_steps

    def __iter__(self) -> Iterator[MiniBatch]:
        """The batches from the current position to the end of the epoch."""
        order, epoch = self.plan.order(self._epoch), self._epoch

        def make(step: int) -> Made[DeviceMiniBatch]:
            return self._lane.make(lambda: self._batch(order, epoch, step))

        steps = range(self._step, len(self))
        for made in made_ahead(make, steps, threads=self._threads, prefetch=self._prefetch):
            self._step += 1
            yield self._lane.take(made)
            del made  # or it would live on while the next is waited for

    def seed_batches(self) -> Iterator[SeedBatch]:
        """As the loader itself, each step not made yet; `made` makes it."""
        order = self.plan.order(self._epoch)
        for step in range(self._step, len(self)):
            own = self.plan.rank_batch(order, step)
            keys = self._sampler.hop_keys(self._key(self._epoch, step))
            self._step += 1
            yield SeedBatch(
                _sent(own.seeds, self._device),
                _sent(keys, self._device),
                own.num_counted,
                own.global_batch_size,
            )

    def made(self, step: SeedBatch) -> DeviceMiniBatch:
        """The batch of a step, padded to the largest size it may have: nobody waits for the device.

        It computes what the batch without the padding does, but for what is taken over all rows.

        Raises:
            UserError: Its features are copied by the host, or its largest size is too large.
        """
        subgraph = self._sampler.sample_padded(step.seeds, step.keys)
        return self._filled(subgraph, step.num_counted, step.global_batch_size)

    def take_reads(self) -> tuple[int, int]:
        """See `Loader.take_reads`."""
        return self._features.take_reads()

    @property
    def _device(self) -> torch.device:
        return self._graph.indptr.device

    def _key(self, epoch: int, step: int) -> SampleKey:
        return SampleKey(self.plan.seed, epoch, step if self.plan.redraw else 0)

    def _batch(self, order: Int64Array, epoch: int, step: int) -> DeviceMiniBatch:
        own: RankBatch = self.plan.rank_batch(order, step)
        with self.phases("sample"):
            subgraph = self._sampler.sample(own.seeds, key=self._key(epoch, step))
        with self.phases("gather"):
            return self._filled(subgraph, own.num_counted, own.global_batch_size)

    def _filled(
        self, subgraph: DeviceSubgraph, num_counted: int, global_batch_size: int
    ) -> DeviceMiniBatch:
        graph, nodes = self._graph, subgraph.nodes
        rows = self._features.named(nodes, subgraph.size)
        return DeviceMiniBatch(
            x=None if self._needs.rows else rows.whole(),
            rows=rows if self._needs.rows else None,
            y=graph.labels[nodes[: subgraph.num_seeds]],
            n_id=nodes,
            batch_size=subgraph.num_seeds,
            blocks=device_blocks(graph, subgraph, self._needs, self._sampler.fan_outs),
            num_counted=num_counted,
            global_batch_size=global_batch_size,
            drawn=subgraph,
            num_sampled_nodes=subgraph.num_sampled_nodes,
            num_sampled_edges=subgraph.num_sampled_edges,
        )


def _sent(
    array: Int64Array | np.ndarray[tuple[int], np.dtype[np.int32]], device: torch.device
) -> Tensor:
    """A small array on its way to the device; nobody waits for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor


def device_blocks(
    graph: DeviceGraph, subgraph: DeviceSubgraph, needs: BlockNeeds, fan_outs: Sequence[int]
) -> tuple[Block, ...]:
    """`loader.blocks_of` on the device: the layers' blocks, the innermost layer first.

    A weighted model's sampler must give edge ids.

    Args:
        graph: The store on the device.
        subgraph: What was drawn of it.
        needs: What blocks carry.
        fan_outs: How many in-neighbours were drawn, hop by hop; -1: all.
    """
    nodes = subgraph.nodes
    norm = graph.norm[nodes] if needs.norm and graph.norm is not None else None
    hops = list(zip(subgraph.hops, fan_outs, strict=True))
    return tuple(_block(graph, nodes, hop, norm, needs, fan_out) for hop, fan_out in reversed(hops))


def _block(
    graph: DeviceGraph,
    nodes: Tensor,
    hop: DeviceHop,
    norm: Tensor | None,
    needs: BlockNeeds,
    fan_out: int,
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
        max_in_edges=fan_out if fan_out >= 0 else None,
    )
