"""What the parent and the ranks of a run both know of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from gnntrain.config import Config
from gnntrain.data.graph import Graph
from gnntrain.errors import GnntrainError
from gnntrain.training.records import FitResult, Status, Summary


@dataclass(frozen=True, slots=True)
class Job:
    """What a rank needs to know; picklable.

    Attributes:
        config: The resolved configuration.
        store: Directory of the graph store.
        store_reason: How it was opened.
        store_seconds: How long that took.
        run: The run directory.
        started: When the run began, or went on, seconds since the epoch.
        checkpoint: What to go on from; None: from the beginning.
        listener: The parent to tell of the run instead of a person; None: a person.
    """

    config: Config
    store: Path
    store_reason: str
    store_seconds: float
    run: Path
    started: float
    checkpoint: Path | None = None
    listener: Connection | None = None


def summarize(
    job: Job,
    store: Graph,
    result: FitResult,
    *,
    error: BaseException | None,
    num_parameters: int = 0,
    world_size: int = 0,
    peak_rss: int = 0,
    peak_gpu: int = 0,
) -> Summary:
    """How a run ended, as `summary.json` holds it."""
    records = result.records
    config = job.config
    return Summary(
        status="pruned" if result.is_pruned and error is None else status_of(error),
        dataset=store.dataset,
        model=config.model.name,
        num_parameters=num_parameters,
        world_size=world_size,
        seed=config.trainer.seed,
        epochs=len(records),
        best_epoch=result.best_epoch,
        metric=store.metric,
        train=result.best.get("train", {}),
        val=result.best.get("val", {}),
        test=result.best.get("test", {}),
        train_loss=[record.train_loss for record in records],
        seconds_total=result.seconds_before + time.time() - job.started,
        seconds_per_epoch=_median([record.seconds for record in records]),
        edges_per_s=_median([record.edges_per_s for record in records]),
        seeds_per_s=_median([record.seeds_per_s for record in records]),
        peak_rss_bytes=peak_rss,
        peak_gpu_bytes=peak_gpu,
        error=in_words(error),
    )


def status_of(error: BaseException | None) -> Status:
    """How a run ended that `error` ended."""
    if error is None:
        return "completed"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"


def in_words(error: BaseException | None) -> str | None:
    """What a summary says of `error`; None where nothing failed."""
    if error is None or isinstance(error, KeyboardInterrupt):
        return None
    return str(error) if isinstance(error, GnntrainError) else f"{type(error).__name__}: {error}"


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
