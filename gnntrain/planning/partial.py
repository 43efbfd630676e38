"""One evaluation, computed in part and scaled up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.batch import MiniBatch
from gnntrain.loading.loader import Loader
from gnntrain.models import GNN, PlainModel
from gnntrain.training.buffers import SharedBuffers
from gnntrain.training.evaluation import (
    ROW_COST,
    Evaluator,
    LayerwiseEvaluator,
    SampledEvaluator,
    SplitMetrics,
)

_SECONDS = 1.5  # of a layer, of a split, and of writing to a matrix
_MOST_CHUNKS = 16
_PAGE = 1024  # float32 numbers
_SLICE = 1 << 24


class SkippedEvaluation:
    """In the place of an evaluator while steps are timed."""

    def evaluate(self, model: GNN | PlainModel) -> SplitMetrics:  # noqa: ARG002
        """No metrics."""
        return {}


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop of which some rounds were done.

    Attributes:
        spent: Seconds that it took.
        mean, fastest, slowest: Seconds of the whole loop at the speed of those rounds.
    """

    spent: float
    mean: float
    fastest: float
    slowest: float

    @classmethod
    def of(cls, spent: float, rounds: Sequence[tuple[float, float]], total: float) -> _Loop:
        """From the seconds and the work of each round, of `total` work."""
        if not rounds:
            return cls(spent, 0.0, 0.0, 0.0)
        seconds, work = np.array(rounds).T
        ends = np.quantile(seconds / work, [0.1, 0.9]) * total
        return cls(spent, float(seconds.sum() / work.sum() * total), *map(float, ends))


