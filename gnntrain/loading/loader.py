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
from torch import Tensor

from gnntrain.data.graph import Int64Array, NodeType
from gnntrain.distributed.context import rank_range
from gnntrain.loading.batch import Batch
from gnntrain.loading.features import FeatureSource
from gnntrain.loading.graph import BatchValues, GraphTensors, node_seeds
from gnntrain.loading.transfer import BatchStream, send_all, sent
from gnntrain.phases import Phases
from gnntrain.sampling.base import SampleKey, Sampler, Seeds, refuse_wrong_sample
from gnntrain.sampling.block import NO_NEEDS, BlockNeeds, Hop, Sample

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")

MakeSeeds = Callable[[Int64Array, SampleKey, BatchValues], Seeds]
"""See `Task.seeds`."""


@dataclass(frozen=True, slots=True)
class RankBatch:
    """One rank's examples in a global batch.

    Attributes:
        seeds: At least one: a rank without one of its own borrows one to take part in the
            all-reduce. Node ids, int64 `[n]`, or another task's rows `[n, …]`.
        num_counted: Those that enter the loss: all, or 0 if the only one is borrowed.
        global_batch_size: Counted examples of all ranks together.
    """

    seeds: Int64Array
    num_counted: int
    global_batch_size: int


@dataclass(frozen=True, slots=True)
class SeedBatch:
    """What differs from one recorded step to the next: on the device the seeds of the share, int64
    `[batch_size]`, and the keys of `GPUSampler.hop_keys`."""

    share: RankBatch
    seeds: Tensor
    keys: Tensor


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

    def rank_batch(self, order: Int64Array, step: int) -> RankBatch:
        """This rank's seeds in `step`."""
        everyone = order[step * self.global_batch_size :][: self.global_batch_size]
        share = everyone[rank_range(len(everyone), self.rank, self.world_size)]
        return RankBatch(share if len(share) else everyone[:1], len(share), len(everyone))

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[RankBatch, SampleKey]]:
        """This rank's seeds and the key of each step of an epoch, from the step `start` on."""
        order = self.order(epoch)
        for step in range(start, self.num_steps):
            yield self.rank_batch(order, step), self.key(epoch, step)


class Loader(ABC):
    """Iterable of one rank's mini-batches; its position is the epoch and step of the next one.

    Attributes:
        records_steps: Whether a training step is recorded as a CUDA graph, see `seed_batches`.
    """

    records_steps = False

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
        self._is_packaged = not type(sampler).__module__.startswith("gnntrain.")
        self.device = values.device if device is None else device
        self._prefetch = prefetch
        self._stream = BatchStream(self.device, is_side=self._threads > 0)

    def __iter__(self) -> Iterator[Batch]:
        """The batches from the current position to the end of the epoch."""
        steps = self.plan.batches(self._epoch, self._step)
        batches: Iterator[tuple[Batch, Any]] = map(self._made, steps)
        if self._threads:
            ahead = max(self._prefetch, self._threads)
            batches = made_ahead(self._made, steps, self._threads, ahead)
        for made in batches:
            self._step += 1
            yield self._stream.take(made)
            del made  # or it would live on while the next is waited for

    def seed_batches(self) -> Iterator[SeedBatch]:
        """As `__iter__`, but only what `padded` makes each batch from."""
        sampler: Any = self.sampler
        for share, key in self.plan.batches(self._epoch, self._step):
            self._step += 1
            tensors = torch.from_numpy(share.seeds), sampler.hop_keys(key)
            yield SeedBatch(share, *send_all(tensors, self.device))

    def padded(self, step: SeedBatch) -> Batch:
        """A batch of a fixed size, which a CUDA graph can record: made on the device alone, without
        synchronisation, by a `GPUSampler`.

        All its tensors have their largest possible size. The outputs equal those without padding,
        except for statistics over all rows (batch norm).
        """
        sampler: Any = self.sampler
        sample, values = sampler.sample_padded(step.seeds, step.keys), self.values
        seeds = Seeds({values.schema.target: step.seeds}, values.targets_of(step.seeds))
        return self.fill(sample, seeds, step.share)

    def fill(self, sample: Sample, seeds: Seeds, share: RankBatch) -> Batch:
        """The mini-batch of a sample of the share's seeds, on `device`."""
        n_id = dict(self.values.row_ids(sample))
        if not any(source.waits for source in self._features.values()):
            n_id = sent(n_id, self.device)  # once for the features and the batch
        batch = Batch(
            n_id_dict=n_id,
            rows={
                name: source.select(n_id[name], sample.size)
                for name, source in self._features.items()
            },
            hops=self.values.filled(sample, self._needs),
            y=seeds.targets,
            batch_size=len(seeds.targets),
            num_counted=share.num_counted,
            global_batch_size=share.global_batch_size,
            pairs=seeds.pairs,
            sample=sample,
        )
        batch.read(self._needs)  # here, not in the step
        return batch.to(self.device)

    def take_reads(self) -> tuple[int, int]:
        """See `Loader.take_reads`."""
        reads = [source.take_reads() for source in self._features.values()]
        return sum(hits for hits, _ in reads), sum(number for _, number in reads)

    def _made(self, step: tuple[RankBatch, SampleKey]) -> tuple[Batch, Any]:
        return self._stream.make(lambda: self._batch(*step))

    def _batch(self, share: RankBatch, key: SampleKey) -> Batch:
        with self.phases("gather"):
            seeds = self._make_seeds(share.seeds, key, self.values)
        with self.phases("sample"):
            sample = self.sampler.sample(seeds, key)
            if self._is_packaged:
                refuse_wrong_sample(self.sampler, sample, seeds, self.values.schema)
        with self.phases("gather"):
            return self.fill(sample, seeds, share)


