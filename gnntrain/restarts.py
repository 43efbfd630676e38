"""What a job that was started again goes on with: SLURM's, torchrun's, Kubernetes', SkyPilot's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gnntrain.distributed.launchers import slurm_job
from gnntrain.reporting.rundir import RUNS, RunDirectory, is_run, newest_runs


def job_names(
    torchrun_job: str | None = None, number: int = 1, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The names that launchers give this job, which it keeps when it is started again: of the run
    of this number, from 1, in this process. Ranks of a torchrun keep theirs in its store."""
    names = {
        "slurm": slurm_job(environ),
        "skypilot": environ.get("SKYPILOT_TASK_ID"),
        "torchrun": torchrun_job,
    }
    suffix = "" if number == 1 else f"/{number}"
    return {launcher: name + suffix for launcher, name in names.items() if name}


def begun_run(
    if_exists: str,
    overrides: Sequence[str],
    named: Path | None,
    jobs: Mapping[str, str],
    *,
    is_launched: bool,
    environ: Mapping[str, str] = os.environ,
) -> RunDirectory | None:
    """The run that the command goes on with.

    It is the one in the directory that the command names; else the newest under `runs` that the
    same command has begun, and whose `env.json` has one of the job's names.

    Args:
        if_exists: `run.if_exists`.
        overrides: Of the command line.
        named: The directory that the command names, if any.
        jobs: As of `job_names`.
        is_launched: Whether a launcher has started this process.

    Returns:
        The run; None: this command begins one.
    """
    # Of the job's names those of launchers that have started it before, or may have: SLURM counts,
    # SkyPilot does not, and torchrun's count differs between machines.
    is_requeued = environ.get("SLURM_RESTART_COUNT", "0") not in ("", "0")
    again = {name: job for name, job in jobs.items() if name != "slurm" or is_requeued}
    if if_exists == "error":
        return None
    if named is not None:
        # Kubernetes starts the same command again and does not say so.
        is_job = is_launched or bool(again) or "KUBERNETES_SERVICE_HOST" in environ
        goes_on = (if_exists == "resume" or is_job) and is_run(named)
        return RunDirectory(named.absolute()) if goes_on else None
    for path in newest_runs(RUNS) if again else ():
        run = RunDirectory(path.absolute())
        is_same = is_run(path) and run.overrides() == list(overrides)
        begun_by = (run.read("env.json") or {}).get("jobs")
        if is_same and isinstance(begun_by, dict) and again.items() & begun_by.items():
            return run
    return None
