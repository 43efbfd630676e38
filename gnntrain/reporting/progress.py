"""The state of a run as the live views show it: best epoch, share that is done, time left."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gnntrain.metrics import get_metric
from gnntrain.reporting.text import (
    format_bytes,
    format_loss,
    format_metric,
    format_rate,
    format_seconds,
    shown_metric,
)
from gnntrain.training.records import EpochRecord, RunInfo, StepProgress


@dataclass(frozen=True)
class Best:
    """The best validation metric so far and its epoch."""

    value: float
    epoch: int


class Progress:
    """The events of a run so far.

    Args:
        info: The run.
        clock: A monotonic clock, seconds.

    Attributes:
        info: The run.
        best: The best epoch so far.
        step: The last step.
        first_epoch: The first epoch of this process: not 1 where a run was resumed.
        values: The validation metric of every epoch, ``None`` where it was not evaluated.
    """

    def __init__(self, info: RunInfo, clock: Callable[[], float]) -> None:
        self.info = info
        self.best: Best | None = None
        if info.best_epoch is not None:
            self._note_value(info.best_epoch, info.best_value)
        self.step: StepProgress | None = None
        self.first_epoch = info.first_epoch
        self.values: list[float | None] = []
        self._clock = clock
        self._started = clock()
        self._loss: float | None = None

    def note_step(self, step: StepProgress) -> None:
        """Take in a step; a step whose loss was not read keeps the loss before."""
        if self.step is None:
            self.first_epoch = step.epoch
        self.step = step
        self._loss = step.loss if step.loss is not None else self._loss

    def note_epoch(self, record: EpochRecord) -> bool:
        """Take in an epoch; whether it is the best so far."""
        # A short epoch ends before one of its steps was reported.
        num_steps = self.info.steps_per_epoch
        loss, memory = record.train_loss, record.memory_bytes
        rates = record.seeds_per_s, record.edges_per_s
        self.note_step(StepProgress(record.epoch, num_steps, num_steps, loss, *rates, memory))
        value = record.metric("val", self.info.metric)
        self.values.append(value)
        return self._note_value(record.epoch, value)

    def _note_value(self, epoch: int, value: float | None) -> bool:
        if value is None or math.isnan(value):
            return False
        metric = get_metric(self.info.metric)
        if self.best is not None and not metric.is_better(value, than=self.best.value):
            return False
        self.best = Best(value, epoch)
        return True

    @property
    def known_values(self) -> Sequence[float]:
        """The validation metric of the epochs that were evaluated."""
        return [value for value in self.values if value is not None]

    def epoch(self) -> str:
        """The epoch: ``epoch 3/20``; empty before the first step."""
        return "" if self.step is None else f"epoch {self.step.epoch}/{self.info.epochs}"

    def facts(self) -> list[str]:
        """Loss, metric, speed and memory."""
        facts = [f"loss {format_loss(self._loss)}"]
        if self.known_values:
            name = shown_metric(self.info.metric)
            facts.append(f"val {name} {format_metric(self.known_values[-1])}")
        if self.step is not None:
            facts += format_speed(self.step.seeds_per_s, self.step.edges_per_s)
            facts.append(format_bytes(self.step.memory_bytes))
        return facts

    def share(self) -> float:
        """The share of this process's epochs that is done."""
        if self.step is None:
            return 0.0
        done = self.step.epoch - self.first_epoch + self.step.step / max(1, self.step.num_steps)
        return done / max(1, self.info.epochs - self.first_epoch + 1)

    def eta(self) -> str:
        """The time until the end of the run."""
        return format_eta(self._clock() - self._started, self.share())


def format_eta(elapsed: float, share: float) -> str:
    """The time left where ``share`` of the work took ``elapsed`` seconds."""
    if share <= 0:
        return "-"
    seconds = elapsed * (1 - share) / share
    return f"{seconds:.0f} s" if seconds < 59.5 else format_seconds(seconds)


def format_speed(seeds_per_s: float | None, edges_per_s: float | None) -> list[str]:
    """The known rates with their units."""
    rates = {"seeds/s": seeds_per_s, "edges/s": edges_per_s}
    return [f"{format_rate(rate)} {unit}" for unit, rate in rates.items() if rate is not None]
