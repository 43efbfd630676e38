"""The whole plan of a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from gnntrain.config import Config
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.metrics import LabelKind
from gnntrain.planning.calibration import calibrate
from gnntrain.planning.fitting import judge
from gnntrain.planning.measured import BatchSize, RankMeasure
from gnntrain.planning.memory import (
    GPUMemory,
    HostMemory,
    checkpoint_bytes,
    gpu_memory,
    host_memory,
    layer_matrices,
)
from gnntrain.planning.store import open_small_or_built
from gnntrain.reporting.text_report import Check
from gnntrain.run import refuse_untrainable

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Batch:
    """A mini-batch of one rank, on the average.

    Attributes:
        num_seeds: Seed nodes.
        num_nodes: All nodes.
        num_edges: Edges of each layer, the one next to the seeds first.
        bytes_read: Feature bytes that are read for it.
        bytes_reduced: Bytes of gradients that a rank sends to the others; 0 on one rank.
        num_drawn: Batches that were drawn to know.
    """

    num_seeds: float
    num_nodes: float
    num_edges: tuple[float, ...]
    bytes_read: float
    bytes_reduced: float
    num_drawn: int


@dataclass(frozen=True)
class Times:
    """Seconds, from a short calibration.

    Attributes:
        step: Of a step.
        training: Of an epoch's steps.
        evaluation: Of one evaluation.
        run: Of all epochs, without what comes before the first.
        num_timed: Steps that were timed.
    """

    step: float
    training: float
    evaluation: float
    run: float
    num_timed: int


@dataclass(frozen=True)
class Plan:
    """What a run will need.

    Attributes:
        dataset, model: Names.
        store: The graph store's directory.
        store_reason: How it was opened.
        num_nodes, num_edges, num_features, num_classes: The graph's sizes.
        label_kind: Kind of its labels.
        num_parameters: Trainable parameters.
        world_size, use_gpus, threads: The ranks.
        placement: Where a GPU would read the edges and the features, and why; empty on a CPU.
        num_epochs, num_steps: Epochs, and steps of one.
        num_evaluations: How often all is evaluated.
        batch, times, host, gpu: See there.
        layers_at_once: Bytes of the exact evaluation's layers, at the worst moment.
        checkpoints: Disk that the run directory's checkpoints take.
        checks: Whether it fits.
        seconds: What planning took.
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
    threads: int
    placement: tuple[str, ...]
    num_epochs: int
    num_steps: int
    num_evaluations: int
    batch: Batch
    times: Times
    host: HostMemory
    gpu: GPUMemory
    layers_at_once: int
    checkpoints: int
    checks: list[Check]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return asdict(self)

    @property
    def fits(self) -> bool:
        """Whether nothing speaks against it."""
        return all(finding.judgement != "problem" for finding in self.checks)


def make_plan(config: Config) -> Plan:
    """Plan a run, by a few of its steps and a part of its evaluation. No run directory is made.

    Raises:
        GnntrainError: What training would refuse; or the graph store is large and not built yet.
    """
    began = time.perf_counter()
    opened = open_small_or_built(config.dataset)
    store = opened.store
    launch_plan = LaunchPlan.of(config)
    refuse_untrainable(config, store, launch_plan.world_size)
    ranks = calibrate(config, store, launch_plan)
    first = ranks[0]
    moments = layer_matrices(config, store, first.evaluation.widths, launch_plan.world_size)
    host = host_memory(config, store, ranks, moments)
    gpu = gpu_memory(config, store, first, moments)
    num_epochs, num_evaluations = _epochs(config, first.steps_per_epoch)
    return Plan(
        dataset=store.dataset,
        model=config.model.name,
        store=str(store.path),
        store_reason=opened.reason,
        num_nodes=store.num_nodes,
        num_edges=store.num_edges,
        num_features=store.num_features,
        num_classes=store.num_classes,
        label_kind=store.task,
        num_parameters=first.num_parameters,
        world_size=launch_plan.world_size,
        use_gpus=launch_plan.use_gpus,
        threads=launch_plan.threads,
        placement=first.placement,
        num_epochs=num_epochs,
        num_steps=first.steps_per_epoch,
        num_evaluations=num_evaluations,
        batch=_batch(store, first, launch_plan),
        times=_times(config, ranks, num_evaluations),
        host=host,
        gpu=gpu,
        layers_at_once=max((sum(m.num_bytes for m in moment) for moment in moments), default=0),
        checkpoints=checkpoint_bytes(first),
        checks=judge(config, store, ranks, host, gpu, moments),
        seconds=time.perf_counter() - began,
    )


def _epochs(config: Config, steps_per_epoch: int) -> tuple[int, int]:
    """Epochs that will be trained, and how many of them are evaluated."""
    trainer = config.trainer
    num_epochs = trainer.epochs
    if trainer.max_steps is not None:
        num_epochs = min(num_epochs, -(-trainer.max_steps // steps_per_epoch))
    return num_epochs, -(-num_epochs // trainer.eval_every)


def _batch(store: StoredGraph, rank: RankMeasure, launch_plan: LaunchPlan) -> Batch:
    sizes: Sequence[BatchSize] = rank.batches
    others = (launch_plan.world_size - 1) / launch_plan.world_size
    layers = zip(*(reversed(size.num_edges) for size in sizes), strict=True)
    row = store.num_features * _BYTES[store.feature_dtype]
    return Batch(
        num_seeds=fmean(size.num_seeds for size in sizes),
        num_nodes=fmean(size.num_nodes for size in sizes),
        num_edges=tuple(fmean(layer) for layer in layers),
        bytes_read=row * fmean(size.rows_read for size in sizes),
        bytes_reduced=2 * others * 4 * rank.num_parameters,
        num_drawn=len(sizes),
    )


def _times(config: Config, ranks: Sequence[RankMeasure], num_evaluations: int) -> Times:
    step = fmean(rank.step_seconds for rank in ranks)
    steps = ranks[0].steps_per_epoch
    # Ranks wait for each other after each layer.
    parts = zip(*(rank.evaluation.seconds for rank in ranks), strict=True)
    evaluation = sum(max(part) for part in parts)
    in_all = config.trainer.epochs * steps
    if config.trainer.max_steps is not None:
        in_all = min(in_all, config.trainer.max_steps)
    return Times(
        step=step,
        training=step * min(steps, in_all),
        evaluation=evaluation,
        run=step * in_all + evaluation * num_evaluations,
        num_timed=ranks[0].num_timed,
    )
