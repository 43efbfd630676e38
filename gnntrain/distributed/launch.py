"""Starting the ranks of one machine, and ending them all when one fails."""

from __future__ import annotations

import importlib
import json
import multiprocessing.connection as mp_connection
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.multiprocessing.spawn import spawn

from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.loopback import check_loopback
from gnntrain.errors import GnntrainError, RunError, Terminated, UserError

# How long ranks may take to save what they reached after Ctrl-C or SIGTERM.
_GRACE_SECONDS = 20.0
# How long they may take to notice that another one has failed.
_NOTICE_SECONDS = 8.0
_EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
# From outside or by a fault of the rank's own: never because another rank went first.
_OWN_ENDS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS)

Worker = Callable[[DistributedContext, Any], None] | str


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
    report_dir: Path = Path()


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
        KeyboardInterrupt: After Ctrl-C, or SIGTERM where it is raised so; all ranks have ended.
    """
    for report in plan.report_dir.glob("rank_*.error.json"):
        report.unlink()  # of an earlier start of the same run
    if plan.world_size == 1:
        torch.set_num_threads(plan.threads)
        _call(worker, DistributedContext(device=_device(plan, 0)), payload)
        return
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
        with _signals_ignored():
            ranks = spawn(  # type: ignore[no-untyped-call]  # torch leaves it untyped
                _rank_main, (worker, payload, plan, port), plan.world_size, join=False
            )
        try:
            failed = _first_to_fail(ranks.processes)
            if failed:
                cause = _cause(failed, plan.report_dir)
                _wind_down(ranks.processes, signal.SIGTERM, notice=_NOTICE_SECONDS)
                raise cause or first_report(plan.report_dir) or _unexplained(failed)
        except KeyboardInterrupt as error:
            number = signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT
            _wind_down(ranks.processes, number)
            raise
        finally:
            del store


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """Processes started meanwhile ignore Ctrl-C until they are ready to answer it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set signals, and is the one that gets them
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _first_to_fail(processes: Sequence[mp.Process]) -> dict[int, int]:
    """Wait for all ranks; exit codes, by rank, of those that had failed when the first did."""
    waiting = {process.sentinel for process in processes}
    while waiting:
        waiting -= set(mp_connection.wait(list(waiting)))
        codes = {rank: process.exitcode for rank, process in enumerate(processes)}
        failed = {rank: code for rank, code in codes.items() if code}
        if failed:
            return failed
    return {}


def _wind_down(
    processes: Sequence[mp.Process], number: signal.Signals, *, notice: float = 0.0
) -> None:
    """Let the ranks save what they reached; end those that take too long.

    A second Ctrl-C ends them at once.

    Args:
        number: What tells them to end.
        notice: Seconds in which they may find out by themselves.
    """
    try:
        _wait_for_all(processes, time.monotonic() + notice)
        deadline = time.monotonic() + _GRACE_SECONDS
        # Again and again, since a rank that is still starting ignores Ctrl-C.
        while time.monotonic() < deadline and any(p.is_alive() for p in processes):
            for process in processes:
                if process.is_alive() and process.pid is not None:
                    # A terminal has told them all already, `kill -INT` only this process.
                    os.kill(process.pid, number)
            _wait_for_all(processes, time.monotonic() + 1)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _wait_for_all(processes: Sequence[mp.Process], deadline: float) -> None:
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))


def _interrupt_once(number: int, _frame: object) -> None:
    """Signals reach a rank from outside and from its parent: the first counts."""
    for handled in _EXIT_CODES:
        signal.signal(handled, signal.SIG_IGN)
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _rank_main(rank: int, worker: Worker, payload: Any, plan: LaunchPlan, port: int) -> None:
    for number in _EXIT_CODES:
        signal.signal(number, _interrupt_once)
    try:
        with (
            _reported(rank, plan.report_dir),
            _joined(rank, plan, port) as context,
            _reported(rank, plan.report_dir),
        ):
            _call(worker, context, payload)
    except Terminated:
        sys.exit(_EXIT_CODES[signal.SIGTERM])
    except KeyboardInterrupt:
        sys.exit(_EXIT_CODES[signal.SIGINT])


def _call(worker: Worker, context: DistributedContext, payload: Any) -> None:
    if isinstance(worker, str):
        module, _, name = worker.partition(":")
        worker = cast(Worker, getattr(importlib.import_module(module), name))
        assert not isinstance(worker, str)
    worker(context, payload)


@contextmanager
def _reported(rank: int, report_dir: Path) -> Iterator[None]:
    """An error is left for the parent before the others can fail for its sake."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if not _report_path(rank, report_dir).exists():
            _leave_report(rank, error, report_dir)
        raise


@contextmanager
def _joined(rank: int, plan: LaunchPlan, port: int) -> Iterator[DistributedContext]:
    torch.set_num_threads(plan.threads)
    device = _device(plan, rank)
    # The ranks are on one machine: gloo need not ask the resolver for the host's own name.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    timeout = timedelta(seconds=plan.timeout)
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


def _leave_report(rank: int, error: Exception | KeyboardInterrupt, report_dir: Path) -> None:
    if isinstance(error, GnntrainError):
        message, hint = error.message, error.hint
    elif isinstance(error, KeyboardInterrupt):
        name = "SIGTERM" if isinstance(error, Terminated) else "SIGINT"
        message, hint = f"Rank {rank} was ended by {name}.", None
    else:
        message, hint = f"Rank {rank} failed: {type(error).__name__}: {error}", None
    report = {
        "time": time.time_ns(),
        "message": message,
        "hint": hint,
        "user": isinstance(error, UserError),
        "traceback": traceback.format_exc(),
    }
    path = _report_path(rank, report_dir)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(report))
    draft.replace(path)  # another rank may be looking


def _report_path(rank: int, report_dir: Path) -> Path:
    return report_dir / f"rank_{rank}.error.json"


def _cause(failed: Mapping[int, int], report_dir: Path) -> GnntrainError | None:
    """What a rank that was the first to end failed of: not of another one that had gone."""
    for rank, code in failed.items():
        if -code in _OWN_ENDS:
            name = signal.Signals(-code).name
            hint = "The system kills a process when memory runs out." if name == "SIGKILL" else None
            return RunError(f"Rank {rank} was ended by {name}.", hint)
    return first_report(report_dir)


def _unexplained(failed: Mapping[int, int]) -> RunError:
    rank, code = next(iter(failed.items()))
    names = {-number: number.name for number in signal.Signals}
    names |= {code: number.name for number, code in _EXIT_CODES.items()}
    by = f"was ended by {names[code]}" if code in names else f"ended with exit code {code}"
    return RunError(f"Rank {rank} {by}.")


def first_report(report_dir: Path) -> GnntrainError | None:
    """The error of the rank that failed first by itself, as it told it; None if none has."""
    reports = [json.loads(path.read_text()) for path in report_dir.glob("rank_*.error.json")]
    if not reports:
        return None
    first = min(reports, key=lambda report: int(report["time"]))
    kind = UserError if first["user"] else RunError
    cause = kind(first["message"], first["hint"])
    cause.add_note(first["traceback"])
    return cause
