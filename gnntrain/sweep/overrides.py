"""The overrides of a sweep, in Hydra's own syntax, and the values of a grid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, RangeSweep, Sweep

from gnntrain.app import parse_overrides, sides_of
from gnntrain.app.overrides import is_hydras
from gnntrain.config import ConfigError, Problem
from gnntrain.config.whole import is_config_file

_INCOMPLETE = ("plugin", "files")
_MOST_TRIALS = 10_000


@dataclass(frozen=True)
class SweepOverrides:
    """The overrides of a sweep.

    Attributes:
        fixed: Overrides that all trials share, as typed; a configuration file comes first.
        swept: Overrides with several values by key; the last one of each key, as in Hydra.
        groups: The options of every group.
    """

    fixed: Sequence[str]
    swept: Mapping[str, Override]
    groups: Mapping[str, Sequence[str]]

    @classmethod
    def parse(
        cls, overrides: Sequence[str], groups: Mapping[str, Sequence[str]], problems: list[Problem]
    ) -> SweepOverrides:
        """Parse what was typed; an override that cannot be parsed is added to `problems`.

        Hydra's own keys are left out.
        """
        files = [text for text in overrides if is_config_file(text)]
        texts = [text for text in overrides if text not in files]
        parsed = parse_overrides(texts, groups, problems, sweep=True)
        ours = [one for one in parsed if not is_hydras(one)]
        fixed = [str(one.input_line) for one in ours if not one.is_sweep_override()]
        swept = {one.get_key_element(): one for one in ours if one.is_sweep_override()}
        return cls([*files, *fixed], swept, groups)


def grid(sweep: SweepOverrides, problems: Sequence[Problem] = ()) -> list[list[str]]:
    """The varied overrides of each trial: all combinations, the last key varying fastest.

    Args:
        sweep: Values are `key=a,b`, `key=range(1,4)`, `key=choice(a,b)` and `group=glob(*)`.
        problems: Problems that were found before.

    Raises:
        ConfigError: With these problems and every override without a finite list of values.
    """
    found = list(problems)
    lists = [_assignments(one, sweep.groups, found) for one in sweep.swept.values()]
    if math.prod(map(len, lists)) > _MOST_TRIALS:
        typed = " ".join(str(one.input_line) for one in sweep.swept.values())
        found.append(Problem("", typed, f"at most {_MOST_TRIALS:,} trials"))
    if found:
        raise ConfigError(found)
    return [list(varied) for varied in itertools.product(*lists)]


def _assignments(
    override: Override, groups: Mapping[str, Sequence[str]], problems: list[Problem]
) -> list[str]:
    if not override.is_discrete_sweep():
        expects = "values to go through, as in a,b or range(1,4) or choice(a,b)"
        problems.append(Problem(*sides_of(override), expects, "or search them with sweep=optuna"))
        return []
    key = override.get_key_element()
    return [f"{key}={value}" for value in swept_values(override, groups, problems)]


def swept_values(
    override: Override, groups: Mapping[str, Sequence[str]], problems: list[Problem]
) -> list[str]:
    """The values of a discrete sweep; none where there is a problem, which is added."""
    problem = next(_value_problems(override, groups), None)
    if problem is not None:
        problems.append(problem)
        return []
    sweep = override.value()
    if isinstance(sweep, Glob):
        return _matches(sweep, groups[override.key_or_group])
    return list(override.sweep_string_iterator())


def _value_problems(override: Override, groups: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    sweep, sides = override.value(), sides_of(override)
    if isinstance(sweep, RangeSweep) and not 0 < _length(sweep) <= _MOST_TRIALS:
        yield Problem(*sides, f"a range of 1 to {_MOST_TRIALS:,} values")
    if isinstance(sweep, ChoiceSweep) and any(isinstance(part, Sweep) for part in sweep.list):
        yield Problem(*sides, "plain values: none of them may be a sweep of its own")
    options = groups.get(override.key_or_group, ())
    if isinstance(sweep, Glob) and not _matches(sweep, options):
        what = "one of" if options else "options, and only a group has some:"
        yield Problem(*sides, f"a pattern that matches {what} {', '.join(options or groups)}")


def _matches(pattern: Glob, options: Sequence[str]) -> list[str]:
    # An option that needs further keys is not matched; it can be named.
    names: list[str] = pattern.filter([name for name in options if name not in _INCOMPLETE])
    return names


def _length(sweep: RangeSweep) -> float:
    """About how many values a range has; 0 where it never ends."""
    start, stop, step = (float(number or 0) for number in (sweep.start, sweep.stop, sweep.step))
    return (stop - start) / step if step else 0.0
