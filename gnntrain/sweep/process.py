"""A process that trains one trial after another, and tells its parent of each.

What takes long to import is imported with the first trial: by then the process knows its GPUs.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gnntrain.distributed.processes import unblock_signals
from gnntrain.distributed.signals import install_handlers
from gnntrain.errors import signal_of
from gnntrain.failures import keep_traceback, sentence


@dataclass(frozen=True)
class TrialRequest:
    """A trial to train.

    Attributes:
        run_dir: Its run directory.
        config: The resolved configuration; None: go on with the run that is there.
        overrides: What was typed, for the record.
        data: The graph, where it is an object in Python.
    """

    run_dir: str
    config: dict[str, Any] | None
    overrides: tuple[str, ...]
    data: object = None


@dataclass(frozen=True)
class Outcome:
    """How a trial ended.

    Attributes:
        status: The run's own.
        summary: As `summary.json` holds it, where there is one.
        error: What went wrong, in a sentence.
        signal_number: What interrupted it.
    """

    status: str
    summary: dict[str, Any]
    error: str | None = None
    signal_number: int = signal.SIGINT


def serve(connection: Connection, environment: Mapping[str, str] | None, log: Path) -> None:
    """Train what the parent orders until it closes its end.

    Args:
        connection: To the parent.
        environment: The variables that name the GPUs it sees; None: it sees all.
        log: Where to put what libraries print: the terminal shows the sweep.
    """
    if threading.current_thread() is threading.main_thread():
        _leave_terminal(log)
    os.environ |= environment or {}
    with contextlib.closing(connection), contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            order = connection.recv()
            if isinstance(order, TrialRequest):  # not the answer to an epoch of a rank that is gone
                outcome = outcome_of(partial(_train, order, connection), order.run_dir)
                connection.send(("end", outcome))


def _leave_terminal(log: Path) -> None:
    """Ctrl-C reaches the parent alone, which passes it on once; nothing is printed there."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unblock_signals()
    redirect_output(log)


def redirect_output(log: Path) -> None:
    """Put what this process prints from now on at the end of a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)


def outcome_of(train: Callable[[], dict[str, Any]], run_dir: str | Path) -> Outcome:
    """Train, and return how that ended, whatever happened: the other trials go on.

    Args:
        train: Trains and returns the summary.
        run_dir: The run directory.
    """
    try:
        with install_handlers():
            summary = train()
        return Outcome(str(summary.get("status")), summary, summary.get("error"))
    except KeyboardInterrupt as error:
        return Outcome("interrupted", summary_of(run_dir), signal_number=signal_of(error))
    except Exception as error:
        keep_traceback(error, run_dir)
        return Outcome("failed", summary_of(run_dir), sentence(error))
    finally:
        _release_memory()


def _train(order: TrialRequest, connection: Connection) -> dict[str, Any]:
    from gnntrain.config import from_dict
    from gnntrain.run import resume, train

    if order.config is None:
        return resume(order.run_dir, listener=connection)
    config = from_dict(order.config, saved=order.data is not None)
    return train(config, overrides=order.overrides, listener=connection, data=order.data)


def summary_of(run_dir: str | Path) -> dict[str, Any]:
    """What `summary.json` of a run holds; nothing where there is none."""
    from gnntrain.reporting.rundir import RunDirectory

    return RunDirectory(Path(run_dir)).summary() or {}


def _release_memory() -> None:
    """The next trial begins with what this one leaves."""
    gc.collect()
    devices = sys.modules.get("gnntrain.devices")  # not where a trial failed before torch's import
    if devices is not None:
        devices.release_memory()