class PartialEvaluation:
    """Evaluates a model on some chunks of each layer, or on some mini-batches of each split.

    All matrices are allocated as in a whole evaluation, and written to, so that memory, and the
    time of an access to it, are those of a run.

    Args:
        evaluator: The run's; it is changed, and of no other use afterwards.
        context: This rank.
        folder: Where matrices go that do not fit in memory.
        count_mapped: Returns the bytes of mapped pages that this process has resident.

    Attributes:
        mapped_bytes: Mapped pages while all matrices were there.
        shared_bytes, disk_bytes: Matrices that ranks share in memory; matrices in files.
        untouched: Bytes of this rank's own matrices that were not written to: it took too long.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        context: DistributedContext,
        folder: Path,
        count_mapped: Callable[[], int],
    ) -> None:
        self.mapped_bytes = count_mapped()
        self.shared_bytes = self.disk_bytes = self.untouched = 0
        self._loops: list[_Loop] = []
        self._rest = 0.0
        self._context = context
        self._count_mapped = count_mapped
        self._evaluator = evaluator
        if isinstance(evaluator, LayerwiseEvaluator):
            if isinstance(evaluator.buffers, SharedBuffers):
                limit = evaluator.buffers.memory_limit
                evaluator.buffers = _TouchedBuffers(context, folder, limit, self._note)
            self._evaluator = _SomeChunks(evaluator, context, self._loops)
        elif isinstance(evaluator, SampledEvaluator):
            evaluator.loaders = {
                split: _SomeBatches(loader, context, self._loops)
                for split, loader in evaluator.loaders.items()
            }

    def evaluate(self, model: GNN | PlainModel) -> None:
        """Measure; the metrics mean nothing. Collective."""
        self._context.barrier()
        began = time.perf_counter()
        self._evaluator.evaluate(model)
        synchronize(self._context.device)
        self._rest = time.perf_counter() - began - sum(loop.spent for loop in self._loops)

    def seconds(self, speed: str = "mean") -> list[float]:
        """Seconds of a whole evaluation: of each loop, and, last, of all else."""
        return [*(getattr(loop, speed) for loop in self._loops), self._rest]

    def _note(self, own_untouched: int, shared: int, on_disk: int) -> None:
        self.untouched = max(self.untouched, own_untouched)
        self.shared_bytes = max(self.shared_bytes, shared)
        self.disk_bytes = max(self.disk_bytes, on_disk)
        self.mapped_bytes = max(self.mapped_bytes, self._count_mapped())


class _SomeChunks(LayerwiseEvaluator):
    """Computes some chunks of each layer, by all that `whole` has."""

    def __init__(
        self, whole: LayerwiseEvaluator, context: DistributedContext, loops: list[_Loop]
    ) -> None:
        vars(self).update(vars(whole))
        self._device, self._loops = context.device, loops

    def chunks(self, model: GNN) -> Iterator[tuple[int, int]]:
        """Chunks spread evenly over all, in random order; the first one twice, to load kernels."""
        ranges = list(super().chunks(model))
        indptr = self._store.indptr
        work = [float(indptr[b] - indptr[a]) + ROW_COST * (b - a) for a, b in ranges]
        rounds: list[tuple[float, float]] = []
        began = time.perf_counter()
        picked = _spread(len(ranges))
        for number in [*picked[:1], *picked]:
            synchronize(self._device)
            round_began = time.perf_counter()
            yield ranges[number]
            synchronize(self._device)
            rounds.append((time.perf_counter() - round_began, work[number]))
            if time.perf_counter() - began > _SECONDS and len(rounds) > 1:
                break
        self._loops.append(_Loop.of(time.perf_counter() - began, rounds[1:], sum(work)))


class _SomeBatches(Loader):
    """The first batches of a loader, at least one."""

    def __init__(self, loader: Loader, context: DistributedContext, loops: list[_Loop]) -> None:
        super().__init__(loader.plan, loader.phases)
        self._loader, self._device, self._loops = loader, context.device, loops

    def set_epoch(self, epoch: int) -> None:
        """See `Loader.set_epoch`."""
        self._loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[MiniBatch]:
        """The batches, as they are."""
        rounds: list[tuple[float, float]] = []
        began = round_began = time.perf_counter()
        for batch in self._loader:
            yield batch
            synchronize(self._device)
            now = time.perf_counter()
            rounds.append((now - round_began, 1.0))
            round_began = now
            if now - began > _SECONDS:
                break
        self._loops.append(_Loop.of(round_began - began, rounds, float(len(self._loader))))


class _TouchedBuffers(SharedBuffers):
    """Writes to each matrix that it allocates: the system gives memory at the first write.

    Args:
        context, directory, memory_limit: See `SharedBuffers`.
        note: Called with the bytes of all matrices: own and not written to, shared, on disk.
    """

    def __init__(
        self,
        context: DistributedContext,
        directory: Path,
        memory_limit: int,
        note: Callable[[int, int, int], None],
    ) -> None:
        super().__init__(context, directory, memory_limit)
        self._note = note
        self._untouched: dict[tuple[str, int, int], int] = {}

    def matrix(self, name: str, num_rows: int, num_columns: int) -> Tensor:
        """See `Buffers.matrix`."""
        matrix = super().matrix(name, num_rows, num_columns)
        if (name, num_rows, num_columns) not in self._untouched:
            self._untouched[name, num_rows, num_columns] = _write_to_pages(matrix)
            held = self._matrices.items()
            on_disk = sum(m.nbytes for _, m in held if m.nbytes > self.memory_limit)
            in_memory = sum(m.nbytes for _, m in held) - on_disk
            untouched = sum(self._untouched[k] for k, m in held if m.nbytes <= self.memory_limit)
            is_shared = self._context.world_size > 1
            self._note(*((0, in_memory) if is_shared else (untouched, 0)), on_disk)
        return matrix


def _write_to_pages(matrix: Tensor) -> int:
    """Write to each page of the matrix; returns the bytes that are left when it took too long."""
    flat, end = matrix.view(-1), time.perf_counter() + _SECONDS
    for start in range(0, len(flat), _SLICE):
        if time.perf_counter() > end:
            return 4 * (len(flat) - start)
        flat[start : start + _SLICE : _PAGE] = 0.0
    return 0


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has computed all that it was told to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _spread(number: int) -> list[int]:
    """A few of the numbers below `number`, evenly spread, in random order."""
    picked = np.unique(np.linspace(0, max(0, number - 1), min(number, _MOST_CHUNKS)).astype(int))
    return list(map(int, np.random.default_rng(0).permutation(picked)))
