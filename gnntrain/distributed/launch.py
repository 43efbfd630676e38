"""Starting the ranks of this machine, or being one that a launcher has started."""

from __future__ import annotations

import importlib
import logging
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

from gnntrain import devices
from gnntrain.config import Config, training_device
from gnntrain.distributed import process_group, processes, signals
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.liveness import Supervisor, Watch
from gnntrain.distributed.run_control import RunControl
from gnntrain.distributed.tcp_store import LOOPBACK, StoreAddress, listen, serve_store
from gnntrain.errors import Interrupted, RankLost, RunError, UserError, signal_of
from gnntrain.limits import available_cores
from gnntrain.startup import resume_collection

if TYPE_CHECKING:
    from gnntrain.distributed.rendezvous import Rendezvous

_log = logging.getLogger("gnntrain")

_CONNECT_SECONDS = 20.0

Worker = Callable[[DistributedContext, Any], None] | str


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The ranks of a run, and the devices and threads of each."""

    world_size: int
    device: str  # the type of each rank's: "cpu", or one GPU a rank, as "cuda"
    threads: int  # that compute, a rank
    timeout: float  # seconds a collective may take
    machines: tuple[int, ...] = ()  # see `DistributedContext`
    servers: int = 0  # how many of the ranks, the last ones, only hold the graph
    grace: float = signals.GRACE_SECONDS  # from a stop signal until the system kills the run

    @property
    def use_gpus(self) -> bool:
        return self.device != "cpu"

    @property
    def num_trainers(self) -> int:
        return self.world_size - self.servers

    @classmethod
    def of(cls, config: Config, rendezvous: Rendezvous | None = None) -> LaunchPlan:
        """The ranks of a configuration: on this machine, or those that a launcher has started, of
        which each calls this. UserError: there are fewer GPUs than ranks; no rank would train; or
        see `refuse_unguarded_script`."""
        device, num_gpus = training_device(config.trainer, devices.gpus_here())
        keys, machines = config.distributed, tuple[int, ...]()
        num_ranks = num_gpus or keys.num_processes
        if rendezvous is None:
            if num_ranks > 1 or config.trainer.max_restarts:  # see `gnntrain.run`
                processes.refuse_unguarded_script()
            threads = max(1, available_cores() // num_ranks)
        else:
            rendezvous.wait_at_most(keys.timeout)
            launched, name = rendezvous.launched, socket.gethostname()
            device = rendezvous.gather("device", device)[0]
            machines, threads = rendezvous.machines, rendezvous.cores
            if launched.local_rank is None and num_ranks > 1:  # see `processes.run_ranks`
                how = f"Start the program by `torchrun --nproc-per-node {num_ranks}`."
                if launched.launcher == "submitit":
                    how = f"Set hydra.launcher.tasks_per_node={num_ranks}: each task is a rank."
                what = f"{launched.launcher} has started one process on {name}, which is to have "
                raise UserError(f"{what}{num_ranks} ranks.", how)
            num_ranks = len(machines)
            if device == "mps" and num_ranks > 1:
                raise UserError(
                    "torch has no collectives for Apple's GPUs: only one rank can train on them.",
                    "Write trainer.device=cpu for several ranks.",
                )
            if device != "cpu":
                if not devices.num_gpus(device):
                    raise UserError(
                        f"torch sees no GPU on {name}, for a rank of {launched.launcher}.",
                        "Start as many ranks a machine as it has GPUs, or write trainer.gpus=0.",
                    )
                own = process_group.gpu_address(_device(device, launched.local_rank or 0))
                process_group.refuse_shared_gpus(rendezvous.gather("gpu", own), machines)
        if keys.servers and device != "cpu":
            raise UserError(
                f"distributed.servers={keys.servers} needs CPU ranks, but this run trains on GPUs.",
                "Write trainer.gpus=0, or leave distributed.servers out.",
            )
        if keys.servers >= num_ranks:
            raise UserError(
                f"distributed.servers={keys.servers} of {num_ranks} ranks leaves none to train.",
                "Start more ranks (distributed.num_processes, or by the launcher).",
            )
        threads = keys.threads or threads
        return cls(num_ranks, device, threads, keys.timeout, machines, keys.servers, keys.grace)


def launch(
    worker: Worker,
    payload: Any,
    plan: LaunchPlan,
    log_dir: Path = Path(),
    *,
    in_process: bool = True,
    rendezvous: Rendezvous | None = None,
) -> None:
    """Run `worker(context, payload)` in every rank and wait for all of them.

    Args:
        worker: A module-level function; or its name, `module:function`, which ranks import.
        payload: Plain, picklable data.
        plan: The ranks.
        log_dir: Where ranks write their logs, for messages.
        in_process: Whether a single rank may run in this process; several are processes.
        rendezvous: The meeting of ranks that a launcher has started, one of which this process is.

    Raises:
        GnntrainError: The first failing rank's error; all other ranks have been ended.
        Interrupted: After SIGINT, SIGTERM or SIGHUP to any process of the run; all ranks have
            ended, those that trained after the same step.
    """
    if rendezvous is not None or (plan.world_size == 1 and in_process):
        return _run_here(worker, payload, plan, rendezvous)
    try:
        with listen(LOOPBACK) as listener:
            socket.create_connection(listener.getsockname(), 10.0).close()
    except OSError as error:  # ranks would retry for minutes
        raise RunError(
            "Several ranks talk over the loopback interface, and 127.0.0.1 cannot be reached: "
            f"{error.strerror or error}.",
            "Bring it up (`ip link set lo up`; containers often leave it down), or train with one "
            "rank.",
        ) from error
    # Served by this process, so that the error of a failed rank outlives the rank.
    served = serve_store(plan.world_size, plan.timeout)
    control = RunControl(served, rank=None)
    control.grace = plan.grace
    job = worker, payload, plan, StoreAddress(LOOPBACK, served.port)
    resume_collection()
    try:
        with signals.forward_to(control):
            ranks = [
                processes.start_process(_run_rank, (rank, *job), uses_gpu=plan.use_gpus)
                for rank in range(plan.world_size)
            ]
            Supervisor(ranks, control, log_dir, plan.timeout).watch()
    finally:
        # Closes the server even if a traceback keeps this frame alive.
        control.close()
        del served


def _run_here(
    worker: Worker, payload: Any, plan: LaunchPlan, rendezvous: Rendezvous | None
) -> None:
    """Be a rank in this process: the only one, or that as which a launcher has started it."""
    control, host, local_rank, address = RunControl(), LOOPBACK, 0, None
    if rendezvous is not None:
        control, host, address = rendezvous.control, rendezvous.host, rendezvous.address
        local_rank = rendezvous.launched.local_rank or 0
    device = _device(plan.device, local_rank)
    try:
        with signals.forward_to(control), devices.generator_kept(device):
            _run(worker, payload, plan, control, device, address, host)
    except BaseException as error:
        cause = control.cause_of(error)
        if rendezvous is not None and isinstance(cause, Exception):
            control.report_failure(cause)  # before the others lose their connections
        if control.stop_requested and not isinstance(cause, RankLost):
            if rendezvous is None and isinstance(error, Exception):
                _log.warning("While the run was being stopped: %s", error)
            raise Interrupted(control.stop_requested) from error
        if cause is error:
            raise
        raise cause from error
    finally:
        if plan.world_size > 1:  # another group would be the user's own
            process_group.abort_process_group()


def _run_rank(
    rank: int, worker: Worker, payload: Any, plan: LaunchPlan, address: StoreAddress
) -> None:
    """The main function of a rank that is a process of its own."""
    control = RunControl(address.connect(_CONNECT_SECONDS), rank)
    with Watch(control).running():
        signals.install_rank_handlers(control)
        try:
            _run(worker, payload, plan, control, _device(plan.device, rank), address)
        except KeyboardInterrupt as error:
            sys.exit(128 + signal_of(error))
        except Exception as error:
            control.report_failure(control.cause_of(error))  # the parent raises it
            sys.exit(1)
        finally:
            # After the report: the other ranks fail as soon as they lose the connection.
            process_group.abort_process_group()


def _run(
    worker: Worker,
    payload: Any,
    plan: LaunchPlan,
    control: RunControl,
    device: torch.device,
    address: StoreAddress | None,
    host: str = LOOPBACK,
) -> None:
    """Meet the other ranks, if there are some, and call the worker."""
    control.grace, control.timeout = plan.grace, plan.timeout
    torch.set_num_threads(plan.threads)
    devices.set_current(device)
    rank = control.rank or 0
    context = DistributedContext(rank, plan.world_size, device, control, plan.machines, host)
    if plan.world_size > 1 and address is not None:
        with control.waiting():
            store = address.connect(plan.timeout)
            # Rank 0 serves a store for the decisions, on which ranks agree also without the parent.
            if rank == 0:
                control.decisions = served = serve_store(plan.world_size, plan.timeout, host)
                store.set("decisions", f"{served.port} {host}")
            else:
                port, main = store.get("decisions").decode().split()
                control.decisions = StoreAddress(main, int(port)).connect(plan.timeout)
            context = process_group.init_process_group(context, store, plan.timeout)
    if isinstance(worker, str):
        module, _, name = worker.partition(":")
        worker = cast(Callable[..., None], getattr(importlib.import_module(module), name))
    worker(context, payload)
    if plan.world_size > 1:
        context.barrier()
        dist.destroy_process_group()


def _device(kind: str, local_rank: int) -> torch.device:
    """A rank's device: of GPUs one of those that torch sees. A launcher may show each rank the
    machine's GPUs, or some of its own: Slurm's `--gpus-per-task=1`, submitit. `refuse_shared_gpus`
    finds ranks that thereby have the same one."""
    if kind == "cpu":
        return torch.device("cpu")
    return torch.device(kind, local_rank % max(1, devices.num_gpus(kind)))
