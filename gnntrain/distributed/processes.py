"""Processes of ranks and of a sweep's workers: forked from a server, or spawned for a GPU.

The server has imported their modules, so that each of them begins at once and shares the pages of
its libraries. CUDA does not survive a fork: processes of a GPU are spawned and import by
themselves.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, reduction, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from gnntrain.distributed.launchers import STARTED_BY, Launched
from gnntrain.distributed.signals import HANDLED, handled
from gnntrain.errors import RESTART_CODE, UserError

_started: list[Any] = []  # of multiprocessing's two servers those that this process has started


def start_server(preloaded: str = "gnntrain.preloaded") -> None:
    """Start the server, unless it runs. Returns at once, while the server imports `preloaded`."""
    # `python -c`, which it is, would find a user's `random.py` in the current directory.
    safe = {} if "PYTHONSAFEPATH" in os.environ else {"PYTHONSAFEPATH": "1"}
    # Signals to the process group are for the ranks: the server ends with this process.
    with _tracked():
        forkserver.set_forkserver_preload([preloaded])
        server: Any = forkserver._forkserver
        is_new = server._forkserver_pid is None
        os.environ |= safe
        try:
            forkserver.ensure_running()
        finally:
            for name in safe:
                del os.environ[name]
        _started.extend([server] * is_new)


@contextmanager
def _tracked() -> Iterator[None]:
    """Signals stay pending here; what is started begins with them blocked. multiprocessing's
    tracker, which unblocks two when it starts, runs before."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        tracker: Any = resource_tracker._resource_tracker
        is_new = tracker._pid is None
        tracker.ensure_running()
        _started.extend([tracker] * is_new)
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


@contextmanager
def stopping_servers() -> Iterator[None]:
    """Stop at the end multiprocessing's two servers, which would stay in a notebook's process."""
    try:
        yield
    finally:
        while _started:
            server = _started.pop()
            if hasattr(server, "_forkserver_pid"):  # it would free its memory first
                os.kill(server._forkserver_pid, signal.SIGKILL)
            server._stop()


def refuse_unguarded_script() -> None:
    """Refuse to start processes from a script without `if __name__ == "__main__":`, which each of
    them would import and so run again."""
    script = Path(getattr(sys.modules["__main__"], "__file__", None) or "")
    if script.suffix != ".py" or script.name == "__main__.py" or not script.is_file():
        return
    if "__name__" not in script.read_text(encoding="utf-8", errors="replace"):
        raise UserError(
            f"{script} starts processes, each of which imports it: it needs "
            'if __name__ == "__main__":.',
            "Indent what trains below that line; or train in this process, by "
            "DistributedConfig(num_processes=1) and TrainerConfig(gpus=1) or gpus=0, without "
            "max_restarts.",
        )


def start_process(
    target: Callable[..., None], arguments: Sequence[Any], *, uses_gpu: bool
) -> BaseProcess:
    """Start a process, with the signals of `HANDLED` blocked, that calls a module-level function
    with picklable arguments; `uses_gpu`: it must not be forked."""
    if not uses_gpu:
        start_server()
    way = multiprocessing.get_context("spawn" if uses_gpu else "forkserver")
    call = (_Surroundings() if not uses_gpu else None, target, tuple(arguments))
    with _tracked():
        process: BaseProcess = way.Process(target=_run, args=call)  # type: ignore[attr-defined]
        process.start()
    return process


def run_ranks(machine: Launched, num_ranks: int) -> int:
    """Start this command once for each rank of this machine, as torchrun would, and wait for all;
    each machine has as many. Returns the exit code: 0; that of a rank whose failure would only
    happen again; else `RESTART_CODE`, or that of a signal."""
    ranks: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: object) -> None:
        for rank in ranks:
            rank.send_signal(number)

    common = {
        STARTED_BY: machine.launcher,
        "MASTER_ADDR": machine.address,
        "MASTER_PORT": str(machine.port),
        "WORLD_SIZE": str(machine.num_processes * num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
    }
    for number in handled():
        signal.signal(number, pass_on)
    try:
        for local in range(num_ranks):
            rank = machine.process * num_ranks + local
            own = {"RANK": str(rank), "LOCAL_RANK": str(local)}
            command = [sys.executable, *sys.orig_argv[1:]]
            ranks.append(subprocess.Popen(command, env=os.environ | common | own))
    except OSError:
        pass_on(signal.SIGTERM, None)  # too many processes: those that have begun end
        raise
    codes = {rank.wait() for rank in ranks}
    lasting = [code for code in (1, 2) if code in codes]  # another start would not mend them
    return max(lasting, default=max(0, *codes) or (RESTART_CODE if any(codes) else 0))


def _run(_: object, target: Callable[..., None], arguments: Sequence[Any]) -> None:
    parent = multiprocessing.parent_process()
    # The server may fork a process after its parent was killed.
    if parent is not None and parent.is_alive():
        target(*arguments)


class _Surroundings:
    """Standard output, standard error and environment of this process. Unpickled in a forked
    process, they replace those that the server had when it was started."""

    def __getstate__(self) -> tuple[dict[str, str], list[Any]]:
        return dict(os.environ), [reduction.DupFd(stream) for stream in (1, 2)]

    def __setstate__(self, state: tuple[dict[str, str], list[Any]]) -> None:
        environment, streams = state
        os.environ.clear()
        os.environ.update(environment)
        for stream, ours in enumerate(streams, 1):
            copy = ours.detach()
            os.dup2(copy, stream)
            os.close(copy)
