"""Who of a run's processes lives, and the end of those that cannot go on.

Each rank has a thread that gives signs of life; on several machines it also looks for those of
others. The ranks of one machine have a supervisor, which sees their processes.
"""

from __future__ import annotations

import itertools
import logging
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import psutil
import torch.distributed as dist

from gnntrain.distributed import run_control, signals
from gnntrain.distributed.launchers import STARTED_BY
from gnntrain.distributed.run_control import CollectiveTimeout, Phase, Progress, RunControl
from gnntrain.distributed.tcp_store import StoreTimeout
from gnntrain.errors import GnntrainError, Interrupted, RankLost, RunError, exit_code

_log = logging.getLogger("gnntrain")

LOOK_SECONDS = 1.0  # between two looks at the other ranks' signs of life
# A rank that has failed by a lost connection looks this long for the rank that caused it, which is
# one that gives no sign of life for so long (it may compute without releasing Python's lock).
_OBSERVE_SECONDS, _SILENT_SECONDS = 6.0, 4.0
# In which ranks may notice by themselves that another one has failed, in which a launched process
# whose run is abandoned may raise the reason by itself, and in which it must then end.
_NOTICE_SECONDS, _RAISE_SECONDS, _END_SECONDS = 8.0, 3.0, 7.0
_MEMORY_HINT = (
    "The system kills a process when memory runs out: lower trainer.batch_size, sampler.fan_outs "
    "or the number of ranks."
)
_SILENCE_HINT = (
    "A process is stopped or hangs, or a machine or the network between them has gone. Raise "
    "distributed.timeout if a step may take longer."
)


class Roster(NamedTuple):
    """The ranks of a run: the number of each one's machine, ascending from 0 (empty: all are on
    this one), name and address of each machine, as in "gnn2, 10.77.0.2", and the folder of logs."""

    machines: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    logs: str = "RUN/logs"

    def named(self, ranks: Sequence[int]) -> str:
        """The ranks, for a sentence: "ranks 2 and 3 on machine 1 (gnn2, 10.77.0.2)"."""
        words = []
        for machine, group in itertools.groupby(
            sorted(ranks), lambda rank: self.machines[rank] if self.hosts else 0
        ):
            *most, last = map(str, group)
            where = f" on machine {machine} ({self.hosts[machine]})" if self.hosts else ""
            words.append(
                (f"ranks {', '.join(most)} and {last}" if most else f"rank {last}") + where
            )
        return " and ".join(words)

    def lost(
        self, ranks: Sequence[int], seen: Sequence[Progress] = (), timeout: float | None = None
    ) -> RankLost:
        """The error that names ranks: others have waited `timeout` seconds for them; None: they
        have ended. `seen` has where each rank was."""
        steps = []
        for place in (seen[rank] for rank in ranks if seen):
            at = "the evaluation after " * (place.phase == Phase.EVALUATING) + f"step {place.step}"
            steps.append("its start" if place.phase == Phase.STARTING else at)
        where, name = " and ".join(dict.fromkeys(steps)), self.named(ranks)
        what, hint = "ended without a word" + f", after {where}" * bool(where), _MEMORY_HINT
        if timeout is not None:
            what = f"not answered for {timeout:g} s" + f", since {where}" * bool(where)
            hint = _SILENCE_HINT
        have = "have" if " and " in name else "has"
        hint = f"{hint} Its log is {self.logs}/rank_{ranks[0]}.log."
        return RankLost(f"{name[0].upper()}{name[1:]} {have} {what}.", hint, ranks)


