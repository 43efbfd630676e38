"""Starting the ranks of one machine."""

from __future__ import annotations

import importlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from gnntrain.distributed.board import Board
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.loopback import check_loopback
from gnntrain.distributed.signals import held_back, listen_in_rank, passed_on
from gnntrain.distributed.supervision import Supervisor
from gnntrain.errors import Interrupted, signal_of

_log = logging.getLogger("gnntrain")

Worker = Callable[[DistributedContext, Any], None] | str


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How many ranks, where, and with how much of the machine each.

    Attributes:
        world_size: Number of ranks.
        use_gpus: One GPU a rank (NCCL) or CPU ranks (gloo).
        threads: Compute threads a rank.
        timeout: Seconds a collective may take.
        log_dir: Where ranks write what they say, for messages.
    """

    world_size: int
    use_gpus: bool
    threads: int
    timeout: float
    log_dir: Path = Path()


def launch(worker: Worker, payload: Any, plan: LaunchPlan) -> None:
    """Run `worker(context, payload)` in every rank and wait for all of them.

    A single rank runs in this process. Several are spawned: they meet at a store that listens on
    the loopback interface, on a port the system chose.

    Args:
        worker: A module-level function; or its name, `module:function`, so that this process need
            not import what only the ranks need.
        payload: Plain, picklable data.

    Raises:
        GnntrainError: The first failing rank's error; all other ranks have been ended.
        Interrupted: After SIGINT, SIGTERM or SIGHUP to any process of the run; all ranks have
            ended, those that trained after the same step.
    """
    board = Board.create(plan.world_size)
    with passed_on(board):
        if plan.world_size > 1:
            _launch_ranks(worker, payload, plan, board)
            return
        torch.set_num_threads(plan.threads)
        try:
            _call(worker, DistributedContext(device=_device(plan, 0), board=board), payload)
        except Exception as error:
            if board.stop_asked:
                _log.warning("While the run was being stopped: %s", error)
                raise Interrupted(board.stop_asked) from error
            raise


def _launch_ranks(worker: Worker, payload: Any, plan: LaunchPlan, board: Board) -> None:
    check_loopback()
    with socket.create_server(("127.0.0.1", 0), backlog=plan.world_size) as listener:
        port = listener.getsockname()[1]
        # The listening socket itself is handed over: no gap in which the port could be taken.
        store = dist.TCPStore(  # type: ignore[attr-defined]  # public, but not in __all__
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=plan.timeout),
            master_listen_fd=listener.detach(),
        )
        try:
            with held_back():
                resource_tracker.ensure_running()
                # It has let SIGINT and SIGTERM through again.
                with held_back():
                    ranks = spawn(  # type: ignore[no-untyped-call]  # torch leaves it untyped
                        _rank_main,
                        (worker, payload, plan, port, board),
                        plan.world_size,
                        join=False,
                    )
            Supervisor(ranks.processes, board, plan.log_dir, plan.timeout).watch()
        finally:
            del store


def _rank_main(
    rank: int, worker: Worker, payload: Any, plan: LaunchPlan, port: int, board: Board
) -> None:
    try:
        listen_in_rank(board, rank)
        with (
            board.reports.reported(rank),
            _joined(rank, plan, port, board) as context,
            board.reports.reported(rank),
        ):
            _call(worker, context, payload)
    except KeyboardInterrupt as error:
        sys.exit(128 + signal_of(error))


def _call(worker: Worker, context: DistributedContext, payload: Any) -> None:
    if isinstance(worker, str):
        module, _, name = worker.partition(":")
        worker = cast(Worker, getattr(importlib.import_module(module), name))
        assert not isinstance(worker, str)
    worker(context, payload)


@contextmanager
def _joined(rank: int, plan: LaunchPlan, port: int, board: Board) -> Iterator[DistributedContext]:
    torch.set_num_threads(plan.threads)
    device = _device(plan, rank)
    # The ranks are on one machine: nothing listens elsewhere, and the resolver need not know the
    # host's own name.
    for library in ("GLOO", "NCCL"):
        interface = "lo0" if sys.platform == "darwin" else "lo"
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", interface)
    timeout = timedelta(seconds=plan.timeout)
    context = DistributedContext(rank, plan.world_size, device, board)
    board.wait(rank, True)
    store = dist.TCPStore(  # type: ignore[attr-defined]  # public, but not in __all__
        "127.0.0.1", port, is_master=False, timeout=timeout
    )
    dist.init_process_group(
        "nccl" if plan.use_gpus else "gloo",
        store=store,
        rank=rank,
        world_size=plan.world_size,
        timeout=timeout,
    )
    board.wait(rank, False)
    try:
        yield context
        context.barrier()
    finally:
        dist.destroy_process_group()


def _device(plan: LaunchPlan, rank: int) -> torch.device:
    if not plan.use_gpus:
        return torch.device("cpu")
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)
