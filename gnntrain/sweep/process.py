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
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gnntrain.distributed.processes import unblock_signals
from gnntrain.distributed.signals import install_handlers
from gnntrain.failures import keep_traceback, sentence


@dataclass(frozen=True)
class TrialRequest:
    """A trial to train.

    Attributes:
        run_dir: Its run directory.
        config: The resolved configuration; None: go on with the run that is there.
        overrides: What was typed, for the record.
    """

    run_dir: str
    config: dict[str, Any] | None
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """How a trial ended.

    Attributes:
        status: The run's own.
        summary: As `summary.json` holds it, where there is one.
        error: What went wrong, in a sentence.
    """

    status: str
    summary: dict[str, Any]
    error: str | None = None


def serve(connection: Connection, devices: str | None, log: Path) -> None:
    """Train what the parent orders until it closes its end.

    Args:
        connection: To the parent.
        devices: The GPUs to see, as CUDA_VISIBLE_DEVICES has them; None: all.
        log: Where to put what libraries print: the terminal shows the sweep.
    """
    if threading.current_thread() is threading.main_thread():
        _leave_terminal(log)
    if devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
    with contextlib.closing(connection), contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            order = connection.recv()
            if isinstance(order, TrialRequest):  # not the answer to an epoch of a rank that is gone
                outcome = _carry_out(order, connection)
                connection.send(("end", outcome))


def _leave_terminal(log: Path) -> None:
    """Ctrl-C reaches the parent alone, which passes it on once; nothing is printed there."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unblock_signals()
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)


def _carry_out(order: TrialRequest, connection: Connection) -> Outcome:
    try:
        with install_handlers():
            summary = _train(order, connection)
        return Outcome(str(summary.get("status")), summary, summary.get("error"))
    except KeyboardInterrupt:
        return Outcome("interrupted", _summary(order.run_dir))
    except Exception as error:  # whatever it is, the other trials go on
        keep_traceback(error, order.run_dir)
        return Outcome("failed", _summary(order.run_dir), sentence(error))
    finally:
        _release_memory()


def _train(order: TrialRequest, connection: Connection) -> dict[str, Any]:
    from gnntrain.config import from_dict
    from gnntrain.run import resume, train

    if order.config is None:
        return resume(order.run_dir, listener=connection)
    return train(from_dict(order.config), order.overrides, listener=connection)


def _summary(run_dir: str) -> dict[str, Any]:
    from gnntrain.reporting.rundir import RunDirectory

    return RunDirectory(Path(run_dir)).summary() or {}


def _release_memory() -> None:
    """The next trial begins with what this one leaves."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