def made_ahead(
    make: Callable[[_Item], _Made], items: Iterable[_Item], threads: int, ahead: int
) -> Iterator[_Made]:
    """What `make` returns for each item, in order, made by threads; so many are made ahead."""
    rest, pending = iter(items), deque[Future[_Made]]()
    with ThreadPoolExecutor(threads, "gnntrain-loader") as pool:
        try:
            pending.extend(pool.submit(make, item) for item in islice(rest, ahead))
            while pending:
                made = pending.popleft().result()
                # The next is made while this one is computed.
                pending.extend(pool.submit(make, item) for item in islice(rest, 1))
                yield made
                del made  # or it would live on while the next is waited for
        finally:
            for future in pending:
                future.cancel()


class FullGraphLoader(Loader):
    """Full-graph training: one step an epoch, over all nodes.

    Every rank computes the whole graph and takes its own seeds into the loss, so the result is the
    same on any number of ranks, and the work is not divided.

    Args:
        graph: The graph on the model's device.
        features: Sources of feature rows, which that device reads.
        plan, make_seeds: See `SampledLoader`; all seeds are in one step.
        num_layers: Layers of the model.
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
        batch_size = -(-len(plan.seeds) // plan.world_size)
        super().__init__(replace(plan, batch_size=batch_size, drop_last=False), Phases())
        share = self.plan.rank_batch(plan.seeds, 0)  # not shuffled
        seeds, device = make_seeds(share.seeds, plan.key(0, 0), graph), graph.device
        sizes = graph.schema.num_nodes
        blocks = {
            name: replace(
                edges.in_edges(0, sizes[name[2]], (0, len(edges.indices))),
                norm=edges.norm,
                aggregates={},
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
            num_counted=share.num_counted,
            global_batch_size=share.global_batch_size,
            seed_rows=seeds.nodes[graph.schema.target].to(device),
            pairs=None if seeds.pairs is None else seeds.pairs.to(device),
        )
        self._batch.read(needs)  # once, not in each epoch

    def __iter__(self) -> Iterator[Batch]:
        """The whole graph, once."""
        if self._step == 0:
            self._step = 1
            batch = self._batch
            if self._copies_features:
                batch = replace(batch, _x={name: x.clone() for name, x in batch.x_dict.items()})
            yield batch
