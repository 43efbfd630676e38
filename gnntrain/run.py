"""One run from a configuration to its results: the verbs behind the command line.

The parent opens the store and makes the run directory; every rank reads the resolved
configuration and builds its own loader, model and evaluator over the shared store.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import platformdirs
import torch

from gnntrain.config import Config, DatasetConfig, from_dict
from gnntrain.cores import available_cores
from gnntrain.data.build import OpenedStore, PrepareOptions, open_or_build
from gnntrain.data.datasets import builder_for
from gnntrain.data.store import GraphStore
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.errors import UserError
from gnntrain.job import Job, summarize
from gnntrain.reporting.console import restore_terminal
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.training.checkpoint import load_checkpoint
from gnntrain.training.records import FitResult


def train(config: Config, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Train as `config` says and return the summary, as `summary.json` holds it.

    Raises:
        GnntrainError: What went wrong; what was reached is in the run directory.
    """
    started = time.time()
    opened = prepare_store(config.dataset)
    plan = launch_plan(config)
    _refuse_untrainable(config, opened.store, plan.world_size)
    run = RunDirectory.create(
        directory=config.run.dir,
        name=config.run.name,
        default_name=f"{config.dataset.name}-{config.model.name}",
        config=config.to_dict(),
        overrides=overrides,
        seed=config.trainer.seed,
    )
    job = Job(config.to_dict(), opened.store.path, opened.reason, opened.seconds, run.path, started)
    try:
        launch("gnntrain.worker:train_rank", job, replace(plan, report_dir=run.logs))
    except BaseException as error:
        restore_terminal()  # a rank that was killed could not
        error.run_dir = run.path  # type: ignore[attr-defined]  # where the command says what is
        if run.summary() is None:  # rank 0 had no time to say how it ended
            run.write_summary(summarize(job, opened.store, FitResult(), error=error))
        raise
    return run.summary() or {}


def evaluate(run_dir: str | Path) -> dict[str, Any]:
    """Metrics of a run's best checkpoint on all splits.

    Returns:
        `run`, `epoch`, `metric` and `metrics` (by split, by name).
    """
    from gnntrain.assembly import Parts  # what only a process that computes needs

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


def launch_plan(config: Config) -> LaunchPlan:
    """How many ranks the configuration asks for on this machine."""
    gpus = config.trainer.gpus
    num_gpus = torch.cuda.device_count() if gpus == "auto" else gpus
    world_size = num_gpus or config.distributed.num_processes
    threads = config.distributed.threads or max(1, available_cores() // world_size)
    return LaunchPlan(world_size, num_gpus > 0, threads, config.distributed.timeout)


def _refuse_untrainable(config: Config, store: GraphStore, world_size: int) -> None:
    num_seeds = len(store.split("train"))
    if num_seeds == 0:
        raise UserError(
            f"The data set {store.dataset} has no training node.", "Give a split that has some."
        )
    global_batch = config.trainer.batch_size * world_size
    sampled = config.sampler.name == "neighbor"
    if sampled and config.trainer.drop_last and num_seeds < global_batch:
        raise UserError(
            f"trainer.drop_last=true leaves no step: {num_seeds} training nodes, but "
            f"{global_batch} a step over all ranks.",
            "Lower trainer.batch_size, or set trainer.drop_last=false.",
        )
