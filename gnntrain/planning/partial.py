"""One evaluation, computed in part and scaled up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import psutil
import torch
from torch import Tensor

from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.batch import MiniBatch
from gnntrain.loading.loader import Loader
from gnntrain.models import GNN, PlainModel
from gnntrain.training.buffers import Buffers
from gnntrain.training.evaluation import (
    ROW_COST,
    Evaluator,
    LayerwiseEvaluator,
    SampledEvaluator,
    SplitMetrics,
)

_SECONDS = 1.5  # of a layer, of a split, and of allocating a matrix
_MOST_CHUNKS = 16
_PAGE_FLOATS = 1024
_SLICE = 1 << 24
_LOW, _HIGH = 0.1, 0.9


class SkippedEvaluation:
    """In the place of an evaluator while steps are timed: computes nothing."""

    def evaluate(self, model: GNN | PlainModel) -> SplitMetrics:  # noqa: ARG002
        """No metrics."""
        return {}


@dataclass(frozen=True, slots=True)
class _Part:
    """A loop of which some rounds were done.

    Attributes:
        spent: Seconds that these took.
        whole, low, high: Seconds of the whole loop; and at the speed of its fastest and slowest
            rounds.
    """

    spent: float
    whole: float
    low: float
    high: float

    @classmethod
    def of(
        cls, spent: float, seconds: Sequence[float], work: Sequence[float], total: float
    ) -> _Part:
        """From the seconds and the work of the rounds that were timed, of `total` work."""
        if not seconds:
            return cls(spent, spent, spent, spent)
        low, high = np.quantile(np.divide(seconds, work), [_LOW, _HIGH]) * total
        return cls(spent, sum(seconds) / sum(work) * total, float(low), float(high))


class PartialEvaluation:
    """Evaluates a model on some chunks of each layer, or on some mini-batches of each split.

    All matrices are allocated as in a whole evaluation, and their pages written to once, so that
    memory, and the time of an access to it, are those of a run.

    Args:
        evaluator: The run's evaluator; it is changed and serves no other purpose afterwards.
        context: This rank.
        memory_limit: Bytes of a matrix beyond which it is on disk.
        measure_shared: Returns the bytes of shared pages that this process has resident.

    Attributes:
        seconds: Of a whole evaluation: of each of its loops, and, last, of all else.
        spread: Seconds of the whole at the speed of the fastest and slowest rounds.
        shared_now: Shared pages while all matrices were there.
        shared_bytes, disk_bytes: Matrices that ranks share in memory, and matrices on disk.
        untouched: Bytes of a rank's own matrices that were left out, since it took too long.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        context: DistributedContext,
        memory_limit: int,
        measure_shared: Callable[[], int],
    ) -> None:
        self.seconds: list[float] = []
        self.spread = (0.0, 0.0)
        self.shared_now = measure_shared()
        self.shared_bytes = self.disk_bytes = self.untouched = 0
        self._parts: list[_Part] = []
        self._context = context
        self._evaluator = evaluator
        if isinstance(evaluator, LayerwiseEvaluator):
            evaluator.buffers = _TouchedBuffers(
                evaluator.buffers, self, context, memory_limit, measure_shared
            )
            self._evaluator = _SomeChunks(evaluator, context, self._parts)
        elif isinstance(evaluator, SampledEvaluator):
            evaluator.loaders = {
                split: _SomeBatches(loader, context, self._parts)
                for split, loader in evaluator.loaders.items()
            }

    def evaluate(self, model: GNN | PlainModel) -> None:
        """Measure; the metrics are meaningless. Collective."""
        self._context.barrier()
        began = time.perf_counter()
        self._evaluator.evaluate(model)
        synchronize(self._context.device)
        rest = time.perf_counter() - began - sum(part.spent for part in self._parts)
        self.seconds = [*(part.whole for part in self._parts), rest]
        low, high = (sum(getattr(part, end) for part in self._parts) for end in ("low", "high"))
        self.spread = (rest + low, rest + high)


class _SomeChunks(LayerwiseEvaluator):
    """Computes some of the chunks of each layer; shares all that it has with `whole`."""

    def __init__(
        self, whole: LayerwiseEvaluator, context: DistributedContext, parts: list[_Part]
    ) -> None:
        vars(self).update(vars(whole))
        self._device = context.device
        self._parts = parts

    def chunks(self, model: GNN) -> Iterator[tuple[int, int]]:
        """Chunks evenly spread over all, in random order; the first one twice."""
        ranges = list(super().chunks(model))
        indptr = self._store.indptr
        work = [int(indptr[b] - indptr[a]) + ROW_COST * (b - a) for a, b in ranges]
        picked = _spread(len(ranges))
        began = time.perf_counter()
        yield from (ranges[number] for number in picked[:1])  # kernels are loaded
        seconds: list[float] = []
        while len(seconds) < len(picked) and sum(seconds) < _SECONDS:
            synchronize(self._device)
            round_began = time.perf_counter()
            yield ranges[picked[len(seconds)]]
            synchronize(self._device)
            seconds.append(time.perf_counter() - round_began)
        done = [float(work[number]) for number in picked[: len(seconds)]]
        spent = time.perf_counter() - began
        self._parts.append(_Part.of(spent, seconds, done, float(sum(work))))


