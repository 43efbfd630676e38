"""A rank's thread that synchronises its run control, and ends a rank that cannot continue."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gnntrain.distributed.run_control import SYNC_SECONDS, RunControl
from gnntrain.distributed.signals import LAST_SECONDS, STEP_SECONDS


@contextmanager
def watching(control: RunControl, timeout: float) -> Iterator[None]:
    """Run the thread of a rank that is a process of its own.

    It calls `control.sync()`. It ends the rank when the run is abandoned; when the parent process
    has gone (the rank first saves and stops as after SIGTERM); and when rank 0 has not answered
    `RunControl.agreed` for `timeout` seconds, since a TCPStore waits without end.
    """
    is_over, syncing = threading.Event(), threading.Lock()
    arguments = (control, timeout, is_over, syncing)
    threading.Thread(target=_watch, args=arguments, daemon=True).start()
    try:
        yield
    finally:
        # The thread goes on to watch the parent, but no longer calls the store: Python aborts when
        # it shuts down while a thread returns from C++ code.
        is_over.set()
        with syncing:
            pass


def _watch(
    control: RunControl, timeout: float, is_over: threading.Event, syncing: threading.Lock
) -> None:
    parent = multiprocessing.parent_process() or _Launcher()
    while not control.is_abandoned:
        parent.join(SYNC_SECONDS)
        if not parent.is_alive():
            control.request_stop(signal.SIGTERM)
            if not control.is_starting:
                time.sleep(STEP_SECONDS)
            control.abandon()
        elif control.seconds_in_agreed > timeout:
            control.report_failure(TimeoutError("Timed out waiting for rank 0."))
            os._exit(1)
        else:
            with syncing:
                if not is_over.is_set():
                    control.sync()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LAST_SECONDS - STEP_SECONDS)
    os._exit(1)


class _Launcher:
    """The process that has started this one, where that is no process of ours.

    Only torchrun stays; others may start a process and leave it alone.
    """

    def __init__(self) -> None:
        self._pid = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None

    def join(self, timeout: float) -> None:
        time.sleep(timeout)

    def is_alive(self) -> bool:
        return self._pid in (None, os.getppid())
