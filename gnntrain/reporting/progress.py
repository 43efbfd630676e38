"""Where a run stands: what the live view says of it. Plain text, no terminal."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gnntrain.metrics import get_metric
from gnntrain.reporting.text import (
    Symbols,
    format_bytes,
    format_loss,
    format_metric,
    format_rate,
    format_seconds,
    shown_metric,
    sparkline,
)
from gnntrain.training.records import EpochRecord, RunInfo, StepProgress

_BAR = 60
_SHORTEST_BAR = 10
_FEW_STEPS = 5


@dataclass(frozen=True)
class Best:
    """The best validation metric so far and its epoch."""

    value: float
    epoch: int


class Progress:
    """What has been heard of a run so far.

    Args:
        info: The run.
        clock: Seconds that only grow.

    Attributes:
        best: The best epoch so far.
        first_epoch: The first epoch heard of: not 1 where a run goes on from a checkpoint.
        values: The validation metric of every epoch, ``None`` where it was not evaluated.
    """

    def __init__(self, info: RunInfo, clock: Callable[[], float]) -> None:
        self.best: Best | None = None
        self.first_epoch: int | None = None
        self.values: list[float | None] = []
        self._info = info
        self._clock = clock
        self._started = clock()
        self._step: StepProgress | None = None
        self._loss: float | None = None

    def note_step(self, step: StepProgress) -> None:
        """Takes in the state of an epoch; a loss that was not read stays the last one."""
        self._step = step
        self._loss = step.loss if step.loss is not None else self._loss
        if self.first_epoch is None:
            self.first_epoch = step.epoch

    def note_epoch(self, record: EpochRecord) -> bool:
        """Takes in an epoch; whether it is the best so far."""
        num_steps = self._info.steps_per_epoch
        # A short epoch ends before any of its steps is told: its end is news of its steps too.
        self.note_step(
            StepProgress(
                record.epoch,
                num_steps,
                num_steps,
                record.train_loss,
                record.seeds_per_s,
                record.edges_per_s,
                record.memory_bytes,
            )
        )
        value = record.metric("val", self._info.metric)
        self.values.append(value)
        if value is None or math.isnan(value):
            return False
        metric = get_metric(self._info.metric)
        if self.best is not None and not metric.is_better(value, than=self.best.value):
            return False
        self.best = Best(value, record.epoch)
        return True

    def position(self) -> tuple[str, str]:
        """What stands to the left and to the right of the bar."""
        if self._step is None:
            return "", ""
        step = self._step
        return (
            f"epoch {step.epoch}/{self._info.epochs}",
            f"step {step.step}/{step.num_steps}  ETA {self.eta()}",
        )

    def bar(self, width: int, symbols: Symbols) -> tuple[str, str]:
        """The done and the open part of the epoch's bar, empty where ``width`` is too small.

        A bar over a handful of steps would only flicker: it then stands for the whole run.
        """
        if self._step is None or width < _SHORTEST_BAR:
            return "", ""
        few = self._step.num_steps < _FEW_STEPS
        share = self.run_share() if few else self._step.step / self._step.num_steps
        room = min(_BAR, width)
        full = round(room * min(1.0, share))
        return symbols.full * full, symbols.empty * (room - full)

    def facts(self, width: int) -> str:
        """Loss, metric, speed and memory, as many as the width has room for."""
        known = [value for value in self.values if value is not None]
        parts = [f"loss {format_loss(self._loss)}"]
        if known:
            metric = shown_metric(self._info.metric)
            parts.append(f"val {metric} {format_metric(known[-1])}")
        if self._step is not None:
            parts += format_speed(self._step.seeds_per_s, self._step.edges_per_s)
            parts.append(format_bytes(self._step.memory_bytes))
        while len("  ".join(parts)) >= width and len(parts) > 1:
            parts.pop()
        return "  ".join(parts)

    def course(self, width: int, symbols: Symbols) -> str:
        """The metric's course so far and its best; nothing before there are two values."""
        known = [value for value in self.values if value is not None]
        if len(known) < 2 or self.best is None:
            return ""
        end = f"best {format_metric(self.best.value)} in epoch {self.best.epoch}"
        room = min(_BAR, width - len(end) - 3)
        line = sparkline(known, room, symbols) if room >= _SHORTEST_BAR else ""
        return f"{line}  {end}" if line else end[: width - 1]

    def run_share(self) -> float:
        """The share of the epochs since the first one heard of that is done."""
        if self._step is None:
            return 0.0
        first = self.first_epoch or 1
        done = self._step.epoch - first + self._step.step / max(1, self._step.num_steps)
        return done / max(1, self._info.epochs - first + 1)

    def eta(self) -> str:
        """The time until the run's end, as far as can be told."""
        return format_eta(self._clock() - self._started, self.run_share())


def format_eta(elapsed: float, share: float) -> str:
    """The time that is left where `share` of the work took `elapsed` seconds."""
    if share <= 0:
        return "-"
    seconds = elapsed * (1 - share) / share
    return f"{seconds:.0f} s" if seconds < 59.5 else format_seconds(seconds)


def format_speed(seeds_per_s: float | None, edges_per_s: float | None) -> list[str]:
    """The rates that are known, with their units."""
    rates = {"seeds/s": seeds_per_s, "edges/s": edges_per_s}
    return [f"{format_rate(rate)} {unit}" for unit, rate in rates.items() if rate is not None]
