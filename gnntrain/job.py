"""The job that the parent of a run sends to its ranks, and the summary that either can write."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gnntrain.compute.selection import KernelChoice
from gnntrain.config import Config
from gnntrain.data.graph import Graph
from gnntrain.data.summary import plain_summary
from gnntrain.plugins import told
from gnntrain.tasks.node_classification import positive_name
from gnntrain.training.records import FitResult, Status, Summary


@dataclass(frozen=True, slots=True)
class Job:
    """The input of a rank; picklable."""

    config: Config  # resolved
    store: Path  # the directory of the graph's store
    run: Path  # its directory
    started: float  # the run, or its resumption, in seconds since 1970
    kernels: KernelChoice  # who computes the operators, on every rank
    checkpoint: Path | None = None  # to resume from; None: train from the beginning
    # To a process that shows the run; else whether the console does.
    listener: Connection | bool = True
    opened: str = ""  # to show: how the store was opened, and in how long


def summarize(
    job: Job,
    graph: Graph,
    result: FitResult,
    *,
    error: BaseException | None,
    num_parameters: int = 0,
    world_size: int = 0,
    peak_rss: int = 0,
    peak_gpu: int = 0,
    initial_weights: Mapping[str, Any] | None = None,
    estimated: str = "",
) -> Summary:
    """The summary of a run, as in `summary.json`."""

    def median(values: list[float]) -> float | None:
        return statistics.median(values) if values else None

    records, config = result.records, job.config
    known = {"initial_weights": initial_weights, "estimated": estimated or None}
    extra: dict[str, Any] = {key: value for key, value in known.items() if value is not None}
    best = [record for record in records if record.epoch == result.best_epoch]
    if best and best[0].constant:
        extra["constant_outputs"] = list(best[0].constant)
    if graph.task == "binary":
        extra["positive_class"] = positive_name(graph, config.task.positive_class)
    return Summary(
        status="pruned" if result.is_pruned and error is None else status_of(error),
        dataset=graph.dataset,
        model=config.model.name,
        num_parameters=num_parameters,
        world_size=world_size,
        seed=config.trainer.seed,
        epochs=len(records),
        best_epoch=result.best_epoch,
        metric=graph.metric,
        train=result.best.get("train", {}),
        val=result.best.get("val", {}),
        test=result.best.get("test", {}),
        train_loss=[record.train_loss for record in records],
        seconds_total=result.seconds_before + time.time() - job.started,
        seconds_per_epoch=median([record.seconds for record in records]),
        edges_per_s=median([record.edges_per_s for record in records]),
        seeds_per_s=median([record.seeds_per_s for record in records]),
        peak_rss_bytes=peak_rss,
        peak_gpu_bytes=peak_gpu,
        error=error_text(error),
        data=plain_summary(graph),
        kernels={"kernels": job.kernels.kernels, "replaced": dict(job.kernels.replaced)},
        extra=extra,
    )


def status_of(error: BaseException | None) -> Status:
    """The status of a run that ended with `error`; None: it completed."""
    if error is None:
        return "completed"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"


def error_text(error: BaseException | None) -> str | None:
    """The text of `error` in a summary; None for a run that did not fail."""
    if error is None or isinstance(error, KeyboardInterrupt):
        return None
    return told(error)
