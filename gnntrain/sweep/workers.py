"""Processes that train one trial after another, and tell their parent of each.

What takes long to import is imported with the first trial: by then the process knows its GPUs.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

from gnntrain.distributed.processes import start_process
from gnntrain.distributed.signals import HANDLED, install_handlers
from gnntrain.errors import signal_of
from gnntrain.failures import keep_traceback
from gnntrain.plugins import told
from gnntrain.reporting.rundir import RunDirectory

_END_SECONDS = 10.0


@dataclass(frozen=True)
class TrialRequest:
    """A trial to train."""

    run_dir: str
    config: dict[str, Any] | None  # resolved; None: go on with the run that is there
    overrides: Sequence[str]  # what was typed, for the record
    data: object = None  # the graph, where it is an object in Python


Outcome = dict[str, Any]
"""How a trial ended: what its `summary.json` holds, at least `status`, and `error` where it failed.
An interrupted one may have the `signal`."""


def left_behind(run_dir: str, status: str, error: str | None = None) -> Outcome:
    """The outcome of a trial that was lost: by its summary, else status and error."""
    return {"status": status, "error": error, **(RunDirectory(Path(run_dir)).summary() or {})}


class Worker:
    """A process for one place; started with its first trial, and again where it is gone.
    `environment` names the GPUs it sees (None: all), and what it prints goes to `log`."""

    began: float  # when its trial was begun, by `time.monotonic`
    epochs = 0  # of its trial, as soon as they are known

    def __init__(self, environment: Mapping[str, str] | None, log: Path) -> None:
        self._environment, self._log = environment, log
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None

    def start(self, request: TrialRequest) -> None:
        """Train a trial; the process is idle."""
        if self._connection is None:
            self._connection, theirs = multiprocessing.Pipe()
            arguments = (theirs, self._environment, self._log)
            uses_gpu = self._environment is not None
            self._process = start_process(serve, arguments, uses_gpu=uses_gpu)
            theirs.close()  # or its end would not be heard
        self.began = time.monotonic()
        self._connection.send(request)

    def answer(self, epoch: int, *, is_hopeless: bool) -> None:
        """Say whether a trial that ended an epoch is to stop."""
        if self._connection is not None:
            with contextlib.suppress(OSError):  # it is gone: heard of with its next event
                self._connection.send((epoch, is_hopeless))

    def signal(self, number: int) -> None:
        """Tell the process to end."""
        if self._process is not None and self._process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def close(self, *, kill: bool = False) -> int | None:
        """End the process, which is idle, or is not to be waited for; returns its exit code."""
        connection, self._connection = self._connection, None
        process, self._process = self._process, None
        if connection is not None:
            connection.close()
        if process is None:
            return None
        if not kill:
            process.join(_END_SECONDS)
        if process.is_alive():
            process.kill()
        process.join()
        return process.exitcode

    @staticmethod
    def events(workers: Iterable[Worker], seconds: float) -> Iterator[tuple[Worker, str, Any]]:
        """What workers say within the time: kind and content of an event; of a process that is
        gone, `lost` and how it ended."""
        by_connection = {worker._connection: worker for worker in workers if worker._connection}
        for connection in cast(list[Connection], wait(list(by_connection), seconds)):
            worker = by_connection[connection]
            try:
                yield worker, *connection.recv()
            except (EOFError, OSError):
                code = worker.close()
                how = f"ended by itself, with exit code {code}."
                if code is not None and code < 0:
                    how = f"was ended by {signal.Signals(-code).name}."
                if code == -signal.SIGKILL:
                    how += " The system kills a process when memory runs out."
                yield worker, "lost", f"The process that trained it {how}"


def serve(connection: Connection, environment: Mapping[str, str] | None, log: Path) -> None:
    """Train what the parent orders until it closes its end; see `Worker`. What libraries print goes
    to `log`: the terminal shows the sweep."""
    if threading.current_thread() is threading.main_thread():
        # Ctrl-C reaches the parent alone, which passes it on once.
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        sys.stdout.flush()
        sys.stderr.flush()
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    os.environ |= environment or {}
    with contextlib.closing(connection), contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            request = connection.recv()
            if isinstance(request, TrialRequest):  # not the answer to a rank that is gone
                outcome = outcome_of(partial(_train, request, connection), request.run_dir)
                connection.send(("end", outcome))


def outcome_of(train: Callable[[], Outcome], run_dir: str) -> Outcome:
    """Train, which returns the summary, and return how that ended, whatever happened: the other
    trials go on."""
    run = RunDirectory(Path(run_dir))
    try:
        with install_handlers():
            return train()
    except KeyboardInterrupt as error:
        return {**(run.summary() or {}), "status": "interrupted", "signal": signal_of(error)}
    except Exception as error:
        keep_traceback(error, run_dir)
        return {**(run.summary() or {}), "status": "failed", "error": told(error)}
    finally:  # the next trial begins with the memory that this one leaves
        gc.collect()
        devices = sys.modules.get("gnntrain.devices")  # not where it failed before torch's import
        if devices is not None:
            devices.release_memory()


def _train(request: TrialRequest, connection: Connection) -> Outcome:
    from gnntrain.config import from_dict
    from gnntrain.run import resume, train

    if request.config is None:
        return resume(request.run_dir, listener=connection)
    config = from_dict(request.config, saved=request.data is not None)
    return train(config, overrides=request.overrides, listener=connection, data=request.data)
