"""Seconds of a run over its epochs, by phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from gnntrain.phases import BACKGROUND
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

_VISIBLE = 0.0005


def phase_seconds(records: Sequence[EpochRecord]) -> Any:
    """A frame of seconds by epoch (rows; those with times) and phase (columns); a row's sum is the
    epoch's length."""
    timed = [record for record in records if record.time]
    rows, epochs = [record.time for record in timed], [record.epoch for record in timed]
    frame = pd.DataFrame(rows, epochs).reindex(columns=[*PHASES]).fillna(0.0)
    training = frame.drop(columns="evaluation").sum(axis=1)
    frame["other"] = ([record.seconds for record in timed] - training).clip(lower=0.0)
    return frame


def typical_phases(records: Sequence[EpochRecord]) -> dict[str, float]:
    """The median seconds an epoch of each visible phase; of evaluations over the epochs with one.

    The first epoch compiles and warms up: of several it is left out.
    """
    warm = phase_seconds(_warm(records))
    typical = warm.median()
    typical["evaluation"] = warm["evaluation"][warm["evaluation"] > 0].median()
    return dict(typical[typical > _VISIBLE * typical.sum()])


def background_seconds(records: Sequence[EpochRecord]) -> dict[str, float]:
    """The median seconds an epoch of the phases that run beside the steps."""
    medians = pd.DataFrame([record.time for record in _warm(records)]).fillna(0.0).median()
    names = [name for name in medians.index if name.startswith(BACKGROUND)]
    return {name.removeprefix(BACKGROUND): float(medians[name]) for name in names}


def _warm(records: Sequence[EpochRecord]) -> Sequence[EpochRecord]:
    """The epochs with times, without the first where there are several."""
    timed = [record for record in records if record.time]
    return timed[1:] or timed
