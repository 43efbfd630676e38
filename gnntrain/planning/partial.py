"""One evaluation, computed in part and scaled up."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import Tensor

from gnntrain.data.graph import NodeType
from gnntrain.devices import synchronize
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.batch import Batch
from gnntrain.loading.loader import Loader
from gnntrain.models import AnyModel, PlainModel
from gnntrain.training.buffers import DeviceBuffers, SharedBuffers
from gnntrain.training.evaluation import Evaluator, SampledEvaluator
from gnntrain.training.graph_access import (
    ROW_COST,
    EdgesBefore,
    GraphAccess,
    WholeGraph,
    edges_before,
)
from gnntrain.training.layerwise import LayerwiseEvaluator
from gnntrain.training.module_outputs import ModuleEvaluator

_SECONDS = 1.5  # of a loop over chunks or mini-batches
_MOST_CHUNKS = 16
_PAGE = 1024  # float32 numbers

Seconds = tuple[float, float, float]
"""Of a whole loop: by the mean speed of its rounds, and by that of fast and of slow ones."""


@dataclass(frozen=True, slots=True)
class EvaluationCost:
    """The cost of one evaluation on one rank.

    Attributes:
        loops: Seconds of each loop over chunks or mini-batches.
        rest: Seconds of all else: metrics, memory, waiting for other ranks.
        mapped_bytes: Resident pages of files and shared memory, while all layers were there.
        shared_bytes, disk_bytes: Layers that ranks share in memory; layers in files.
    """

    loops: list[Seconds]
    rest: float
    mapped_bytes: int
    shared_bytes: int
    disk_bytes: int


def evaluate_in_part(
    evaluator: Evaluator, model: AnyModel, context: DistributedContext, folder: Path
) -> EvaluationCost:
    """Evaluate some chunks of each layer, or some mini-batches of each split. Collective.

    Layers are allocated as in a whole evaluation and written to, so that memory, and the time of
    an access to it, are those of a run.

    Args:
        evaluator: The run's; it is changed, and of no other use afterwards.
        model: Evaluated; the metrics mean nothing.
        context: This rank.
        folder: Where layers go that do not fit in memory.
    """
    clock = _Clock(context.device)
    buffers = _WrittenBuffers(context, folder, 0)
    if isinstance(evaluator, LayerwiseEvaluator):
        evaluator.access = _SomeChunks(evaluator.access, clock)
        if not isinstance(evaluator.access.buffers, DeviceBuffers):
            buffers.memory_limit = evaluator.access.buffers.memory_limit
            evaluator.access.buffers = buffers
    if isinstance(evaluator, ModuleEvaluator):
        assert isinstance(model, PlainModel)
        evaluator = evaluator.by_batch(model) or evaluator
    if isinstance(evaluator, SampledEvaluator):
        loaders = evaluator.loaders.items()
        evaluator.loaders = {split: _SomeBatches(loader, clock) for split, loader in loaders}
    evaluator.evaluate(model)  # loads kernels and what metrics need
    clock.restart(_SECONDS)
    context.barrier()
    began = clock.now()
    evaluator.evaluate(model)
    rest = clock.now() - began - clock.spent
    mapped = max(buffers.mapped_bytes, mapped_bytes())
    return EvaluationCost(clock.loops, rest, mapped, buffers.shared_bytes, buffers.disk_bytes)


class _Clock:
    """Times the rounds of loops that end after some seconds; at first after one round."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.restart(0.0)

    def restart(self, seconds_a_loop: float) -> None:
        """Forget all loops; the next ones may take so long."""
        self.loops: list[Seconds] = []
        self.spent = 0.0
        self.seconds_a_loop = seconds_a_loop

    def now(self) -> float:
        synchronize(self._device)
        return time.perf_counter()

    def some_of(
        self, ranges: Sequence[tuple[int, int]], before: EdgesBefore
    ) -> Iterator[tuple[int, int]]:
        """Ranges of nodes, spread evenly over all, in random order, until time is up."""
        work = [float(before(b) - before(a)) + ROW_COST * (b - a) for a, b in ranges]
        rounds: list[tuple[float, float]] = []
        began = self.now()
        for number in _spread(len(ranges)):
            round_began = self.now()
            yield ranges[number]
            rounds.append((self.now() - round_began, work[number]))
            if self.now() - began > self.seconds_a_loop:
                break
        self.end(began, rounds, sum(work))

    def end(self, began: float, rounds: Sequence[tuple[float, float]], total: float) -> None:
        """A loop began, whose rounds had these seconds and this work, of `total` work."""
        self.spent += self.now() - began
        seconds, work = np.array(rounds or [(0.0, 1.0)]).T
        fast, slow = np.quantile(seconds / work, [0.1, 0.9]) * total
        mean = seconds.sum() / work.sum() * total
        self.loops.append((float(mean), float(fast), float(slow)))


