"""Starting the ranks of one machine."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist

from gnntrain.config import Config
from gnntrain.cores import available_cores
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.loopback import check_loopback, connect_store, serve_store
from gnntrain.distributed.processes import start_process
from gnntrain.distributed.run_control import RunControl
from gnntrain.distributed.signals import forward_to, install_rank_handlers
from gnntrain.distributed.supervision import Supervisor
from gnntrain.distributed.watch import watching
from gnntrain.errors import Interrupted, signal_of
from gnntrain.startup import resume_collection

_log = logging.getLogger("gnntrain")

_CONNECT_SECONDS = 20.0
_DECISIONS_PORT = "decisions_port"

Worker = Callable[[DistributedContext, Any], None] | str


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The ranks of a run, and the devices and threads of each.

    Attributes:
        world_size: Number of ranks.
        use_gpus: One GPU a rank (NCCL) or CPU ranks (gloo).
        threads: Compute threads a rank.
        timeout: Seconds a collective may take.
        machines: See `DistributedContext`.
    """

    world_size: int
    use_gpus: bool
    threads: int
    timeout: float
    machines: tuple[int, ...] = ()

    @property
    def num_machines(self) -> int:
        return self.machines[-1] + 1 if self.machines else 1

    @classmethod
    def of(cls, config: Config) -> LaunchPlan:
        """The ranks of a configuration on this machine."""
        gpus = config.trainer.gpus
        num_gpus = torch.cuda.device_count() if gpus == "auto" else gpus
        world_size = num_gpus or config.distributed.num_processes
        threads = config.distributed.threads or max(1, available_cores() // world_size)
        return cls(world_size, num_gpus > 0, threads, config.distributed.timeout)


def launch(
    worker: Worker,
    payload: Any,
    plan: LaunchPlan,
    log_dir: Path = Path(),
    *,
    in_process: bool = True,
) -> None:
    """Run `worker(context, payload)` in every rank and wait for all of them.

    A single rank runs in this process unless `in_process` is False; several ranks are processes.

    Args:
        worker: A module-level function; or its name, `module:function`, so that this process need
            not import the modules that only ranks need.
        payload: Plain, picklable data.
        plan: The ranks.
        log_dir: Where ranks write their logs, for messages.
        in_process: Whether a single rank may run in this process.

    Raises:
        GnntrainError: The first failing rank's error; all other ranks have been ended.
        Interrupted: After SIGINT, SIGTERM or SIGHUP to any process of the run; all ranks have
            ended, those that trained after the same step.
    """
    if plan.world_size > 1 or not in_process:
        _run_processes(worker, payload, plan, log_dir)
    else:
        _run_here(worker, payload, plan)


def _run_here(worker: Worker, payload: Any, plan: LaunchPlan) -> None:
    control = RunControl()
    torch.set_num_threads(plan.threads)
    with forward_to(control):
        try:
            _call(worker, DistributedContext(device=_device(plan, 0), control=control), payload)
        except Exception as error:
            if control.stop_requested:
                _log.warning("While the run was being stopped: %s", error)
                raise Interrupted(control.stop_requested) from error
            raise


def _run_processes(worker: Worker, payload: Any, plan: LaunchPlan, log_dir: Path) -> None:
    check_loopback()
    resume_collection()
    # Served by this process, so that the error of a failed rank outlives the rank.
    store = serve_store(plan.world_size, plan.timeout)
    control = RunControl(store, rank=None)
    try:
        with forward_to(control):
            ranks = [
                start_process(
                    _run_rank, (rank, worker, payload, plan, store.port), uses_gpu=plan.use_gpus
                )
                for rank in range(plan.world_size)
            ]
            Supervisor(ranks, control, log_dir, plan.timeout).watch()
    finally:
        # Closes the server even if a traceback keeps this frame alive.
        control.close()
        del store


def _run_rank(rank: int, worker: Worker, payload: Any, plan: LaunchPlan, port: int) -> None:
    """The main function of a rank that is a process of its own."""
    control = RunControl(connect_store(port, _CONNECT_SECONDS), rank)
    with watching(control, plan.timeout):
        install_rank_handlers(control)
        try:
            with control.reporting_failure():
                torch.set_num_threads(plan.threads)
                device, machines = _device(plan, rank), plan.machines
                context = DistributedContext(rank, plan.world_size, device, control, machines)
                with control.waiting():
                    context = replace(context, machine_group=_join(context, plan, port))
                _call(worker, context, payload)
                context.barrier()
        except KeyboardInterrupt as error:
            sys.exit(128 + signal_of(error))
        except Exception:  # reported above: the parent raises it
            sys.exit(1)
        finally:
            # After the report: the other ranks fail as soon as they lose the connection.
            if dist.is_initialized():
                dist.destroy_process_group()


def _join(context: DistributedContext, plan: LaunchPlan, port: int) -> dist.ProcessGroup | None:
    """Meet the other ranks: a process group, and rank 0's store for their decisions.

    Returns:
        The group of this machine's ranks; None: all ranks are on one.
    """
    # The ranks are on one machine: nothing listens elsewhere, and the resolver need not know the
    # host's own name.
    for library in ("GLOO", "NCCL"):
        interface = "lo0" if sys.platform == "darwin" else "lo"
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", interface)
    store = connect_store(port, plan.timeout)
    if context.is_main:
        decisions = serve_store(plan.world_size, plan.timeout)
        store.set(_DECISIONS_PORT, str(decisions.port))
    else:
        decisions = connect_store(int(store.get(_DECISIONS_PORT)), plan.timeout)
    context.control.decisions = decisions
    dist.init_process_group(
        "nccl" if plan.use_gpus else "gloo",
        store=store,
        rank=context.rank,
        world_size=plan.world_size,
        timeout=timedelta(seconds=plan.timeout),
    )
    if context.num_machines == 1:
        return None
    # Every rank takes part in making the group of every machine.
    groups: list[dist.ProcessGroup] = [
        dist.new_group(list(context.ranks_of(m))) for m in range(context.num_machines)
    ]
    return groups[context.machine]


def _call(worker: Worker, context: DistributedContext, payload: Any) -> None:
    if isinstance(worker, str):
        module, _, name = worker.partition(":")
        worker = cast(Worker, getattr(importlib.import_module(module), name))
        assert not isinstance(worker, str)
    worker(context, payload)


def _device(plan: LaunchPlan, rank: int) -> torch.device:
    if not plan.use_gpus:
        return torch.device("cpu")
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)
