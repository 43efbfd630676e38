"""A dry run: the trainer for some steps, and one evaluation.

Each rank is a process of its own, so that its peak of memory is the dry run's alone.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import psutil

from gnntrain.build import build_evaluator, build_loaders, build_model, build_task
from gnntrain.compute.selection import KernelChoice, select
from gnntrain.config import Config
from gnntrain.data.store import StoredGraph
from gnntrain.devices import peak_memory, synchronize
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.distributed.signals import on_forced_exit
from gnntrain.paths import nearest_folder
from gnntrain.reporting.rundir import explained
from gnntrain.selfcheck.choice import kernel_choice
from gnntrain.training.layerwise import LayerwiseEvaluator
from gnntrain.training.totals import EpochTotals
from gnntrain.training.trainer import Callback, Trainer

ANSWER = "reports.json"
_NUM_BATCHES = 8
# Kernels are loaded, the optimiser's state is made, batches are drawn ahead, a step is recorded.
_NUM_WARM = 4
_FEWEST, _MOST = 4, 40
_SECONDS = 5.0
_ENDLESS = {"epochs": 1 << 20, "eval_every": 1 << 20, "max_steps": None, "patience": 0}


Report = dict[str, Any]
"""What one rank measured, as JSON holds it; see `run_rank`."""


def dry_run(config: Config, graph: StoredGraph, runs: Path) -> list[Report]:
    """Train and evaluate as `config` says, on all its ranks; returns their reports, in rank order.
    Layers that have no room in memory are tried in `runs`, where run directories go.

    Raises:
        GnntrainError: A rank failed, also for lack of memory.
    """
    parent, plan = nearest_folder(runs), LaunchPlan.of(config)
    with explained(parent):
        temporary = tempfile.TemporaryDirectory(prefix=".gnntrain-plan-", dir=parent)
    remove = lambda _: shutil.rmtree(temporary.name, ignore_errors=True)  # noqa: E731
    with temporary as name, on_forced_exit(remove):  # a second Ctrl-C removes it, too
        folder = Path(name)
        job = (config, graph.path, folder, kernel_choice(config, plan.device))
        launch("gnntrain.planning.dry_run:run_rank", job, plan, folder, in_process=False)
        reports: list[Report] = json.loads((folder / ANSWER).read_bytes())
    if plan.world_size == 1 and not plan.use_gpus:
        # Training will be in the command's process, which has itself imported the libraries that
        # this rank found in the process that it was forked from.
        reports[0]["mapped_bytes"] += resident(psutil.Process())[1]
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
    drawn, batches = iter(loader), []
    for batch in islice(drawn, _NUM_BATCHES):
        # Each row once: of rows that a convolution of typed graphs aggregates in place it is more.
        sizes = {t: len(ids) for t, ids in batch.n_id_dict.items()}
        size: Report = {"num_seeds": batch.batch_size, "num_nodes": sum(sizes.values())}
        size["num_edges"] = [hop.num_edges for hop in reversed(batch.hops)]  # of the seeds first
        if not model.is_hetero and model.needs.rows and batch.hops:
            # Lazy rows are read by the first layer: one for each edge and each destination.
            first = batch.hops[0]
            sizes = {t: first.num_edges + num_dst for t, num_dst in first.num_dst.items()}
        rows = {t: graph.nodes[t] for t in sizes}
        widths = {t: rows[t].num_features * rows[t].features.itemsize for t in sizes}
        size["bytes_read"] = sum(sizes[t] * width for t, width in widths.items())  # of features
        # Of embedding tables, with the number of each row.
        tables = {t: 4 * table.weight.shape[1] + 8 for t, table in model.tables.items()}
        size["row_gradient_bytes"] = sum(sizes[t] * width for t, width in tables.items())
        batches.append(size)
    getattr(drawn, "close", lambda: None)()  # ends the loader's threads
    evaluator = build_evaluator(config, task, model, loaders, graph, context, folder)
    layerwise = evaluator if isinstance(evaluator, LayerwiseEvaluator) else None
    measured = Measurement(context)
    trainer = Trainer(
        model,
        loader,
        evaluator,
        task=task,
        config=config.trainer.model_copy(update=_ENDLESS),
        context=context,
        callbacks=[measured],
        checkpoints=folder if context.is_main else None,
        checkpoint_config=config.checkpoint,
    )
    with measured:
        evaluation = trainer.fit().records[-1].eval_seconds
        is_faster = layerwise is not None and layerwise.is_faster_later
        # Again, with kernels and metrics loaded, or as all later ones.
        if context.broadcast(evaluation < _SECONDS or is_faster):
            began = time.perf_counter()
            evaluator.evaluate(model)
            evaluation = time.perf_counter() - began
    layers = None if layerwise is None else layerwise.access.buffers
    report: Report = {
        "num_parameters": trainer.num_parameters,  # trainable ones
        # Of them, those that are not in embedding tables.
        "num_dense": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "batches": batches,
        "steps": measured.seconds,  # of each step that was timed
        "evaluation": evaluation,  # seconds of one
        # Peaks of this process's own memory, until training and until evaluation ended.
        "training_bytes": measured.training_bytes,
        "peak_bytes": measured.own_bytes,
        "mapped_bytes": measured.mapped_bytes,
        "shared_bytes": 0 if layers is None else layers.most_shared,  # layers of all ranks
        "disk_bytes": 0 if layers is None else layers.most_on_disk,  # layers in files
        "gpu_bytes": peak_memory(context.device),
        "checkpoint_bytes": sum(file.stat().st_size for file in folder.glob("last.pt")),
        "placement": loaders.why_placed,  # where a GPU reads the graph, and why
        "kernels": str(kernels),
    }
    reports = context.gather_to_main(report)
    if context.is_main:
        (folder / ANSWER).write_text(json.dumps(reports))


class Measurement(Callback):
    """Times training steps, each until the GPU has done it, and ends training after enough of them.

    As a context manager it looks again and again at the resident memory of this process: the most
    of its own, also until training ended, and of pages of files and of shared memory.
    """

    def __init__(self, context: DistributedContext) -> None:
        self._context, self._is_over = context, threading.Event()
        self._num_steps, self._began, self.training_bytes = 0, 0.0, 0
        self.seconds: list[float] = []
        self._process = psutil.Process()
        self.own_bytes, self.mapped_bytes = resident(self._process)

    def __enter__(self) -> None:
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(0.005):
            own, mapped = resident(self._process)
            self.own_bytes = max(self.own_bytes, own)
            self.mapped_bytes = max(self.mapped_bytes, mapped)

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
            self.training_bytes = self.own_bytes
            trainer.num_steps = trainer.step
        self._began = time.perf_counter()


def resident(process: psutil.Process) -> tuple[int, int]:
    """Bytes of a process's own memory, and of its pages of files and of shared memory."""
    info = process.memory_info()
    mapped = getattr(info, "shared", 0)  # 0 where the system does not tell
    return info.rss - mapped, mapped
