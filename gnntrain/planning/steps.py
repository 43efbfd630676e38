"""A few steps of the real loader, watched."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from itertools import count

import torch

from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.batch import MiniBatch
from gnntrain.loading.loader import Loader
from gnntrain.planning.measured import BatchSize

_NUM_WARM = 3  # kernels are loaded, optimiser states made, the next batch drawn ahead
_FEWEST, _MOST = 4, 40
_SECONDS = 5.0
_ENDLESS = 1 << 20


class WatchedLoader(Loader):
    """Hands on a loader's batches as they are, but few of them, and times the steps between.

    A short epoch is gone through several times, as a run would. All ranks end at the same step.

    Attributes:
        plan, phases: The loader's.
        sizes: The batches that were handed on.
        num_timed: Steps that were timed.
        seconds: What these took.
    """

    def __init__(self, loader: Loader, context: DistributedContext) -> None:
        super().__init__(loader.plan, loader.phases)
        self.sizes: list[BatchSize] = []
        self.num_timed = 0
        self.seconds = 0.0
        self._loader = loader
        self._context = context

    def __len__(self) -> int:
        """More steps than will ever be taken: it ends by itself."""
        return _ENDLESS

    def __iter__(self) -> Iterator[MiniBatch]:
        """Some batches to warm up, then those that are timed."""
        batches = self._batches()
        for number in range(_NUM_WARM):
            began = time.perf_counter()
            yield self._noted(next(batches))
            self._synchronize()
            if number == _NUM_WARM - 1:
                self.num_timed = self._num_to_time(time.perf_counter() - began)
        began = time.perf_counter()
        for _ in range(self.num_timed):
            yield self._noted(next(batches))
        self._synchronize()
        self.seconds = time.perf_counter() - began
        batches.close()

    def set_epoch(self, epoch: int) -> None:
        """See `Loader.set_epoch`."""
        self._loader.set_epoch(epoch)

    def take_reads(self) -> tuple[int, int]:
        """See `Loader.take_reads`."""
        return self._loader.take_reads()

    def state_dict(self) -> dict[str, int]:
        """See `Loader.state_dict`."""
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """See `Loader.load_state_dict`."""
        self._loader.load_state_dict(state)

    def _num_to_time(self, step_seconds: float) -> int:
        wanted = min(_MOST, max(_FEWEST, int(_SECONDS / max(step_seconds, 1e-6))))
        length = len(self._loader)
        if length <= _MOST:  # whole epochs: the last batch of one may be small
            wanted = max(1, wanted // length) * length
        return self._context.broadcast(wanted)

    def _batches(self) -> Generator[MiniBatch, None, None]:
        for epoch in count(1):
            self._loader.set_epoch(epoch)
            yield from self._loader

    def _noted(self, batch: MiniBatch) -> MiniBatch:
        blocks = batch.blocks
        # Rows that are only named are read where they lie, once an edge and once a destination.
        is_named = batch.rows is not None and bool(blocks)
        read = blocks[0].num_edges + blocks[0].num_dst if is_named else batch.n_id.numel()
        self.sizes.append(
            BatchSize(
                batch.batch_size,
                batch.n_id.numel(),
                tuple(block.num_dst for block in blocks),
                tuple(block.num_edges for block in blocks),
                read,
            )
        )
        return batch

    def _synchronize(self) -> None:
        if self._context.device.type == "cuda":
            torch.cuda.synchronize(self._context.device)
