"""A dry run: some steps and a part of the evaluation, by the parts that a run is built of.

It runs in processes of its own, one a rank, so that their peaks of memory are the dry run's alone.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from gnntrain.build import build_buffers, build_evaluator, build_loaders, build_model, build_task
from gnntrain.config import Config
from gnntrain.data.graph import Graph
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.distributed.run_control import Phase
from gnntrain.distributed.signals import on_forced_exit
from gnntrain.errors import Interrupted, RunError
from gnntrain.loading.batch import MiniBatch
from gnntrain.loading.loader import Loader
from gnntrain.models import GNN, PlainModel
from gnntrain.planning.partial import PartialEvaluation, SkippedEvaluation, synchronize
from gnntrain.training.callbacks import Callback
from gnntrain.training.measure import peak_gpu_bytes, peak_resident_bytes
from gnntrain.training.memory import evaluation_hint, memory_explained
from gnntrain.training.snapshot import EpochTotals
from gnntrain.training.trainer import Trainer

_NUM_SIZED = 8
_NUM_WARM = 3  # kernels are loaded, the optimiser's state is made, batches are drawn ahead
_FEWEST, _MOST = 4, 40
_STEP_SECONDS = 5.0
_TOUCH_SECONDS = 5.0
_NUM_WINDOWS = 8
_PAGE = 4096
_SLICE = 1 << 26
_ENDLESS = {"epochs": 1 << 20, "max_steps": None, "patience": 0}


@dataclass(frozen=True, slots=True)
class BatchSize:
    """The size of one mini-batch of a rank.

    Attributes:
        num_seeds: Seed nodes.
        num_nodes: All its nodes.
        num_edges: Edges of each hop, that of the seeds first.
        rows_read: Feature rows that are read for it.
    """

    num_seeds: int
    num_nodes: int
    num_edges: tuple[int, ...]
    rows_read: int

    @classmethod
    def of(cls, batch: MiniBatch) -> BatchSize:
        """Lazy rows are read by the first layer: one for each edge and each destination."""
        blocks, num_nodes = batch.blocks, batch.n_id.numel()
        is_lazy = batch.rows is not None and bool(blocks)
        rows_read = blocks[0].num_edges + blocks[0].num_dst if is_lazy else num_nodes
        num_edges = tuple(block.num_edges for block in reversed(blocks))
        return cls(batch.batch_size, num_nodes, num_edges, rows_read)


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank measured.

    Attributes:
        num_parameters: Trainable parameters.
        batches: Sizes of the first mini-batches.
        windows: Steps and their seconds, measured window by window.
        evaluation: Seconds of each part of one evaluation, as if it had been computed whole.
        evaluation_spread: The least and the most seconds of an evaluation, from the same parts.
        training_bytes: Peak of this process's own memory in training.
        peak_bytes: The same, with evaluation; without layers that ranks share or that are on disk.
        library_bytes: Pages of files that are not the store's.
        store_bytes: Bytes of the store that training and evaluation read.
        shared_bytes: Layers of the evaluation in memory that ranks share.
        disk_bytes: Layers of the evaluation in files.
        gpu_bytes: The most memory that torch held on the GPU; 0 without one.
        checkpoint_bytes: Size of a checkpoint; 0 but on rank 0.
        placement: Where a GPU reads the graph, and why; empty on a CPU.
    """

    num_parameters: int
    batches: Sequence[BatchSize]
    windows: Sequence[tuple[int, float]]
    evaluation: Sequence[float]
    evaluation_spread: tuple[float, float]
    training_bytes: int
    peak_bytes: int
    library_bytes: int
    store_bytes: int
    shared_bytes: int
    disk_bytes: int
    gpu_bytes: int
    checkpoint_bytes: int
    placement: Sequence[str]


@dataclass(frozen=True, slots=True)
class _DryRun:
    """The payload of a rank; picklable."""

    config: Config
    store: Path
    folder: Path


