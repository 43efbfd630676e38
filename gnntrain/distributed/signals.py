"""Signals that stop a command after its step, end it at once, or only save; and the requeueing of
the SLURM job."""

from __future__ import annotations

import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gnntrain.distributed.launchers import requeues_itself, slurm_job
from gnntrain.errors import GnntrainError, Interrupted, RunError

if TYPE_CHECKING:
    from gnntrain.distributed.run_control import RunControl

# SIGUSR2 also has the batch job requeued.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
HANDLED = (*ENDING, signal.SIGUSR1)

# Seconds from a stop signal until the system kills a process: the default of Kubernetes, SLURM and
# torchrun.
GRACE_SECONDS = 30.0
# Seconds from the end of writing a checkpoint until a process is ended by force.
CLOSE_SECONDS = 5.0
# Programs that start others (timeout, uv run) forward a signal that the terminal has already sent
# to the whole process group: two SIGINT within this time count as one.
_ONE_SIGNAL_SECONDS = 0.2


def handled() -> list[signal.Signals]:
    """Of `HANDLED` those that are not ignored, as under nohup, nor submitit's SIGTERM: its handler
    lets that pass, since SLURM sends it beside SIGUSR2."""
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    if os.environ.get("SUBMITIT_EXECUTOR") and callable(handlers[signal.SIGTERM]):
        del handlers[signal.SIGTERM]
    return [number for number, handler in handlers.items() if handler != signal.SIG_IGN]


