"""Requeueing the SLURM job that this process is part of."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from gnntrain.distributed.launchers import INTERACTIVE
from gnntrain.errors import RunError

# SLURM ends the processes of a job that is requeued. Until then those that do not ask for it wait:
# where one task ends with an error, SLURM may end them all.
_WAIT_SECONDS = 60.0
_MOST_SECONDS = 600.0
_SLURM_CONF = "/etc/slurm/slurm.conf"


def slurm_job(environ: Mapping[str, str] = os.environ) -> str | None:
    """The number of the SLURM job, of a job array with its task's; None: there is none."""
    if array := environ.get("SLURM_ARRAY_JOB_ID"):
        return f"{array}_{environ.get('SLURM_ARRAY_TASK_ID', '0')}"
    return environ.get("SLURM_JOB_ID") or None


def requeues_itself(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this is a SLURM batch job that gnntrain requeues: submitit does so for its own."""
    is_interactive = environ.get("SLURM_JOB_NAME") in INTERACTIVE
    return slurm_job(environ) is not None and not is_interactive and not by_submitit(environ)


def by_submitit(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether submitit has started this process, or one that has started it."""
    return bool(environ.get("SUBMITIT_EXECUTOR"))


def seconds_given(number: int, grace: float, environ: Mapping[str, str] = os.environ) -> float:
    """Seconds from a signal until this process is killed: SLURM's where it is known, or `grace`.

    SLURM sends SIGTERM `KillWait` seconds before SIGKILL; `--signal` has it send another signal
    some time before the job's end. A person may send that one, too, hours before.
    """
    if slurm_job(environ) is None:
        return grace
    if number == signal.SIGUSR2:
        left = float(environ.get("SLURM_JOB_END_TIME") or 0) - time.time()
        return max(grace, min(left, _MOST_SECONDS))
    with contextlib.suppress(OSError):
        configuration = Path(environ.get("SLURM_CONF") or _SLURM_CONF).read_text(errors="replace")
        if found := re.search(r"^\s*KillWait\s*=\s*(\d+)", configuration, re.MULTILINE | re.I):
            return float(found[1])
    return grace


def requeue(*, is_main: bool) -> None:
    """Have SLURM end this job and start it again: the main process asks for it, and raises RunError
    where SLURM refuses; the others wait for their end."""
    if not is_main:
        time.sleep(seconds_given(signal.SIGUSR2, _WAIT_SECONDS))
        return
    import subprocess  # every command imports this module, and few requeue

    job = slurm_job() or ""
    try:
        command = ["scontrol", "requeue", job]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip()
        raise RunError(
            f"SLURM does not requeue the job {job}: {said}",
            "Submit it with --requeue; the same command goes on from its last checkpoint.",
        ) from error
