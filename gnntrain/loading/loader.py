"""From seed nodes to mini-batches: the seeds of each rank and step, sampling, prefetching."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from gnntrain.compute.features import as_tensor
from gnntrain.data.graph import Float32Array, Graph, IntArray
from gnntrain.distributed.context import rank_range
from gnntrain.loading.batch import MiniBatch, mini_batch
from gnntrain.loading.features import FeatureSource
from gnntrain.loading.graph import BatchValues, GraphTensors
from gnntrain.loading.hetero_batch import HeteroBatch
from gnntrain.loading.streams import BatchStream
from gnntrain.phases import Phases
from gnntrain.sampling.base import Int64Array, SampledSubgraph, SampleKey, Sampler
from gnntrain.sampling.block import NO_NEEDS, Block, BlockNeeds

Batch = TypeVar("Batch")
Subgraph = TypeVar("Subgraph")
Drawn = TypeVar("Drawn", covariant=True)
Made = TypeVar("Made", bound="AnyBatch")

AnyBatch = MiniBatch | HeteroBatch


@dataclass(frozen=True, slots=True)
class RankBatch:
    """One rank's seeds in a global batch.

    Attributes:
        seeds: int64 `[num_seeds]`, global ids, at least one: a rank without a seed of its own
            borrows one to take part in the all-reduce.
        num_counted: Seeds that enter the loss: all, or 0 if the only one is borrowed.
        global_batch_size: Counted seeds of all ranks together.
    """

    seeds: Int64Array
    num_counted: int
    global_batch_size: int


@dataclass(frozen=True, slots=True)
class SeedPlan:
    """The seeds of each rank in each step of an epoch.

    Every rank computes the same plan: the seeds are shuffled by (seed, epoch), cut into global
    batches, and each global batch is divided among the ranks. So each seed is used once an epoch,
    all ranks take the same number of steps, and a global batch is the same on any number of ranks.

    Attributes:
        seeds: int64 `[num_seeds]`, global ids.
        batch_size: Seeds a rank a step.
        drop_last: Leave out the last global batch if it is not full.
        redraw: Whether a node draws new in-neighbours in every step. If not, its draw does not
            depend on the batches.
        by_node: See `SampleKey`.
    """

    seeds: Int64Array
    batch_size: int
    rank: int = 0
    world_size: int = 1
    shuffle: bool = True
    drop_last: bool = False
    redraw: bool = True
    seed: int = 0
    by_node: bool = False

    @property
    def global_batch_size(self) -> int:
        return self.batch_size * self.world_size

    @property
    def num_steps(self) -> int:
        full, rest = divmod(len(self.seeds), self.global_batch_size)
        return full + (rest > 0 and not self.drop_last)

    def order(self, epoch: int) -> Int64Array:
        """The seeds in the order of `epoch`."""
        if not self.shuffle:
            return self.seeds
        # Philox takes a key of two words: the order is a pure function of (seed, epoch).
        bits = np.random.Philox(key=np.array([self.seed, epoch], np.uint64))
        return np.random.Generator(bits).permutation(self.seeds)

    def key(self, epoch: int, step: int) -> SampleKey:
        """The key of the draws of a step."""
        return SampleKey(self.seed, epoch, step if self.redraw else 0, self.by_node)

    def global_batch(self, order: Int64Array, step: int) -> Int64Array:
        """The seeds of all ranks in `step`."""
        start = step * self.global_batch_size
        return order[start : start + self.global_batch_size]

    def rank_batch(self, order: Int64Array, step: int) -> RankBatch:
        """This rank's seeds in `step`."""
        everyone = self.global_batch(order, step)
        own = everyone[rank_range(len(everyone), self.rank, self.world_size)]
        return RankBatch(own if len(own) else everyone[:1], len(own), len(everyone))


