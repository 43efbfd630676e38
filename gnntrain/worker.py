"""One rank's whole life. Spawned by name, so that the parent need not import what it imports."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

import torch

from gnntrain.components import Components
from gnntrain.data.dataset_warnings import dataset_warnings
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import RunError
from gnntrain.job import Job, summarize
from gnntrain.loading.loader import Loader
from gnntrain.reporting.channel import Channel
from gnntrain.reporting.console import Console
from gnntrain.reporting.logfiles import restore_tables
from gnntrain.reporting.loggers import build_loggers
from gnntrain.reporting.ranklog import forward_warnings, open_rank_log
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.reporting.text import counted
from gnntrain.training.checkpoint import load_checkpoint
from gnntrain.training.measure import peak_gpu_bytes, peak_resident_bytes
from gnntrain.training.records import Listener, RunInfo
from gnntrain.training.trainer import Trainer

_log = logging.getLogger("gnntrain")


def train_rank(context: DistributedContext, job: Job) -> None:
    """Train as the job says; the same on every rank but for who speaks."""
    config = job.config
    plain = config.to_dict()
    run = RunDirectory(job.run)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(open_rank_log(run.path, context.rank)))
        listeners: list[Listener] = []
        if context.is_main:
            listener = _listener(job, stack)
            stack.enter_context(contextlib.closing(forward_warnings(listener)))
            listeners = [listener, *build_loggers(plain["logger"], run, plain)]
        components = Components(config, StoredGraph.open(job.store, check=False), context, run.path)
        loader = components.loader()
        trainer = Trainer(
            components.model,
            loader,
            components.evaluator,
            task=components.task,
            config=config.trainer,
            context=context,
            listeners=listeners,
            checkpoints=run.checkpoints if context.is_main else None,
            checkpoint_config=config.checkpoint,
            identity={"config": plain, "num_parameters": components.num_parameters},
        )
        if job.checkpoint is not None:
            trainer.load_state(load_checkpoint(job.checkpoint), job.checkpoint)
        records = trainer.result.records
        if context.is_main:
            restore_tables(run, records)
        for listener in listeners:
            listener.on_start(_info(job, components, loader, first_epoch=len(records) + 1))
        if context.is_main:
            for text in (*dataset_warnings(components.store), *components.task.warnings()):
                _log.warning("%s", text)
        _fit(trainer, listeners, run, job, components)


def _listener(job: Job, stack: contextlib.ExitStack) -> Listener:
    """Who is told first: a person, or the process that asked for the run."""
    return stack.enter_context(Console()) if job.listener is None else Channel(job.listener)


def _fit(
    trainer: Trainer,
    listeners: Sequence[Listener],
    run: RunDirectory,
    job: Job,
    components: Components,
) -> None:
    """Train, and say how it ended, however it ends."""
    error: BaseException | None = None
    peak = 0
    try:
        trainer.fit()
        peak = sum(components.context.gather(peak_resident_bytes()))
    except BaseException as caught:
        # Where another rank failed first, this one only lost its connection to it.
        error = caught
        if not components.context.control.stop_requested:
            error = components.context.control.first_failure() or caught
            if isinstance(error, KeyboardInterrupt) and components.context.control.is_abandoned:
                error = RunError("Another rank failed.")
        raise
    finally:
        if components.context.is_main:
            summary = summarize(
                job,
                components.store,
                trainer.result,
                error=error,
                num_parameters=components.num_parameters,
                world_size=components.context.world_size,
                peak_rss=peak or peak_resident_bytes(),
                peak_gpu=peak_gpu_bytes(components.context.device),
            )
            unwritten: RunError | None = None
            try:
                run.write_summary(summary)
            except RunError as failure:
                unwritten = failure
            for listener in listeners:
                listener.on_finish(summary)
            # Besides what ended the run, the parent tells it.
            if unwritten is not None and error is None:
                raise unwritten


def _info(job: Job, components: Components, loader: Loader, *, first_epoch: int) -> RunInfo:
    config, store, context = components.config, components.store, components.context
    kind = "GPU" if context.device.type == "cuda" else "CPU"
    ranks = counted(context.world_size, f"{kind} rank")
    each = " each" if context.world_size > 1 else ""
    return RunInfo(
        dataset=store.dataset,
        model=config.model.name,
        num_nodes=store.num_nodes,
        num_edges=store.num_edges,
        num_features=store.num_features,
        num_classes=store.num_classes,
        num_parameters=components.num_parameters,
        world_size=context.world_size,
        device=f"{ranks}, {counted(torch.get_num_threads(), 'thread')}{each}",
        metric=store.metric,
        store_path=str(job.store),
        store_reason=job.store_reason,
        store_seconds=job.store_seconds,
        sampler=components.sampler_in_words(),
        epochs=config.trainer.epochs,
        steps_per_epoch=len(loader),
        global_batch_size=min(loader.plan.global_batch_size, len(loader.plan.seeds)),
        seed=config.trainer.seed,
        run_dir=RunDirectory(job.run).shown,
        first_epoch=first_epoch,
        placement=components.loaders.why_placed,
    )
