"""Sweeps: a grid or a search; checked before the first trial starts, and resumable."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gnntrain.app import Sources
from gnntrain.app.overrides import written
from gnntrain.config import Config
from gnntrain.config.types import plain
from gnntrain.distributed.processes import (
    refuse_unguarded_script,
    start_server,
    stopping_servers,
)
from gnntrain.distributed.signals import on_forced_exit
from gnntrain.errors import RunError, UserError
from gnntrain.reporting.console import DOT, SweepConsole, shown_overrides
from gnntrain.reporting.rundir import held, planned_sweep
from gnntrain.reporting.text import counted, shown_path
from gnntrain.reporting.trials import SweepResults, Trial
from gnntrain.sweep.folder import SweepCommand, SweepFolder, TrialName
from gnntrain.sweep.plan import SweepPlan, check_sweep, sweep_keys
from gnntrain.sweep.runner import TrialQueue, TrialRunner
from gnntrain.sweep.slots import Slots, plan_slots

if TYPE_CHECKING:
    from gnntrain.sweep.launching import JobLauncher

__all__ = ["HydraOptions", "SweepFolder", "changed_command", "resume_sweep", "run_sweep", "sweep"]

_MOST_FAILURES = 20
_OWN_KEY = re.compile(r"[+~]*(sweep[.=]|run\.)")  # shown by themselves


@dataclass(frozen=True)
class HydraOptions:
    """What Hydra's own keys ask of a sweep."""

    # `hydra.sweep.dir`, asked for after all checks: it may be the time. Else by `run`'s keys.
    directory: Callable[[], Path] | None = None
    trial_name: TrialName | None = None  # by `hydra.sweep.subdir`; None: number and values
    launcher: Callable[[Path], JobLauncher] | None = None  # of a folder; None: our workers train
    overrides: Sequence[str] = ()  # of Hydra's keys to go on with: launcher and names


def run_sweep(
    overrides: Sequence[str],
    sources: Sources | None = None,
    options: HydraOptions | None = None,
    *,
    data: object = None,
) -> SweepResults:
    """Train every trial of a sweep, each in its own run directory, and return the results.

    Args:
        overrides: As typed; Hydra's own keys, in `options`, not among them.
        sources, options: None: the shipped YAML files; no key of Hydra's.
        data: See `TrialRequest`.

    Raises:
        ConfigError: With every mistake of every trial; none was started.
        RunError: After the last trial, with those that failed.
        KeyboardInterrupt: The sweep was interrupted.
    """
    options = options or HydraOptions()
    sources = replace(sources or Sources(), is_saved=data is not None)
    plan = check_sweep(overrides, sources)
    # A launcher's jobs may run on other machines.
    is_here, run = options.launcher is None, plan.config.run
    slots = plan_slots(plan.config, plan.num_trials) if is_here else Slots([None])
    path = options.directory() if options.directory else Path(planned_sweep(run.dir, run.name))
    command = SweepCommand(overrides, sources, options.overrides)
    folder = SweepFolder.create(path, command, options.trial_name)
    launcher = options.launcher(folder.path) if options.launcher else None
    with held(folder.path, "sweep"):
        return _conduct(plan, slots, folder, sources, _listed(plan, folder), launcher, data)


def sweep(config: Config, values: Mapping[str, object], *, data: object = None) -> SweepResults:
    """Train every trial of a sweep, as `gnntrain -m` does.

    Args:
        config: What the trials share. Its `sweep` keys say how, its `run` keys where.
        values: By key or group a list of values, `{"trainer.lr": [0.01, 0.003]}`, or a text in
            Hydra's syntax, `"interval(1e-4,1e-1)"`.
        data: See `gnntrain.run.train`.

    Raises:
        ConfigError, RunError: See `run_sweep`.
    """
    from gnntrain.run_store import object_dataset  # the command does without it

    refuse_unguarded_script()
    if data is not None:
        config = config.model_copy(update={"dataset": object_dataset(config.dataset)})
    typed = {}
    for key, several in plain(values).items():
        each = several if isinstance(several, list | tuple) else [several]
        typed[key] = ",".join(one if isinstance(one, str) else written(one) for one in each)
    # The overrides that ask for the configuration on the command line.
    asked = {"dataset": config.dataset.option, "model": config.model.name}
    asked |= {"sweep": config.sweep.name, "logger": f"[{','.join(config.logger.chosen())}]"}
    choices = [f"{group}={option}" for group, option in asked.items()]
    default = Sources(is_saved=True).compose(choices, for_here=False).to_dict()
    asked |= {
        f"{section}.{key}": written(value)
        for section, keys in config.to_dict().items()
        for key, value in keys.items()
        if value != default[section].get(key)
    }
    overrides = [f"{key}={text}" for key, text in asked.items() if key not in typed]
    overrides += [f"{key}={text}" for key, text in typed.items()]
    with stopping_servers():
        return run_sweep(overrides, data=data)