class _SomeChunks(WholeGraph):
    """Gives some chunks of each layer, by all that `whole` has."""

    def __init__(self, whole: GraphAccess, clock: _Clock) -> None:
        vars(self).update(vars(whole))
        self._clock = clock

    def chunks(
        self, node_type: NodeType, max_rows: int, max_edges: int
    ) -> Iterator[tuple[int, int]]:
        """Chunks spread evenly over all, in random order."""
        ranges = list(super().chunks(node_type, max_rows, max_edges))
        yield from self._clock.some_of(ranges, edges_before(self.graph, node_type))


class _SomeBatches(Loader):
    """The first batches of a loader, at least one."""

    def __init__(self, loader: Loader, clock: _Clock) -> None:
        super().__init__(loader.plan, loader.phases)
        self._loader, self._clock = loader, clock

    def set_epoch(self, epoch: int) -> None:
        """See `Loader.set_epoch`."""
        self._loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:
        """The batches, as they are."""
        rounds: list[tuple[float, float]] = []
        began = round_began = self._clock.now()
        for batch in self._loader:
            yield batch
            now = self._clock.now()
            rounds.append((now - round_began, 1.0))
            round_began = now
            if now - began > self._clock.seconds_a_loop:
                break
        self._clock.end(began, rounds, float(len(self._loader)))


class _WrittenBuffers(SharedBuffers):
    """Writes to each layer in memory as it is allocated: only then it takes memory.

    Attributes:
        shared_bytes, disk_bytes, mapped_bytes: See `EvaluationCost`.
    """

    shared_bytes = disk_bytes = mapped_bytes = 0

    def _allocate(self, num_rows: int, num_columns: int) -> Tensor:
        matrix = super()._allocate(num_rows, num_columns)
        if matrix.nbytes <= self.memory_limit:
            matrix.view(-1)[::_PAGE] = 0.0
        return matrix

    def matrix(self, name: str, num_rows: int, num_columns: int) -> Tensor:
        """See `Buffers.matrix`."""
        matrix = super().matrix(name, num_rows, num_columns)
        sizes = [held.nbytes for held in self._matrices.values()]
        on_disk = sum(size for size in sizes if size > self.memory_limit)
        in_memory = sum(sizes) - on_disk if self.context.world_size > 1 else 0
        self.disk_bytes = max(self.disk_bytes, on_disk)
        self.shared_bytes = max(self.shared_bytes, in_memory)
        self.mapped_bytes = max(self.mapped_bytes, mapped_bytes())
        return matrix


def mapped_bytes() -> int:
    """Resident pages of files and of shared memory; 0 where the system does not tell."""
    return int(getattr(psutil.Process().memory_info(), "shared", 0))


def _spread(number: int) -> list[int]:
    """A few of the numbers below `number`, evenly spread, in random order."""
    picked = np.unique(np.linspace(0, max(0, number - 1), min(number, _MOST_CHUNKS)).astype(int))
    return list(map(int, np.random.default_rng(0).permutation(picked)))
