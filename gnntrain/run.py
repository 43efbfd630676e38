"""One run from a configuration to its results: the functions behind the commands.

The parent opens the store and makes the run directory; every rank reads the resolved
configuration and builds its own loader, model and evaluator over the shared store. Of several
processes that a launcher has started, process 0 publishes the configuration; each machine opens or
builds its own store, and process 0 compares the digests, makes the run directory and publishes the
job. All of it is plain JSON.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gnntrain import run_store
from gnntrain.config import Config, ConfigError, PluginConfig, Problem, checks, from_dict
from gnntrain.data.graph import Graph
from gnntrain.data.partitioned_graph import Method, PartitionedGraph
from gnntrain.data.store import StoredGraph
from gnntrain.data.summary import plain_summary
from gnntrain.data.targets import refuse_other_labels, refuse_other_types
from gnntrain.devices import alone_in_process
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.distributed.launchers import launched, slurm_job
from gnntrain.distributed.processes import stopping_servers
from gnntrain.distributed.signals import on_forced_exit
from gnntrain.errors import GnntrainError, RunError, UserError, may_mend
from gnntrain.job import Job, error_text, status_of, summarize
from gnntrain.limits import why_killed
from gnntrain.metrics import outside_metrics
from gnntrain.reporting import rundir
from gnntrain.reporting.loggers import reached
from gnntrain.reporting.rundir import RunDirectory, RunPlace
from gnntrain.reporting.text import counted
from gnntrain.run_store import prepare_store as prepare_store
from gnntrain.sampling.base import resolved_fan_outs
from gnntrain.selfcheck.choice import kernel_choice
from gnntrain.tasks.node_classification import positive_class
from gnntrain.training.checkpoint import State, load_last, remove_stale_files

if TYPE_CHECKING:
    from gnntrain.distributed.rendezvous import Rendezvous

_log = logging.getLogger("gnntrain")
_numbers = itertools.count(1)  # of the runs that this process has begun


@alone_in_process()
def train(
    config: Config,
    *,
    overrides: Sequence[str] = (),
    listener: Connection | None = None,
    data: object = None,
    place: RunPlace | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Train and return the summary, as in `summary.json`.

    Args:
        config: The whole configuration.
        overrides: The overrides as typed, for the record.
        listener: A `Channel` to a process that shows the run instead of the console.
        data: The graph: a PyG `Data`, a mapping of arrays by PyG's names (`x`, `y`, `edge_index`,
            `train_mask`, …), or a `GraphData`. `FilesConfig` then has its name, split, task and
            metric. None: the graph of `config.dataset`.
        place: The run directory that Hydra has made; None: that of `config.run`.
        progress: Whether to show the run; warnings are shown anyway.

    Returns:
        The summary, and the run directory as `run`.

    Raises:
        UserError: The graph or the configuration has a mistake; nothing was written.
        GnntrainError: The run failed; its results so far are in the run directory.
    """
    checks.refuse_other_arguments(config, overrides)
    shown = listener or progress
    # The process of a command, or of a sweep's worker, keeps its servers.
    servers = stopping_servers() if place is None and listener is None else contextlib.nullcontext()
    with _joined_run() as rendezvous, servers:
        if rendezvous is not None and not rendezvous.is_main:
            return follow(rendezvous, data)
        torchrun_job = None if rendezvous is None else rendezvous.job_name()
        jobs = job_names(torchrun_job, next(_numbers))
        if data is not None:
            # Validated as a whole: task.type affects the data set's keys.
            config = config.changed(dataset=run_store.object_dataset(config.dataset))
        if place is None:
            names = config.run.dir, config.run.name
            folder = rundir.planned_run(*names, config.dataset.name, config.model.name)
            place = RunPlace(Path(folder), names == (None, None))
        keys = config.run.if_exists, overrides, None if place.is_made_up else place.path
        begun = begun_run(*keys, jobs, is_launched=rendezvous is not None)
        if begun is None:
            return _run(config, place, overrides, shown, rendezvous, data, jobs)
        # The same command goes on with the run that it has begun; a completed one stays as it is.
        saved = from_dict(begun.config(), saved=True)
        config = config.model_copy(update={"run": saved.run})
        source, first = config.trainer.init_from, saved.trainer.init_from
        if source and first and Path(source).name in (rundir.LATEST, Path(first).name):
            config = config.changed(trainer={"init_from": first})
        if changed := [*checks.changed_meaning(saved, config)]:
            raise ConfigError(changed)
        record, is_whole = begun.store_record(), config.distributed.graph != "partitioned"
        if record and is_whole and saved.dataset.option == "files" and data is None:
            with contextlib.suppress(UserError):  # they may have gone
                if not run_store.is_unchanged(record, saved.dataset):
                    _log.warning("The graph's files have changed; the run keeps that of its start.")
        summary = begun.summary() or {}
        if summary.get("status") == "completed" and config.trainer.epochs <= saved.trainer.epochs:
            _log.warning("The run %s has completed: nothing is left to train.", begun.shown)
            summary = {"run": str(begun.path), **summary}
            _tell(rendezvous, "config", None)
            _tell(rendezvous, "summary", summary)
            return summary
        _log.warning("The run %s is there, and goes on.", begun.shown)
        return _run(config, begun, (), shown, rendezvous, data)


