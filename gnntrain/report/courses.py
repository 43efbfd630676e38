"""The courses of a run over its epochs, as what draws them wants them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from gnntrain.phases import BACKGROUND
from gnntrain.report.runs import ReportedRun
from gnntrain.training.records import EpochRecord

PHASES = {
    "sample": "sample",
    "gather": "gather",
    "wait": "wait for a batch",
    "transfer": "copy to the device",
    "forward": "forward",
    "backward": "backward",
    "all_reduce": "all-reduce",
    "optimizer": "optimizer",
    "other": "everything else",
    "evaluation": "evaluation",
}
"""The phases of a training step and what they are called, in their order."""

_VISIBLE = 0.0005


def phase_seconds(record: EpochRecord) -> dict[str, float]:
    """Seconds of an epoch by phase, which add up to its length; empty where none was recorded."""
    if not record.time:
        return {}
    own = {name: record.time.get(name, 0.0) for name in PHASES}
    known = sum(seconds for name, seconds in own.items() if name != "evaluation")
    own["other"] = max(0.0, record.seconds - known)
    return own


def typical_phases(records: Sequence[EpochRecord]) -> dict[str, float]:
    """The median seconds an epoch of every phase that can be seen; of evaluations where there are.

    The first epoch compiles and warms up: of several it is left out.
    """
    timed = [record for record in records if record.time]
    timed = timed[1:] or timed
    typical: dict[str, float] = {}
    for name in PHASES:
        counted = [r for r in timed if r.metrics] if name == "evaluation" else timed
        seconds = [phase_seconds(record)[name] for record in counted]
        typical[name] = statistics.median(seconds) if seconds else 0.0
    visible = _VISIBLE * sum(typical.values())
    return {name: seconds for name, seconds in typical.items() if seconds > visible}


def background_seconds(records: Sequence[EpochRecord]) -> dict[str, float]:
    """The median seconds an epoch of what runs beside the steps."""
    timed = [record.time for record in records if record.time]
    timed = timed[1:] or timed
    names = dict.fromkeys(name for time in timed for name in time if name.startswith(BACKGROUND))
    return {
        name.removeprefix(BACKGROUND): statistics.median(time.get(name, 0.0) for time in timed)
        for name in names
    }


def metric_course(run: ReportedRun, split: str) -> tuple[list[int], list[float]]:
    """The evaluated epochs and the deciding metric in them."""
    metric = run.metric or ""
    points = [(r.epoch, r.metric(split, metric)) for r in run.records]
    known = [(epoch, value) for epoch, value in points if value is not None]
    return [epoch for epoch, _ in known], [value for _, value in known]


def spans_decades(values: Sequence[float]) -> bool:
    """Whether values are so far apart that only a logarithmic axis shows them all."""
    known = [value for value in values if math.isfinite(value)]
    return bool(known) and min(known) > 0 and max(known) > 50 * min(known)
