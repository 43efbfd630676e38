"""A rank's thread that synchronises its run control, and ends a rank that cannot continue."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gnntrain.distributed.heartbeats import LOOK_SECONDS, HeartbeatMonitor
from gnntrain.distributed.run_control import SYNC_SECONDS, CollectiveTimeout, RunControl
from gnntrain.distributed.signals import CLOSE_SECONDS, step_seconds
from gnntrain.errors import GnntrainError, exit_code

# Seconds in which a rank may notice by itself that another one has failed.
NOTICE_SECONDS = 8.0
# Seconds in which a launched process whose run is abandoned may raise the reason by itself.
_RAISE_SECONDS = 3.0
# Seconds from then until a process is ended by force; longer while it writes a checkpoint.
_END_SECONDS = 8.0

OnForcedEnd = Callable[[GnntrainError | None], None]


@contextmanager
def watching(
    control: RunControl,
    timeout: float,
    monitor: HeartbeatMonitor | None = None,
    on_forced_end: OnForcedEnd = lambda _: None,
) -> Iterator[None]:
    """Run the thread of a rank that is a process of its own.

    It calls `control.sync()`. It ends the rank when the run is abandoned; when the parent process
    has gone (the rank first saves and stops as after SIGTERM); and when rank 0 has not answered
    `RunControl.agreed` for `timeout` seconds, since a TCPStore waits without end; and when it is
    overdue, see `RunControl.must_end_within`.

    Ranks on several machines have no supervisor that sees them all. There the thread also ends the
    rank when another one has failed, or has given no sign of life for `timeout` seconds.

    Args:
        control: Of this rank.
        timeout: Seconds that a rank waits for the others.
        monitor: Of this rank; None: a supervisor watches all ranks.
        on_forced_end: Called before the process is ended by force, with the failure that ends it.
    """
    watch = _Watch(control, timeout, monitor, on_forced_end)
    threading.Thread(target=watch.run, name="gnntrain-watch", daemon=True).start()
    try:
        yield
    finally:
        watch.end()


class _Watch:
    def __init__(
        self,
        control: RunControl,
        timeout: float,
        monitor: HeartbeatMonitor | None,
        on_forced_end: OnForcedEnd,
    ) -> None:
        self._control = control
        self._timeout = timeout
        self._monitor = monitor
        self._on_forced_end = on_forced_end
        self._is_over, self._syncing = threading.Event(), threading.Lock()
        self._looks_at = 0.0
        self._abandons_at = math.inf
        self._failure: GnntrainError | None = None
        if monitor is not None:
            control.find_cause = self._cause

    def run(self) -> None:
        control, parent = self._control, _Parent()
        while not control.is_abandoned or control.is_supervising:
            parent.wait(SYNC_SECONDS)
            if self._goes_on(parent):
                return
            if not parent.is_alive():
                control.request_stop(signal.SIGTERM)
                if not control.is_starting:
                    time.sleep(step_seconds(control.grace, signal.SIGTERM))
                control.abandon()
            elif self._monitor is None and control.seconds_in_agreed > self._timeout:
                control.report_failure(CollectiveTimeout("Rank 0 has not answered in time."))
                os._exit(1)
            elif (failure := control.overdue()) is not None:
                control.report_failure(failure)
                self._on_forced_end(failure)
                os._exit(exit_code(failure))
            else:
                self._sync()
        if not self._is_over.wait(0.0 if self._monitor is None else _RAISE_SECONDS):
            os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + _END_SECONDS
        while time.monotonic() < deadline:
            time.sleep(SYNC_SECONDS)
            self._sync()  # the supervisor waits for a checkpoint, too
            if control.is_writing():
                deadline = max(deadline, time.monotonic() + CLOSE_SECONDS)
        if self._goes_on(parent):
            return
        self._on_forced_end(self._failure)
        os._exit(1 if self._failure is None else exit_code(self._failure))

    def _sync(self) -> None:
        with self._syncing:
            if not self._is_over.is_set():
                self._control.sync()
                self._look()

    def _goes_on(self, parent: _Parent) -> bool:
        """Whether the run is over in a process that is not gnntrain's: a script that a launcher has
        started may do something else now, and train again."""
        return self._is_over.is_set() and not parent.is_gnntrain

    def end(self) -> None:
        """Called by the rank when it ends.

        In a process that gnntrain has started the thread goes on to watch the parent, but no longer
        calls the store: Python aborts when it shuts down while a thread returns from C++ code.
        """
        self._control.end()
        self._is_over.set()
        with self._syncing:
            pass

    def _look(self) -> None:
        """Abandon the run on this rank some time after another one has failed."""
        now = time.monotonic()
        if self._monitor is None or now < self._looks_at:
            return
        self._looks_at = now + LOOK_SECONDS
        self._monitor.look()
        if self._failure is None and (lost := self._monitor.lost()) is not None:
            self._control.report_failure(lost)
            self._failure = lost
        if (first := self._control.first_failure()) is not None:
            self._failure = first
        if self._failure is not None:
            self._abandons_at = min(self._abandons_at, now + NOTICE_SECONDS)
        if now >= self._abandons_at:
            self._control.abandon()

    def _cause(self, error: BaseException) -> GnntrainError | None:
        assert self._monitor is not None
        if self._failure is None:
            self._failure = self._monitor.cause(error)
            if self._failure is not None:
                self._control.report_failure(self._failure)
        return self._failure


class _Parent:
    """The process that started this one: `multiprocessing`'s parent, or torchrun.

    Other launchers may start a process and leave it alone.
    """

    def __init__(self) -> None:
        self._process = multiprocessing.parent_process()
        self._pid = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None

    @property
    def is_gnntrain(self) -> bool:
        """Whether it is a process of gnntrain, not a launcher."""
        return self._process is not None

    def wait(self, seconds: float) -> None:
        """Wait so long, or until it ends where that can be noticed."""
        if self._process is None:
            time.sleep(seconds)
        else:
            self._process.join(seconds)

    def is_alive(self) -> bool:
        if self._process is None:
            return self._pid in (None, os.getppid())
        return self._process.is_alive()
