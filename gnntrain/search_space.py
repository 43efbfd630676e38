"""What a sweep goes through: lists of values, and the space of a search, in Hydra's own syntax."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.types import (
    ChoiceSweep,
    Glob,
    IntervalSweep,
    Override,
    RangeSweep,
    Sweep,
)

from gnntrain.app import parse_overrides, sides_of
from gnntrain.config import Config, ConfigError, Problem, takes_integers
from gnntrain.config.whole import is_config_file
from gnntrain.groups import config_groups

_INCOMPLETE = ("plugin", "files")
_MOST_TRIALS = 10_000


@dataclass(frozen=True)
class Choices:
    """A key's values without an order, as they are typed.

    Attributes:
        key: Dotted key, or a group.
        values: At least one.
    """

    key: str
    values: tuple[str, ...]

    @property
    def ends(self) -> tuple[str, ...]:
        """The values that must be right for all to be: here all."""
        return self.values

    def __str__(self) -> str:
        return ", ".join(self.values)


@dataclass(frozen=True)
class Interval:
    """A key's values from `low` to `high`, both included.

    Attributes:
        key: Dotted key.
        low: The lowest.
        high: The highest.
        step: Between two values; None: any number.
        log: Whether to draw evenly over the logarithm.
        is_integer: Whether only whole numbers are meant.
    """

    key: str
    low: float
    high: float
    step: float | None = None
    log: bool = False
    is_integer: bool = False

    @property
    def ends(self) -> tuple[str, ...]:
        """The values that must be right for all to be."""
        return f"{self.low:.12g}", f"{self.high:.12g}"

    def text(self, value: float) -> str:
        """A value as it is typed."""
        return str(int(value)) if self.is_integer else f"{value:.12g}" if self.step else repr(value)

    def __str__(self) -> str:
        by = f", step {self.step:g}" if self.step not in (None, 1) else ""
        return f"{self.low:g} to {self.high:g}{by}{', log' if self.log else ''}"


Dimension = Choices | Interval


def expand_sweep(overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> list[list[str]]:
    """The overrides of every trial of a sweep, the last one varying fastest.

    Args:
        overrides: As for `compose_config`; also `key=a,b`, `key=range(1,4)`, `key=choice(a,b)`
            and `group=glob(*)`.
        config_dirs: As for `compose_config`.

    Raises:
        ConfigError: With every override that cannot be read or has no values to go through.
    """
    problems: list[Problem] = []
    groups = config_groups(config_dirs)
    files, parsed = _parsed(overrides, groups, problems)
    variants = [_variants(override, groups, problems) for override in parsed]
    if math.prod(map(len, variants)) > _MOST_TRIALS:
        problems.append(Problem("", " ".join(overrides), f"at most {_MOST_TRIALS:,} trials"))
    if problems:
        raise ConfigError(problems)
    return [[*files, *trial] for trial in itertools.product(*variants)]


def fixed_overrides(overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> list[str]:
    """The overrides that all trials share, as far as they can be read."""
    files, parsed = _parsed(overrides, config_groups(config_dirs), [])
    return [*files, *(str(o.input_line) for o in parsed if not o.is_sweep_override())]


def first_trial(overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> list[str]:
    """The overrides with the first of each one's values.

    Raises:
        ConfigError: With every override that cannot be read or has no values to go through.
    """
    problems: list[Problem] = []
    groups = config_groups(config_dirs)
    files, parsed = _parsed(overrides, groups, problems)
    first = []
    for override in parsed:
        sweep = override.value()
        if isinstance(sweep, IntervalSweep):
            first.append(f"{override.get_key_element()}={sweep.start:g}")
        else:
            first += _variants(override, groups, problems)[:1]
    if problems:
        raise ConfigError(problems)
    return [*files, *first]


def search_space(
    overrides: Sequence[str], config: Config, config_dirs: Sequence[Path] = ()
) -> list[Dimension]:
    """What a search draws from.

    Args:
        overrides: As for `expand_sweep`; also `key=interval(1e-4,1e-1)` and
            `key=tag(log,interval(1e-4,1e-1))`.
        config: What the fixed overrides alone ask for: says which keys take whole numbers.
        config_dirs: As for `compose_config`.

    Raises:
        ConfigError: With every override that cannot be read or says nothing to draw from.
    """
    problems: list[Problem] = []
    groups = config_groups(config_dirs)
    _, parsed = _parsed(overrides, groups, problems)
    swept = [override for override in parsed if override.is_sweep_override()]
    space = [_dimension(override, config, groups, problems) for override in swept]
    if not swept and not problems:
        expects = "at least one key with values to search"
        hint = "as in 'trainer.lr=tag(log,interval(1e-4,1e-1))' or model.hidden_channels=64,128"
        problems.append(Problem("sweep", "optuna", expects, hint))
    if problems:
        raise ConfigError(problems)
    return [dimension for dimension in space if dimension is not None]


def _parsed(
    overrides: Sequence[str], groups: Mapping[str, Sequence[str]], problems: list[Problem]
) -> tuple[list[str], list[Override]]:
    """The files of whole configurations, and the overrides that can be read."""
    files = [text for text in overrides if is_config_file(text)]
    texts = [text for text in overrides if text not in files]
    return files, list(parse_overrides(texts, groups, problems, sweep=True))


def _variants(
    override: Override, groups: Mapping[str, Sequence[str]], problems: list[Problem]
) -> list[str]:
    """The values that an override goes through, each as an override of its own."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    key, text = override.get_key_element(), sides_of(override)[1]
    if not override.is_discrete_sweep():
        expects = "values to go through, as in a,b or range(1,4) or choice(a,b)"
        problems.append(Problem(key, text, expects, "or search them with sweep=optuna"))
        return []
    return [f"{key}={value}" for value in _values(override, groups, problems)]


