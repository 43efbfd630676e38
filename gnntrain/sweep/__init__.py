"""Many runs: all combinations of values, or a search; checked before the first starts, none stops
the others, and what was interrupted goes on."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from gnntrain.app import compose_config
from gnntrain.config import Config, ConfigError, OptunaSweepConfig, Problem, SweepConfig
from gnntrain.errors import RunError, UserError
from gnntrain.reporting.run_lookup import LATEST, RUNS, find_run
from gnntrain.reporting.sweep_console import SweepConsole, SweepInfo
from gnntrain.reporting.text import shown_path
from gnntrain.reporting.trials import SweepResults, Trial
from gnntrain.search_space import (
    Dimension,
    example_values,
    expand_sweep,
    first_trial,
    fixed_overrides,
    search_space,
)
from gnntrain.sweep.folder import SweepFolder
from gnntrain.sweep.slots import plan_slots
from gnntrain.sweep.sources import GridSource, Source, compose_all, listed_trials
from gnntrain.sweep.trial_runner import TrialRunner

__all__ = ["SweepFolder", "resume_sweep", "run_sweep"]

_MOST_FAILURES = 20
_SWEEP_KEY = re.compile(r"[+~]*sweep[.=]")
_OWN_KEY = re.compile(r"[+~]*(sweep[.=]|run\.)")  # shown by themselves


def run_sweep(overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> SweepResults:
    """Train every trial of a sweep, each in its own run directory.

    Args:
        overrides: As for `expand_sweep` and `search_space`.
        config_dirs: As for `compose_config`.

    Returns:
        The order of the trials; the sweep's folder holds the same.

    Raises:
        ConfigError: With every mistake of every trial; none was started.
        RunError: After the last trial, with those that failed.
        KeyboardInterrupt: As by `TrialRunner.run`.
    """
    return _conduct(_Plan([_without_latest(text) for text in overrides], config_dirs))


def _without_latest(override: str) -> str:
    """The override, but `latest` in `trainer.init_from` becomes the path of the run that it means
    now: each trial becomes the latest run."""
    key, _, value = override.partition("=")
    if key.lstrip("+") != "trainer.init_from" or LATEST not in value.split(","):
        return override
    path = json.dumps(str(find_run(LATEST, RUNS).resolve()), ensure_ascii=False)
    words = [path if word == LATEST else word for word in value.split(",")]
    return f"{key}={','.join(words)}"


def resume_sweep(folder: SweepFolder, overrides: Sequence[str] = ()) -> SweepResults:
    """Go on with a sweep: with what is left of it, and trials that were interrupted or failed.

    Trials that were completed or pruned stay as they are, in a search those that failed too. A
    trial goes on from its last checkpoint, where it has one.

    Args:
        folder: The sweep's.
        overrides: `sweep` keys to change, as in `sweep.trials=50`.

    Raises:
        UserError: For other keys; and as for `run_sweep`.
    """
    begun, config_dirs = folder.command()
    other = [text for text in overrides if not _SWEEP_KEY.match(text)]
    if other or any(re.match(r"[+~]*sweep=", text) for text in overrides):
        raise UserError(
            f"a sweep goes on with the keys it was begun with, not {' '.join(other or overrides)}",
            "Only keys such as sweep.trials=50 or sweep.jobs=2 may be changed.",
        )
    changed = {text.partition("=")[0] for text in overrides}
    kept = [text for text in begun if text.partition("=")[0] not in changed]
    plan = _Plan([*kept, *overrides], config_dirs)
    folder.note_command(plan.overrides, config_dirs)
    return _conduct(plan, folder)


class _Plan:
    """What is asked for, checked.

    Attributes:
        config: The first trial's.
        space: What a search draws from; None: there is none.
    """

    def __init__(self, overrides: Sequence[str], config_dirs: Sequence[Path]) -> None:
        self.overrides = list(overrides)
        self.config_dirs = list(config_dirs)
        sweep = self._sweep_keys()
        self.space: list[Dimension] | None = None
        if isinstance(sweep, OptunaSweepConfig):
            _refuse_without_optuna()
            self.space = self._checked_space()
            asked = [first_trial(overrides, config_dirs)]
        else:
            asked = expand_sweep(overrides, config_dirs)
        self.composed = compose_all(asked, config_dirs)
        self.config = self.composed[0].config
        if any(one.config.trainer.init_from == LATEST for one in self.composed):
            expects = "a run's name or path in a sweep's file: each trial becomes the latest run"
            raise ConfigError([Problem("trainer.init_from", LATEST, expects)])
        self.num_trials = len(asked)
        if isinstance(sweep, OptunaSweepConfig):
            self.num_trials = sweep.trials
        self.slots = plan_slots(self.config, self.num_trials)

    def source(self, folder: SweepFolder, begun: Sequence[Trial]) -> Source:
        """Where the trials come from; those that were begun are among them."""
        sweep = self.config.sweep
        if isinstance(sweep, OptunaSweepConfig):
            from gnntrain.sweep.search import Search

            fixed = fixed_overrides(self.overrides, self.config_dirs)
            return Search(sweep, self.space or [], fixed, self.config_dirs, folder, begun)
        trials = list(begun) or listed_trials(self.composed, folder)
        return GridSource(trials, [one.config for one in self.composed])

    def _sweep_keys(self) -> SweepConfig | OptunaSweepConfig:
        own = [text for text in self.overrides if _SWEEP_KEY.match(text)]
        try:
            return compose_config(own, self.config_dirs).config.sweep
        except ConfigError:
            return SweepConfig()  # the mistakes are told with all others

    def _checked_space(self) -> list[Dimension]:
        """The space; every mistake at its ends is told at once."""
        problems: list[Problem] = []
        first = first_trial(self.overrides, self.config_dirs)
        try:
            config = compose_config(first, self.config_dirs).config
        except ConfigError as error:
            config, problems = Config(), error.problems
        space = search_space(self.overrides, config, self.config_dirs)
        fixed = fixed_overrides(self.overrides, self.config_dirs)
        ends = [
            [*fixed, *(f"{key}={text}" for key, text in values.items())]
            for values in example_values(space)
        ]
        try:
            compose_all(ends, self.config_dirs)
        except ConfigError as error:
            problems = [*problems, *error.problems]
        if problems:
            raise ConfigError(problems)
        return space


def _refuse_without_optuna() -> None:
    if find_spec("optuna") is None:
        expects = "basic: the package optuna is not installed"
        raise ConfigError(
            [Problem("sweep", "optuna", expects, "`pip install optuna`, or gnntrain[sweep]")]
        )


def _conduct(plan: _Plan, folder: SweepFolder | None = None) -> SweepResults:
    begun = [] if folder is None else folder.trials()
    if folder is None:
        folder = SweepFolder.create(plan.config.run, plan.overrides, plan.config_dirs)
    source = plan.source(folder, begun)
    start = time.monotonic()
    status = "interrupted"
    with SweepConsole() as view:
        view.on_start(_info(plan, folder, source))
        conductor = TrialRunner(folder, source, plan.slots, view)
        try:
            conductor.run()
            status = "completed"
        except BaseException as error:
            error.run_dir = folder.path  # type: ignore[attr-defined]  # the command names it
            raise
        finally:
            standings = SweepResults.of(source.trials)
            seconds = time.monotonic() - start
            _write_results(plan, folder, standings, status, seconds)
            view.on_finish(standings, status, seconds)
    _raise_failures(standings, folder, is_search=plan.space is not None)
    return standings


def _info(plan: _Plan, folder: SweepFolder, source: Source) -> SweepInfo:
    sweep = plan.config.sweep
    kind = "all combinations"
    examples = source.trials
    if isinstance(sweep, OptunaSweepConfig):
        kind = f"optuna ({sweep.sampler}, pruner {sweep.pruner}, seed {sweep.seed})"
    if plan.space is not None:
        examples = [
            Trial(0, [], "", varied=[f"{key}={text}" for key, text in values.items()])
            for values in example_values(plan.space)
        ]
        shared = fixed_overrides(plan.overrides, plan.config_dirs)
    else:
        shared = [text for text in plan.overrides if text in plan.composed[-1].overrides]
    return SweepInfo(
        num_trials=source.num_trials,
        num_ended=source.num_ended,
        best=SweepResults.of(source.trials).ranked[:1],
        kind=kind,
        jobs=len(plan.slots.devices),
        shared=tuple(text for text in shared if not _OWN_KEY.match(text)),
        space=tuple((one.key, str(one)) for one in plan.space or ()),
        examples=tuple(examples),
        folder=folder.shown,
    )


def _write_results(
    plan: _Plan, folder: SweepFolder, standings: SweepResults, status: str, seconds: float
) -> None:
    folder.write_summary(standings, status, seconds)
    best = standings.best
    if best is not None:
        config = plan.slots.ranks(compose_config(best.overrides, plan.config_dirs).config)
        plain = config.to_dict()
        folder.write_best({key: plain[key] for key in plain if key not in ("run", "sweep")}, best)


def _raise_failures(standings: SweepResults, folder: SweepFolder, *, is_search: bool) -> None:
    again = "" if is_search else f". `gnntrain resume {folder.shown}` tries them again."
    failed = [trial for trial in standings.trials if trial.status == "failed"]
    if failed:
        shown = failed[:_MOST_FAILURES]
        lines = [f"  {Path(trial.run_dir).name}: {trial.error}" for trial in shown]
        if len(failed) > len(shown):
            lines.append(f"  and {len(failed) - len(shown)} more")
        raise RunError(
            "\n".join([f"{len(failed)} of {len(standings.trials)} trials failed", *lines]),
            f"All results: {shown_path(folder.path / 'sweep.json')}{again}",
        )
