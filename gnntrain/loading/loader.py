"""From seed nodes to mini-batches: the seeds of each rank and step, sampling, prefetching."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch

from gnntrain import devices
from gnntrain.data.graph import NodeType
from gnntrain.distributed.context import rank_range
from gnntrain.loading.batch import Batch
from gnntrain.loading.features import FeatureSource
from gnntrain.loading.graph import BatchValues, GraphTensors, node_seeds
from gnntrain.loading.transfer import BatchStream, send_all
from gnntrain.phases import Phases
from gnntrain.sampling.base import Int64Array, SampleKey, Sampler, Seeds
from gnntrain.sampling.block import NO_NEEDS, BlockNeeds, Hop, Sample

_Step = TypeVar("_Step")
_Made = TypeVar("_Made")

MakeSeeds = Callable[[Int64Array, SampleKey, BatchValues], Seeds]
"""See `Task.seeds`."""


@dataclass(frozen=True, slots=True)
class RankBatch:
    """One rank's seeds in a global batch.

    Attributes:
        seeds: The examples, at least one: a rank without one of its own borrows one to take part
            in the all-reduce. Node ids, int64 `[n]`, or another task's rows `[n, …]`.
        num_counted: Those that enter the loss: all, or 0 if the only one is borrowed.
        global_batch_size: Counted examples of all ranks together.
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
    def __iter__(self) -> Iterator[Batch]:
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


def prefetched(
    make: Callable[[_Step], _Made], steps: Iterable[_Step], *, threads: int, prefetch: int
) -> Iterator[_Made]:
    """The results of `make` for each step, in order, computed ahead by background threads.

    Args:
        make: Called with a step, in any thread.
        threads: Number of threads; 0: compute in the caller's thread, without prefetch.
        prefetch: Results to compute ahead.
    """
    if threads == 0:
        yield from map(make, steps)
        return
    pending: deque[Future[_Made]] = deque()
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


class SampledLoader(Loader):
    """Samples one rank's mini-batches of an epoch, made ahead by background threads.

    On a GPU the loader uses a stream of its own: a batch is sampled there, or copied there from the
    host, while the model computes on the batch before. Each draw is a function of (seed, epoch,
    step).

    Args:
        values: The graph's values, on the sampler's device.
        features: Source of the feature rows of each node type that has some.
        sampler: Samples the neighbourhoods.
        plan: The seeds of each step.
        make_seeds: See `Task.seeds`; the examples of the plan are nodes if it is left out.
        needs: The fields that the model reads.
        threads: Background threads that make batches; 0 makes them in the caller's thread, on its
            stream, which a sampler needs that is not thread-safe.
        prefetch: Batches made ahead.
        device: Where the model computes, to which batches are copied; None: where they are made.
    """

    def __init__(
        self,
        values: BatchValues,
        features: Mapping[NodeType, FeatureSource],
        sampler: Sampler,
        plan: SeedPlan,
        *,
        make_seeds: MakeSeeds = node_seeds,
        needs: BlockNeeds = NO_NEEDS,
        threads: int = 1,
        prefetch: int = 2,
        device: torch.device | None = None,
    ) -> None:
        self._threads = threads if sampler.thread_safe else 0
        super().__init__(plan, Phases(values.device, background=self._threads > 0))
        self.values = values
        self._make_seeds = make_seeds
        self._features = features
        self._needs = needs
        self.sampler = sampler
        self.device = values.device if device is None else device
        self._prefetch = prefetch
        self._stream = BatchStream(self.device, is_side=self._threads > 0)

    def __iter__(self) -> Iterator[Batch]:
        """The batches from the current position to the end of the epoch."""
        order, epoch = self.plan.order(self._epoch), self._epoch

        def make(step: int) -> tuple[Batch, Any]:
            return self._stream.make(lambda: self._batch(order, epoch, step))

        steps = range(self._step, len(self))
        for made in prefetched(make, steps, threads=self._threads, prefetch=self._prefetch):
            self._step += 1
            yield self._stream.take(made)
            del made  # or it would live on while the next is waited for

    def rank_batches(self) -> Iterator[tuple[RankBatch, SampleKey]]:
        """As `__iter__`, but only the seeds and the key of each batch."""
        order = self.plan.order(self._epoch)
        for step in range(self._step, len(self)):
            self._step += 1
            yield self.plan.rank_batch(order, step), self.plan.key(self._epoch, step)

    def fill(self, sample: Sample, seeds: Seeds, num_counted: int, global_batch_size: int) -> Batch:
        """The mini-batch of a sample, on `device`; see `Batch` for the numbers."""
        on_gpu, needs, values = devices.is_gpu(self.device), self._needs, self.values
        n_id = dict(values.row_ids(sample))
        if on_gpu and not any(source.waits for source in self._features.values()):
            # once for the features and the batch
            n_id = dict(zip(n_id, send_all(list(n_id.values()), self.device), strict=True))
        batch = Batch(
            n_id_dict=n_id,
            rows={
                name: source.select(n_id[name], sample.size)
                for name, source in self._features.items()
            },
            hops=values.filled(sample, needs),
            y=seeds.targets,
            batch_size=len(seeds.targets),
            num_counted=num_counted,
            global_batch_size=global_batch_size,
            pairs=seeds.pairs,
            sample=sample,
        )
        batch.read(needs)  # here, not in the step
        return batch.to(self.device)

    def take_reads(self) -> tuple[int, int]:
        """See `Loader.take_reads`."""
        reads = [source.take_reads() for source in self._features.values()]
        return sum(hits for hits, _ in reads), sum(number for _, number in reads)

    def _batch(self, order: Int64Array, epoch: int, step: int) -> Batch:
        own, key = self.plan.rank_batch(order, step), self.plan.key(epoch, step)
        with self.phases("gather"):
            seeds = self._make_seeds(own.seeds, key, self.values)
        with self.phases("sample"):
            sample = self.sampler.sample(seeds, key)
        with self.phases("gather"):
            return self.fill(sample, seeds, own.num_counted, own.global_batch_size)


