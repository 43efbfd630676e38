"""The supervisor of the ranks: ends them all if one fails or hangs, or a signal requests it."""

from __future__ import annotations

import logging
import multiprocessing.connection as mp_connection
import signal
import time
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil

from gnntrain.distributed.heartbeats import where
from gnntrain.distributed.run_control import (
    CollectiveTimeout,
    Phase,
    Progress,
    RunControl,
)
from gnntrain.distributed.signals import CLOSE_SECONDS, step_seconds
from gnntrain.errors import GnntrainError, Interrupted, RankLost, RunError
from gnntrain.limits import container

_log = logging.getLogger("gnntrain")

_LOOK_SECONDS = 0.25
# Seconds in which ranks may notice by themselves that another one has failed, ...
_NOTICE_SECONDS = 8.0
# ... and in which they must end after the run was abandoned.
_END_SECONDS = 7.0
# Sent from outside or by a fault in the rank itself: never because another rank ended first.
_OWN_ENDS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS)
_MEMORY_HINT = (
    "The system kills a process when memory runs out: lower trainer.batch_size, sampler.fan_outs "
    "or the number of ranks."
)


class Supervisor:
    """Waits for the ranks, and ends them all if one fails or a signal requests it.

    Args:
        processes: The ranks' processes, in rank order.
        control: The run control of this process.
        log_dir: The folder of the ranks' logs.
        timeout: Seconds that a rank waits for the others in a collective.
        first: The number of the first of these ranks.
    """

    def __init__(
        self,
        processes: Sequence[BaseProcess],
        control: RunControl,
        log_dir: Path,
        timeout: float,
        first: int = 0,
    ) -> None:
        self._processes = dict(enumerate(processes, first))
        self._control = control
        control.is_supervising = True
        control.is_writing = lambda: self._is_writing
        self._log_dir = log_dir
        self._timeout = timeout
        self._began = time.monotonic()
        self._is_writing = False
        self._kills = container().kills

    def watch(self) -> None:
        """Wait for all ranks. No rank is running when this returns or raises.

        Raises:
            GnntrainError: The error of the first rank that failed, or the name of a rank that
                hangs.
            Interrupted: A signal asked the run to stop.
        """
        try:
            while alive := self._alive():
                sentinels = [self._processes[rank].sentinel for rank in alive]
                mp_connection.wait(sentinels, _LOOK_SECONDS)
                self._control.sync()
                if self._control.stop_requested:
                    return self._stop(self._control.stop_requested)
                if self._failed():
                    self._fail(self._failed())
            if self._failed():
                self._fail(self._failed())
        finally:
            self._kill()  # at once after a second Ctrl-C

    def _stop(self, number: int) -> None:
        """Let the ranks save after their step and end. They may have completed just before."""
        self._control.sync()  # the signal may have come after the last one
        if all(place.phase != Phase.STARTING for place in self._progress().values()):
            self._wait(step_seconds(self._control.grace, number))
        self._end_where_they_are()
        codes = [process.exitcode for process in self._processes.values()]
        if all(code == 0 for code in codes):
            return
        if (cause := self._control.first_failure()) is not None:
            _log.warning("While the run was being stopped: %s", cause.message)
        raise Interrupted(number)

    def _fail(self, failed: Mapping[int, int]) -> None:
        places = self._progress()
        is_stopped = {rank for rank in self._alive() if self._is_stopped(rank)}
        computing = {rank for rank in self._alive() if not places[rank].is_waiting}
        cause = self._own_end(failed) or self._control.find_cause(RuntimeError())
        self._wait(_NOTICE_SECONDS)
        # NCCL does not make the host wait: a rank that NCCL has aborted was waiting, too.
        aborted = {rank for rank, code in self._failed().items() if code == -signal.SIGABRT}
        silent = (is_stopped | computing) - aborted or set(self._alive())
        self._end_where_they_are()
        if self._is_timeout(cause, failed) and silent:
            raise self._unanswered(sorted(silent), places, is_stopped)
        raise cause or self._control.find_cause(RuntimeError()) or _unexplained(failed)

    def _is_timeout(self, cause: GnntrainError | None, failed: Mapping[int, int]) -> bool:
        # NCCL aborts a process that has waited for too long; and one where CUDA has failed.
        is_aborted = cause is None and -signal.SIGABRT in failed.values()
        could_wait = time.monotonic() - self._began > self._timeout
        return (is_aborted and could_wait) or isinstance(cause, CollectiveTimeout)

    def _unanswered(
        self, silent: Sequence[int], places: Mapping[int, Progress], is_stopped: set[int]
    ) -> RankLost:
        told = [
            f"Rank {rank} has not answered since {where(places[rank])}"
            + (" (the process is stopped)" if rank in is_stopped else "")
            for rank in silent
        ]
        return RankLost(
            f"{'; '.join(told)}: the others waited {self._timeout:g} s for it.",
            "It is stopped, in an endless loop, or slow; raise distributed.timeout if it may take "
            f"longer. Its log is {self._log_dir / f'rank_{silent[0]}.log'}.",
            silent,
        )

    def _end_where_they_are(self) -> None:
        """End the remaining ranks: by an exception, or by force if that takes too long."""
        self._control.abandon()
        self._control.sync()
        self._wait(_END_SECONDS)
        self._kill()

    def _kill(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.join()

    def _progress(self) -> dict[int, Progress]:
        return {rank: self._control.progress(rank) for rank in self._processes}

    def _wait(self, seconds: float) -> None:
        """Wait until all ranks have ended, at most so long; longer while one writes a checkpoint,
        which may be the only one of the newest state."""
        deadline = time.monotonic() + seconds
        while alive := self._alive():
            places = self._progress()
            self._is_writing = any(
                places[rank].is_writing and not self._is_stopped(rank) for rank in alive
            )
            if self._is_writing:
                deadline = max(deadline, time.monotonic() + CLOSE_SECONDS)
            left = deadline - time.monotonic()
            if left <= 0:
                return
            sentinels = [self._processes[rank].sentinel for rank in alive]
            mp_connection.wait(sentinels, min(_LOOK_SECONDS, left))
        self._is_writing = False

    def _alive(self) -> list[int]:
        return [rank for rank, process in self._processes.items() if process.is_alive()]

    def _failed(self) -> dict[int, int]:
        codes = {rank: process.exitcode for rank, process in self._processes.items()}
        return {rank: code for rank, code in codes.items() if code}

    def _own_end(self, failed: Mapping[int, int]) -> GnntrainError | None:
        """The error of a rank that was killed or crashed, which caused all other errors."""
        for rank, code in failed.items():
            if -code in _OWN_ENDS:
                name = signal.Signals(-code).name
                is_memory = name == "SIGKILL" and container().kills > self._kills
                why = ": the memory that its container may use ran out" if is_memory else ""
                hint = _MEMORY_HINT if name == "SIGKILL" else None
                return RankLost(f"Rank {rank} was ended by {name}{why}.", hint, [rank])
        return None

    def _is_stopped(self, rank: int) -> bool:
        try:
            return bool(psutil.Process(self._processes[rank].pid).status() == psutil.STATUS_STOPPED)
        except psutil.Error:
            return False


def _unexplained(failed: Mapping[int, int]) -> RunError:
    rank, code = next(iter(failed.items()))
    names = {-number: number.name for number in signal.Signals}
    by = f"was ended by {names[code]}" if code in names else f"ended with exit code {code}"
    hint = "What it wrote before says why." if code == -signal.SIGABRT else None
    kind = RankLost if code < 0 else RunError  # by a signal: no error of its own
    return kind(f"Rank {rank} {by}.", hint)