class _SomeBatches(Loader):
    """The first batches of a loader."""

    def __init__(self, loader: Loader, context: DistributedContext, parts: list[_Part]) -> None:
        super().__init__(loader.plan, loader.phases)
        self._loader = loader
        self._device = context.device
        self._parts = parts

    def set_epoch(self, epoch: int) -> None:
        """See `Loader.set_epoch`."""
        self._loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[MiniBatch]:
        """At least one batch."""
        seconds: list[float] = []
        began = time.perf_counter()
        for batch in self._loader:
            yield batch
            synchronize(self._device)
            seconds.append(time.perf_counter() - began - sum(seconds))
            if sum(seconds) > _SECONDS:
                break
        work = [1.0] * len(seconds)
        self._parts.append(_Part.of(sum(seconds), seconds, work, float(len(self._loader))))


class _TouchedBuffers:
    """Buffers whose matrices are written to as soon as they are there; notes their bytes.

    A matrix that nobody has written to has no memory yet. An evaluation writes to each sooner or
    later, a part of one does not.
    """

    def __init__(
        self,
        inner: Buffers,
        noted: PartialEvaluation,
        context: DistributedContext,
        memory_limit: int,
        measure_shared: Callable[[], int],
    ) -> None:
        self._inner = inner
        self._noted = noted
        self._context = context
        self._memory_limit = memory_limit
        self._measure_shared = measure_shared
        self._room = psutil.virtual_memory().available // (2 * context.world_size)
        self._held: dict[str, tuple[int, int, int]] = {}  # own untouched, shared, on disk

    def begin(self, num_bytes: int) -> None:
        """See `Buffers.begin`."""
        self._inner.begin(num_bytes)

    def chunk_limits(self, width: int) -> tuple[int, int]:
        """See `Buffers.chunk_limits`."""
        return self._inner.chunk_limits(width)

    def matrix(self, name: str, num_rows: int, num_columns: int) -> Tensor:
        """See `Buffers.matrix`."""
        matrix = self._inner.matrix(name, num_rows, num_columns)
        if name not in self._held:
            self._held[name] = self._placed(matrix)
            noted = self._noted
            untouched, shared, on_disk = map(sum, zip(*self._held.values(), strict=True))
            noted.untouched = max(noted.untouched, untouched)
            noted.shared_bytes = max(noted.shared_bytes, shared)
            noted.disk_bytes = max(noted.disk_bytes, on_disk)
            noted.shared_now = max(noted.shared_now, self._measure_shared())
        return matrix

    def sync(self, matrix: Tensor, ranges: Sequence[tuple[int, int]]) -> None:
        """See `Buffers.sync`."""
        self._inner.sync(matrix, ranges)

    def release(self, name: str | None = None) -> None:
        """See `Buffers.release`."""
        for key in list(self._held):
            if name in (None, key):
                del self._held[key]
        self._inner.release(name)

    def _placed(self, matrix: Tensor) -> tuple[int, int, int]:
        """Bytes of the matrix that are this rank's own and untouched, shared, and on disk."""
        if matrix.device.type != "cpu":
            return 0, 0, 0
        untouched = self._touch(matrix)
        if matrix.nbytes > self._memory_limit:
            return 0, 0, matrix.nbytes
        is_shared = self._context.world_size > 1
        return (0, matrix.nbytes, 0) if is_shared else (untouched, 0, 0)

    def _touch(self, matrix: Tensor) -> int:
        """Write to every page, as far as time and memory allow; returns the bytes left out."""
        flat = matrix.view(-1)
        began = time.perf_counter()
        done = 0
        while done < len(flat) and time.perf_counter() - began < _SECONDS and self._room > 0:
            flat[done : done + _SLICE : _PAGE_FLOATS] = 0.0
            self._room -= 4 * _SLICE
            done = min(len(flat), done + _SLICE)
        return 4 * (len(flat) - done)


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has computed all that it was told to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _spread(number: int) -> list[int]:
    """A few of the numbers below `number`, evenly spread, in random order."""
    picked = np.unique(np.linspace(0, max(0, number - 1), min(number, _MOST_CHUNKS)).astype(int))
    return list(map(int, np.random.default_rng(0).permutation(picked)))