class FullGraphLoader(Loader):
    """Full-graph training: one step an epoch, over all nodes.

    Every rank computes the whole graph and takes its own seeds into the loss, so the result is the
    same on any number of ranks, and the work is not divided.

    Args:
        graph: The graph on the model's device.
        features: Source of the feature rows of each node type that has some, which that device
            reads.
        plan: The seeds of the rank.
        num_layers: Layers of the model.
        make_seeds: See `SampledLoader`.
        needs: The fields that the model reads. A plain PyG model, which might write to the
            features, gets a copy of the store's pages in every epoch.
    """

    def __init__(
        self,
        graph: GraphTensors,
        features: Mapping[NodeType, FeatureSource],
        plan: SeedPlan,
        *,
        num_layers: int,
        make_seeds: MakeSeeds = node_seeds,
        needs: BlockNeeds = NO_NEEDS,
    ) -> None:
        super().__init__(plan, Phases())
        share = plan.seeds[rank_range(len(plan.seeds), plan.rank, plan.world_size)]
        examples = share if len(share) else plan.seeds[:1]
        seeds, device = make_seeds(examples, plan.key(0, 0), graph), graph.device
        sizes = graph.schema.num_nodes
        blocks = {
            name: replace(
                edges.in_edges(0, sizes[name[2]], (0, len(edges.indices))), norm=edges.norm
            )
            for name, edges in graph.edges.items()
        }
        self._copies_features = needs.edge_index
        self._batch = Batch(
            n_id_dict={name: torch.arange(size, device=device) for name, size in sizes.items()},
            rows={name: source.select() for name, source in features.items()},
            hops=(Hop(blocks, num_dst=sizes, num_src=sizes),) * num_layers,
            y=seeds.targets.to(device),
            batch_size=len(seeds.targets),
            num_counted=len(share),
            global_batch_size=len(plan.seeds),
            seed_rows=seeds.nodes[graph.schema.target].to(device),
            pairs=None if seeds.pairs is None else seeds.pairs.to(device),
        )
        self._batch.read(needs)  # once, not in each epoch

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Batch]:
        """The whole graph, once."""
        if self._step == 0:
            self._step = 1
            batch = self._batch
            if self._copies_features:
                batch = replace(batch, _x={name: x.clone() for name, x in batch.x_dict.items()})
            yield batch
