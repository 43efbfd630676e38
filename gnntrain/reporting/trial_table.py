"""The tables of a sweep: trials as they end, their ranking, the means of groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.table import Table

from gnntrain.reporting.columns import BEST, GAP, Column, fitting, plain_table
from gnntrain.reporting.text import format_metric, format_seconds, shown_metric, sparkline
from gnntrain.reporting.trials import Group, Spread, Trial

_COURSE = 16
_LONGEST_VALUE = 16
_SHORT_VALUE = 9
_VALUE_WEIGHT = 30


def shown_value(text: str) -> str:
    """A value as typed; a number in four digits."""
    try:
        return f"{float(text):.4g}" if "." in text or "e" in text.lower() else text
    except ValueError:
        return text


def shown_overrides(overrides: Sequence[str]) -> str:
    """Overrides with their numbers in four digits."""
    pairs = (text.partition("=") for text in overrides)
    return " ".join(
        f"{key}={shown_value(value)}" if is_one else key for key, is_one, value in pairs
    )


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """The last part of each dotted key, or the whole where two have the same."""
    last = [key.rpartition(".")[2] for key in keys]
    return {k: short if last.count(short) == 1 else k for k, short in zip(keys, last, strict=True)}


def trial_columns(
    num_trials: int,
    examples: Sequence[Trial],
    metric: str,
    width: int,
    courses: Mapping[int, Sequence[float | None]] | None = None,
) -> list[Column[Trial]]:
    """The columns of a table of trials: number, values, results.

    Args:
        num_trials: Trials of the sweep.
        examples: Trials with the longest values.
        metric: The metric that decides.
        width: Characters a line.
        courses: The metric's values by trial, for a column of sparklines; ``None``: no column.
    """
    keys = list(dict.fromkeys(key for trial in examples for key in trial.values))
    name = shown_metric(metric)
    ends: list[Column[Trial]] = [
        Column(f"val {name}", lambda t: format_metric(t.val), max(11, len(name) + 4), 98, True),
        Column(f"test {name}", lambda t: format_metric(t.test), max(9, len(name) + 5), 20),
        Column("epochs", _epochs, 6, 15),
        Column("time", lambda t: format_seconds(t.seconds), 7, 10),
    ]
    if courses is not None or any(map(_status, examples)):
        ends.insert(1, Column("status", _status, 6, 96))
    if courses is not None:
        ends.append(Column("course".ljust(_COURSE), _course_of(courses), _COURSE, 5))
    number: Column[Trial] = Column(
        "trial", lambda t: str(t.number), max(5, len(str(num_trials))), 99
    )
    columns: list[Column[Trial]] = []
    for longest in (_LONGEST_VALUE, _SHORT_VALUE):
        values = _value_columns(keys, examples, longest)
        columns = fitting([number, *values, *ends], width)
        if all(column in columns for column in values):
            break
    return columns


def _value_columns(
    keys: Sequence[str], trials: Sequence[Trial], longest: int
) -> list[Column[Trial]]:
    columns = []
    for place, (key, title) in enumerate(short_keys(keys).items()):
        widest = max(len(shown_value(trial.values.get(key, ""))) for trial in trials)
        is_drawn = any("." in trial.values.get(key, "") for trial in trials)
        width = max(min(len(title), longest), min(longest, max(widest, 9 if is_drawn else 5)))
        columns.append(Column(title, _value_of(key), width, max(_VALUE_WEIGHT, 90 - place)))
    return columns


def _value_of(key: str) -> Callable[[Trial], str]:
    return lambda trial: shown_value(trial.values.get(key, "-"))


def _course_of(courses: Mapping[int, Sequence[float | None]]) -> Callable[[Trial], str]:
    return lambda trial: sparkline(courses.get(trial.number, ()), _COURSE).ljust(_COURSE)


def _status(trial: Trial) -> str:
    """A status that is worth a word."""
    return "" if trial.status == "completed" else trial.status


def _epochs(trial: Trial) -> str:
    return "-" if trial.epochs is None else str(trial.epochs)


def trial_line(trial: Trial, place: str, *, is_best: bool) -> str:
    """A trial for a log; ``place`` is how many trials ended, "2/3"."""
    parts = [f"trial {trial.number} ({place})", shown_overrides(trial.varied)]
    if trial.status == "failed":
        parts.append(f"failed: {' '.join((trial.error or '').split())}")
    else:
        name = shown_metric(trial.metric or "metric")
        mark = f" {BEST}" if is_best else ""
        parts.append(f"val {name} {format_metric(trial.val)}{mark}")
        parts += [f"test {name} {format_metric(trial.test)}", f"epochs {_epochs(trial)}"]
        parts += [] if trial.status == "completed" else [trial.status]
    parts.append(f"time {format_seconds(trial.seconds)}")
    return GAP.join(part for part in parts if part)


def group_table(groups: Sequence[Group], metric: str) -> Table:
    """Means and deviations of groups of trials, the best first."""
    name = shown_metric(metric)
    table = plain_table()
    has_splits = len({group.ranked_with for group in groups if group.trials}) > 1
    table.add_column(no_wrap=True)
    for title in (*["splits"] * has_splits, "trials", f"val {name}", f"test {name}"):
        table.add_column(title, justify="right", no_wrap=True)
    for number, group in enumerate(groups):
        varied = shown_overrides(group.varied) or "all trials"
        spreads = format_spread(group.val), format_spread(group.test)
        splits = [",".join(group.ranked_with)] * has_splits
        pruned = f" + {len(group.pruned)} pruned" * bool(group.pruned)
        cells = varied, *splits, f"{len(group.trials)}{pruned}", *spreads
        table.add_row(*cells, style="" if number else "bold")
    return table


def format_spread(spread: Spread | None) -> str:
    """Mean and deviation: ``0.8270 ± 0.0060``."""
    if spread is None:
        return "-"
    mean = format_metric(spread.mean)
    return mean if spread.std is None else f"{mean} ± {format_metric(spread.std, spread.mean)}"
