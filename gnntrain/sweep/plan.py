"""What a sweep will train, from overrides in Hydra's own syntax; checked before its first trial."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydra.core.override_parser import types
from hydra.core.override_parser.types import Override

from gnntrain.app import Sources
from gnntrain.app.overrides import Groups, is_config_file, is_hydras, parse_overrides, sides_of
from gnntrain.config import Config, ConfigError, Problem, SweepConfig
from gnntrain.reporting.rundir import LATEST

if TYPE_CHECKING:
    from gnntrain.sweep.search_space import Space

_SWEEP_KEY = re.compile(r"[+~]*sweep[.=]")
_INCOMPLETE = ("plugin", "files")
_MOST_TRIALS = 10_000


@dataclass(frozen=True)
class SweepOverrides:
    """The overrides of a sweep."""

    fixed: Sequence[str]  # that all trials share, as typed; a configuration file comes first
    swept: Mapping[str, Override]  # by key, with several values; of each the last, as in Hydra
    groups: Groups

    @classmethod
    def parse(
        cls, overrides: Sequence[str], groups: Groups, problems: list[Problem]
    ) -> SweepOverrides:
        """What was typed, without Hydra's own keys; of an override that cannot be read its mistake
        is added to `problems`."""
        files = [text for text in overrides if is_config_file(text)]
        texts = [text for text in overrides if text not in files]
        parsed = parse_overrides(texts, groups, problems, sweep=True)
        ours = [one for one in parsed if not is_hydras(one)]
        fixed = [str(one.input_line) for one in ours if not one.is_sweep_override()]
        swept = {one.get_key_element(): one for one in ours if one.is_sweep_override()}
        return cls([*files, *fixed], swept, groups)


@dataclass(frozen=True)
class SweepPlan:
    """A sweep without mistakes."""

    config: Config  # the first trial's
    fixed: Sequence[str]  # the overrides that all trials share
    grid: Sequence[Sequence[str]] = ()  # the varied overrides of each; none of a search
    space: Space | None = None  # what a search draws from; None: it is a grid

    @property
    def search(self) -> SweepConfig | None:
        """The keys of a search; None: it is a grid."""
        sweep = self.config.sweep
        return sweep if sweep.name == "optuna" else None

    @property
    def num_trials(self) -> int:
        """How many trials there are."""
        return len(self.grid) if self.search is None else self.search.trials


def check_sweep(overrides: Sequence[str], sources: Sources, *, is_ours: bool = True) -> SweepPlan:
    """Check every trial of a grid, or the boundaries of a search space. For a sweeper that is not
    ours trials are checked in which every value of every key is there at least once.

    Raises:
        ConfigError: With every mistake of every trial.
    """
    problems: list[Problem] = []
    sweep = SweepOverrides.parse(overrides, sources.groups, problems)
    # The first trial says what kind of sweep it is; where it has mistakes, its `sweep` keys do.
    varied, first = list[str](), Config()
    for key, override in sweep.swept.items():
        value = override.value()
        if isinstance(value, types.IntervalSweep):
            varied.append(f"{key}={value.start:g}")
        else:
            varied += [f"{key}={text}" for text in swept_values(override, sweep.groups, [])[:1]]
    for texts in ([*sweep.fixed, *varied], sweep_keys(sweep.fixed)):
        with suppress(ConfigError):  # the mistakes are told with those of all trials
            first = sources.compose(texts)
            break
    is_search = first.sweep.name == "optuna"
    if is_ours and not is_search:
        trials = grid(sweep, problems)
        config = _check_all(sweep.fixed, trials, sources, [])
        return SweepPlan(config, sweep.fixed, trials)
    from gnntrain.sweep.search_space import boundary_values, search_space

    if is_ours and not sweep.swept and not problems:
        expects = "at least one key with values to search"
        hint = "as in 'trainer.lr=tag(log,interval(1e-4,1e-1))' or model.hidden_channels=64,128"
        problems.append(Problem("sweep", "optuna", expects, hint))
    space = search_space(sweep, first, problems)
    config = _check_all(sweep.fixed, boundary_values(space), sources, problems)
    return SweepPlan(config, sweep.fixed, space=space)


def _check_all(
    fixed: Sequence[str],
    trials: Iterable[Sequence[str]],
    sources: Sources,
    problems: list[Problem],
) -> Config:
    """The first trial's configuration; the mistakes of all trials are told with `problems`."""
    first: Config | None = None
    run_dirs = set()
    for varied in trials:
        try:
            config = sources.compose([*fixed, *varied])
        except ConfigError as error:
            problems.extend(error.problems)
            continue
        first = first or config
        run_dirs.add(config.run.dir)
        if config.trainer.init_from == LATEST:
            expects = "a run's name or path in a sweep: each trial becomes the latest run"
            problems.append(Problem("trainer.init_from", LATEST, expects))
    if len(run_dirs) > 1:
        expects = "one folder, in which every trial gets its own"
        problems.append(Problem("run.dir", "several values", expects))
    if problems or first is None:
        raise ConfigError(problems)
    return first


def sweep_keys(overrides: Iterable[str]) -> list[str]:
    """The overrides of the section `sweep`."""
    return [text for text in overrides if _SWEEP_KEY.match(text)]


def grid(sweep: SweepOverrides, problems: Sequence[Problem] = ()) -> list[list[str]]:
    """The varied overrides of each trial: all combinations, the last key varying fastest.

    Raises:
        ConfigError: With `problems` and every override without a finite list of values.
    """
    found = list(problems)
    lists = []
    for key, override in sweep.swept.items():
        if not override.is_discrete_sweep():
            expects = "values to go through, as in a,b or range(1,4) or choice(a,b)"
            hint = "or search them with sweep=optuna"
            found.append(Problem(*sides_of(override), expects, hint))
            continue
        lists.append([f"{key}={text}" for text in swept_values(override, sweep.groups, found)])
    if math.prod(map(len, lists)) > _MOST_TRIALS:
        typed = " ".join(str(one.input_line) for one in sweep.swept.values())
        found.append(Problem("", typed, f"at most {_MOST_TRIALS:,} trials"))
    if found:
        raise ConfigError(found)
    return [list(varied) for varied in itertools.product(*lists)]


def swept_values(override: Override, groups: Groups, problems: list[Problem]) -> list[str]:
    """The values of a discrete sweep; none where there is a problem, which is added."""
    sweep, expects = override.value(), None
    if isinstance(sweep, types.Glob):
        options = groups.get(override.key_or_group, ())
        # An option that needs further keys is not matched; it can be named.
        names: list[str] = sweep.filter([name for name in options if name not in _INCOMPLETE])
        if names:
            return names
        what = "one of" if options else "options, and only a group has some:"
        expects = f"a pattern that matches {what} {', '.join(options or groups)}"
    elif isinstance(sweep, types.RangeSweep):
        start, stop, step = (float(number or 0) for number in (sweep.start, sweep.stop, sweep.step))
        if not step or not 0 < (stop - start) / step <= _MOST_TRIALS:
            expects = f"a range of 1 to {_MOST_TRIALS:,} values"
    elif isinstance(sweep, types.ChoiceSweep) and any(
        isinstance(part, types.Sweep) for part in sweep.list
    ):
        expects = "plain values: none of them may be a sweep of its own"
    if expects is None:
        return list(override.sweep_string_iterator())
    problems.append(Problem(*sides_of(override), expects))
    return []
