"""What a sweep will train, checked before the first trial starts."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hydra.core.override_parser.types import IntervalSweep

from gnntrain.app import Composer
from gnntrain.config import Config, ConfigError, OptunaSweepConfig, Problem
from gnntrain.reporting.run_lookup import LATEST, find_run
from gnntrain.sweep.overrides import SweepOverrides, grid, swept_values

if TYPE_CHECKING:
    from gnntrain.sweep.search_space import Space

_SWEEP_KEY = re.compile(r"[+~]*sweep[.=]")


@dataclass(frozen=True)
class SweepPlan:
    """A sweep without mistakes.

    Attributes:
        config: The first trial's.
        fixed: The overrides that all trials share.
        grid: The varied overrides of each trial; none where it is a search.
        space: What a search draws from; None: it is a grid.
    """

    config: Config
    fixed: Sequence[str]
    grid: Sequence[Sequence[str]] = ()
    space: Space | None = field(default=None)

    @property
    def search(self) -> OptunaSweepConfig | None:
        """The keys of a search; None: it is a grid."""
        sweep = self.config.sweep
        return sweep if isinstance(sweep, OptunaSweepConfig) else None

    @property
    def num_trials(self) -> int:
        """How many trials there are."""
        return len(self.grid) if self.search is None else self.search.trials


def check_sweep(overrides: Sequence[str], composer: Composer) -> SweepPlan:
    """Check every trial of a grid, or the boundaries of a search space.

    Args:
        overrides: As typed.
        composer: Composes the configurations of trials.

    Raises:
        ConfigError: With every mistake of every trial.
    """
    overrides = [without_latest(text) for text in overrides]
    problems: list[Problem] = []
    sweep = SweepOverrides.parse(overrides, composer.groups, problems)
    if is_search(sweep, composer):
        return _check_search(sweep, composer, problems)
    trials = grid(sweep, problems)
    asked = ([*sweep.fixed, *varied] for varied in trials)
    return SweepPlan(_check_all(asked, composer), sweep.fixed, trials)


def check_examples(overrides: Sequence[str], composer: Composer) -> None:
    """Check trials in which every value of every key is there at least once, whatever sweeper
    goes through them.

    Raises:
        ConfigError: With every mistake.
    """
    problems: list[Problem] = []
    sweep = SweepOverrides.parse(overrides, composer.groups, problems)
    if sweep.swept:
        _check_search(sweep, composer, problems)
    else:
        _check_all([sweep.fixed], composer, problems)


def sweep_keys(overrides: Iterable[str]) -> list[str]:
    """The overrides of the section `sweep`."""
    return [text for text in overrides if _SWEEP_KEY.match(text)]


def without_latest(override: str) -> str:
    """The override, but `latest` in `trainer.init_from` becomes the path of the run that it means
    now: each trial becomes the latest run."""
    key, _, value = override.partition("=")
    if key.lstrip("+") != "trainer.init_from" or LATEST not in value.split(","):
        return override
    path = json.dumps(str(find_run(LATEST).resolve()), ensure_ascii=False)
    words = [path if word == LATEST else word for word in value.split(",")]
    return f"{key}={','.join(words)}"


def is_search(sweep: SweepOverrides, composer: Composer) -> bool:
    """Whether the command line or its file asks for a search."""
    for texts in ([*sweep.fixed, *_first_values(sweep)], sweep_keys(sweep.fixed)):
        with contextlib.suppress(ConfigError):  # its mistakes are told with all others
            return isinstance(composer.compose(texts).config.sweep, OptunaSweepConfig)
    return False


def _check_search(sweep: SweepOverrides, composer: Composer, problems: list[Problem]) -> SweepPlan:
    from gnntrain.sweep.search_space import boundary_values, search_space

    try:
        config = composer.compose([*sweep.fixed, *_first_values(sweep)]).config
    except ConfigError:
        config = Config()  # the mistakes are told with those of the boundaries
    space = search_space(sweep, config, problems)
    asked = ([*sweep.fixed, *varied] for varied in boundary_values(space))
    return SweepPlan(_check_all(asked, composer, problems), sweep.fixed, space=space)


def _first_values(sweep: SweepOverrides) -> list[str]:
    first = []
    for key, override in sweep.swept.items():
        value = override.value()
        if isinstance(value, IntervalSweep):
            first.append(f"{key}={value.start:g}")
        else:
            first += [f"{key}={text}" for text in swept_values(override, sweep.groups, [])[:1]]
    return first


def _check_all(
    asked: Iterable[Sequence[str]], composer: Composer, found: Sequence[Problem] = ()
) -> Config:
    """The first trial's configuration.

    Raises:
        ConfigError: With every mistake of every trial, and the problems found before.
    """
    first: Config | None = None
    problems = list(found)
    run_dirs = set()
    for overrides in asked:
        try:
            config = composer.compose(overrides).config
        except ConfigError as error:
            problems.extend(error.problems)
            continue
        first = first or config
        run_dirs.add(config.run.dir)
        if config.trainer.init_from == LATEST:
            expects = "a run's name or path in a sweep's file: each trial becomes the latest run"
            problems.append(Problem("trainer.init_from", LATEST, expects))
    if len(run_dirs) > 1:
        expects = "one folder, in which every trial gets its own"
        problems.append(Problem("run.dir", "several values", expects))
    if problems or first is None:
        raise ConfigError(problems)
    return first
