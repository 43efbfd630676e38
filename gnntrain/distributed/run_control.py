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

from gnntrain.distributed.signals import GRACE_SECONDS
from gnntrain.errors import (
    Diverged,
    GnntrainError,
    RankLost,
    RunError,
    TransientError,
    UserError,
    is_communication,
    may_mend,
)
from gnntrain.plugins import told

E = TypeVar("E", bound=BaseException)
# A `torch.distributed.Store`. Its `compare_set`, `add` and `set` do not wait for a missing key.
Store = Any

# Seconds between two calls of `RunControl.sync`. A shorter time would only cost: a stop request
# waits for the end of a step anyway.
SYNC_SECONDS = 0.2

SAVE = -1
"""Stands for a signal where a checkpoint is due without one."""

_STOP, _SAVES, _ABANDONED, _FAILURE, _COMMITTED = "stop", "saves", "abandoned", "failure", "commit"

# gloo, NCCL and TCPStore have an exception class and a wording of their own for a timeout.
_TIME_OUT = re.compile(r"tim(e|ed)[ -]?out", re.IGNORECASE)
_MAX_CHARACTERS = 2_000  # of a message or a hint; a traceback may have twice as many


class CollectiveTimeout(TransientError):
    """A rank waited too long for the others: the cause is another rank."""


_KINDS: dict[str, type[GnntrainError]] = {
    kind.__name__: kind
    for kind in (UserError, Diverged, RankLost, CollectiveTimeout, TransientError)
}