class Loader(ABC):
    """Iterable of one rank's mini-batches.

    Its position is the epoch and step of the next batch.

    Args:
        plan: The seeds of each step.
        phases: Takes the time of each phase.
    """

    def __init__(self, plan: SeedPlan, phases: Phases) -> None:
        self.plan = plan
        self.phases = phases
        self._epoch = 0
        self._step = 0

    def __len__(self) -> int:
        """Steps an epoch."""
        return self.plan.num_steps

    @abstractmethod
    def __iter__(self) -> Iterator[AnyBatch]:
        """The batches from the current position to the end of the epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of `epoch`."""
        self._epoch, self._step = epoch, 0

    def take_reads(self) -> tuple[int, int]:
        """Rows read from a cache, and rows read, since the last call; (0, 0) without a cache."""
        return 0, 0

    def state_dict(self) -> dict[str, int]:
        """The position: the next batch's epoch and step."""
        return {"epoch": self._epoch, "step": self._step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a position that `state_dict` gave, on any number of ranks."""
        self._epoch, self._step = state["epoch"], state["step"]


def made_ahead(
    make: Callable[[int], Batch], steps: range, *, threads: int, prefetch: int
) -> Iterator[Batch]:
    """The results of `make` for each step, in order, computed ahead by background threads.

    Args:
        make: Called with a step, in any thread.
        threads: Number of threads; 0: compute in the caller's thread, without prefetch.
        prefetch: Results to compute ahead.
    """
    if threads == 0:
        yield from map(make, steps)
        return
    pending: deque[Future[Batch]] = deque()
    todo = iter(steps)

    def submit(num_batches: int) -> None:
        for step in islice(todo, num_batches):
            pending.append(pool.submit(make, step))

    with ThreadPoolExecutor(threads, "gnntrain-loader") as pool:
        try:
            submit(max(prefetch, threads))
            while pending:
                batch = pending.popleft().result()
                submit(1)  # the next is made while this one is computed
                yield batch
                del batch  # or it would live on while the next is waited for
        finally:
            for future in pending:
                future.cancel()


class Draws(Protocol[Drawn]):
    """A sampler, of graphs with one type or of typed ones, see `Sampler`."""

    @property
    def thread_safe(self) -> bool: ...

    def sample(self, seeds: Tensor, key: SampleKey) -> Drawn: ...


class SampledLoader(Loader, Generic[Subgraph, Made]):
    """Samples one rank's mini-batches of an epoch, made ahead by background threads.

    On a GPU the loader uses a stream of its own: a batch is sampled there, or copied there from the
    host, while the model computes on the batch before. Each draw is a function of (seed, epoch,
    step).

    Args:
        sampler: Samples the neighbourhoods.
        plan: The seeds of each step.
        made_on: The sampler's device.
        threads: Background threads that make batches; 0 makes them in the caller's thread, on its
            stream, which a sampler needs that is not thread-safe.
        prefetch: Batches made ahead.
        device: Where the model computes, to which batches are copied; None: where they are made.
    """

    def __init__(
        self,
        sampler: Draws[Subgraph],
        plan: SeedPlan,
        *,
        made_on: torch.device,
        threads: int,
        prefetch: int,
        device: torch.device | None,
    ) -> None:
        self._threads = threads if sampler.thread_safe else 0
        super().__init__(plan, Phases(made_on, background=self._threads > 0))
        self.sampler = sampler
        self.device = made_on if device is None else device
        self._prefetch = prefetch
        self._stream = BatchStream[Made](self.device, is_side=self._threads > 0)

    def __iter__(self) -> Iterator[Made]:
        """The batches from the current position to the end of the epoch."""
        order, epoch = self.plan.order(self._epoch), self._epoch

        def make(step: int) -> tuple[Made, Any]:
            return self._stream.make(lambda: self._batch(order, epoch, step))

        steps = range(self._step, len(self))
        for made in made_ahead(make, steps, threads=self._threads, prefetch=self._prefetch):
            self._step += 1
            yield self._stream.take(made)
            del made  # or it would live on while the next is waited for

    def rank_batches(self) -> Iterator[tuple[RankBatch, SampleKey]]:
        """As `__iter__`, but only the seeds and the key of each batch."""
        order = self.plan.order(self._epoch)
        for step in range(self._step, len(self)):
            self._step += 1
            yield self.plan.rank_batch(order, step), self.plan.key(self._epoch, step)

    @abstractmethod
    def fill(self, subgraph: Subgraph, num_counted: int, global_batch_size: int) -> Made:
        """The mini-batch of a sampled subgraph; see `MiniBatch` for the numbers."""

    def _batch(self, order: Int64Array, epoch: int, step: int) -> Made:
        own = self.plan.rank_batch(order, step)
        with self.phases("sample"):
            subgraph = self.sampler.sample(as_tensor(own.seeds), self.plan.key(epoch, step))
        with self.phases("gather"):
            return self.fill(subgraph, own.num_counted, own.global_batch_size)


class BlockLoader(SampledLoader[SampledSubgraph, MiniBatch]):
    """Samples the mini-batches of a graph with one type.

    Unlike PyG's `NeighborLoader` it makes `Block`s for the models of gnntrain; PyG's models take
    its batches as well.

    Args:
        graph: The graph's values, on the sampler's device.
        features: Source of the feature rows.
        sampler, plan, threads, prefetch, device: See `SampledLoader`.
        needs: The fields that the model reads.
    """

    def __init__(
        self,
        graph: BatchValues,
        features: FeatureSource,
        sampler: Sampler,
        plan: SeedPlan,
        *,
        needs: BlockNeeds = NO_NEEDS,
        threads: int = 1,
        prefetch: int = 2,
        device: torch.device | None = None,
    ) -> None:
        made_on = graph.device
        super().__init__(
            sampler, plan, made_on=made_on, threads=threads, prefetch=prefetch, device=device
        )
        self._graph = graph
        self._features = features
        self._needs = needs

    def fill(
        self, subgraph: SampledSubgraph, num_counted: int, global_batch_size: int
    ) -> MiniBatch:
        """See `SampledLoader.fill`."""
        return mini_batch(
            self._graph,
            self._features,
            subgraph,
            self._needs,
            num_counted=num_counted,
            global_batch_size=global_batch_size,
            device=self.device,
        )

    def take_reads(self) -> tuple[int, int]:
        """See `Loader.take_reads`."""
        return self._features.take_reads()


class WholeGraphLoader(Loader, Generic[Made]):
    """Full-graph training: one step an epoch, over all nodes.

    Every rank computes the whole graph and takes its own seeds into the loss, so the result is the
    same on any number of ranks, and the work is not divided.

    Args:
        plan: The seeds of the rank.
    """

    def __init__(self, plan: SeedPlan) -> None:
        super().__init__(plan, Phases())
        own = plan.seeds[rank_range(len(plan.seeds), plan.rank, plan.world_size)]
        self._num_counted = len(own)
        self._seeds = as_tensor(own if len(own) else plan.seeds[:1])

    @abstractmethod
    def _fresh(self) -> Made:
        """The batch of the whole graph."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Made]:
        """The whole graph, once."""
        if self._step == 0:
            self._step = 1
            yield self._fresh()


class FullGraphLoader(WholeGraphLoader[MiniBatch]):
    """Full-graph training on a graph with one type.

    Args:
        graph: The graph on the model's device.
        features: Source of the feature rows, which that device reads.
        plan: The seeds of the rank.
        num_layers: Layers of the model.
        needs: The fields that the model reads. A plain PyG model, which might write to the
            features, gets a copy of the store's pages in every epoch.
    """

    def __init__(
        self,
        graph: GraphTensors,
        features: FeatureSource,
        plan: SeedPlan,
        *,
        num_layers: int,
        needs: BlockNeeds = NO_NEEDS,
    ) -> None:
        super().__init__(plan)
        self._copies_features = needs.edge_index
        seed_rows = self._seeds.to(graph.device)
        rows = features.select()
        block = graph.in_edges(0, graph.num_nodes, 0, len(graph.indices))
        self._batch = MiniBatch(
            x=None if needs.rows else rows.whole(),
            rows=rows if needs.rows else None,
            y=graph.targets[seed_rows],
            n_id=torch.arange(graph.num_nodes, device=graph.device),
            batch_size=len(seed_rows),
            blocks=(replace(block, norm=graph.norm),) * num_layers,
            seed_rows=seed_rows,
            num_counted=self._num_counted,
            global_batch_size=len(plan.seeds),
            sampled=None,
        )
        if needs.edge_index:
            self._batch.edge_index  # noqa: B018  # made once, not in each epoch

    def _fresh(self) -> MiniBatch:
        batch = self._batch
        if self._copies_features:
            batch = copy.copy(batch)
            batch.x = batch.x.clone()
        return batch


def whole_graph_block(
    store: Graph, needs: BlockNeeds, start: int = 0, stop: int | None = None
) -> Block:
    """The block of all in-edges of the nodes `start … stop − 1`, over all nodes as sources.

    Its indices and weights are the store's mapped pages, not copies.
    """
    stop = store.num_nodes if stop is None else stop
    weight = store.edge_weight if needs.weight else None
    block = in_edges(store.indptr, store.indices, weight, start, stop)
    norm = as_tensor(store.gcn_norm) if needs.norm else None
    return replace(block, num_src=store.num_nodes, dst_offset=start, norm=norm)


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