@alone_in_process()
def resume(
    run_dir: str | Path,
    config: Config | None = None,
    *,
    overrides: Sequence[str] = (),
    listener: Connection | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Resume a run from its last checkpoint and return the summary, as `train` does.

    One that ended before its first checkpoint begins anew.

    Args:
        run_dir: The run.
        config: The configuration to resume with; None: the run's own. If it names no data set, that
            of the run stays.
        overrides, listener, progress: As for `train`.

    Raises:
        ConfigError: A key would make another run of it; nothing was written.
        GnntrainError: The run failed; its results so far are in the run directory.
    """
    checks.refuse_other_arguments(Config() if config is None else config, overrides)
    servers = stopping_servers() if listener is None else contextlib.nullcontext()
    with _joined_run() as rendezvous, servers:
        if rendezvous is not None and not rendezvous.is_main:
            return follow(rendezvous)
        run = RunDirectory.open(run_dir)
        saved = from_dict(run.config(), saved=True)
        if config is None:
            config = saved
        else:  # the run keeps its place and its graph where `config` names no other
            dataset, keys = config.dataset, config.run
            if dataset == Config(task=config.task).dataset:
                dataset = saved.dataset
            elif run_store.is_object(dataset) and run_store.is_object(saved.dataset):
                dataset = run_store.object_dataset(dataset)
            keys = saved.run if keys.dir is None and keys.name is None else keys
            config = config.model_copy(update={"dataset": dataset, "run": keys})
            if changed := [*checks.changed_meaning(saved, config)]:
                raise ConfigError(changed)
        return _run(config, run, overrides, listener or progress, rendezvous)


def _run(
    config: Config,
    place: RunPlace | RunDirectory,
    overrides: Sequence[str],
    listener: Connection | bool,
    rendezvous: Rendezvous | None,
    data: object = None,
    jobs: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Train a new run at a place, or go on with one that was begun."""
    started, begun = time.time(), place if isinstance(place, RunDirectory) else None
    # Of a configuration made in Python nothing was refused yet.
    contradicting = checks.contradictions(config, plugins=True)
    if problems := [*contradicting, *checks.machine_problems(config)]:
        raise ConfigError(problems)
    record = None if begun is None else begun.store_record()
    known = None if record is None else asdict(record)
    _tell(rendezvous, "config", {"config": config.to_dict(), "store": known})
    plan = LaunchPlan.of(config, rendezvous)
    checkpoint: Path | None = None
    with contextlib.ExitStack() as stack:
        if begun is not None:
            stack.enter_context(rundir.held(begun.path))
            state, checkpoint = _last(begun)
            # Another global batch would be another training.
            ranks, batch_size = plan.num_trainers, config.trainer.batch_size
            size, now = state.get("global_batch_size"), ranks * batch_size
            if config.sampler.name != "full" and isinstance(size, int) and size != now:
                expects = f"{size} seeds a step over all ranks, as the run was begun; "
                expects += f"{counted(ranks, 'rank')} take {now}"
                hint = None if size % ranks else f"write trainer.batch_size={size // ranks}"
                raise ConfigError([Problem("trainer.batch_size", str(batch_size), expects, hint)])
        elif plan.world_size == 1 and not plan.use_gpus:
            from gnntrain.compute.compiling import compile_kernels_beside

            compile_kernels_beside(getattr(torch, config.dataset.feature_dtype))
        graph, how = run_store.open_graph(config, record, plan=plan, data=data)
        if begun is None:
            refuse_untrainable(config, graph, plan.num_trainers)
            if config.trainer.init_from is not None:
                from gnntrain.init_from import resolved_source  # imports all models

                config = resolved_source(config, graph)
        compare_stores(graph, rendezvous)
        kernels = kernel_choice(config, plan.device, rendezvous)
        if isinstance(place, RunDirectory):
            run = place
            if config != from_dict(run.config(), saved=True):
                run.note_changes(config.to_dict(), overrides)
        else:
            run = RunDirectory.create(place, config.to_dict(), overrides=overrides, jobs=jobs)
            stack.enter_context(rundir.held(run.path))
        with rundir.explained(run.path):
            (run.path / "summary.json").unlink(missing_ok=True)
        job = Job(config, graph.path, run.path, started, kernels, checkpoint, listener, how)
        return _train(run, job, graph, plan, rendezvous)


def _last(run: RunDirectory) -> tuple[State, Path | None]:
    """The last checkpoint's state and path; none of a run that ended before its first. A UserError
    where none is intact, or they were removed."""
    summary = run.summary()
    if summary is None:
        _log.warning("The run %s ended without a word; %s.", run.shown, why_killed())
    if not rundir.has_checkpoint(run.path) and (summary or {}).get("status") != "completed":
        _log.warning("The run %s ended before its first checkpoint: it begins anew.", run.shown)
        return {}, None
    state, checkpoint, damaged = load_last(run.checkpoints)
    for problem in damaged:
        _log.warning("%s Resuming from %s.", problem.message, checkpoint.name)
    shown, saved = len(reached(run, "").records), state.get("epoch")
    if isinstance(saved, int) and saved < shown:
        best = state.get("best_epoch")
        _log.warning(
            "The last checkpoint holds %d whole epochs%s. Later ones, up to %d, are trained again.",
            *(saved, "" if best is None else f" (the best so far: {best})", shown),
        )
    return state, checkpoint


def _train(
    run: RunDirectory,
    job: Job,
    graph: StoredGraph | PartitionedGraph,
    plan: LaunchPlan,
    rendezvous: Rendezvous | None,
) -> dict[str, Any]:
    """Start the ranks of a run that is held, again up to `trainer.max_restarts` times after
    failures that may be mended. In every case the run directory gets a summary."""

    def close(error: BaseException) -> None:
        """Write the run's status into its summary, by the parent's knowledge: rank 0 may have been
        killed, or may have recorded the lost connection to another rank."""
        from gnntrain.reporting.tables import restore_terminal

        error.run_dir = run.path  # type: ignore[attr-defined]  # the command names it
        restore_terminal()  # a killed rank could not
        summary = run.summary()
        if summary is None:  # rank 0 was killed
            known: State = {}
            with contextlib.suppress(UserError):
                state = load_last(run.checkpoints)[0]
                known = {k: state[k] for k in ("num_parameters", "initial_weights") if k in state}
            result, ranks = reached(run, graph.metric), plan.num_trainers
            summary = summarize(
                job, graph, result, error=error, world_size=ranks, **known
            ).to_dict()
        summary |= {"status": status_of(error), "error": error_text(error)}
        try:
            told = {k: v for k, v in summary.items() if (k, v) != ("error", None)}
            run.write("summary.json", told)
        except RunError as failure:  # a full disk must not hide the run's own error
            _log.warning("%s", failure.message)

    run.write("store.json", asdict(run_store.record_of(graph)))
    # What a launcher has started, it starts again.
    restarts_left = job.config.trainer.max_restarts if rendezvous is None else 0
    in_process = restarts_left == 0  # a rank that is started again needs a process outliving it
    with on_forced_exit(close):
        remove_stale_files(run.checkpoints)  # of a killed writer
        try:
            own = {"run": str(job.run), "started": job.started}
            own["checkpoint"] = job.checkpoint and str(job.checkpoint)
            _tell(rendezvous, "job", own)
            while True:
                try:
                    worker, logs = "gnntrain.worker:train_rank", run.path / "logs"
                    launch(worker, job, plan, logs, in_process=in_process, rendezvous=rendezvous)
                    break
                except Exception as error:
                    if restarts_left == 0 or not may_mend(error):
                        raise
                    restarts_left -= 1
                    checkpoint = None
                    with contextlib.suppress(UserError):  # there is none yet
                        checkpoint = load_last(run.checkpoints)[1]
                    since = "the beginning" if checkpoint is None else "the last checkpoint"
                    _log.warning(
                        "%s Starting again from %s (%d more restarts).",
                        *(error_text(error), since, restarts_left),
                    )
                    (run.path / "summary.json").unlink(missing_ok=True)
                    job = replace(job, checkpoint=checkpoint)
        except BaseException as error:
            remove_stale_files(run.checkpoints)
            close(error)
            raise
    summary = {"run": str(run.path), **(run.summary() or {})}
    _tell(rendezvous, "summary", summary)
    return summary


@alone_in_process()
def evaluate(run_dir: str | Path) -> dict[str, Any]:
    """Metrics of a run's best checkpoint on all splits, on the graph it was trained on.

    Returns:
        `run`, `epoch`, `metric`, `positive_class` (None: the task is not binary), `metrics` (by
        split, by name) and `estimated` (why they are, or "").

    Raises:
        UserError: The graph, the checkpoint or the configuration has changed.
    """
    from gnntrain.inference import load_best  # only processes that compute need these
    from gnntrain.training.evaluation import take_marks, warn_of_constant

    best = load_best(run_dir)
    shown = reached(best.run, best.signature.metric).best_epoch
    if shown is not None and shown > best.epoch and not rundir.is_running(best.run.path):
        _log.warning(
            "Epoch %d was better, but is in no checkpoint. `gnntrain resume %s` trains it again.",
            *(shown, best.run.shown),
        )
    evaluator = best.evaluator()
    metrics = evaluator.evaluate(best.model)
    if constant := take_marks(metrics):
        warn_of_constant(constant, best.epoch)
    return {
        "run": str(best.run.path),
        "epoch": best.epoch,
        "metric": best.signature.metric,
        "positive_class": best.positive_class,
        "metrics": metrics,
        "estimated": evaluator.estimated,
    }


def prepare(config: Config) -> dict[str, Any]:
    """Build the data set's store, or verify every byte of an existing one."""
    opened = prepare_store(config.dataset)
    if not opened.built:
        opened.store.verify()
    store = opened.store
    return {
        "dataset": store.dataset,
        "path": str(store.path),
        "reason": opened.reason,
        "seconds": opened.seconds,
        **graph_sizes(store),
        "num_classes": store.num_classes,
        "splits": {name: len(store.split(name)) for name in ("train", "val", "test")},
        "data": plain_summary(store),
    }


def partition(
    config: Config,
    num_parts: int,
    out: str | Path,
    *,
    method: Method = "streaming",
    data: object = None,
) -> PartitionedGraph:
    """Cut the graph of `config.dataset` into at most 256 parts, as `gnntrain partition` does.

    The folder `out` must not be there yet, or be empty. `method` assigns nodes to parts. For `data`
    see `train`; train on its parts with `FilesConfig(name="data")`.
    """
    from gnntrain.data.partitioning.build import partition

    store = prepare_store(config.dataset, data=data).store
    return partition(store, num_parts, Path(out), method)


def graph_sizes(graph: Graph) -> dict[str, Any]:
    """Numbers of nodes, edges and features; of a typed graph, by type."""
    if not graph.is_hetero:
        sizes = {"num_nodes": graph.num_nodes, "num_edges": graph.num_edges}
        return {**sizes, "num_features": graph.num_features}
    return {
        "num_nodes": dict(graph.schema.num_nodes),
        "num_edges": {"/".join(name): number for name, number in graph.edge_counts.items()},
        "num_features": dict(graph.schema.num_features),
    }


def refuse_untrainable(config: Config, graph: Graph, world_size: int) -> None:
    """Raise a UserError where labels, types, classes, metrics, fan-outs or a package's model do not
    fit the graph; or there is no training node, or no whole batch of them."""
    refuse_other_types(config, graph)
    refuse_other_labels(config, graph.dataset, graph.task)
    outside_metrics(graph.task)  # imports them
    positive_class(graph, config.task.positive_class)
    is_sampled, evaluation = config.sampler.name == "neighbor", config.evaluation
    for key, fan_outs, is_used in (
        ("sampler.fan_outs", config.sampler.fan_outs, is_sampled),
        ("evaluation.fan_outs", evaluation.fan_outs, evaluation.name == "sampled"),
    ):
        if config.model.is_hetero and is_used and fan_outs is not None:
            resolved_fan_outs(fan_outs, graph.schema, config.model.num_layers, key)
    if isinstance(config.model, PluginConfig):
        from gnntrain.models import build_model  # imports all models

        try:
            with torch.device("meta"):
                build_model(config.model, graph.schema, graph.num_outputs)
        except UserError:
            raise
        except Exception:  # of another's code: perhaps it needs the values that weights lack here
            _log.debug("model %s cannot be made without values", config.model.name, exc_info=True)
    global_batch, num_seeds = config.trainer.batch_size * world_size, len(graph.split("train"))
    if num_seeds == 0:
        told = f"The data set {graph.dataset} has no training node."
        raise UserError(told, "Give a split that has some.")
    if is_sampled and config.trainer.drop_last and num_seeds < global_batch:
        raise UserError(
            f"trainer.drop_last=true leaves no step: {num_seeds} training nodes, but "
            f"{global_batch} a step over all ranks.",
            "Lower trainer.batch_size, or set trainer.drop_last=false.",
        )


def job_names(torchrun_job: str | None = None, number: int = 1) -> dict[str, str]:
    """The names that launchers give this job, which it keeps when it is started again: of the run
    of this number, from 1, in this process. Ranks of a torchrun keep theirs in its store."""
    skypilot, suffix = os.environ.get("SKYPILOT_TASK_ID"), "" if number == 1 else f"/{number}"
    names = {"slurm": slurm_job(), "skypilot": skypilot, "torchrun": torchrun_job}
    return {launcher: name + suffix for launcher, name in names.items() if name}


def begun_run(
    if_exists: str,
    overrides: Sequence[str],
    named: Path | None,
    jobs: Mapping[str, str],
    *,
    is_launched: bool,
) -> RunDirectory | None:
    """The run that the command goes on with: the one in the directory that it names (`named`); else
    the newest under `runs` that the same command has begun and whose `env.json` has one of the
    job's names, `jobs`. None: this command begins one."""
    # Of the job's names those of launchers that have started it before, or may have: SLURM counts,
    # SkyPilot does not, and torchrun's count differs between machines.
    is_requeued = os.environ.get("SLURM_RESTART_COUNT", "0") not in ("", "0")
    again = {name: job for name, job in jobs.items() if name != "slurm" or is_requeued}
    if if_exists == "error":
        return None
    if named is not None:
        # Kubernetes starts the same command again and does not say so.
        is_job = is_launched or bool(again) or "KUBERNETES_SERVICE_HOST" in os.environ
        goes_on = (if_exists == "resume" or is_job) and rundir.is_run(named)
        return RunDirectory(named.absolute()) if goes_on else None
    for path in rundir.newest_runs(rundir.RUNS) if again else ():
        run = RunDirectory(path.absolute())
        is_same = rundir.is_run(path) and run.overrides() == list(overrides)
        begun_by = (run.read("env.json") or {}).get("jobs")
        if is_same and isinstance(begun_by, dict) and again.items() & begun_by.items():
            return run
    return None


def _joined_run() -> contextlib.AbstractContextManager[Rendezvous | None]:
    """The meeting with the other processes that a launcher has started; None: there are none."""
    if launched() is None:
        return contextlib.nullcontext()
    from gnntrain.distributed.rendezvous import meeting  # most runs have one process

    return meeting()


def compare_stores(graph: StoredGraph | PartitionedGraph, rendezvous: Rendezvous | None) -> None:
    """Wait until every machine has opened the store of the run. A UserError where that of a machine
    is another graph, or is in other parts."""
    if rendezvous is None:
        return
    stores = rendezvous.gather("stores", _plain(graph))
    for info, store in zip(rendezvous.processes, stores, strict=True):
        for key, what in (("digest", "graph"), ("partition", "partition")):
            if store is not None and store[key] != stores[0][key]:
                raise UserError(
                    f"The data set is another {what} on the machine {info.host} ({store['path']}) "
                    f"than on that of rank 0 ({stores[0]['path']}).",
                    "Copy the same raw files, or the parts of one partition, to all machines.",
                )


def _tell(rendezvous: Rendezvous | None, key: str, value: Any) -> None:
    """Publish plain data to the other processes: the `config` (None: nothing is to be trained),
    then the `job`, of which they know the rest, and at the end the `summary`, which they return."""
    if rendezvous is not None:
        rendezvous.publish(key, value)


def follow(rendezvous: Rendezvous, data: object = None) -> dict[str, Any]:
    """Take part in the run that process 0 leads, with `data` as for `gnntrain.run.train`; return
    its summary."""
    # Process 0 alone speaks: warnings of this one go to its rank's log.
    logging.captureWarnings(True)
    for name in ("gnntrain", "py.warnings"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    if (published := rendezvous.wait_for("config")) is None:
        return dict(rendezvous.wait_for("summary"))
    config = from_dict(published["config"], saved=True)
    plan = LaunchPlan.of(config, rendezvous)
    plain: dict[str, Any] | None = None
    if rendezvous.is_machine_main:
        record = published["store"] and rundir.StoreRecord(**published["store"])
        try:
            plain = _plain(run_store.open_graph(config, record, data=data)[0])
        except GnntrainError as error:  # process 0 tells it
            error.message = f"On {rendezvous.hosts[rendezvous.machine]}: {error.message}"
            raise
    stores = rendezvous.gather("stores", plain)
    store = stores[rendezvous.machines.index(rendezvous.machine)]
    kernels = kernel_choice(config, plan.device, rendezvous)
    job = rendezvous.wait_for("job")
    checkpoint = job["checkpoint"] and Path(job["checkpoint"])
    own = Job(config, Path(store["path"]), Path(job["run"]), job["started"], kernels, checkpoint)
    launch("gnntrain.worker:train_rank", own, plan, rendezvous=rendezvous)
    return dict(rendezvous.wait_for("summary"))


def _plain(graph: StoredGraph | PartitionedGraph) -> dict[str, Any]:
    return {
        "path": str(graph.path),
        "digest": graph.content_digest,
        "partition": graph.meta.digest if isinstance(graph, PartitionedGraph) else None,
    }