class Phase(IntEnum):
    """The phase of the run that a rank is in."""

    STARTING = 0
    TRAINING = 1
    EVALUATING = 2
    CLOSING = 3
    ENDED = 4  # and if it failed, it has reported why


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a rank is.

    Attributes:
        phase: The phase of the run.
        step: The last step that the rank began, from 1; 0: none.
        is_waiting: Whether the rank is in a collective, which needs the other ranks.
        is_writing: Whether a checkpoint is being written, for which an end by force waits.
        beat: How often the rank has called `sync`: it lives while this grows.
    """

    phase: Phase = Phase.STARTING
    step: int = 0
    is_waiting: bool = False
    is_writing: bool = False
    beat: int = field(default=0, compare=False)


class RunControl:
    """One process's view of the run's stop and save requests, progress and failures.

    Every rank and the process that supervises them hold one each, over their own client of the
    same store. Requests and progress are attributes, which `sync`, called by a thread, exchanges
    with the store. So a signal handler and a training step never wait for it, and the thread can
    publish that its rank waits in a collective. When the store has gone, requests reach this
    process alone, progress and failures are dropped, and nothing raises.

    Args:
        store: Reached by all processes of the run.
        rank: This process's rank; None: it supervises the ranks.

    Attributes:
        decisions: The store of `commit` and `agreed`, reached by all ranks; `store` by default.
            Ranks agree also after the supervising process has gone if rank 0 serves this one.
        find_cause: Finds another rank's failure behind an exception of this one; may take seconds.
        grace: Seconds from a stop signal until the system kills this process.
        is_writing: Whether a checkpoint is being written, by this rank or one that it supervises.
        timeout: Seconds that `agreed` waits for the store: TCPStore has no limit of its own.
        stop_requested: The signal that asks the run to end; 0: none. Cheap to poll.
        is_abandoned: Whether all ranks end without finishing their step; may be set.
        is_stopped_elsewhere: Whether another process was the first to ask the run to end.
        failed_waiting: Whether this rank has failed while it waited for others.
        lost_store: Why the store no longer answers; None: it does.
    """

    def __init__(self, store: Store | None = None, rank: int | None = 0) -> None:
        self._store: Store = dist.HashStore() if store is None else store  # type: ignore[attr-defined]
        self.decisions = self._store
        self.rank = rank
        self.is_stopped_elsewhere = False
        self.stop_requested = 0
        self.is_abandoned = False
        self._must_save = False  # rank 0 has to commit this, others to hand it to the store
        self._num_saves = 0  # that rank 0 has read from the store
        self._progress, self._beat = Progress(), 0
        self._deadline: tuple[float, GnntrainError] | None = None
        self.find_cause: Callable[[BaseException], GnntrainError | None] = lambda _: (
            self.first_failure()
        )
        self.grace, self.timeout = GRACE_SECONDS, math.inf
        self.is_writing: Callable[[], bool] = lambda: False
        self.failed_waiting = False
        self.lost_store: dist.DistError | None = None

    def request_stop(self, number: int) -> None:
        """Ask all ranks to save and end; the first signal counts. Safe in a signal handler."""
        self.stop_requested = self.stop_requested or number

    def request_save(self) -> None:
        """Ask for a checkpoint. Safe in a signal handler."""
        self._must_save = True

    def sync(self) -> None:
        """Exchange requests and progress with the store; called every `SYNC_SECONDS`."""
        try:
            if stop := self._first(_STOP, str(self.stop_requested or "")):
                self.is_stopped_elsewhere |= not self.stop_requested
                self.stop_requested = int(stop)
            if self._first(_ABANDONED, "1" if self.is_abandoned else ""):
                self.is_abandoned = True
            if self.rank == 0:
                num_saves = self._store.add(_SAVES, 0)
                if num_saves > self._num_saves:
                    self._num_saves, self._must_save = num_saves, True
            elif self._must_save:
                self._must_save = False
                self._store.add(_SAVES, 1)
            self._beat += 1
            self._publish()
        except dist.DistError as error:
            self.lost_store = error

    def _publish(self) -> None:
        progress = replace(self._progress, is_writing=self.is_writing(), beat=self._beat)
        if self.rank is not None:
            text = " ".join(str(int(value)) for value in astuple(progress))
            self._store.set(f"progress/{self.rank}", text)

    def commit(self, step: int, *, save: bool = False) -> None:
        """Decide that all ranks act after `step` on what was requested; with `save`, that they
        save a checkpoint without a request.

        Rank 0 calls this before it enters the gradient exchange of `step`. Where it writes a
        decision, it waits for the store's answer.
        """
        asked = int(signal.SIGUSR1) if self._must_save else SAVE if save else 0
        number = self.stop_requested or asked
        if number:
            self._must_save = False
            self.decisions.set(_COMMITTED, f"{step} {number}")
            # `set` returns before the store has done it. The answer to this comes after.
            self.decisions.compare_set(_COMMITTED, "", "")

    def agreed(self, step: int) -> int:
        """The signal to act on after `step`: SIGUSR1 saves, others end the run; `SAVE`; 0: none.

        All ranks call this after the gradient exchange of `step` and get the same answer, without
        a collective: no rank leaves the exchange before rank 0 has entered it, and rank 0 enters
        it after the decision about this step is in the store. Nor is the decision overwritten
        before all ranks have read it: to act on it takes a collective, which rank 0 does not leave
        before all have entered, so that it commits no other step meanwhile.

        Costs one round trip to the store.
        """
        late = CollectiveTimeout("Rank 0 has not answered in time.")
        with self.must_end_within(self.timeout, late), self.waiting():
            committed = self.decisions.compare_set(_COMMITTED, "", "")
        if not committed:
            return 0
        committed_step, number = map(int, committed.split())
        return number if committed_step == step else 0

    @contextmanager
    def must_end_within(self, seconds: float, failure: GnntrainError) -> Iterator[None]:
        """Marks a wait that has no time limit of its own: the watch ends a rank that is overdue.

        Args:
            seconds: The limit.
            failure: What is reported then.
        """
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
        """Whether this rank has not begun to train: a stop request would not be answered yet."""
        return self._progress.phase == Phase.STARTING

    @property
    def is_closing(self) -> bool:
        """Whether this rank has left training and writes its results."""
        return self._progress.phase == Phase.CLOSING

    @property
    def acts_on_requests(self) -> bool:
        """Whether this process answers a stop request in order: it supervises, or it trains."""
        return self.rank is None or not self.is_starting

    def enter(self, phase: Phase, step: int) -> None:
        """Note that this rank begins `step`, or another phase after it.

        A new phase is published at once: whether a stop request is answered depends on it.
        """
        before, self._progress = self._progress, Progress(phase, step)
        if phase != before.phase:
            with suppress(dist.DistError):
                self._publish()

    def end(self) -> None:
        """Note that this rank ends by itself: nobody need look for it."""
        self.enter(Phase.ENDED, self._progress.step)

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
                phase, step, is_waiting, is_writing, beat = map(int, text.split())
                return Progress(Phase(phase), step, bool(is_waiting), bool(is_writing), beat)
        except dist.DistError as error:
            self.lost_store = error
        return Progress()

    @contextmanager
    def reporting_failure(self) -> Iterator[None]:
        """Stores this rank's exception, or what caused it. KeyboardInterrupt is not stored."""
        try:
            yield
        except Exception as error:
            self.report_failure(self.cause_of(error))
            raise

    def cause_of(self, error: E) -> E | GnntrainError:
        """Another rank's failure, where this rank failed because of it; otherwise `error`."""
        return self.find_cause(error) or error

    def report_failure(self, error: BaseException) -> None:
        """Store the error of this rank, unless a rank has failed before."""
        ours = error if isinstance(error, GnntrainError) else None
        kind = next((name for name, one in _KINDS.items() if isinstance(error, one)), "")
        if is_timeout(error):
            kind = CollectiveTimeout.__name__
        elif not kind and may_mend(error):
            kind = TransientError.__name__
        message = ours.message if ours else f"Rank {self.rank} failed: {told(error)}"
        described = {
            "kind": kind,
            "message": message[:_MAX_CHARACTERS],
            "hint": ours.hint[:_MAX_CHARACTERS] if ours and ours.hint else None,
            "ranks": error.ranks if isinstance(error, RankLost) else (),
            # Its end tells most.
            "traceback": "".join(traceback.format_exception(error))[-2 * _MAX_CHARACTERS :],
        }
        with suppress(dist.DistError):
            self.failure(json.dumps(described))

    def failure(self, text: str = "") -> str:
        """The error of the rank that failed first, as JSON; `text` if there is none yet.

        Raises:
            DistError: The store has gone.
        """
        return self._first(_FAILURE, text)

    def first_failure(self) -> GnntrainError | None:
        """The error of the rank that failed first, with its traceback as a note; None: no error."""
        text = ""
        with suppress(dist.DistError):
            text = self.failure()
        if not text:
            return None
        failure = json.loads(text)
        cause = _KINDS.get(failure["kind"], RunError)(failure["message"], failure["hint"])
        if isinstance(cause, RankLost):
            cause.ranks = tuple(failure["ranks"])
        cause.add_note(failure["traceback"])
        return cause

    def close(self) -> None:
        """Let go of the stores. A TCPStore that this process serves ends."""
        self._store = self.decisions = dist.HashStore()  # type: ignore[attr-defined]

    def _first(self, key: str, value: str = "") -> str:
        """The first value that any process gave to `key`: this one, if there is none yet."""
        return str(self._store.compare_set(key, "", value).decode())


def is_timeout(error: BaseException) -> bool:
    """Whether a collective or the store ended because others did not answer in time."""
    return is_communication(error) and _TIME_OUT.search(str(error)) is not None
