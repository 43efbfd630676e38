"""Records of a run: training fills them, reporting shows or stores them.

Nothing here knows torch, a terminal or a file, so that a worker, a logger and a notebook can all
use the same types.
"""
# ruff: noqa: ARG002

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Annotated, Any, Literal, Protocol

from pydantic import BeforeValidator, Field, TypeAdapter
from pydantic_core import to_jsonable_python

from gnntrain.metrics import get_metric

Status = Literal["completed", "pruned", "interrupted", "failed"]
Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""``None`` in JSON stands for NaN, see `json_safe`."""
Metrics = Mapping[str, Mapping[str, Number]]
"""Metrics by split and by name, fractions: ``{"val": {"accuracy": 0.8}}``."""

SPLIT_ORDER = ("train", "val", "test")


json_safe = partial(to_jsonable_python, inf_nan_mode="null")
"""Plain data with NaN and infinities as ``None``: JSON has no literal for them."""


@dataclass(frozen=True)
class RunInfo:
    """The first record of a run, for listeners."""

    metric: str  # it decides which epoch is the best
    epochs: int
    run_dir: str
    records: Sequence[EpochRecord] = ()  # of the epochs before, in a resumed run
    # Data, model, ranks, … in words: a text of one or several lines by label; "" is not shown.
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StepProgress:
    """The progress of an epoch."""

    epoch: int  # from 1
    step: int  # steps of this epoch that are done
    num_steps: int  # of this epoch
    loss: float | None  # mean so far; None where it was not read from the device
    seeds_per_s: float  # over all ranks
    edges_per_s: float  # sampled, over all ranks
    memory_bytes: int  # resident, of all ranks


@dataclass(frozen=True)
class EpochRecord:
    """One epoch: loss, metrics, speed and memory.

    Attributes:
        cache_hit_rate: Share of the rows that were read from GPUs' caches; of a graph over several
            machines, share of the rows of other machines that were read from a machine's cache.
            ``None`` without a cache.
        time: Seconds of rank 0 by phase: ``sample``, ``gather`` (making the batch), ``wait`` (for
            the next batch), ``forward``, ``backward``, ``all_reduce`` (the time that backward waits
            for other ranks), ``optimizer``, ``replay`` (whole steps, as a CUDA graph),
            ``evaluation``; a phase ``background/…`` runs beside the others,
            ``background/server_…`` on the busiest server. On a GPU its own time, but for what the
            host computes.
        constant: The splits whose nodes all have the same outputs.
    """

    epoch: int  # from 1
    step: int  # optimiser steps since the run began
    train_loss: Annotated[Number, Field(alias="train/loss")]  # mean over all ranks' seeds
    metrics: Metrics  # empty where the epoch was not evaluated
    lr: Number  # of the epoch's last step
    seconds: Number  # of the training part, as the speeds
    eval_seconds: Number
    seeds_per_s: Number  # over all ranks
    edges_per_s: Number  # sampled, over all ranks
    memory_bytes: Annotated[int, Field(alias="memory")]  # resident, of all ranks
    # The most of a rank; None without a GPU.
    gpu_memory_bytes: Annotated[int | None, Field(alias="gpu_memory")] = None
    cache_hit_rate: float | None = None
    time: Mapping[str, Number] = field(default_factory=dict)
    constant: tuple[str, ...] = ()

    def metric(self, split: str, name: str) -> float | None:
        """The metric ``name`` on ``split``, or ``None`` where it was not computed."""
        return self.metrics.get(split, {}).get(name)

    def to_dict(self) -> dict[str, Any]:
        """The record's line in ``metrics.jsonl``, with slash-separated names in a fixed order.

        ``epoch, step, train/loss, val/<metric>, train/<metric>, test/<metric>, lr, seconds,
        eval_seconds, seeds_per_s, edges_per_s, memory``, with a GPU ``gpu_memory``, with a cache
        ``cache_hit_rate``, and an object ``time``. A metric that was not computed has no entry;
        numbers that are not finite stay unchanged.
        """
        row: dict[str, Any]
        row = _EPOCHS.dump_python(self, by_alias=True, exclude_none=True, exclude={"constant"})
        metrics, time = row.pop("metrics"), row.pop("time")
        first = {name: row.pop(name) for name in ("epoch", "step", "train/loss")}
        # The validation metric first: a reader of the table looks for it.
        for split in sorted(metrics, key=lambda name: name != "val"):
            first |= {f"{split}/{name}": value for name, value in metrics[split].items()}
        return first | row | ({"time": time} if time else {})

    def flat(self) -> dict[str, int | float]:
        """:meth:`to_dict` with numbers alone, as loggers take them: ``time/<phase>``."""
        row = self.to_dict()
        times = row.pop("time", {})
        return row | {f"time/{phase}": seconds for phase, seconds in times.items()}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> EpochRecord:
        """The record whose :meth:`to_dict`, its line in ``metrics.jsonl``, is ``row``.

        Raises:
            ValueError: a field is missing, or no number.
        """
        metrics: dict[str, dict[str, float]] = {}
        for key, value in row.items():
            split, slash, name = key.partition("/")
            if slash and key != "train/loss":
                metrics.setdefault(split, {})[name] = value
        return _EPOCHS.validate_python({**row, "metrics": metrics})


_EPOCHS = TypeAdapter(EpochRecord)


@dataclass
class FitResult:
    """The epochs so far, and the best of them.

    Attributes:
        best_epoch: Epoch (from 1) with the best validation metric; the last evaluated one where
            there is no validation split; None before any evaluation.
        best: Metrics by split at `best_epoch`.
        seconds_before: Seconds of the run before it was resumed.
        is_pruned: Whether a listener ended training early.
    """

    records: list[EpochRecord] = field(default_factory=list)
    best_epoch: int | None = None
    best: Metrics = field(default_factory=dict)
    seconds_before: float = 0.0
    is_pruned: bool = False

    def add(self, record: EpochRecord, metric: str) -> None:
        """Add the next epoch, which is the best if its ``metric`` on val is better than before."""
        self.records.append(record)
        if not record.metrics:
            return
        value, best = record.metric("val", metric), self.best.get("val", {}).get(metric)
        if best is None or math.isnan(best):
            is_better = True
        else:
            is_better = value is not None and get_metric(metric).is_better(value, than=best)
        if is_better:
            self.best_epoch, self.best = record.epoch, record.metrics

    def has_stalled(self, patience: int) -> bool:
        """Whether the last ``patience`` evaluations were no better; never where it is 0."""
        if patience == 0 or self.best_epoch is None:
            return False
        later = [record for record in self.records[self.best_epoch :] if record.metrics]
        return len(later) >= patience


@dataclass(frozen=True)
class Summary:
    """The end of a run, as ``summary.json`` holds it; see also :class:`RunInfo`.

    Attributes:
        kernels: Who computed the operators: `kernels` (numba, triton or torch), and `replaced`: the
            operators that torch computed although there is a kernel, by name, with the reason.
        extra: Further fields, written beside the others.
    """

    status: Status
    dataset: str
    model: str
    num_parameters: int
    world_size: int
    seed: int
    epochs: int  # that were trained to their end
    best_epoch: int | None  # None before any evaluation
    metric: str  # that decides
    train: Mapping[str, float]  # metrics by name at the best epoch, fractions
    val: Mapping[str, float]
    test: Mapping[str, float]
    train_loss: Sequence[float]  # of every epoch
    seconds_total: float
    seconds_per_epoch: float | None  # median of an epoch's training part; None before the first
    edges_per_s: float | None  # median, as of seeds
    peak_rss_bytes: int  # of all ranks
    peak_gpu_bytes: int = 0  # the most of a rank; 0 without a GPU
    seeds_per_s: float | None = None
    error: str | None = None  # of a run that failed
    data: Mapping[str, Any] = field(default_factory=dict)  # of the files, and sizes of the splits
    kernels: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def metrics(self) -> Metrics:
        """The metrics of the splits that have some, in the order train, val, test."""
        return {name: getattr(self, name) for name in SPLIT_ORDER if getattr(self, name)}

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values; ``extra`` fields beside them, never over them."""
        own = {item.name: getattr(self, item.name) for item in fields(self)}
        extra = own.pop("extra")
        if self.error is None:
            del own["error"]
        row: dict[str, Any] = json_safe(own | {k: v for k, v in extra.items() if k not in own})
        return row


class Pruned(Exception):
    """Raised by a listener after an epoch to end the run early."""


class Listener(Protocol):
    """Listens to a run, on rank 0 alone. A subclass may leave methods out, which do nothing."""

    def on_start(self, info: RunInfo) -> None:
        """Called once, before the first epoch."""
        return

    def on_step(self, progress: StepProgress) -> None:
        """Called as steps are done: must be cheap."""
        return

    def on_epoch(self, record: EpochRecord) -> None:
        """Called after every epoch and its evaluation; may raise `Pruned`."""
        return

    def on_message(self, text: str) -> None:
        """Called with a notice or a warning for the user."""
        return

    def on_finish(self, summary: Summary) -> None:
        """Called once at the end, also after an interruption or a failure."""
        return
