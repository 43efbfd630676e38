"""Seconds and metrics of a run over its epochs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from gnntrain.phases import BACKGROUND
from gnntrain.report.runs import ReportedRun
from gnntrain.training.records import EpochRecord

PHASES = {
    "sample": ("sample", "#2a9d8f"),
    "gather": ("gather", "#8ab17d"),
    "wait": ("wait for a batch", "#e9c46a"),
    "transfer": ("copy to the device", "#b5838d"),
    "forward": ("forward", "#3a86ff"),
    "backward": ("backward", "#7b5ea7"),
    "all_reduce": ("all-reduce", "#e63946"),
    "optimizer": ("optimizer", "#f4a261"),
    "other": ("everything else", "#adb5bd"),
    "evaluation": ("evaluation", "#5fb3a3"),
}
"""The phases of an epoch in their order, with label and colour."""

Course = tuple[Sequence[int], Sequence[float]]
"""Epochs, and a value of each."""

_VISIBLE = 0.0005


def phase_seconds(record: EpochRecord) -> dict[str, float]:
    """Seconds of an epoch by phase; their sum is its length. `record.time` must not be empty."""
    own = {name: record.time.get(name, 0.0) for name in PHASES}
    known = sum(seconds for name, seconds in own.items() if name != "evaluation")
    own["other"] = max(0.0, record.seconds - known)
    return own


def typical_phases(records: Sequence[EpochRecord]) -> dict[str, float]:
    """The median seconds an epoch of each visible phase; of evaluations over the epochs with one.

    The first epoch compiles and warms up: of several it is left out.
    """
    timed = _warm(records)
    typical: dict[str, float] = {}
    for name in PHASES:
        counted = [r for r in timed if r.metrics] if name == "evaluation" else timed
        seconds = [phase_seconds(record)[name] for record in counted]
        typical[name] = statistics.median(seconds) if seconds else 0.0
    visible = _VISIBLE * sum(typical.values())
    return {name: seconds for name, seconds in typical.items() if seconds > visible}


def background_seconds(records: Sequence[EpochRecord]) -> dict[str, float]:
    """The median seconds an epoch of the phases that run beside the steps."""
    times = [record.time for record in _warm(records)]
    names = dict.fromkeys(name for time in times for name in time if name.startswith(BACKGROUND))
    return {
        name.removeprefix(BACKGROUND): statistics.median(time.get(name, 0.0) for time in times)
        for name in names
    }


def _warm(records: Sequence[EpochRecord]) -> Sequence[EpochRecord]:
    """The epochs with times, without the first where there are several."""
    timed = [record for record in records if record.time]
    return timed[1:] or timed


def loss_course(run: ReportedRun) -> Course:
    """The training loss of each epoch."""
    return [r.epoch for r in run.records], [r.train_loss for r in run.records]


def metric_course(run: ReportedRun, split: str) -> Course:
    """The deciding metric of each evaluated epoch."""
    points = [(r.epoch, r.metric(split, run.metric or "")) for r in run.records]
    known = [(epoch, value) for epoch, value in points if value is not None]
    return [epoch for epoch, _ in known], [value for _, value in known]


def spans_decades(values: Sequence[float]) -> bool:
    """Whether only a logarithmic axis shows all the values."""
    known = [value for value in values if math.isfinite(value)]
    return bool(known) and min(known) > 0 and max(known) > 50 * min(known)
