"""One run from a configuration to its results: the verbs behind the command line.

The parent opens the store and makes the run directory; every rank reads the resolved
configuration and builds its own loader, model and evaluator over the shared store.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import platformdirs
import torch

from gnntrain.assembly import Parts
from gnntrain.config import Config, DatasetConfig, from_dict
from gnntrain.data.build import OpenedStore, PrepareOptions, open_or_build
from gnntrain.data.datasets import builder_for
from gnntrain.data.store import GraphStore
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.errors import GnntrainError, UserError
from gnntrain.loading.loader import Loader
from gnntrain.reporting.console import Console, restore_terminal
from gnntrain.reporting.loggers import build_loggers
from gnntrain.reporting.ranklog import forward_warnings, open_rank_log
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.training.checkpoint import load_checkpoint
from gnntrain.training.measure import peak_gpu_bytes, peak_resident_bytes
from gnntrain.training.records import Callback, RunInfo, Summary
from gnntrain.training.trainer import FitResult, Trainer

Status = Literal["completed", "interrupted", "failed"]


@dataclass(frozen=True, slots=True)
class _Job:
    """What a worker needs to know; plain and picklable."""

    config: dict[str, Any]
    store: Path
    store_reason: str
    store_seconds: float
    run: Path
    started: float


def train(config: Config, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Train as `config` says and return the summary, as `summary.json` holds it.

    Raises:
        GnntrainError: What went wrong; what was reached is in the run directory.
    """
    started = time.time()
    opened = prepare_store(config.dataset)
    _refuse_untrainable(opened.store)
    run = RunDirectory.create(
        directory=config.run.dir,
        name=config.run.name,
        default_name=f"{config.dataset.name}-{config.model.name}",
        config=config.to_dict(),
        overrides=overrides,
        seed=config.trainer.seed,
    )
    job = _Job(
        config.to_dict(), opened.store.path, opened.reason, opened.seconds, run.path, started
    )
    try:
        launch(_train_rank, job, launch_plan(config, run.logs))
    except BaseException as error:
        restore_terminal()  # a rank that was killed could not
        error.run_dir = run.path  # type: ignore[attr-defined]  # where the command says what is
        if run.summary() is None:  # rank 0 had no time to say how it ended
            run.write_summary(_summary(job, opened.store, FitResult(), error=error))
        raise
    return run.summary() or {}


def evaluate(run_dir: str | Path) -> dict[str, Any]:
    """Metrics of a run's best checkpoint on all splits.

    Returns:
        `run`, `epoch`, `metric` and `metrics` (by split, by name).
    """
    run = RunDirectory.open(run_dir)
    config = from_dict(run.config(), saved=True)
    state = load_checkpoint(run.best_checkpoint())
    store = prepare_store(config.dataset).store
    use_gpu = config.trainer.gpus != 0 and torch.cuda.is_available()
    context = DistributedContext(device=torch.device("cuda" if use_gpu else "cpu"))
    torch.set_num_threads(config.distributed.threads or available_cores())
    parts = Parts(config, store, context, run.path)
    parts.model.load_state_dict(state["model"])
    metrics = parts.evaluator.evaluate(parts.model)
    return {
        "run": run.shown,
        "epoch": state["epoch"],
        "metric": store.metric,
        "metrics": metrics,
    }


def prepare(config: Config) -> dict[str, Any]:
    """Build the data set's store, or verify every byte of the one that is there."""
    opened = prepare_store(config.dataset)
    if not opened.built:
        opened.store.verify()
    store = opened.store
    return {
        "dataset": store.dataset,
        "path": str(store.path),
        "reason": opened.reason,
        "seconds": opened.seconds,
        "num_nodes": store.num_nodes,
        "num_edges": store.num_edges,
        "num_features": store.num_features,
        "num_classes": store.num_classes,
        "splits": {name: len(store.split(name)) for name in ("train", "val", "test")},
    }


def prepare_store(dataset: DatasetConfig) -> OpenedStore:
    """Open the data set's graph store, building it first where that is needed."""
    builder = builder_for(dataset)
    options = PrepareOptions(
        to_undirected=dataset.to_undirected,
        add_self_loops=dataset.add_self_loops,
        normalize_features=dataset.normalize_features,
        feature_dtype=dataset.feature_dtype,
    )
    directory = Path(dataset.store_dir or platformdirs.user_cache_path("gnntrain") / "stores")
    return open_or_build(directory, builder.identity(), options, builder.build)


