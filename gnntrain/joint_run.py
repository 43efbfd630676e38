"""A run of several processes that a launcher has started: what process 0 passes on to the others.

Process 0 publishes the configuration; each machine opens or builds its own store, and process 0
compares the digests, makes the run directory and publishes the job. All of it is plain JSON.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
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
from gnntrain.run_store import OpenedParts, open_graph, record_of
from gnntrain.selfcheck import kernel_choice

if TYPE_CHECKING:
    from gnntrain.distributed.rendezvous import Rendezvous

_log = logging.getLogger("gnntrain")


def joined_run() -> AbstractContextManager[Rendezvous | None]:
    """The meeting with the other processes that a launcher has started; None: there are none."""
    if launched() is None:
        return nullcontext()
    from gnntrain.distributed.rendezvous import meeting  # most runs have one process

    return meeting()


def plan_together(
    config: Config, rendezvous: Rendezvous | None, record: StoreRecord | None = None
) -> LaunchPlan:
    """The ranks of a run that this process leads, once the others know its configuration, and the
    `record` of the graph that it was trained on before."""
    if rendezvous is not None:
        started, num_processes = rendezvous.launched, config.distributed.num_processes
        num_here = rendezvous.machines.count(rendezvous.machine)
        unused = {
            f"distributed.num_processes={num_processes}": num_processes not in (1, num_here),
            f"trainer.max_restarts={config.trainer.max_restarts}": config.trainer.max_restarts,
        }
        for key in (key for key, is_set in unused.items() if is_set):
            _log.warning("%s is not used: %s starts the ranks", key, started.launcher)
        known = None if record is None else asdict(record)
        tell(rendezvous, config={"config": config.to_dict(), "store": known})
    return LaunchPlan.of(config, rendezvous)


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
                    "Copy the same raw files, or the parts of one partition, to all machines, or "
                    "put them on a shared file system.",
                )


def tell(rendezvous: Rendezvous | None, **told: Any) -> None:
    """Publish plain data to the other processes: `config` (None: nothing is to be trained), then
    `job`, of which they know the rest, and at the end `summary`, which they return."""
    if rendezvous is not None:
        for key, value in told.items():
            if isinstance(value, Job):
                checkpoint = value.checkpoint and str(value.checkpoint)
                value = {"run": str(value.run), "started": value.started, "checkpoint": checkpoint}
            rendezvous.publish(key, value)


def follow(rendezvous: Rendezvous, data: object = None) -> dict[str, Any]:
    """Take part in the run that process 0 leads, with `data` as for `gnntrain.run.train`; return
    its summary."""
    # Process 0 alone speaks: warnings of this one go to its rank's log.
    logging.captureWarnings(True)
    for name in ("gnntrain", "py.warnings"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    if (published := rendezvous.wait_for("config")) is None:
        completed: dict[str, Any] = rendezvous.wait_for("summary")
        return completed
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
    path, run = Path(store["path"]), Path(job["run"])
    checkpoint = job["checkpoint"] and Path(job["checkpoint"])
    own = (path, store["reason"], store["seconds"], run, job["started"], kernels, checkpoint)
    launch("gnntrain.worker:train_rank", Job(config, *own), plan, rendezvous=rendezvous)
    summary: dict[str, Any] = rendezvous.wait_for("summary")
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
