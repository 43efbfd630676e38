"""A dry run: the trainer for some steps, and one evaluation.

Each rank is a process of its own, so that its peak of memory is the dry run's alone.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import psutil
from pydantic import TypeAdapter

from gnntrain.build import build_evaluator, build_loaders, build_model, build_task
from gnntrain.compute.selection import KernelChoice, select
from gnntrain.config import Config
from gnntrain.data.graph import Graph
from gnntrain.data.store import StoredGraph
from gnntrain.devices import peak_memory, synchronize
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.distributed.signals import on_forced_exit
from gnntrain.errors import UserError
from gnntrain.loading.batch import Batch
from gnntrain.models import AnyModel
from gnntrain.paths import nearest_folder
from gnntrain.selfcheck import kernel_choice
from gnntrain.training.layerwise import LayerwiseEvaluator
from gnntrain.training.totals import EpochTotals
from gnntrain.training.trainer import Callback, Trainer

_ANSWER = "reports.json"
_NUM_BATCHES = 8
_NUM_WARM = 3  # kernels are loaded, the optimiser's state is made, batches are drawn ahead
_FEWEST, _MOST = 4, 40
_SECONDS = 5.0
_ENDLESS = {"epochs": 1 << 20, "eval_every": 1 << 20, "max_steps": None, "patience": 0}


@dataclass(frozen=True, slots=True)
class BatchSize:
    """The size of a rank's mini-batch."""

    num_seeds: int
    num_nodes: int
    num_edges: Sequence[int]  # hop by hop, that of the seeds first
    bytes_read: int  # of features
    row_gradient_bytes: int = 0  # of gradients of rows of embedding tables


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank measured."""

    num_parameters: int  # trainable ones
    num_dense: int  # of them, those that are not in embedding tables
    batches: Sequence[BatchSize]  # the first mini-batches
    steps: Sequence[float]  # seconds of each step that was timed
    evaluation: float  # seconds of one
    training_bytes: int  # peak of this process's own memory until training ended
    peak_bytes: int  # the same until evaluation ended
    mapped_bytes: int  # the most resident pages of files and of shared memory
    shared_bytes: int  # layers that ranks share in memory
    disk_bytes: int  # layers in files
    gpu_bytes: int  # the most memory that torch held on the GPU
    checkpoint_bytes: int  # 0 but on rank 0
    placement: Sequence[str]  # where a GPU reads the graph, and why; empty on a CPU
    kernels: str  # who computes the operators


REPORTS = TypeAdapter(list[RankReport])


def dry_run(config: Config, graph: StoredGraph, runs: Path) -> list[RankReport]:
    """Train and evaluate as `config` says, on all its ranks; returns their reports, in rank order.
    Layers that have no room in memory are tried in `runs`, where run directories go.

    Raises:
        GnntrainError: A rank failed, also for lack of memory.
    """
    parent, plan = nearest_folder(runs), LaunchPlan.of(config)
    try:
        temporary = tempfile.TemporaryDirectory(prefix=".gnntrain-plan-", dir=parent)
    except OSError as error:
        reason = f"{parent} cannot be written: {error.strerror or error}"
        raise UserError(reason, "Choose another folder with run.dir=DIR.") from error
    remove = lambda _: shutil.rmtree(temporary.name, ignore_errors=True)  # noqa: E731
    with temporary as name, on_forced_exit(remove):  # a second Ctrl-C removes it, too
        folder = Path(name)
        job = (config, graph.path, folder, kernel_choice(config, plan.device))
        launch("gnntrain.planning.dry_run:run_rank", job, plan, folder, in_process=False)
        reports = REPORTS.validate_json((folder / _ANSWER).read_bytes())
    if plan.world_size == 1 and not plan.use_gpus:
        # Training will be in the command's process, which has itself imported the libraries that
        # this rank found in the process that it was forked from.
        (report,) = reports
        return [replace(report, mapped_bytes=report.mapped_bytes + Memory().mapped_bytes)]
    return reports


def run_rank(context: DistributedContext, job: tuple[Config, Path, Path, KernelChoice]) -> None:
    """The dry run of one rank, of a graph's store and with a folder for its files; rank 0 writes
    the reports of all."""
    config, store, folder, kernels = job
    select(kernels, context.device.type)
    graph = StoredGraph.open(store, check=False)
    task = build_task(config, graph)
    model = build_model(config, task, graph, context)
    loaders = build_loaders(config, task, model, graph, context)
    loader = loaders.training_loader()
    loader.set_epoch(1)
    drawn = iter(loader)
    batches = [_batch_size(batch, graph, model) for batch in islice(drawn, _NUM_BATCHES)]
    getattr(drawn, "close", lambda: None)()  # ends the loader's threads
    evaluator = build_evaluator(config, task, model, loaders, graph, context, folder)
    memory = Memory()
    steps = SomeSteps(context, memory)
    trainer = Trainer(
        model,
        loader,
        evaluator,
        task=task,
        config=config.trainer.model_copy(update=_ENDLESS),
        context=context,
        callbacks=[steps],
        checkpoints=folder if context.is_main else None,
        checkpoint_config=config.checkpoint,
    )
    memory.start()
    evaluation = trainer.fit().records[-1].eval_seconds
    is_faster = isinstance(evaluator, LayerwiseEvaluator) and evaluator.is_faster_later
    # Again, with kernels and metrics loaded, or as all later ones.
    if context.broadcast(evaluation < _SECONDS or is_faster):
        began = time.perf_counter()
        evaluator.evaluate(model)
        evaluation = time.perf_counter() - began
    memory.stop()
    layers = evaluator.access.buffers if isinstance(evaluator, LayerwiseEvaluator) else None
    report = RankReport(
        num_parameters=trainer.num_parameters,
        num_dense=sum(p.numel() for p in model.parameters() if p.requires_grad),
        batches=batches,
        steps=steps.seconds,
        evaluation=evaluation,
        training_bytes=steps.training_bytes,
        peak_bytes=memory.own_bytes,
        mapped_bytes=memory.mapped_bytes,
        shared_bytes=0 if layers is None else layers.most_shared,
        disk_bytes=0 if layers is None else layers.most_on_disk,
        gpu_bytes=peak_memory(context.device),
        checkpoint_bytes=sum(file.stat().st_size for file in folder.glob("last.pt")),
        placement=loaders.why_placed,
        kernels=str(kernels),
    )
    reports = context.gather_to_main(report)
    if context.is_main:
        (folder / _ANSWER).write_bytes(REPORTS.dump_json(reports))


def _batch_size(batch: Batch, graph: Graph, model: AnyModel) -> BatchSize:
    # Each row once: of rows that a convolution of typed graphs aggregates in place it is more.
    sizes = {t: len(ids) for t, ids in batch.n_id_dict.items()}
    num_nodes = sum(sizes.values())
    if not model.is_hetero and model.needs.rows and batch.hops:
        # Lazy rows are read by the first layer: one for each edge and each destination.
        first = batch.hops[0]
        sizes = {t: first.num_edges + num_dst for t, num_dst in first.num_dst.items()}
    rows, tables = graph.nodes, model.tables
    return BatchSize(
        batch.batch_size,
        num_nodes,
        [hop.num_edges for hop in reversed(batch.hops)],
        sum(n * rows[t].num_features * rows[t].features.itemsize for t, n in sizes.items()),
        # With the number of each row.
        sum(sizes[t] * (4 * table.weight.shape[1] + 8) for t, table in tables.items()),
    )


class SomeSteps(Callback):
    """Times training steps, each until the GPU has done it, and ends training after enough of them.
    `training_bytes` is the peak of this process's own memory until then."""

    def __init__(self, context: DistributedContext, memory: Memory) -> None:
        self._context, self._memory = context, memory
        self._num_steps, self._began, self.training_bytes = 0, 0.0, 0
        self.seconds: list[float] = []

    def before_epoch(self, trainer: Trainer) -> None:  # noqa: ARG002
        """What is done between two epochs belongs to no step."""
        self._began = time.perf_counter()

    def after_step(self, trainer: Trainer, totals: EpochTotals) -> None:  # noqa: ARG002
        """Note the step's time; let training end here if that was enough. Collective."""
        synchronize(self._context.device)
        self._num_steps += 1
        if self._num_steps > _NUM_WARM:
            self.seconds.append(time.perf_counter() - self._began)
        num_timed, seconds = len(self.seconds), sum(self.seconds)
        is_enough = num_timed >= _MOST or (num_timed >= _FEWEST and seconds > _SECONDS)
        if self._context.broadcast(is_enough):
            self.training_bytes = self._memory.own_bytes
            trainer.num_steps = trainer.step
        self._began = time.perf_counter()


class Memory(threading.Thread):
    """The most resident memory of this process until `stop`: its own, and pages of files and of
    shared memory."""

    own_bytes = mapped_bytes = 0

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._process, self._is_over = psutil.Process(), threading.Event()
        self._look()

    def stop(self) -> None:
        """Look no more."""
        self._is_over.set()
        self.join()

    def run(self) -> None:
        """Look again and again."""
        while not self._is_over.wait(0.005):
            self._look()

    def _look(self) -> None:
        info = self._process.memory_info()
        mapped = getattr(info, "shared", 0)  # 0 where the system does not tell
        self.own_bytes = max(self.own_bytes, info.rss - mapped)
        self.mapped_bytes = max(self.mapped_bytes, mapped)
