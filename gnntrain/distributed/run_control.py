"""Stop, save, progress and failures of a run, over a store that all its processes reach."""

from __future__ import annotations

import json
import math
import re
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field, replace
from enum import IntEnum
from typing import Any, TypeVar

import torch.distributed as dist

from gnntrain import errors
from gnntrain.distributed.signals import GRACE_SECONDS
from gnntrain.errors import GnntrainError, RankLost, TransientError
from gnntrain.plugins import told

E = TypeVar("E", bound=BaseException)
SYNC_SECONDS = 0.2  # between two calls of `RunControl.sync`
SAVE = -1
"""Stands for a signal where a checkpoint is due without one."""

_COMMITTED = "commit"
# gloo, NCCL and TCPStore have an exception class and a wording of their own for a timeout.
_TIME_OUT = re.compile(r"tim(e|ed)[ -]?out", re.IGNORECASE)


class CollectiveTimeout(TransientError):
    """A rank waited too long for the others: the cause is another rank."""


_KINDS: dict[str, type[GnntrainError]] = {
    kind.__name__: kind
    for kind in (errors.UserError, errors.Diverged, RankLost, CollectiveTimeout, TransientError)
}


class Phase(IntEnum):
    """The phase of the run that a rank is in."""

    STARTING = 0
    TRAINING = 1
    EVALUATING = 2
    CLOSING = 3
    ENDED = 4  # by itself: nobody need look for it


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a rank is."""

    phase: Phase = Phase.STARTING
    step: int = 0  # the last one that it began, from 1; 0: none
    is_waiting: bool = False  # in a collective, which needs the other ranks
    is_writing: bool = False  # a checkpoint, for which an end by force waits
    beat: int = field(default=0, compare=False)  # calls of `sync`: it lives while this grows


class RunControl:
    """One process's view of the run's stop and save requests, progress and failures.

    Every rank and the process that supervises them (`rank` None) hold one each, over their own
    client of the same store. A thread calls `sync`, which exchanges the attributes with the store:
    a signal handler and a training step never wait for it. When the store has gone, requests reach
    this process alone, progress and failures are dropped, and nothing raises.
    """

    def __init__(self, store: Any = None, rank: int | None = 0) -> None:
        # Its `compare_set`, `add` and `set` do not wait for a missing key.
        self._store: Any = dist.HashStore() if store is None else store  # type: ignore[attr-defined]
        self.lost_store: dist.DistError | None = None  # why it no longer answers; None: it does
        # Of `commit` and `agreed`: ranks agree also without the supervisor if rank 0 serves it.
        self.decisions = self._store
        self.rank = rank
        self.stop_requested = 0  # the signal that asks the run to end; cheap to poll
        self.is_stopped_elsewhere = False  # another process was the first to ask
        self.is_abandoned = False  # all ranks end without finishing their step; may be set
        self._must_save = False  # rank 0 has to commit this, others to hand it to the store
        self._num_saves = 0  # that rank 0 has read from the store
        self._progress, self._beat = Progress(), 0
        self._deadline: tuple[float, GnntrainError] | None = None
        # Finds another rank's failure behind an exception of this one; may take seconds.
        self.find_cause: Callable[[BaseException], GnntrainError | None] = lambda _: (
            self.first_failure()
        )
        self.grace = GRACE_SECONDS  # from a stop signal until the system kills this process
        self.timeout = math.inf  # of `agreed`: TCPStore has no limit of its own
        # A checkpoint, by this rank or one that it supervises.
        self.is_writing: Callable[[], bool] = lambda: False
        self.failed_waiting = False  # while it waited for other ranks

    def request_stop(self, number: int) -> None:
        """Ask all ranks to save and end; the first signal counts. Safe in a signal handler."""
        self.stop_requested = self.stop_requested or number

    def request_save(self) -> None:
        """Ask for a checkpoint. Safe in a signal handler."""
        self._must_save = True

    def sync(self) -> None:
        """Exchange requests and progress with the store; called every `SYNC_SECONDS`."""
        try:
            if stop := self._first("stop", str(self.stop_requested or "")):
                self.is_stopped_elsewhere |= not self.stop_requested
                self.stop_requested = int(stop)
            if self._first("abandoned", "1" if self.is_abandoned else ""):
                self.is_abandoned = True
            if self.rank == 0:
                num_saves = self._store.add("saves", 0)
                if num_saves > self._num_saves:
                    self._num_saves, self._must_save = num_saves, True
            elif self._must_save:
                self._must_save = False
                self._store.add("saves", 1)
            self._beat += 1
            self._publish()
        except dist.DistError as error:
            self.lost_store = error

    def _publish(self) -> None:
        if self.rank is not None:
            here = replace(self._progress, is_writing=self.is_writing(), beat=self._beat)
            self._store.set(f"progress/{self.rank}", json.dumps(astuple(here)))

    def commit(self, step: int, *, save: bool = False) -> None:
        """Decide that all ranks act after `step` on what was requested; with `save`, that they
        save a checkpoint without a request. Rank 0 calls this before it enters the gradient
        exchange of `step`."""
        saving = int(signal.SIGUSR1) if self._must_save else SAVE if save else 0
        if number := self.stop_requested or saving:
            self._must_save = False
            self.decisions.set(_COMMITTED, f"{step} {number}")
            # `set` returns before the store has done it. The answer to this comes after.
            self.decisions.compare_set(_COMMITTED, "", "")

    def agreed(self, step: int) -> int:
        """The signal to act on after `step`: SIGUSR1 saves, others end the run; `SAVE`; 0: none.

        All ranks call this after the gradient exchange of `step` and get the same answer: no rank
        leaves the exchange before rank 0 has entered it, which it does after the decision about
        this step is in the store. Nor is it overwritten before all have read it: to act on it
        takes a collective, which rank 0 does not leave before all have entered.
        """
        late = CollectiveTimeout("Rank 0 has not answered in time.")
        with self.must_end_within(self.timeout, late), self.waiting():
            committed = self.decisions.compare_set(_COMMITTED, "", "")
        committed_step, number = map(int, committed.split() or (step, 0))
        return number if committed_step == step else 0

    @contextmanager
    def must_end_within(self, seconds: float, failure: GnntrainError) -> Iterator[None]:
        """Marks a wait that has no limit of its own: the watch ends a rank that is overdue, and
        reports the failure."""
        self._deadline = time.monotonic() + seconds, failure
        try:
            yield
        finally:
            self._deadline = None

    def overdue(self) -> GnntrainError | None:
        """The failure of a wait that is over its limit; None: there is none."""
        deadline = self._deadline
        return deadline[1] if deadline is not None and time.monotonic() > deadline[0] else None

    @property
    def is_starting(self) -> bool:
        """Whether a stop request would not be answered yet."""
        return self._progress.phase == Phase.STARTING

    @property
    def is_closing(self) -> bool:
        return self._progress.phase == Phase.CLOSING

    def enter(self, phase: Phase, step: int | None = None) -> None:
        """Note that this rank begins `step`, or another phase after it (None: the last one). A new
        phase is published at once: whether a stop request is answered depends on it."""
        before = self._progress
        self._progress = Progress(phase, before.step if step is None else step)
        if phase != before.phase:
            with suppress(dist.DistError):
                self._publish()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Marks this rank as waiting for others; after an exception the mark stays."""
        self._progress = replace(self._progress, is_waiting=True)
        try:
            yield
        except Exception:
            self.failed_waiting = True
            raise
        self._progress = replace(self._progress, is_waiting=False)

    def progress(self, rank: int) -> Progress:
        """Where a rank was at its last `sync`."""
        try:
            if text := self._first(f"progress/{rank}"):
                phase, *others = json.loads(text)
                return Progress(Phase(phase), *others)
        except dist.DistError as error:
            self.lost_store = error
        return Progress()

    def cause_of(self, error: E) -> E | GnntrainError:
        """Another rank's failure, where this rank failed because of it; otherwise `error`."""
        return self.find_cause(error) or error

    def report_failure(self, error: BaseException) -> None:
        """Store the error of this rank, unless a rank has failed before."""
        with suppress(dist.DistError):
            self._first("failure", encoded(error, self.rank))

    def first_failure(self) -> GnntrainError | None:
        """The error of the rank that failed first, with its traceback as a note; None: no error."""
        with suppress(dist.DistError):
            if text := self._first("failure"):
                return decoded(text)
        return None

    def close(self) -> None:
        """Let go of the stores. A TCPStore that this process serves ends."""
        self._store = self.decisions = dist.HashStore()  # type: ignore[attr-defined]

    def _first(self, key: str, value: str = "") -> str:
        """The first value that any process gave to `key`: this one, if there is none yet."""
        return str(self._store.compare_set(key, "", value).decode())


def encoded(error: BaseException, rank: int | None) -> str:
    """An error of a rank as JSON, with its traceback."""
    kind = next((name for name, one in _KINDS.items() if isinstance(error, one)), "")
    if is_timeout(error):
        kind = CollectiveTimeout.__name__
    elif not kind and errors.may_mend(error):
        kind = TransientError.__name__
    message, hint = f"Rank {rank} failed: {told(error)}", None
    if isinstance(error, GnntrainError):
        message, hint = error.message, error.hint
    ranks = error.ranks if isinstance(error, RankLost) else ()
    return json.dumps([kind, message, hint, ranks, "".join(traceback.format_exception(error))])


def decoded(text: str) -> GnntrainError:
    """The error of `encoded`, with the traceback as a note."""
    kind, message, hint, ranks, trace = json.loads(text)
    error = _KINDS.get(kind, errors.RunError)(message, hint)
    if isinstance(error, RankLost):
        error.ranks = tuple(ranks)
    error.add_note(trace)
    return error


def is_timeout(error: BaseException) -> bool:
    """Whether a collective or the store ended because others did not answer in time."""
    return errors.is_communication(error) and _TIME_OUT.search(str(error)) is not None