class Watch:
    """The thread of a rank: it synchronises the run control, and ends the rank when the run is
    abandoned; when the parent process has gone (the rank first saves and stops as after SIGTERM);
    and when it is overdue, see `RunControl.must_end_within`.

    Launched ranks have no supervisor that sees them all. There (by the `roster`) the thread also
    ends the rank when another one has failed, or has given no sign of life for `timeout` seconds:
    rank 0 watches all, the others rank 0, and a rank that has lost a connection all.
    """

    def __init__(
        self, control: RunControl, roster: Roster | None = None, timeout: float = math.inf
    ) -> None:
        self._control, self._roster, self.timeout = control, roster or Roster(), timeout
        self._watches_all = control.rank == 0
        self._seen = [Progress(beat=-1)] * len(self._roster.machines)
        self._silence = [0.0] * len(self._seen)
        self._over, self._lock = threading.Event(), threading.Lock()
        self._looks_at, self._abandons_at = 0.0, math.inf
        self._failure: GnntrainError | None = None
        if self._seen:
            control.find_cause = self.cause

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the thread. It has ended afterwards: Python aborts when it shuts down while a thread
        returns from C++ code."""
        thread = threading.Thread(target=self._run, name="gnntrain-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            self._control.enter(Phase.ENDED)

    def _run(self) -> None:
        control, over = self._control, self._over
        parent, pid = multiprocessing.parent_process(), os.getppid()
        # Other launchers than torchrun may leave a process alone.
        has_parent = not {"TORCHELASTIC_RUN_ID", STARTED_BY}.isdisjoint(os.environ)
        while not over.wait(run_control.SYNC_SECONDS) and not control.is_abandoned:
            if not parent.is_alive() if parent else has_parent and os.getppid() != pid:
                control.request_stop(signal.SIGTERM)
                if not control.is_starting:
                    over.wait(signals.step_seconds(control.grace, signal.SIGTERM))
                control.is_abandoned = True
            elif (late := control.overdue()) is not None:
                self._failure = control.cause_of(late)
                control.report_failure(self._failure)
                self._end_by_force()
            else:
                self._tick()
        # The main thread may raise the reason by itself; then a signal has it raise where it is.
        if over.wait(_RAISE_SECONDS if self._seen else 0.0):
            return
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + _END_SECONDS
        while time.monotonic() < deadline:
            if over.wait(run_control.SYNC_SECONDS):
                return
            control.sync()  # the supervisor waits for a checkpoint, too
            if control.is_writing():
                deadline = max(deadline, time.monotonic() + signals.CLOSE_SECONDS)
        self._end_by_force()

    def _end_by_force(self) -> None:
        if self._failure is not None:
            signals.prepare_forced_exit(self._failure)
        os._exit(1 if self._failure is None else exit_code(self._failure))

    def _tick(self) -> None:
        """Synchronise, and every `LOOK_SECONDS` look for the others."""
        with self._lock:
            now, control = time.monotonic(), self._control
            control.sync()
            if not self._seen or now < self._looks_at:
                return
            self._looks_at = now + LOOK_SECONDS
            self.look()
            if self._failure is None and (lost := self.lost()) is not None:
                control.report_failure(lost)
                self._failure = lost
            self._failure = control.first_failure() or self._failure
            if self._failure is not None:
                self._abandons_at = min(self._abandons_at, now + _NOTICE_SECONDS)
            if now >= self._abandons_at:
                control.is_abandoned = True

    def look(self) -> None:
        """Read where the others are; called every `LOOK_SECONDS`."""
        for rank in range(len(self._seen) if self._watches_all else 1):
            place = self._control.progress(rank)
            is_same = place.beat == self._seen[rank].beat and rank != self._control.rank
            # Time counts in looks: a process that was itself stopped accuses nobody.
            self._silence[rank] = is_same * (self._silence[rank] + LOOK_SECONDS)
            self._seen[rank] = place

    def lost(self) -> RankLost | None:
        """The ranks that were silent for `timeout` seconds, or rank 0, whose store has gone."""
        if (error := self._control.lost_store) is not None:
            is_silent = isinstance(error, StoreTimeout)
            return self._roster.lost([0], timeout=self.timeout if is_silent else None)
        silent = self._silent(self.timeout)
        return self._roster.lost(silent, self._seen, self.timeout) if silent else None

    def _silent(self, seconds: float) -> list[int]:
        silent = [n for n, silence in enumerate(self._silence) if silence >= seconds]
        return [n for n in silent if self._seen[n].phase != Phase.ENDED]

    def cause(self, error: BaseException) -> GnntrainError | None:
        """The failure of another rank behind `error`: reported by it, or that it is silent, for
        which this looks for some seconds where others may be the cause; None: there is none."""
        if self._failure is not None:
            return self._failure
        control = self._control
        kinds = RankLost | CollectiveTimeout | dist.DistError
        is_others = control.failed_waiting or isinstance(error, kinds)
        if isinstance(error, KeyboardInterrupt):
            # torchrun ends the ranks beside one that was killed: they ask the whole run to end.
            is_others = control.is_stopped_elsewhere and control.is_starting
        self._watches_all |= is_others
        deadline = time.monotonic() + _OBSERVE_SECONDS * is_others
        failure = control.first_failure()
        while control.lost_store is None and failure is None and time.monotonic() < deadline:
            time.sleep(run_control.SYNC_SECONDS)
            self._tick()
            failure = control.first_failure()
        if control.lost_store is not None:
            failure = self.lost()
        elif failure is None and is_others:
            is_late = run_control.is_timeout(error)
            has_waited = is_late or isinstance(error, CollectiveTimeout)
            if isinstance(error, RankLost):  # of the exchange
                has_waited = isinstance(error.__cause__, TimeoutError | BlockingIOError)
            seconds = self.timeout if has_waited else None
            silent = self._silent(_SILENT_SECONDS)
            computing = [n for n, place in enumerate(self._seen) if not place.is_waiting]
            if silent:
                failure = self._roster.lost(silent, self._seen, seconds)
            elif is_late and 0 < len(computing) < len(self._seen):
                # All give signs of life: the others wait for these.
                failure = self._roster.lost(computing, self._seen, self.timeout)
        if failure is not None:
            control.report_failure(failure)
        self._failure = failure
        return failure


class Supervisor:
    """Waits for the ranks of this machine, in rank order, and ends them all if one fails or a
    signal requests it. They wait for each other in a collective for `timeout` seconds."""

    def __init__(
        self, processes: Sequence[BaseProcess], control: RunControl, log_dir: Path, timeout: float
    ) -> None:
        self._processes, self._control, self._timeout = processes, control, timeout
        self._roster = Roster(logs=str(log_dir))
        self._began, self._is_writing = time.monotonic(), False
        control.is_writing = lambda: self._is_writing

    def watch(self) -> None:
        """Wait for all ranks; none is running afterwards. Raises the error of the first rank that
        failed, or one that names a rank that hangs; Interrupted where a signal asked for the end.
        """
        control = self._control
        try:
            while (alive := self._alive()) and not self._failed():
                sentinels = [self._processes[rank].sentinel for rank in alive]
                connection.wait(sentinels, run_control.SYNC_SECONDS)
                control.sync()
                if control.stop_requested:
                    return self._stop(control.stop_requested)
            if failed := self._failed():
                control.sync()
                numbers = {code - 128 for code in failed.values()}
                # All have acted on a signal, and this process has not read the request; unless
                # they were ended beside a failure.
                if numbers <= {*signals.ENDING} and control.first_failure() is None:
                    return self._stop(numbers.pop())
                self._fail(failed)
        finally:
            for process in self._processes:  # at once after a second Ctrl-C
                process.kill()
                process.join()

    def _stop(self, number: int) -> None:
        """Let the ranks save after their step and end. They may have completed just before."""
        self._control.sync()  # the signal may have come after the last one
        if all(place.phase != Phase.STARTING for place in self._places()):
            self._wait(signals.step_seconds(self._control.grace, number))
        self._end_where_they_are()
        if all(process.exitcode == 0 for process in self._processes):
            return
        if (cause := self._control.first_failure()) is not None:
            _log.warning("While the run was being stopped: %s", cause.message)
        raise Interrupted(number)

    def _fail(self, failed: dict[int, int]) -> None:
        """End all after one has failed, and raise the cause."""
        places, control = self._places(), self._control
        computing = {n for n in self._alive() if not places[n].is_waiting or self._is_stopped(n)}
        # A rank that the system or a fault in itself has ended has caused all other errors.
        own_ends = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS)
        killed = next((n for n, code in failed.items() if -code in own_ends), None)
        cause = control.first_failure()
        if killed is not None:
            name = signal.Signals(-failed[killed]).name
            hint = _MEMORY_HINT if name == "SIGKILL" else None
            cause = RankLost(f"Rank {killed} was ended by {name}.", hint, [killed])
        self._wait(_NOTICE_SECONDS)
        # NCCL aborts a process that has waited for too long; and one where CUDA has failed. It does
        # not make the host wait: a rank that it has aborted was waiting, too.
        aborted = {n for n, code in self._failed().items() if code == -signal.SIGABRT}
        silent = sorted(computing - aborted or self._alive())
        self._end_where_they_are()
        could_wait = time.monotonic() - self._began > self._timeout
        is_aborted = cause is None and -signal.SIGABRT in failed.values() and could_wait
        if (is_aborted or isinstance(cause, CollectiveTimeout)) and silent:
            raise self._roster.lost(silent, places, self._timeout)
        if (cause := cause or control.first_failure()) is not None:
            raise cause
        rank, code = next(iter(failed.items()))
        if code > 0:
            raise RunError(f"Rank {rank} ended with exit code {code}.")
        hint = "What it wrote before says why." if code == -signal.SIGABRT else None
        raise RankLost(f"Rank {rank} was ended by {signal.Signals(-code).name}.", hint)

    def _end_where_they_are(self) -> None:
        """Have the remaining ranks raise an exception; `watch` kills those that do not end."""
        self._control.is_abandoned = True
        self._control.sync()
        self._wait(_END_SECONDS)

    def _wait(self, seconds: float) -> None:
        """Wait until all ranks have ended, at most so long; longer while one writes a checkpoint,
        which may be the only one of the newest state."""
        deadline = time.monotonic() + seconds
        while (alive := self._alive()) and (now := time.monotonic()) < deadline:
            places = self._places()
            self._is_writing = any(places[n].is_writing and not self._is_stopped(n) for n in alive)
            if self._is_writing:
                deadline = max(deadline, now + signals.CLOSE_SECONDS)
            sentinels = [self._processes[rank].sentinel for rank in alive]
            connection.wait(sentinels, min(run_control.SYNC_SECONDS, deadline - now))
        self._is_writing = False

    def _alive(self) -> list[int]:
        return [rank for rank, process in enumerate(self._processes) if process.is_alive()]

    def _failed(self) -> dict[int, int]:
        codes = enumerate(process.exitcode for process in self._processes)
        return {rank: code for rank, code in codes if code}

    def _places(self) -> list[Progress]:
        return [self._control.progress(rank) for rank in range(len(self._processes))]

    def _is_stopped(self, rank: int) -> bool:
        try:
            return bool(psutil.Process(self._processes[rank].pid).status() == psutil.STATUS_STOPPED)
        except psutil.Error:
            return False