def dry_run(config: Config, graph: StoredGraph, runs: Path) -> list[RankReport]:
    """Do a few steps as `config` says, on all its ranks.

    Args:
        config: Its ranks fit on this machine.
        graph: The graph.
        runs: Where run directories go. A temporary folder is made there, or in its nearest parent,
            since layers that have no room in memory would go to the same disk.

    Returns:
        The ranks' reports, in rank order.

    Raises:
        GnntrainError: A rank failed, also for lack of memory.
    """
    with _temporary_folder(runs) as folder:
        job = _DryRun(config, graph.path, folder)
        plan = LaunchPlan.of(config)
        launch("gnntrain.planning.dry_run:run_rank", job, plan, folder, in_process=False)
        return [_read(plain) for plain in json.loads(_answer(folder).read_text())]


def run_rank(context: DistributedContext, job: _DryRun) -> None:
    """The dry run of one rank; rank 0 writes the reports of all."""
    config, graph = job.config, StoredGraph.open(job.store, check=False)
    task = build_task(config, graph)
    model = build_model(config, task, graph, context)
    arrays = _arrays_read(graph, model)
    untouched = _touch(arrays, context)
    own_files = _shared_now() - sum(array.nbytes for array in arrays) + untouched
    loaders = build_loaders(config, task, model, graph, context)
    loader = loaders.training_loader()
    batches = _first_batches(loader)
    timer = StepTimer(context, len(loader))
    checkpoints = job.folder / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    trainer = Trainer(
        model,
        loader,
        SkippedEvaluation(),
        task=task,
        config=config.trainer.model_copy(update=_ENDLESS),
        context=context,
        callbacks=[timer],
        checkpoints=checkpoints if context.is_main else None,
        checkpoint_config=config.checkpoint,
    )
    with timer.until_enough():
        trainer.fit()
    training_bytes = peak_resident_bytes() - _shared_now()
    evaluator = build_evaluator(config, task, model, loaders, graph, context, job.folder)
    limit = build_buffers(config, context, job.folder).memory_limit
    part = PartialEvaluation(evaluator, context, limit, _shared_now)
    context.control.enter(Phase.EVALUATING, trainer.step)
    with memory_explained(lambda: "in evaluation", evaluation_hint(evaluator, context.device)):
        part.evaluate(model)
    report = RankReport(
        num_parameters=trainer.num_parameters,
        batches=batches,
        windows=timer.windows,
        evaluation=part.seconds,
        evaluation_spread=part.spread,
        training_bytes=training_bytes,
        peak_bytes=max(training_bytes, peak_resident_bytes() - part.shared_now + part.untouched),
        library_bytes=max(0, own_files),
        store_bytes=sum(array.nbytes for array in arrays),
        shared_bytes=part.shared_bytes,
        disk_bytes=part.disk_bytes,
        gpu_bytes=peak_gpu_bytes(context.device),
        checkpoint_bytes=sum(file.stat().st_size for file in checkpoints.glob("last.pt")),
        placement=loaders.why_placed,
    )
    reports = context.gather_to_main(asdict(report))
    if context.is_main:
        _answer(job.folder).write_text(json.dumps(reports))


class _Enough(Exception):
    """Ends training; raised after the same step on all ranks."""


