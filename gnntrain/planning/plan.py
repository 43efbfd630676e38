"""What a run will need, from a dry run of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil
import torch

from gnntrain.build import build_task, training_plan
from gnntrain.config import Config, ConfigError, machine_problems
from gnntrain.data.build import OpenedStore
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.inventory.machine import available_memory, free_bytes
from gnntrain.metrics import LabelKind
from gnntrain.planning.dry_run import RankReport, dry_run
from gnntrain.reporting.run_lookup import RUNS
from gnntrain.reporting.tables import Check
from gnntrain.reporting.text import counted, format_bytes
from gnntrain.run import refuse_untrainable

# Beyond this part of what is available, other programs slow down.
_TIGHT = 0.85
_CHECKPOINTS = 3  # last, the one before, best


@dataclass(frozen=True)
class Batch:
    """A mini-batch of one rank: means over the batches that were drawn.

    Attributes:
        num_seeds: Seed nodes.
        num_nodes: All nodes.
        num_edges: Edges of each hop, that of the seeds first.
        bytes_read: Feature bytes that are read for it.
        bytes_reduced: Bytes of gradients that a rank sends to the others; 0 on one rank.
        num_drawn: Batches that were drawn.
    """

    num_seeds: float
    num_nodes: float
    num_edges: tuple[float, ...]
    bytes_read: float
    bytes_reduced: float
    num_drawn: int


@dataclass(frozen=True)
class Times:
    """Seconds; of a step and of an evaluation also the fastest and slowest that were measured.

    Attributes:
        step, step_range: Of a step.
        training: Of an epoch's steps.
        evaluation, evaluation_range: Of one evaluation.
        run: Of all epochs, without what comes before the first.
        num_timed: Steps that were timed.
    """

    step: float
    step_range: tuple[float, float]
    training: float
    evaluation: float
    evaluation_range: tuple[float, float]
    run: float
    num_timed: int


@dataclass(frozen=True)
class Memory:
    """Bytes; of all ranks that were measured together where nothing else is said.

    Attributes:
        training, evaluation: The ranks' own memory in training; with evaluation.
        shared: Layers in memory, once for all ranks.
        on_disk: Layers in files.
        page_cache: Pages of the graph store, once a machine; the system can drop them.
        libraries: Pages of libraries, of one rank.
        needed: What the system cannot drop.
        peak_rss: `peak_rss_bytes` of `summary.json`, where a page counts in each rank that maps it.
        peak_gpu: `peak_gpu_bytes` of `summary.json`: of one GPU; 0 where none was measured.
    """

    training: int
    evaluation: int
    shared: int
    on_disk: int
    page_cache: int
    libraries: int
    needed: int
    peak_rss: int
    peak_gpu: int


@dataclass(frozen=True)
class Plan:
    """What a run will need.

    Attributes:
        dataset, model: Names.
        store, store_reason: The graph store's directory, and how it was opened.
        num_nodes, num_edges, num_features, num_classes, label_kind: Of the graph.
        num_parameters: Trainable parameters.
        world_size, use_gpus: The ranks that the run asks for.
        measured_on: The rank that was measured instead, where this machine lacks GPUs; else empty.
        threads: Compute threads of a rank that was measured.
        placement: Where a GPU reads the edges and the features, and why; empty on a CPU.
        num_epochs, num_steps, num_evaluations: Epochs, steps of one, and evaluations.
        batch, times, memory: See there.
        checkpoints: Bytes of the run directory's checkpoints.
        checks: Whether the run fits.
        seconds: Seconds that planning took.
    """

    dataset: str
    model: str
    store: str
    store_reason: str
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    label_kind: LabelKind
    num_parameters: int
    world_size: int
    use_gpus: bool
    measured_on: str
    threads: int
    placement: tuple[str, ...]
    num_epochs: int
    num_steps: int
    num_evaluations: int
    batch: Batch
    times: Times
    memory: Memory
    checkpoints: int
    checks: list[Check]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return asdict(self)

    @property
    def fits(self) -> bool:
        """Whether no check found a problem."""
        return all(check.judgement != "problem" for check in self.checks)


def make_plan(config: Config, opened: OpenedStore) -> Plan:
    """Plan a run by a dry run of it. Nothing is left behind.

    Args:
        config: Judged by the schema; it may ask for more GPUs than this machine has.
        opened: The graph.

    Raises:
        GnntrainError: What training would refuse; or the dry run failed, also for lack of memory.
    """
    began = time.perf_counter()
    graph = opened.store
    here = measurable(config, torch.cuda.device_count())
    problems = machine_problems(here, torch.cuda.device_count())
    if problems:
        raise ConfigError(problems)
    asked, measured = LaunchPlan.of(config), LaunchPlan.of(here)
    refuse_untrainable(config, graph, asked.world_size)
    here = _with_batches_of(here, graph, asked.world_size)
    runs = Path(config.run.dir).parent if config.run.dir is not None else RUNS
    ranks = dry_run(here, graph, runs)
    num_steps = _num_steps(config, graph, asked.world_size)
    num_epochs, num_evaluations = _epochs(config, num_steps)
    memory = _memory(ranks)
    checkpoints = _CHECKPOINTS * ranks[0].checkpoint_bytes
    kind = "GPU" if measured.use_gpus else "CPU"
    is_less = measured.world_size < asked.world_size or measured.use_gpus < asked.use_gpus
    measured_on = counted(measured.world_size, f"{kind} rank") if is_less else ""
    return Plan(
        dataset=graph.dataset,
        model=config.model.name,
        store=str(graph.path),
        store_reason=opened.reason,
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        num_features=graph.num_features,
        num_classes=graph.num_classes,
        label_kind=graph.task,
        num_parameters=ranks[0].num_parameters,
        world_size=asked.world_size,
        use_gpus=asked.use_gpus,
        measured_on=measured_on,
        threads=measured.threads,
        placement=tuple(ranks[0].placement),
        num_epochs=num_epochs,
        num_steps=num_steps,
        num_evaluations=num_evaluations,
        batch=_batch(graph, ranks[0], asked.world_size),
        times=_times(config, ranks, num_steps, num_evaluations),
        memory=memory,
        checkpoints=checkpoints,
        checks=_checks(config, memory, checkpoints, runs, measured_on),
        seconds=time.perf_counter() - began,
    )


def measurable(config: Config, num_gpus: int) -> Config:
    """`config`, or, where it asks for more GPUs than there are, the same for one rank here."""
    asked = config.trainer.gpus
    if asked == "auto" or asked <= num_gpus:
        return config
    trainer: dict[str, object] = {"gpus": min(1, num_gpus)}
    if num_gpus == 0:
        trainer["cuda_graph"] = False
        if config.trainer.precision == "fp16":
            trainer["precision"] = "bf16"
    chosen: dict[str, object] = {"trainer": config.trainer.model_copy(update=trainer)}
    if config.sampler.name == "neighbor":
        auto = {"topology": "auto"}
        if config.sampler.backend == "triton":
            auto["backend"] = "auto"
        chosen["sampler"] = config.sampler.model_copy(update=auto)
    chosen["features"] = config.features.model_copy(update={"placement": "auto"})
    return config.model_copy(update=chosen)


def _with_batches_of(here: Config, graph: StoredGraph, world_size: int) -> Config:
    """The configuration with the batch of one of so many ranks, which share few seeds out."""
    most = -(-len(graph.split("train")) // world_size)
    batch_size = min(here.trainer.batch_size, most)
    trainer = here.trainer.model_copy(update={"batch_size": batch_size})
    return here.model_copy(update={"trainer": trainer})


def _num_steps(config: Config, graph: StoredGraph, world_size: int) -> int:
    context = DistributedContext(world_size=world_size)
    return training_plan(config, build_task(config, graph), context).num_steps


def _epochs(config: Config, num_steps: int) -> tuple[int, int]:
    """Epochs that will be trained, and how many of them are evaluated."""
    trainer = config.trainer
    num_epochs = trainer.epochs
    if trainer.max_steps is not None:
        num_epochs = min(num_epochs, -(-trainer.max_steps // num_steps))
    return num_epochs, -(-num_epochs // trainer.eval_every)


def _batch(graph: StoredGraph, rank: RankReport, world_size: int) -> Batch:
    sizes = rank.batches
    row = graph.num_features * graph.features.itemsize
    return Batch(
        num_seeds=fmean(size.num_seeds for size in sizes),
        num_nodes=fmean(size.num_nodes for size in sizes),
        num_edges=tuple(map(fmean, zip(*(size.num_edges for size in sizes), strict=True))),
        bytes_read=row * fmean(size.rows_read for size in sizes),
        bytes_reduced=2 * (world_size - 1) / world_size * 4 * rank.num_parameters,
        num_drawn=len(sizes),
    )


def _times(
    config: Config, ranks: Sequence[RankReport], num_steps: int, num_evaluations: int
) -> Times:
    windows = [window for rank in ranks for window in rank.windows]
    num_timed = sum(number for number, _ in windows)
    step = sum(seconds for _, seconds in windows) / num_timed
    each = [seconds / number for number, seconds in windows]
    # Ranks wait for each other after each loop; what is not a loop is rank 0's.
    *_, rest = ranks[0].evaluation
    loops = zip(*(rank.evaluation[:-1] for rank in ranks), strict=True)
    evaluation = rest + sum(map(max, loops))
    in_all = config.trainer.epochs * num_steps
    if config.trainer.max_steps is not None:
        in_all = min(in_all, config.trainer.max_steps)
    lows, highs = zip(*(rank.evaluation_spread for rank in ranks), strict=True)
    return Times(
        step=step,
        step_range=(min(each), max(each)),
        training=step * min(num_steps, in_all),
        evaluation=evaluation,
        evaluation_range=(max(lows), max(highs)),
        run=step * in_all + evaluation * num_evaluations,
        num_timed=num_timed // len(ranks),
    )


def _memory(ranks: Sequence[RankReport]) -> Memory:
    shared = max(rank.shared_bytes for rank in ranks)
    on_disk = max(rank.disk_bytes for rank in ranks)
    evaluation = sum(rank.peak_bytes for rank in ranks)
    store = ranks[0].store_bytes
    # The system drops pages of the store where memory is short.
    resident = min(store, max(0, psutil.virtual_memory().total - evaluation - shared))
    mapped = sum(resident + shared + on_disk + rank.library_bytes for rank in ranks)
    return Memory(
        training=sum(rank.training_bytes for rank in ranks),
        evaluation=evaluation,
        shared=shared,
        on_disk=on_disk,
        page_cache=store,
        libraries=max(rank.library_bytes for rank in ranks),
        needed=evaluation + shared,
        peak_rss=evaluation + mapped,
        peak_gpu=max(rank.gpu_bytes for rank in ranks),
    )


def _checks(
    config: Config, memory: Memory, checkpoints: int, runs: Path, measured_on: str
) -> list[Check]:
    """Whether memory, page cache and disk of this machine suffice."""
    if measured_on:
        text = f"{counted(int(config.trainer.gpus), 'GPU')} are asked for; this machine has "
        text += f"{counted(torch.cuda.device_count(), 'GPU')}: all figures are of {measured_on}"
        hint = "Plan on the machine of the run for its time, and for GPU memory."
        return [Check("note", "GPUs", text, hint)]
    return [
        _memory_check(config, memory),
        _page_cache_check(config, memory),
        _disk_check(memory, checkpoints, runs),
    ]


def _memory_check(config: Config, memory: Memory) -> Check:
    available = available_memory()
    text = f"{format_bytes(memory.needed)} of {format_bytes(available)} available"
    if memory.needed <= _TIGHT * available:
        return Check("ok", "memory", text)
    if memory.needed > 1.2 * memory.training:
        limit = max(0.01, 0.1 * available / 2**30)
        hint = f"Set evaluation.memory_limit={limit:.2g}: larger layers go to disk; "
        hint += "or set evaluation=sampled."
    elif config.sampler.name == "full":
        hint = "Set sampler=neighbor, which trains in mini-batches."
    else:
        hint = (
            f"Lower trainer.batch_size (now {config.trainer.batch_size}), sampler.fan_outs, "
            "model.hidden_channels or the number of ranks."
        )
    return Check("problem" if memory.needed > available else "note", "memory", text, hint)


def _page_cache_check(config: Config, memory: Memory) -> Check:
    left = max(0, psutil.virtual_memory().total - memory.needed)
    text = f"{format_bytes(memory.page_cache)} of the store are read, {format_bytes(left)} left"
    if memory.page_cache <= left:
        return Check("ok", "page cache", text)
    hint = "The system will read rows from disk again and again."
    if config.dataset.feature_dtype == "float32":
        hint += " Set dataset.feature_dtype=bfloat16 to halve the features."
    return Check("note", "page cache", text, hint)


def _disk_check(memory: Memory, checkpoints: int, runs: Path) -> Check:
    free, needed = free_bytes(runs), memory.on_disk + checkpoints
    text = f"{format_bytes(needed)} of {format_bytes(free)} free"
    if memory.on_disk:
        text += f" ({format_bytes(memory.on_disk)} of it during evaluation)"
    if needed <= free:
        return Check("ok", "disk", text)
    hint = "Set run.dir=DIR to a folder on a larger disk"
    return Check(
        "problem", "disk", text, f"{hint}{', or evaluation=sampled' * bool(memory.on_disk)}."
    )
