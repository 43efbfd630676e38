"""A training step: takes a batch and counts into the epoch's totals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, cast

from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.batch import Batch
from gnntrain.loading.loader import Loader, SampledLoader
from gnntrain.loading.padded import PaddedBatches, SeedBatch
from gnntrain.phases import Phases
from gnntrain.training.cuda_graph import CUDAGraphStep, Record
from gnntrain.training.snapshot import EpochTotals
from gnntrain.training.update import Update


class Step(Protocol):
    """The training loop calls `Step` once a batch."""

    def batches(self) -> Iterator[Any]:
        """The inputs of the remaining steps of the epoch."""
        ...

    def __call__(self, batch: Any, totals: EpochTotals) -> None:
        """Update the weights by one of `batches`, and add to the totals."""
        ...


class PlainStep:
    """Moves a batch to the device and updates the weights.

    Args:
        update: Moves the weights.
        loader: Makes the batches.
        context: This rank.
        phases: Takes the time of each phase.
    """

    def __init__(
        self, update: Update, loader: Loader, context: DistributedContext, phases: Phases
    ) -> None:
        self._update = update
        self._loader = loader
        self._device = context.device
        self._phases = phases

    def batches(self) -> Iterator[Batch]:
        """The loader's batches."""
        return iter(self._loader)

    def __call__(self, batch: Batch, totals: EpochTotals) -> None:
        """See `Step`."""
        with self._phases("transfer"):
            batch = batch.to(self._device)  # where the loader has not done so
        if self._update(batch, totals):
            totals.num_seeds += batch.num_counted
        else:
            totals.num_skipped += 1


class ReplayedStep:
    """Replays a CUDA graph that samples its batch on the device, see `CUDAGraphStep`.

    Args:
        update: Moves the weights.
        loader: A `SampledLoader` whose sampler can pad.
        context: This rank.
        phases: Where the time of each part is noted.
        record: How to record; by default as a CUDA graph.
    """

    def __init__(
        self,
        update: Update,
        loader: Loader,
        context: DistributedContext,
        phases: Phases,
        record: Record | None = None,
    ) -> None:
        batches = PaddedBatches(cast(SampledLoader, loader))
        self._replay = CUDAGraphStep(batches, update, update.optimizer, context.device, record)
        self._phases = phases

    def batches(self) -> Iterator[SeedBatch]:
        """Seeds and keys of the steps."""
        return iter(self._replay.batches)

    def __call__(self, batch: SeedBatch, totals: EpochTotals) -> None:
        """See `Step`."""
        with self._phases("replay"):
            self._replay(batch, totals)
        totals.num_seeds += batch.num_counted
