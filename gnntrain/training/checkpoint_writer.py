"""When checkpoints are due, and a thread that writes them while training goes on."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gnntrain.config import CheckpointConfig
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import RunError
from gnntrain.training.checkpoint import BEST, LAST, PREVIOUS, State, save_checkpoint

_log = logging.getLogger("gnntrain")

# An epoch of a small graph takes milliseconds, flushing a file to disk too.
_SECONDS_BETWEEN_WRITES = 5.0


class CheckpointWriter:
    """Keeps `last.pt`, `last.prev.pt` and `best.pt` of a run, in a thread of its own.

    The first state offered is written at once; of those that follow in quick succession the newest
    is written every few seconds, and `close` writes what is held. A disk that refuses is told
    once, as a warning, and tried again with the next state.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: dict[str, State] = {}
        self._written = -math.inf
        self._wakeup = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._failure: RunError | None = None
        self._warned = False

    def offer(self, state: State, *, best: bool, at_once: bool = False) -> None:
        """Take `state`, which nobody may change any more, as the last, and as the best if so.

        Args:
            at_once: Write it now, however short ago the one before was.
        """
        with self._wakeup:
            if at_once:
                self._written = -math.inf
            if best:
                self._held[BEST] = state
            self._held[LAST] = state
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._write_until_closed, name="gnntrain-checkpoints", daemon=True
                )
                self._thread.start()
            self._wakeup.notify()

    def close(self) -> None:
        """Write what is held and end the thread."""
        with self._wakeup:
            self._closing = True
            self._wakeup.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def raise_failure(self) -> None:
        """Raises RunError where the newest state could not be written."""
        if self._failure is not None:
            raise self._failure

    def _write_until_closed(self) -> None:
        while self._wait():
            # The best first: a last checkpoint that speaks of it must find it there.
            for name in (BEST, LAST):
                with self._wakeup:
                    state = self._held.pop(name, None)
                if state is not None:
                    self._write(name, state)
            self._written = time.monotonic()

    def _wait(self) -> bool:
        """Sleep until there is something to write; False once there will be nothing more."""
        with self._wakeup:
            while not self._closing:
                left = self._written + _SECONDS_BETWEEN_WRITES - time.monotonic()
                if self._held and left <= 0:
                    break
                self._wakeup.wait(left if self._held else None)
            return bool(self._held)

    def _write(self, name: str, state: State) -> None:
        try:
            path = self._directory / name
            save_checkpoint(
                path, state, previous=self._directory / PREVIOUS if name == LAST else None
            )
            self._failure = None
        except RunError as error:
            self._failure = error
            if not self._warned:
                self._warned = True
                _log.warning("%s Training goes on.", error.message)


class CheckpointClock:
    """Says on all ranks alike in which steps inside an epoch a checkpoint is due.

    Steps are counted. Minutes are rank 0's: to ask it in every step would make the ranks wait for
    each other, so that they look at its clock in ever shorter distances as the time approaches.

    Args:
        config: The `checkpoint` keys.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        context: DistributedContext,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every_steps = config.every_steps
        self._seconds = None if config.every_minutes is None else 60 * config.every_minutes
        self._context = context
        self._clock = clock
        self.restart(0)

    def restart(self, step: int) -> None:
        """Count from `step`, after which a checkpoint was made or training began."""
        self._since, self._since_step, self._next_look = self._clock(), step, step + 1

    def is_due(self, step: int) -> bool:
        """Whether to save after `step`; called on all ranks after every step. Collective."""
        due = self._every_steps is not None and step % self._every_steps == 0
        if self._seconds is not None and step >= self._next_look:
            late, ahead = self._context.broadcast(self._look(step, self._seconds))
            self._next_look = step + ahead
            due = due or late
        return due

    def _look(self, step: int, seconds: float) -> tuple[bool, int]:
        """Whether it is time, and in how many steps to look again: half of what is left."""
        elapsed = self._clock() - self._since
        done = step - self._since_step
        left = done * (seconds - elapsed) / max(elapsed, 1e-6)
        return elapsed >= seconds, max(1, int(min(left / 2, done + 1)))
