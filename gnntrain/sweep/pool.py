"""The processes of a sweep, and what is heard from them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path

from gnntrain.distributed.processes import start_process
from gnntrain.reporting.channel import Event
from gnntrain.sweep.process import TrialRequest, serve

_END_SECONDS = 10.0


class WorkerDied(Exception):
    """A process ended in the middle of a trial."""


class Worker:
    """A process for one place; started with its first trial, and again where it is gone.

    Args:
        environment: The variables that name the GPUs it sees; None: it sees all.
        log: Where what it prints goes.
    """

    def __init__(self, environment: Mapping[str, str] | None, log: Path) -> None:
        self._environment = environment
        self._log = log
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None

    def start(self, order: TrialRequest) -> None:
        """Train a trial; the process is idle."""
        if self._connection is None:
            self._connection = self._start_process()
        self._connection.send(order)

    def answer(self, epoch: int, *, is_hopeless: bool) -> None:
        """Say whether a trial that ended an epoch is to stop."""
        with contextlib.suppress(OSError):  # it is gone: heard of with its next event
            self.connection.send((epoch, is_hopeless))

    @property
    def connection(self) -> Connection:
        """To the process."""
        assert self._connection is not None
        return self._connection

    def hear(self) -> Event:
        """The next event.

        Raises:
            WorkerDied: The process ended; its message says how.
        """
        try:
            event: Event = self.connection.recv()
        except (EOFError, OSError):
            raise WorkerDied(self._last_output()) from None
        return event

    def signal(self, number: int) -> None:
        """Tell the process to end."""
        if self._process is not None and self._process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def close(self, *, kill: bool = False) -> None:
        """End the process, which is idle, or is not to be waited for."""
        connection, self._connection = self._connection, None
        process, self._process = self._process, None
        if connection is not None:
            connection.close()
        if process is not None:
            if not kill:
                process.join(_END_SECONDS)
            if process.is_alive():
                process.kill()
            process.join()

    def _start_process(self) -> Connection:
        ours, theirs = multiprocessing.Pipe()
        arguments = (theirs, self._environment, self._log)
        self._process = start_process(serve, arguments, uses_gpu=self._environment is not None)
        theirs.close()  # or its end would not be heard
        return ours

    def _last_output(self) -> str:
        process = self._process
        if process is not None:
            process.join(_END_SECONDS)
        code = process.exitcode if process is not None else None
        self.close(kill=True)
        if code is None or code >= 0:
            return f"The process that trained it ended by itself, with exit code {code}."
        name = signal.Signals(-code).name
        why = " The system kills a process when memory runs out." if name == "SIGKILL" else ""
        return f"The process that trained it was ended by {name}.{why}"


def listening(workers: list[Worker], seconds: float) -> Iterator[Worker]:
    """Those of the workers that have something to say within the time."""
    by_connection = {worker.connection: worker for worker in workers}
    for ready in wait(list(by_connection), seconds):
        yield by_connection[ready]  # type: ignore[index]  # it gives back what it was given
