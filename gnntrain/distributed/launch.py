"""Starting the ranks of one machine, and ending them all when one fails."""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import GnntrainError, RunError, UserError

Worker = Callable[[DistributedContext, Any], None]


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How many ranks, where, and with how much of the machine each.

    Attributes:
        world_size: Number of ranks.
        use_gpus: One GPU a rank (NCCL) or CPU ranks (gloo).
        threads: Compute threads a rank.
        timeout: Seconds a collective may take.
        report_dir: Where a failing rank leaves its error for the parent.
    """

    world_size: int
    use_gpus: bool
    threads: int
    timeout: float
    report_dir: Path


def launch(worker: Worker, payload: Any, plan: LaunchPlan) -> None:
    """Run `worker(context, payload)` in every rank and wait for all of them.

    A single rank runs in this process. Several are spawned: they meet at a store that listens on
    the loopback interface, on a port the system chose.

    Args:
        worker: A module-level function.
        payload: Plain, picklable data.

    Raises:
        GnntrainError: The first failing rank's error; all other ranks have been ended.
    """
    if plan.world_size == 1:
        torch.set_num_threads(plan.threads)
        worker(DistributedContext(device=_device(plan, 0)), payload)
        return
    with socket.create_server(("127.0.0.1", 0), backlog=plan.world_size) as listener:
        port = listener.getsockname()[1]
        # The listening socket itself is handed over: no gap in which the port could be taken.
        store = dist.TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=plan.timeout),
            master_listen_fd=listener.detach(),
        )
        try:
            mp.spawn(_rank_main, (worker, payload, plan, port), nprocs=plan.world_size)
        except (mp.ProcessRaisedException, mp.ProcessExitedException) as error:
            raise _cause(error, plan.report_dir) from None
        finally:
            del store


def _rank_main(rank: int, worker: Worker, payload: Any, plan: LaunchPlan, port: int) -> None:
    try:
        with _joined(rank, plan, port) as context:
            worker(context, payload)
    except KeyboardInterrupt:
        sys.exit(130)
    except BaseException as error:
        _leave_report(rank, error, plan.report_dir)
        raise


@contextmanager
def _joined(rank: int, plan: LaunchPlan, port: int) -> Iterator[DistributedContext]:
    torch.set_num_threads(plan.threads)
    device = _device(plan, rank)
    # The ranks are on one machine: gloo need not ask the resolver for the host's own name.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    timeout = timedelta(seconds=plan.timeout)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timeout)
    dist.init_process_group(
        "nccl" if plan.use_gpus else "gloo",
        store=store,
        rank=rank,
        world_size=plan.world_size,
        timeout=timeout,
    )
    try:
        yield DistributedContext(rank, plan.world_size, device)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _device(plan: LaunchPlan, rank: int) -> torch.device:
    if not plan.use_gpus:
        return torch.device("cpu")
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


def _report(rank: int, report_dir: Path) -> Path:
    return report_dir / f"rank_{rank}.error.json"


def _leave_report(rank: int, error: BaseException, report_dir: Path) -> None:
    told = isinstance(error, GnntrainError)
    report = {
        "message": error.message if told else f"{type(error).__name__}: {error}",
        "hint": error.hint if told else None,
        "user": isinstance(error, UserError),
        "told": told,
        "traceback": traceback.format_exc(),
    }
    _report(rank, report_dir).write_text(json.dumps(report))


def _cause(
    error: mp.ProcessRaisedException | mp.ProcessExitedException, report_dir: Path
) -> GnntrainError:
    """The error of the rank that failed first, as that rank told it."""
    rank = error.error_index
    try:
        report = json.loads(_report(rank, report_dir).read_text())
    except FileNotFoundError:
        return RunError(f"Rank {rank} ended: {error}.", f"See {report_dir / f'rank_{rank}.log'}.")
    kind = UserError if report["user"] else RunError
    message = report["message"] if report["told"] else f"Rank {rank} failed: {report['message']}"
    return kind(message, report["hint"])
