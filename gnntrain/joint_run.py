"""A run that a launcher has started: which run a job that was started again goes on with, and what
process 0 of several passes on to the others.

Process 0 publishes the configuration; each machine opens or builds its own store, and process 0
compares the digests, makes the run directory and publishes the job. All of it is plain JSON.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnntrain.config import from_dict
from gnntrain.data.build import OpenedStore
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.distributed.launchers import launched, slurm_job
from gnntrain.errors import GnntrainError, UserError
from gnntrain.job import Job
from gnntrain.reporting.rundir import RUNS, RunDirectory, StoreRecord, is_run, newest_runs
from gnntrain.run_store import OpenedParts, open_graph, record_of
from gnntrain.selfcheck import kernel_choice

if TYPE_CHECKING:
    from gnntrain.distributed.rendezvous import Rendezvous


def job_names(
    torchrun_job: str | None = None, number: int = 1, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The names that launchers give this job, which it keeps when it is started again: of the run
    of this number, from 1, in this process. Ranks of a torchrun keep theirs in its store."""
    skypilot, suffix = environ.get("SKYPILOT_TASK_ID"), "" if number == 1 else f"/{number}"
    names = {"slurm": slurm_job(environ), "skypilot": skypilot, "torchrun": torchrun_job}
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
    """The run that the command goes on with: the one in the directory that it names (`named`); else
    the newest under `runs` that the same command has begun and whose `env.json` has one of the
    job's names, `jobs`. None: this command begins one."""
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


def joined_run() -> AbstractContextManager[Rendezvous | None]:
    """The meeting with the other processes that a launcher has started; None: there are none."""
    if launched() is None:
        return nullcontext()
    from gnntrain.distributed.rendezvous import meeting  # most runs have one process

    return meeting()


def compare_stores(opened: OpenedStore | OpenedParts, rendezvous: Rendezvous | None) -> None:
    """Wait until every machine has opened the store of the run. A UserError where that of a machine
    is another graph, or is in other parts."""
    if rendezvous is None:
        return
    stores = rendezvous.gather("stores", _plain(opened))
    for info, store in zip(rendezvous.processes, stores, strict=True):
        for key, what in (("digest", "graph"), ("partition", "partition")):
            if store is not None and store[key] != stores[0][key]:
                raise UserError(
                    f"The data set is another {what} on the machine {info.host} ({store['path']}) "
                    f"than on that of rank 0 ({stores[0]['path']}).",
                    "Copy the same raw files, or the parts of one partition, to all machines.",
                )


def tell(rendezvous: Rendezvous | None, key: str, value: Any) -> None:
    """Publish plain data to the other processes: the `config` (None: nothing is to be trained),
    then the `job`, of which they know the rest, and at the end the `summary`, which they return."""
    if rendezvous is not None:
        rendezvous.publish(key, value)


def follow(rendezvous: Rendezvous, data: object = None) -> dict[str, Any]:
    """Take part in the run that process 0 leads, with `data` as for `gnntrain.run.train`; return
    its summary."""
    # Process 0 alone speaks: warnings of this one go to its rank's log.
    logging.captureWarnings(True)
    for name in ("gnntrain", "py.warnings"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    summary: dict[str, Any]
    if (published := rendezvous.wait_for("config")) is None:
        summary = rendezvous.wait_for("summary")
        return summary
    config = from_dict(published["config"], saved=True)
    plan = LaunchPlan.of(config, rendezvous)
    opened: OpenedStore | OpenedParts | None = None
    if rendezvous.is_machine_main:
        record = published["store"] and StoreRecord(**published["store"])
        try:
            opened = open_graph(config, record, data=data)
        except GnntrainError as error:  # process 0 tells it
            error.message = f"On {rendezvous.hosts[rendezvous.machine]}: {error.message}"
            raise
    stores = rendezvous.gather("stores", opened and _plain(opened))
    store = stores[rendezvous.machines.index(rendezvous.machine)]
    kernels = kernel_choice(config, plan.device, rendezvous)
    job = rendezvous.wait_for("job")
    graph = Path(store["path"]), store["reason"], store["seconds"]
    checkpoint = job["checkpoint"] and Path(job["checkpoint"])
    own = Job(config, *graph, Path(job["run"]), job["started"], kernels, checkpoint)
    launch("gnntrain.worker:train_rank", own, plan, rendezvous=rendezvous)
    summary = rendezvous.wait_for("summary")
    return summary


def _plain(opened: OpenedStore | OpenedParts) -> dict[str, Any]:
    record = record_of(opened.store)
    return {
        "path": record.path,
        "digest": record.digest,
        "partition": opened.store.meta.digest if isinstance(opened, OpenedParts) else None,
        "reason": opened.reason,
        "seconds": opened.seconds,
    }