def resume_sweep(
    folder: SweepFolder, overrides: Sequence[str] = (), launcher: JobLauncher | None = None
) -> SweepResults:
    """Go on with a sweep: trials that never began, were interrupted or failed (in a search those
    count as tried), each from its last checkpoint. `overrides` may change `sweep` keys; without a
    launcher this machine's workers train.

    Raises:
        UserError: For other keys, or fewer trials than there are; and as for `run_sweep`.
    """
    command = changed_command(folder.command(), overrides)
    plan = check_sweep(command.overrides, command.sources)
    is_here = launcher is None
    slots = plan_slots(plan.config, plan.num_trials) if is_here else Slots([None])
    with held(folder.path, "sweep"):
        trials = folder.trials() or _listed(plan, folder)
        if plan.search is not None and len(trials) > plan.num_trials:
            told = f"sweep.trials={plan.num_trials}: the search has {len(trials)} trials already"
            raise UserError(told, f"Write sweep.trials={len(trials)}, or a larger number.")
        folder.write_command(command)
        return _conduct(plan, slots, folder, command.sources, trials, launcher)


def changed_command(command: SweepCommand, overrides: Sequence[str]) -> SweepCommand:
    """The command to go on with, after `sweep` keys were changed.

    Raises:
        UserError: For other keys.
    """
    changes = sweep_keys(overrides)
    if len(changes) < len(overrides) or any(text.startswith("sweep=") for text in overrides):
        other = [text for text in overrides if text not in changes] or overrides
        raise UserError(
            f"a sweep goes on with the keys it was begun with, not {' '.join(other)}",
            "Only keys such as sweep.trials=50 or sweep.jobs=2 may be changed.",
        )
    keys = {text.partition("=")[0] for text in changes}
    kept = [text for text in command.overrides if text.partition("=")[0] not in keys]
    return replace(command, overrides=[*kept, *changes])


def _listed(plan: SweepPlan, folder: SweepFolder) -> list[Trial]:
    """The trials of a grid."""
    trials: list[Trial] = []
    for number, varied in enumerate(plan.grid):
        overrides = [*plan.fixed, *varied]
        run_dir = folder.trial_dir(number, plan.num_trials, overrides, varied, trials)
        trials.append(Trial(number, overrides, str(run_dir), varied=[*varied]))
    return trials


def _conduct(
    plan: SweepPlan,
    slots: Slots,
    folder: SweepFolder,
    sources: Sources,
    trials: Sequence[Trial],
    launcher: JobLauncher | None,
    data: object = None,
) -> SweepResults:
    if launcher is None and slots.devices[0] is None:
        start_server()  # it imports what workers need, while this process imports Optuna
    if plan.search is None:
        queue = TrialQueue(trials)
    else:
        from gnntrain.sweep.study import Study

        queue = Study(trials, folder, plan, graph_metric(plan.config, data))
    start = time.monotonic()
    status = "interrupted"

    def name(error: BaseException) -> None:
        """Say which sweep it was; the command tells how to go on."""
        error.run_dir = folder.path  # type: ignore[attr-defined]

    with SweepConsole() as view, on_forced_exit(name):
        jobs = launcher.jobs_at_a_time(plan) if launcher is not None else len(slots.devices)
        facts = _facts(plan, queue, jobs)
        view.on_start(queue.num_trials, queue.ended, shown_path(folder.path), facts)
        runner = TrialRunner(folder, queue, sources, view)
        try:
            if launcher is not None:
                runner.run_by(launcher, launcher.batch_size(plan))
            else:
                runner.run_here(slots, data)
            status = "completed"
        except BaseException as error:
            name(error)
            raise
        finally:
            results = SweepResults(queue.trials)
            seconds = time.monotonic() - start
            folder.write_summary(results, status, seconds)
            if (best := results.best) is not None:
                plain = slots.ranks(sources.compose(best.overrides)).to_dict()
                kept = {key: plain[key] for key in plain if key not in ("run", "sweep")}
                folder.write_best(kept, best)
            view.on_finish(results, status, seconds)
    failed = [f"{Path(t.run_dir).name}: {t.error}" for t in results.trials if t.status == "failed"]
    if failed:
        again = f". `gnntrain resume {shown_path(folder.path)}` tries them again."
        where = f"All results: {shown_path(folder.path / 'sweep.json')}"
        lines = [f"{len(failed)} of {len(results.trials)} trials failed", *failed[:_MOST_FAILURES]]
        told = "\n".join(lines).replace("\n", "\n  ")
        raise RunError(told, where + again * (plan.search is None))
    return results


def graph_metric(config: Config, data: object) -> str:
    """The metric that a search improves: that of its graph, which is prepared for it."""
    from gnntrain.run_store import open_graph  # a grid does without it

    return open_graph(config, data=data)[0].metric


def _facts(plan: SweepPlan, queue: TrialQueue, jobs: int) -> dict[str, str]:
    """The facts at the sweep's start by label."""
    kind, searched = "all combinations", ""
    if (search := plan.search) is not None and plan.space is not None:
        from gnntrain.sweep.search_space import described

        kind = f"optuna ({search.sampler}, pruner {search.pruner}, seed {search.seed})"
        width = max(map(len, plan.space))
        lines = [f"{key:{width}}  {described(values)}" for key, values in plan.space.items()]
        searched = "\n".join(lines)
    words = [counted(queue.num_trials, "trial"), kind, f"{jobs} at a time"]
    if queue.ended:
        words.insert(1, f"{len(queue.ended)} of them ended before")
    shared = shown_overrides([text for text in plan.fixed if not _OWN_KEY.match(text)])
    return {"sweep": DOT.join(words), "all": shared, "search": searched}
