"""One rank of a run. Launched by name, so that a parent of several ranks does not import torch."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from typing import Any

import platformdirs
import torch

from gnntrain import build
from gnntrain.compute.products import product_note
from gnntrain.compute.selection import CPU_KERNELS, select
from gnntrain.config.problems import as_typed
from gnntrain.data.graph import NODE
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.summary import EDGES_ALONE, dataset_warnings, first_names, unread_edges
from gnntrain.devices import is_gpu, peak_memory
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import RankLost, RunError
from gnntrain.init_from import take_weights
from gnntrain.job import Job, summarize
from gnntrain.reporting import text
from gnntrain.reporting.channel import Channel
from gnntrain.reporting.console import Console
from gnntrain.reporting.loggers import build_loggers
from gnntrain.reporting.ranklog import forwarded_warnings, rank_log
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.run_store import model_signature, rank_graph
from gnntrain.startup import resume_collection
from gnntrain.tasks.node_classification import positive_phrase
from gnntrain.training.checkpoint import State, load_checkpoint
from gnntrain.training.memory import peak_resident_bytes
from gnntrain.training.records import Listener, RunInfo
from gnntrain.training.serving import ServerTimes, serve_evaluations, served_evaluator
from gnntrain.training.trainer import Callback, Trainer

_log = logging.getLogger("gnntrain")


def train_rank(context: DistributedContext, job: Job) -> None:
    """Run a job. All ranks that train do the same; rank 0 also calls listeners and writes files.
    With `distributed.servers` the last ranks serve the others."""
    config, everyone, run = job.config, context, RunDirectory(job.run)
    select(job.kernels, context.device.type)
    plain = config.to_dict()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(rank_log(run.path, everyone.rank))
        except RunError:  # another machine may not have the place
            if everyone.machine == 0:
                raise
            folder = platformdirs.user_log_path("gnntrain") / run.path.name
            stack.enter_context(rank_log(folder, everyone.rank))
        serves, servers, timeout = False, config.distributed.servers, config.distributed.timeout
        if servers:
            first = everyone.world_size - servers
            as_trainer = everyone.among(range(first), timeout)
            as_server = everyone.among(range(first, everyone.world_size), timeout)
            context = as_trainer or as_server or everyone
            if serves := as_server is not None:  # they share no memory: each counts as a machine
                context = replace(context, machines=tuple(range(servers)), machine_group=None)
        listeners: list[Listener] = []
        if context.is_main and not serves:
            shown: Console | Channel | None = None  # or the process that started the run shows it
            if not isinstance(job.listener, bool):
                shown = Channel(job.listener)
            elif job.listener:
                shown = stack.enter_context(Console())
            tell = None if shown is None else shown.on_message
            stack.enter_context(forwarded_warnings(tell))
            listeners = [] if shown is None else [shown]
            listeners += build_loggers(plain["logger"], run, plain)
        exchange = stack.enter_context(build.build_exchange(config, everyone))
        graph = rank_graph(config, job.store, context, exchange)
        task = build.build_task(config, graph)
        model = build.build_model(config, task, graph, context)
        where = graph, context, run.path  # activations that do not fit in memory go there
        if serves:  # `context` is that of the servers
            # For evaluation, which reads each row once, a cache would be of no use.
            features = config.features.model_copy(update={"cache_ratio": 0.0})
            config = config.model_copy(update={"features": features})
            assert exchange is not None, "servers are asked"
            loaders = build.build_loaders(config, task, model, graph, context, exchange)
            if not isinstance(graph, PartitionedGraph):  # its evaluation reads the whole store
                loaders = build.build_loaders(config, task, model, graph, context)
            evaluator = build.build_evaluator(config, task, model, loaders, *where)
            resume_collection()
            num_trainers = everyone.world_size - context.world_size
            serve_evaluations(model, evaluator, exchange, context, num_trainers)
            return
        # Other machines may have no checkpoint and no run to begin from: rank 0 sends what it reads
        # (weights by DDP).
        reads = context.is_main or context.num_machines == 1
        state: State | None = None
        initial: dict[str, Any] | None = None
        if job.checkpoint is not None:
            state = load_checkpoint(job.checkpoint) if reads else {}
            state = state if context.num_machines == 1 else context.broadcast(state)
            initial = state.get("initial_weights")
        elif reads:
            initial = take_weights(config, model, graph)
        loaders = build.build_loaders(config, task, model, graph, context, exchange)
        callbacks: list[Callback] = []
        if exchange is not None and servers:
            evaluator = stack.enter_context(served_evaluator(exchange, context))
            callbacks = [ServerTimes(exchange)]
        else:
            evaluator = build.build_evaluator(config, task, model, loaders, *where)
        trainer = Trainer(
            *(model, loaders.training_loader(), evaluator),
            task=task,
            config=config.trainer,
            context=context,
            listeners=listeners,
            callbacks=callbacks,
            checkpoints=run.checkpoints if context.is_main else None,
            checkpoint_config=config.checkpoint,
            identity={"config": plain, "initial_weights": initial},
        )
        if state is not None:
            trainer.load_state(state, job.checkpoint or "")
        del state  # as large as the model and its optimiser
        num_parameters, on_gpu = trainer.num_parameters, is_gpu(context.device)
        if context.is_main:
            ranks = text.counted(context.world_size, "GPU rank" if on_gpu else "CPU rank")
            if context.num_machines > 1:
                ranks += f" on {context.num_machines} machines"
            each = " each" * (context.world_size > 1)
            computing = [
                f"{ranks}, {text.counted(torch.get_num_threads(), 'thread')}{each}",
                text.counted(servers, "server") if servers else "",
                "" if job.kernels == CPU_KERNELS else str(job.kernels),
                "steps replayed as a CUDA graph" if trainer.loader.records_steps else "",
                "" if on_gpu else product_note(config.trainer.precision),
            ]
            sampler, begun_with = "full graph", ""
            if config.sampler.name != "full":
                sampler = f"neighbor {as_typed(config.sampler.fan_outs)} ({loaders.backend})"
            if initial is not None:
                begun_with = "{num_taken:,} of {num_parameters:,} parameters".format(**initial)
                begun_with += f" from {text.shown_path(initial['run'])}, epoch {initial['epoch']}"
            width = graph.schema.num_features[graph.target]
            sizes = [
                f"{graph.num_nodes:,} nodes",
                f"{graph.num_edges:,} edges",
                text.counted_inputs(width, len(graph.nodes), len(graph.edges)),
                text.counted_outputs(graph.num_classes, graph.task),
            ]
            # A warning says what the model does not read of edges. A published graph has no ids.
            data, plan = graph.summary, trainer.loader.plan
            read = {} if data is None else dict(data.lines(besides=EDGES_ALONE))
            training = [
                text.counted(config.trainer.epochs, "epoch"),
                f"{text.counted(len(trainer.loader), 'step')} an epoch",
                f"{text.counted(min(plan.global_batch_size, len(plan.seeds)), 'seed')} a step",
                f"seed {config.trainer.seed}",
            ]
            facts = {
                "dataset": graph.dataset,
                "graph": " · ".join(sizes),
                "positive": positive_phrase(graph, config.task.positive_class),
                **(read if data and data.ids else {"split": read.get("split", "")}),
                "store": f"{job.opened}\n{text.shown_path(job.store)}",
                "model": f"{config.model.name} · {num_parameters:,} parameters",
                "weights": begun_with,
                "sampler": "\n".join([sampler, *loaders.why_placed]),
                "training": " · ".join(training),
                "device": "; ".join(filter(None, computing)),
            }
            records = tuple(trainer.result.records)
            info = RunInfo(graph.metric, config.trainer.epochs, run.shown, records, facts)
            _log.info("initial weights: %s", begun_with or "random")
            for listener in listeners:
                listener.on_start(info)
            unread = unread_edges(graph, config.model.name, reads_weights=model.needs.weight)
            apart = list[str]()
            if not getattr(config.dataset, "standardize", True):  # of files, which it would mend
                signature = model_signature(run)
                for of_type, statistics in signature.statistics.items():
                    names = statistics.apart(signature.preprocessing.get(of_type))
                    apart += names if of_type == NODE else [f"{of_type}.{name}" for name in names]
            spreads = [
                f"The spread of {first_names(apart)} is far from the other features': those of "
                "small spread count for little at first. Set dataset.standardize=true."
            ] * bool(apart)
            for warning in (*dataset_warnings(graph), *spreads, *unread, *task.warnings()):
                _log.warning("%s", warning)
        resume_collection()
        # Rank 0 writes the summary in every case and passes it to the listeners.
        error: BaseException | None = None
        peak = 0
        try:
            trainer.fit()
            peak = sum(context.gather(peak_resident_bytes()))
        except BaseException as caught:
            # If another rank failed first, this is only the lost connection to it.
            error, control = context.control.cause_of(caught), context.control
            if control.stop_requested and not isinstance(error, RankLost):
                error = caught
            elif isinstance(error, KeyboardInterrupt) and control.is_abandoned:
                error = RunError("Another rank failed.")
            raise
        finally:
            if context.is_main:
                summary = summarize(
                    *(job, graph, trainer.result),
                    error=error,
                    num_parameters=num_parameters,
                    world_size=context.world_size,
                    peak_rss=peak or peak_resident_bytes(),
                    peak_gpu=peak_memory(context.device),
                    initial_weights=initial,
                    estimated=trainer.evaluator.estimated,
                )
                try:
                    run.write("summary.json", summary.to_dict())
                except RunError:
                    if error is None:  # the first of two errors is raised
                        raise
                finally:
                    for listener in listeners:
                        listener.on_finish(summary)