def launch_plan(config: Config, report_dir: Path) -> LaunchPlan:
    """How many ranks the configuration asks for on this machine."""
    gpus = config.trainer.gpus
    num_gpus = torch.cuda.device_count() if gpus == "auto" else gpus
    world_size = num_gpus or config.distributed.num_processes
    threads = config.distributed.threads or max(1, available_cores() // world_size)
    return LaunchPlan(world_size, num_gpus > 0, threads, config.distributed.timeout, report_dir)


def available_cores() -> int:
    """Cores that this process may run on (which a container or SLURM may have limited)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _refuse_untrainable(store: GraphStore) -> None:
    if len(store.split("train")) == 0:
        raise UserError(
            f"The data set {store.dataset} has no training node.", "Give a split that has some."
        )


def _train_rank(context: DistributedContext, job: _Job) -> None:
    """One rank's whole life; the same on every rank but for who speaks."""
    config = from_dict(job.config, saved=True)
    run = RunDirectory(job.run)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(open_rank_log(run.path, context.rank)))
        callbacks: list[Callback] = []
        if context.is_main:
            console = stack.enter_context(Console())
            stack.enter_context(contextlib.closing(forward_warnings(console)))
            callbacks = [console, *build_loggers(job.config["logger"], run, job.config)]
        parts = Parts(config, GraphStore.open(job.store), context, run.path)
        loader = parts.loader()
        for callback in callbacks:
            callback.on_start(_info(job, parts, loader))
        trainer = Trainer(
            parts.model,
            loader,
            parts.evaluator,
            task=parts.store.task,
            metric=parts.store.metric,
            config=config.trainer,
            context=context,
            callbacks=callbacks,
            checkpoints=run.checkpoints if context.is_main else None,
            identity={"config": job.config},
        )
        _fit(trainer, callbacks, run, job, parts)


def _fit(
    trainer: Trainer, callbacks: Sequence[Callback], run: RunDirectory, job: _Job, parts: Parts
) -> None:
    """Train, and say how it ended, however it ends."""
    error: BaseException | None = None
    peak = 0
    try:
        trainer.fit()
        peak = sum(parts.context.gather(peak_resident_bytes()))
    except BaseException as caught:
        error = caught
        raise
    finally:
        if parts.context.is_main:
            summary = _summary(
                job,
                parts.store,
                trainer.result,
                error=error,
                num_parameters=parts.num_parameters,
                world_size=parts.context.world_size,
                peak_rss=peak or peak_resident_bytes(),
                peak_gpu=peak_gpu_bytes(parts.context.device),
            )
            run.write_summary(summary)
            for callback in callbacks:
                callback.on_finish(summary)


def _info(job: _Job, parts: Parts, loader: Loader) -> RunInfo:
    config, store, context = parts.config, parts.store, parts.context
    kind = "GPU" if context.device.type == "cuda" else "CPU"
    ranks = _counted(context.world_size, f"{kind} rank")
    return RunInfo(
        dataset=store.dataset,
        model=config.model.name,
        num_nodes=store.num_nodes,
        num_edges=store.num_edges,
        num_features=store.num_features,
        num_classes=store.num_classes,
        num_parameters=parts.num_parameters,
        world_size=context.world_size,
        device=f"{ranks}, {_counted(torch.get_num_threads(), 'thread')} each",
        metric=store.metric,
        store_path=str(store.path),
        store_reason=job.store_reason,
        store_seconds=job.store_seconds,
        sampler=parts.sampler_in_words(),
        epochs=config.trainer.epochs,
        steps_per_epoch=len(loader),
        global_batch_size=loader.plan.global_batch_size,
        seed=config.trainer.seed,
        run_dir=RunDirectory(job.run).shown,
    )


def _summary(
    job: _Job,
    store: GraphStore,
    result: FitResult,
    *,
    error: BaseException | None,
    num_parameters: int = 0,
    world_size: int = 0,
    peak_rss: int = 0,
    peak_gpu: int = 0,
) -> Summary:
    records = result.records
    config = job.config
    return Summary(
        status=_status(error),
        dataset=store.dataset,
        model=config["model"]["name"],
        num_parameters=num_parameters,
        world_size=world_size,
        seed=config["trainer"]["seed"],
        epochs=len(records),
        best_epoch=result.best_epoch,
        metric=store.metric,
        train=result.best.get("train", {}),
        val=result.best.get("val", {}),
        test=result.best.get("test", {}),
        train_loss=[record.train_loss for record in records],
        seconds_total=time.time() - job.started,
        seconds_per_epoch=_median([record.seconds for record in records]),
        edges_per_s=_median([record.edges_per_s for record in records]),
        seeds_per_s=_median([record.seeds_per_s for record in records]),
        peak_rss_bytes=peak_rss,
        peak_gpu_bytes=peak_gpu,
        error=_in_words(error),
    )


def _status(error: BaseException | None) -> Status:
    if error is None:
        return "completed"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"


def _in_words(error: BaseException | None) -> str | None:
    if error is None or isinstance(error, KeyboardInterrupt):
        return None
    return str(error) if isinstance(error, GnntrainError) else f"{type(error).__name__}: {error}"


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
