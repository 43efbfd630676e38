"""A run of several processes that a launcher has started: what process 0 passes on to the others.

Process 0 publishes the configuration; each machine opens or builds its own store, and process 0
compares the digests, makes the run directory and publishes the job. All of it is plain JSON.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnntrain.config import Config, from_dict
from gnntrain.data.build import OpenedStore
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.distributed.launchers import launched
from gnntrain.errors import GnntrainError, UserError
from gnntrain.job import Job
from gnntrain.reporting.rundir import StoreRecord
from gnntrain.run_graph import OpenedParts, open_recorded_graph
from gnntrain.run_store import record_of
from gnntrain.selfcheck import kernel_choice

if TYPE_CHECKING:
    from gnntrain.distributed.rendezvous import Rendezvous

_log = logging.getLogger("gnntrain")

_CONFIG, _STORES, _JOB, _SUMMARY = "config", "stores", "job", "summary"


@contextlib.contextmanager
def joined_run() -> Iterator[Rendezvous | None]:
    """The meeting with the other processes that a launcher has started; None: there are none.

    Raises:
        UserError, RunError: As `meeting`.
    """
    if launched() is None:
        yield None
        return
    from gnntrain.distributed.rendezvous import meeting  # most runs have one process

    with meeting() as rendezvous:
        yield rendezvous


def plan_together(
    config: Config, rendezvous: Rendezvous | None, record: StoreRecord | None = None
) -> LaunchPlan:
    """The ranks of a run that this process leads, once the others know its configuration.

    Args:
        config: The configuration.
        rendezvous: Of the processes; None: there is this one alone.
        record: The graph that the run was trained on before.
    """
    if rendezvous is not None:
        _warn_of_unused(config, rendezvous)
        known = None if record is None else asdict(record)
        rendezvous.publish(_CONFIG, {"config": config.to_dict(), "store": known})
    return LaunchPlan.of(config, rendezvous)


def _warn_of_unused(config: Config, rendezvous: Rendezvous) -> None:
    """Name the keys with which a run would start its ranks itself."""
    launched, keys = rendezvous.launched, []
    starts_ranks = launched.local_rank is not None or launched.num_ranks is not None
    if starts_ranks and config.distributed.num_processes > 1:
        keys.append(f"distributed.num_processes={config.distributed.num_processes}")
    if config.trainer.max_restarts:
        keys.append(f"trainer.max_restarts={config.trainer.max_restarts}")
    for key in keys:
        _log.warning("%s is not used: %s starts the ranks", key, launched.launcher)


def compare_stores(opened: OpenedStore | OpenedParts, rendezvous: Rendezvous | None) -> None:
    """Wait until every machine has opened the store of the run.

    Raises:
        UserError: That of a machine is another graph, or is in other parts.
    """
    if rendezvous is None:
        return
    stores = rendezvous.gather(_STORES, _plain(opened))
    for info, store in zip(rendezvous.processes, stores, strict=True):
        if store is not None and store["digest"] != stores[0]["digest"]:
            raise UserError(
                f"The data set is another graph on the machine {info.host} ({store['path']}) than "
                f"on that of rank 0 ({stores[0]['path']}).",
                "Copy the same raw files to all machines, or put them on a shared file system.",
            )
        if store is not None and store["partition"] != stores[0]["partition"]:
            raise UserError(
                f"{store['path']} is another partition on the machine {info.host} than on that of "
                "rank 0.",
                "Copy the parts of one partition to all machines.",
            )


def pass_on(job: Job, rendezvous: Rendezvous | None) -> None:
    """Have the other processes start their ranks."""
    if rendezvous is not None:
        checkpoint = job.checkpoint and str(job.checkpoint)
        plain = {"run": str(job.run), "started": job.started, "checkpoint": checkpoint}
        rendezvous.publish(_JOB, plain)


def pass_on_completed(summary: dict[str, Any], rendezvous: Rendezvous | None) -> None:
    """Tell the other processes that there is nothing to train."""
    if rendezvous is not None:
        rendezvous.publish(_CONFIG, None)
        pass_on_summary(summary, rendezvous)


def pass_on_summary(summary: dict[str, Any], rendezvous: Rendezvous | None) -> None:
    """Let the other processes return what `train` returns here."""
    if rendezvous is not None:
        rendezvous.publish(_SUMMARY, summary)


def follow(rendezvous: Rendezvous, data: object = None) -> dict[str, Any]:
    """Take part in the run that process 0 leads; return its summary.

    Args:
        rendezvous: Of the processes.
        data: As for `gnntrain.run.train`.
    """
    _be_quiet()
    published = rendezvous.wait_for(_CONFIG)
    if published is None:  # `pass_on_completed`
        completed: dict[str, Any] = rendezvous.wait_for(_SUMMARY)
        return completed
    config = from_dict(published["config"], saved=True)
    plan = LaunchPlan.of(config, rendezvous)
    opened: OpenedStore | OpenedParts | None = None
    if rendezvous.is_machine_main:
        record = published["store"] and StoreRecord(**published["store"])
        with _naming(rendezvous):
            opened = open_recorded_graph(config, record, data=data)
    stores = rendezvous.gather(_STORES, opened and _plain(opened))
    store = stores[rendezvous.machines.index(rendezvous.machine)]
    kernels = kernel_choice(config, plan.device, rendezvous)
    job = rendezvous.wait_for(_JOB)
    run = Path(job["run"])
    launch(
        "gnntrain.worker:train_rank",
        Job(
            config,
            Path(store["path"]),
            store["reason"],
            store["seconds"],
            run,
            job["started"],
            kernels,
            job["checkpoint"] and Path(job["checkpoint"]),
        ),
        plan,
        run / "logs",
        rendezvous=rendezvous,
    )
    summary: dict[str, Any] = rendezvous.wait_for(_SUMMARY)
    return summary


@contextlib.contextmanager
def _naming(rendezvous: Rendezvous) -> Iterator[None]:
    """Name this machine in an error, which process 0 tells."""
    try:
        yield
    except GnntrainError as error:
        error.message = f"On {rendezvous.hosts[rendezvous.machine]}: {error.message}"
        raise


def _plain(opened: OpenedStore | OpenedParts) -> dict[str, Any]:
    record = record_of(opened.store)
    return {
        "path": record.path,
        "digest": record.digest,
        "partition": opened.store.meta.digest if isinstance(opened, OpenedParts) else None,
        "reason": opened.reason,
        "seconds": opened.seconds,
    }


def _be_quiet() -> None:
    """Process 0 alone speaks: warnings of this one go to its rank's log."""
    logging.captureWarnings(True)
    for name in ("gnntrain", "py.warnings"):
        logging.getLogger(name).addHandler(logging.NullHandler())