@contextmanager
def install_handlers(requeue: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Handle signals inside this context. Nested, or in another thread, it does nothing.

    The first SIGINT, SIGTERM or SIGHUP is raised as `Interrupted`, or within `forward_to` passed
    to the run. A second SIGINT is raised at once; a scheduler may send many SIGTERM. The process
    ends 28 s after the first signal in any case, and 2 s after a second SIGINT; a run ends by
    `RunControl.grace`, and not while it writes a checkpoint. An error after an `Interrupted` that a
    library has swallowed is raised as that one.

    SIGUSR2, in a SLURM job also SIGUSR1, ends the run as SIGTERM does, and then has the batch job
    requeued: by a handler that was installed before, as submitit's, or by `requeue`.
    """
    global _active
    if _active is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _active = _Handler()
    previous = {number: signal.signal(number, _active.handle) for number in handled()}
    submitits = previous.get(signal.SIGUSR2)
    _active.requeue = partial(submitits, signal.SIGUSR2, None) if callable(submitits) else requeue
    try:
        yield
    except Interrupted as error:
        if error.number == signal.SIGUSR2:
            _active.requeue()
        raise
    except Exception as error:
        if _active.raised is None or isinstance(error, GnntrainError):
            raise
        raise Interrupted(_active.raised) from error
    finally:
        _active.over.set()
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        _active = None


@contextmanager
def forward_to(control: RunControl) -> Iterator[None]:
    """Pass the first ending signal to the run as a stop request, and SIGUSR1 as a save request."""
    with install_handlers():
        if _active is None:
            yield
            return
        if _active.raised is not None or _active.must_requeue:
            # A library has swallowed the exception; or no run could be told.
            raise Interrupted(_active.raised or signal.SIGUSR2)
        _active.control = control
        try:
            yield
        finally:
            _active.control = None


@contextmanager
def on_forced_exit(call: Callable[[BaseException], object]) -> Iterator[None]:
    """Have `call(error)` called before this process is ended by force, with what ends it."""
    with install_handlers():
        _last_calls.append(call)
        try:
            yield
        finally:
            _last_calls.remove(call)


def prepare_forced_exit(error: BaseException) -> None:
    """Call what was given to `on_forced_exit`, with `error`, and wait a few seconds at most: a
    sentence for a full pipe that nobody reads would keep the process for ever."""

    def call_all() -> None:
        for call in reversed(_last_calls):
            with suppress(Exception):  # no other process needs an error of this one
                call(error)

    calls = threading.Thread(target=call_all, daemon=True)
    calls.start()
    calls.join(CLOSE_SECONDS)


def install_rank_handlers(control: RunControl) -> None:
    """Handle signals in the process of a supervised rank, which begins with them blocked. A signal
    is a request to the run; once that is abandoned, the first one ends this rank where it is,
    unless it writes its results."""
    has_raised = False

    def handle(number: int, _frame: object) -> None:
        nonlocal has_raised
        if number == signal.SIGUSR1 and not requeues_itself():
            control.request_save()
        elif not has_raised:
            number = signal.SIGUSR2 if number == signal.SIGUSR1 else number
            if control.is_abandoned and not control.is_closing:
                has_raised = True
                raise Interrupted(number)
            control.request_stop(number)

    for number in handled():
        signal.signal(number, handle)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)


class _Handler:
    """Handles the signals to a command, and to the run that it leads, once there is one."""

    def __init__(self) -> None:
        self.control: RunControl | None = None  # the run's
        self.over = threading.Event()
        self.raised: int | None = None  # the first signal, unless the run was told
        self.must_requeue = False  # SIGUSR1 has come in a SLURM job
        self.requeue: Callable[[], None] = lambda: None
        self._first = 0
        self._first_at = self._step_ends_by = self._ends_by = 0.0
        self._must_raise = self._has_ended_rank = self._is_at_once = False

    def handle(self, number: int, _frame: object) -> None:
        control, now = self.control, time.monotonic()
        if number == signal.SIGUSR1:
            if not requeues_itself():
                if control is not None:
                    control.request_save()
                return
            self.must_requeue = True
            if control is None:  # a run that is to begin ends then; a sweep goes on
                return
            number = signal.SIGUSR2
        is_rank = control is not None and control.rank is not None
        ends_rank = control is not None and control.is_abandoned and not control.is_closing
        ends_rank &= is_rank
        is_again = now - self._first_at > _ONE_SIGNAL_SECONDS and not self._is_at_once
        if self._must_raise or (ends_rank and not self._has_ended_rank):
            self._must_raise = False
            self._has_ended_rank |= ends_rank
            raise Interrupted(self._first or number)
        if self._first == 0:
            self._first, self._first_at = number, now
            grace = GRACE_SECONDS if control is None else control.grace
            seconds = seconds_given(number, grace)
            self._step_ends_by = now + step_seconds(grace, number)
            self._ends_by = now + max(seconds - 2, seconds * 0.9)
            threading.Thread(target=self._enforce_end, daemon=True).start()
            # A run that trains answers in order, and a supervisor, unless all is to end.
            if control is not None and not control.is_abandoned:
                control.request_stop(number)
                if not (is_rank and control.is_starting):
                    return
            self.raised = number
            raise Interrupted(number)
        if number == signal.SIGINT and is_again:
            self._is_at_once, self._ends_by = True, now + 2.0
            raise Interrupted(self._first)

    def _enforce_end(self) -> None:
        """End a process that does not end by itself. A thread can do so while it computes."""
        import multiprocessing

        while not self.over.wait(0.1):
            now, control = time.monotonic(), self.control
            if control is not None and control.is_writing() and not self._is_at_once:
                self._ends_by = max(self._ends_by, now + CLOSE_SECONDS)
            if now >= self._ends_by:
                for rank in multiprocessing.active_children():
                    rank.kill()
                prepare_forced_exit(Interrupted(self._first))
                if self._first == signal.SIGUSR2:
                    with suppress(Exception):
                        self.requeue()
                os._exit(128 + self._first)
            if now >= self._step_ends_by:
                self._step_ends_by = math.inf
                # Raise in a rank that runs in this process, unless it is writing its results.
                if control is not None and control.rank is not None and not control.is_closing:
                    self._must_raise = True
                    os.kill(os.getpid(), signal.SIGTERM)


_active: _Handler | None = None
_last_calls: list[Callable[[BaseException], object]] = []  # of `on_forced_exit`, the last one first


def step_seconds(grace: float, number: int) -> float:
    """Seconds from the first signal until a run must have finished its step, after which it saves:
    of the `grace` of the configuration, or as long as SLURM gives after this signal."""
    seconds = seconds_given(number, grace)
    return max(seconds - 10, seconds / 2)


def seconds_given(number: int, grace: float, environ: Mapping[str, str] = os.environ) -> float:
    """Seconds from a signal until this process is killed: SLURM's where it is known, or `grace`.
    SLURM sends SIGTERM `KillWait` seconds before SIGKILL; `--signal` has it send another signal
    some time before the job's end."""
    if slurm_job(environ) is None:
        return grace
    if number == signal.SIGUSR2:
        left = float(environ.get("SLURM_JOB_END_TIME") or 0) - time.time()
        return max(grace, min(left, 600.0))  # a person may send it hours before
    with suppress(OSError):
        file = Path(environ.get("SLURM_CONF") or "/etc/slurm/slurm.conf")
        text = file.read_text(errors="replace")
        if found := re.search(r"^\s*KillWait\s*=\s*(\d+)", text, re.MULTILINE | re.I):
            return float(found[1])
    return grace


def requeue(*, is_main: bool) -> None:
    """Have SLURM end this job and start it again: the main process asks for it, and raises RunError
    where SLURM refuses. The others wait for their end: where one task ends with an error, SLURM may
    end them all."""
    if not is_main:
        time.sleep(seconds_given(signal.SIGUSR2, grace=60.0))
        return
    import subprocess  # every command imports this module, and few requeue

    job = slurm_job() or ""
    try:
        command = ["scontrol", "requeue", job]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip()
        raise RunError(
            f"SLURM does not requeue the job {job}: {said}",
            "Submit it with --requeue; the same command goes on from its last checkpoint.",
        ) from error
