"""The tables of a sweep: its trials as they end, their order, the groups' means. Plain text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gnntrain.reporting.table import Column, fitting
from gnntrain.reporting.text import (
    Symbols,
    format_metric,
    format_seconds,
    shown_metric,
    sparkline,
)
from gnntrain.reporting.trials import Group, Spread, Trial

GAP = "  "
_COURSE = 16
_LONGEST_VALUE = 16
_SHORT_VALUE = 9
STATUS = 8
_VALUE_WEIGHT = 30


def shown_value(text: str) -> str:
    """A value as typed, a number in four digits."""
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


class TrialTable:
    """A line a trial: number, values, what it reached.

    Args:
        num_trials: Trials of the sweep.
        examples: Trials with the values that are to be shown.
        metric: The metric that decides.
        width: Characters a line may have; ``None`` for no limit.
        symbols: What to draw with.
        courses: The metric's values by trial, for a column of sparklines; ``None``: without it.

    Attributes:
        columns: Those that the width has room for.
    """

    def __init__(
        self,
        num_trials: int,
        examples: Sequence[Trial],
        metric: str,
        width: int | None,
        symbols: Symbols,
        courses: Mapping[int, Sequence[float | None]] | None = None,
    ) -> None:
        self._courses = {} if courses is None else courses
        self._symbols = symbols
        self._has_courses = courses is not None
        keys = list(dict.fromkeys(key for trial in examples for key in trial.values))
        # Two for the mark of the best.
        room = None if width is None else width - 2
        for longest in (_LONGEST_VALUE, _SHORT_VALUE):
            columns = self._columns(num_trials, metric, keys, examples, longest)
            self.columns = fitting(columns, room)
            if sum(column.weight >= _VALUE_WEIGHT for column in self.columns) == len(keys) + 2:
                break

    def header(self) -> str:
        """The headings over :meth:`cells`."""
        return GAP.join(
            column.title.rjust(column.width) + ("  " if column.is_decisive else "")
            for column in self.columns
        )

    def cells(self, trial: Trial, *, is_best: bool) -> list[str]:
        """The texts of a row in the columns' widths."""
        cells = []
        for column in self.columns:
            cell = column.cell(trial).rjust(column.width)
            cells.append(cell + (" *" if is_best else "  ") if column.is_decisive else cell)
        return cells

    def begin(self, trial: Trial) -> str:
        """The first cells of a row: number and values, for a trial that is being trained."""
        shown = [c for c in self.columns if c.title == "trial" or _VALUE_WEIGHT <= c.weight < 98]
        return GAP.join(column.cell(trial).rjust(column.width) for column in shown)

    def _columns(
        self,
        num_trials: int,
        metric: str,
        keys: Sequence[str],
        examples: Sequence[Trial],
        longest: int,
    ) -> list[Column[Trial]]:
        name, digits = shown_metric(metric), max(5, len(str(num_trials)))
        width = max(9, len(name) + 5)
        columns = [
            Column[Trial]("trial", lambda trial: str(trial.number), digits, 99),
            *self._value_columns(keys, examples, longest),
            Column[Trial](f"val {name}", lambda t: format_metric(t.val), width - 1, 98, True),
            Column[Trial](f"test {name}", lambda t: format_metric(t.test), width, 20),
            Column[Trial]("epochs", _epochs, 6, 15),
            Column[Trial]("time", lambda trial: format_seconds(trial.seconds), 7, 10),
        ]
        if self._has_courses:
            columns.append(Column[Trial]("course".ljust(_COURSE), self._course, _COURSE, 5))
        return columns

    def _value_columns(
        self, keys: Sequence[str], trials: Sequence[Trial], longest: int
    ) -> list[Column[Trial]]:
        titles = short_keys(keys)
        columns = []
        for place, key in enumerate(keys):
            widest = max(len(shown_value(trial.values.get(key, ""))) for trial in trials)
            is_drawn = any("." in trial.values.get(key, "") for trial in trials)
            width = min(longest, max(widest, 9 if is_drawn else 5))
            title = cut(titles[key], max(width, longest), self._symbols)
            weight = max(_VALUE_WEIGHT, 90 - place)
            columns.append(Column[Trial](title, _cell_of(key), max(width, len(title)), weight))
        return columns

    def _course(self, trial: Trial) -> str:
        line = sparkline(self._courses.get(trial.number, ()), _COURSE, self._symbols)
        return line.ljust(_COURSE)


def sentence(trial: Trial, place: str, *, is_best: bool) -> str:
    """A trial as a line that explains itself, for a log; `place` is how many ended, "2/3"."""
    parts = [f"trial {trial.number} ({place})", shown_overrides(trial.varied)]
    if trial.status == "failed":
        parts.append(f"failed: {' '.join((trial.error or '').split())}")
    else:
        name = shown_metric(trial.metric or "metric")
        parts.append(f"val {name} {format_metric(trial.val)}{' *' if is_best else ''}")
        parts.append(f"test {name} {format_metric(trial.test)}")
        parts.append(f"epochs {_epochs(trial)}")
        parts += [] if trial.status == "completed" else [trial.status]
    parts.append(f"time {format_seconds(trial.seconds)}")
    return GAP.join(part for part in parts if part)


def group_lines(
    groups: Sequence[Group], metric: str, width: int, symbols: Symbols, most: int
) -> list[str]:
    """Means and deviations of the groups, the best first."""
    name = shown_metric(metric)
    rows = [
        (
            shown_overrides(group.varied) or "all trials",
            str(len(group.trials)),
            format_spread(group.val, symbols),
            format_spread(group.test, symbols),
        )
        for group in groups[:most]
    ]
    header = ("", "trials", f"val {name}", f"test {name}")
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(4)]
    widths[0] = max(4, min(widths[0], width - sum(widths[1:]) - 3 * len(GAP)))
    return [
        GAP.join(
            [
                cut(row[0], widths[0], symbols).ljust(widths[0]),
                *(cell.rjust(size) for cell, size in zip(row[1:], widths[1:], strict=True)),
            ]
        ).rstrip()
        for row in (header, *rows)
    ]


def format_spread(spread: Spread | None, symbols: Symbols) -> str:
    """Mean and deviation: ``0.8270 ± 0.0060``."""
    if spread is None:
        return "-"
    mean = format_metric(spread.mean)
    if spread.std is None:
        return mean
    return f"{mean} {symbols.plus_minus} {format_metric(spread.std, spread.mean)}"


def cut(text: str, width: int, symbols: Symbols) -> str:
    """The text, in no more than `width` characters."""
    if len(text) <= width:
        return text
    return text[: max(0, width - len(symbols.cut))] + symbols.cut


def _cell_of(key: str) -> Callable[[Trial], str]:
    return lambda trial: shown_value(trial.values.get(key, "-"))[:_LONGEST_VALUE]


def _epochs(trial: Trial) -> str:
    return "-" if trial.epochs is None else str(trial.epochs)