class StepTimer(Callback):
    """Times training steps, then ends training by an exception.

    Epochs of few steps are timed whole: the last batch of one may be small.

    Args:
        context: This rank.
        steps_per_epoch: Steps of an epoch.

    Attributes:
        windows: Numbers of consecutive steps, and the seconds that they took.
    """

    def __init__(self, context: DistributedContext, steps_per_epoch: int) -> None:
        self.windows: list[tuple[int, float]] = []
        self._context = context
        self._steps_per_epoch = steps_per_epoch
        self._num_steps = 0
        self._left = self._window = 0
        self._began = self._seconds = 0.0

    @contextmanager
    def until_enough(self) -> Iterator[None]:
        """Training inside ends when enough steps are timed."""
        try:
            yield
        except _Enough:
            return

    def before_epoch(self, trainer: Trainer) -> None:  # noqa: ARG002
        """The clock goes on."""
        self._began = time.perf_counter()

    def after_steps(self, trainer: Trainer, totals: EpochTotals) -> None:  # noqa: ARG002
        """What is done between two epochs is not counted."""
        self._seconds += time.perf_counter() - self._began

    def after_step(self, trainer: Trainer, totals: EpochTotals) -> None:  # noqa: ARG002
        """Warm up, then time windows of steps."""
        self._num_steps += 1
        if self._left == 0:
            self._warm_up()
            return
        self._left -= 1
        if self._num_steps < self._window and self._left:
            return
        self.windows.append((self._num_steps, self._lap()))
        if self._left == 0:
            trainer.save_checkpoint()
            raise _Enough

    def _warm_up(self) -> None:
        num_done = self._num_steps
        if num_done < _NUM_WARM - 1:
            return
        seconds = self._lap()
        self._num_steps = num_done
        if num_done < _NUM_WARM:
            return
        self._left = self._context.broadcast(self._num_to_time(seconds))
        self._window = -(-self._left // _NUM_WINDOWS)
        self._num_steps = 0

    def _num_to_time(self, step_seconds: float) -> int:
        wanted = min(_MOST, max(_FEWEST, int(_STEP_SECONDS / max(step_seconds, 1e-6))))
        length = self._steps_per_epoch
        return max(1, wanted // length) * length if length <= _MOST else wanted

    def _lap(self) -> float:
        """Seconds of training since the last call."""
        synchronize(self._context.device)
        now = time.perf_counter()
        seconds = self._seconds + now - self._began
        self._began, self._seconds, self._num_steps = now, 0.0, 0
        return seconds


def _first_batches(loader: Loader) -> list[BatchSize]:
    """Sizes of the first batches that training draws."""
    loader.set_epoch(1)
    batches = iter(loader)
    try:
        return [BatchSize.of(batch) for batch in islice(batches, _NUM_SIZED)]
    finally:
        close: Callable[[], None] = getattr(batches, "close", lambda: None)
        close()  # ends the loader's threads


def _arrays_read(graph: Graph, model: GNN | PlainModel) -> list[NDArray[np.generic]]:
    """The store's large arrays that training and evaluation read."""
    return [graph.features, *((graph.indptr, graph.indices) if model.uses_graph else ())]


def _touch(arrays: Sequence[NDArray[np.generic]], context: DistributedContext) -> int:
    """Read every page of the arrays, as a run does sooner or later: then they count as resident.

    Returns:
        Bytes that were left out, since it took too long.
    """
    end = time.perf_counter() + _TOUCH_SECONDS
    untouched = 0
    for array in arrays:
        pages = array.reshape(-1).view(np.uint8)
        for start in range(0, len(pages), _SLICE):
            if context.control.stop_requested:
                raise Interrupted(context.control.stop_requested)
            if time.perf_counter() > end:
                untouched += len(pages) - start
                break
            pages[start : start + _SLICE : _PAGE].max()
    return untouched


def _shared_now() -> int:
    """Resident pages of files and of shared memory; 0 where the system does not tell."""
    return int(getattr(psutil.Process().memory_info(), "shared", 0))


def _answer(folder: Path) -> Path:
    return folder / "reports.json"


def _read(plain: dict[str, object]) -> RankReport:
    batches = [BatchSize(**{**b, "num_edges": tuple(b["num_edges"])}) for b in plain["batches"]]  # type: ignore[attr-defined]  # as it was written
    return RankReport(**{**plain, "batches": batches})  # type: ignore[arg-type]  # as it was written


@contextmanager
def _temporary_folder(near: Path) -> Iterator[Path]:
    """A folder that is removed however this process ends in order, also by a second Ctrl-C."""
    parent = near.absolute()
    while not parent.is_dir():
        parent = parent.parent
    try:
        folder = Path(tempfile.mkdtemp(prefix=".gnntrain-plan-", dir=parent))
    except OSError as error:
        raise RunError(
            f"{parent} cannot be written: {error.strerror or error}.",
            "Choose another folder with run.dir=DIR.",
        ) from error

    def remove(_: int = 0) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    with on_forced_exit(remove):
        try:
            yield folder
        finally:
            remove()