def _values(
    override: Override, groups: Mapping[str, Sequence[str]], problems: list[Problem]
) -> list[str]:
    sweep = override.value()
    if isinstance(sweep, RangeSweep) and not 0 < _length(sweep) <= _MOST_TRIALS:
        expects = f"a range of 1 to {_MOST_TRIALS:,} values"
        problems.append(Problem(*sides_of(override), expects))
        return []
    if isinstance(sweep, ChoiceSweep) and any(isinstance(part, Sweep) for part in sweep.list):
        expects = "plain values: none of them may be a sweep of its own"
        problems.append(Problem(*sides_of(override), expects))
        return []
    if not isinstance(sweep, Glob):
        return list(override.sweep_string_iterator())
    options = groups.get(override.key_or_group)
    # A pattern does not mean what needs further keys; it can be named.
    names: list[str] = sweep.filter([name for name in options or () if name not in _INCOMPLETE])
    if not names:
        what = "one of" if options else "options, and only a group has some:"
        expects = f"a pattern that matches {what} {', '.join(options or groups)}"
        problems.append(Problem(*sides_of(override), expects))
    return names


def _length(sweep: RangeSweep) -> float:
    """About how many values a range has; 0 where it never ends."""
    start, stop, step = (float(number or 0) for number in (sweep.start, sweep.stop, sweep.step))
    return (stop - start) / step if step else 0.0


def _dimension(
    override: Override,
    config: Config,
    groups: Mapping[str, Sequence[str]],
    problems: list[Problem],
) -> Dimension | None:
    sweep = override.value()
    key = override.get_key_element()
    if isinstance(sweep, IntervalSweep):
        return _interval(override, sweep, config, problems)
    if "log" in getattr(sweep, "tags", ()):
        expects = "log with an interval, as in tag(log,interval(1e-4,1e-1))"
        problems.append(Problem(*sides_of(override), expects))
        return None
    values = _values(override, groups, problems)
    if isinstance(sweep, RangeSweep) and len(values) > 1 and not sweep.shuffle:
        numbers = [float(value) for value in values]
        whole = all(isinstance(end, int) for end in (sweep.start, sweep.step))
        if numbers[0] < numbers[-1]:
            step = float(sweep.step)
            return Interval(key, numbers[0], numbers[-1], step, is_integer=whole)
    if isinstance(sweep, ChoiceSweep) and len(set(values)) < len(values):
        values = list(dict.fromkeys(values))
    return Choices(key, tuple(values)) if values else None


def _interval(
    override: Override, sweep: IntervalSweep, config: Config, problems: list[Problem]
) -> Interval | None:
    key, text = sides_of(override)
    low, high = float(sweep.start or 0), float(sweep.end or 0)
    log = "log" in sweep.tags
    expects = None
    if not low < high:
        expects = "an interval from a lower to a higher number"
    elif log and low <= 0:
        expects = "an interval above 0: it is drawn over the logarithm"
    is_integer = isinstance(sweep.start, int) or takes_integers(config, key)
    if expects is None and is_integer and not (low.is_integer() and high.is_integer()):
        expects = "an interval between whole numbers"
    if expects is not None:
        problems.append(Problem(key, text, expects))
        return None
    return Interval(key, low, high, 1 if is_integer else None, log=log, is_integer=is_integer)


def example_values(space: Sequence[Dimension]) -> list[Mapping[str, str]]:
    """Values by key that must all be right for the search to begin: each dimension's ends."""
    first = {dimension.key: dimension.ends[0] for dimension in space}
    others = [{**first, dimension.key: end} for dimension in space for end in dimension.ends[1:]]
    return [first, *others]
