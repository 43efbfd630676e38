"""A rank's thread that keeps in touch with the run, and ends a rank that cannot go on."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

from gnntrain.distributed.run_control import SYNC_SECONDS, RunControl
from gnntrain.distributed.signals import LAST_SECONDS, STEP_SECONDS


def start_watch(control: RunControl, timeout: float) -> None:
    """Start the thread of a spawned rank.

    It calls `control.sync()`. It ends the rank when the run is abandoned; when the parent process
    has gone (the rank first saves and stops as after SIGTERM); and when rank 0 has not answered
    `RunControl.agreed` for `timeout` seconds, since a TCPStore waits without end.
    """
    threading.Thread(target=_watch, args=(control, timeout), daemon=True).start()


def _watch(control: RunControl, timeout: float) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
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
            control.sync()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LAST_SECONDS - STEP_SECONDS)
    os._exit(1)
