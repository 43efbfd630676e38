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
from gnntrain.training.checkpoint import (
    BEST,
    LAST,
    PREVIOUS,
    State,
    remove_stale_files,
    save_checkpoint,
)

_log = logging.getLogger("gnntrain")

# An epoch of a small graph takes milliseconds, flushing a file to disk too.
_SECONDS_BETWEEN_WRITES = 5.0


class CheckpointWriter:
    """Keeps `last.pt`, `last.prev.pt` and `best.pt` of a run, in a thread of its own.

    The first state is written at once. Later, the newest state is written every few seconds, and
    `close` writes the pending one. After a disk error the thread warns once and tries again every
    few seconds; it also logs the first success.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: dict[str, State] = {}
        self._written = -math.inf
        self._wakeup = threading.Condition()
        self._closing = False
        self._is_writing = False
        self._thread: threading.Thread | None = None
        self._failure: RunError | None = None
        remove_stale_files(directory)

    def offer(self, state: State, *, best: bool, at_once: bool = False) -> None:
        """Queue `state`, which must not change later, as the last checkpoint and perhaps the best.

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
        """Write the pending states and end the thread."""
        with self._wakeup:
            self._closing = True
            self._is_writing = self._thread is not None
            self._wakeup.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def is_writing(self) -> bool:
        """Whether a state is being written: the process should not end now."""
        return self._is_writing

    def raise_failure(self) -> None:
        """Raises RunError if the newest states could not be written."""
        if self._failure is not None:
            raise self._failure

    def _write_until_closed(self) -> None:
        while self._wait():
            self._write_held()
        self._write_held()
        self._is_writing = False

    def _wait(self) -> bool:
        """Sleep until a state is due; False after `close`."""
        with self._wakeup:
            while not self._closing:
                left = self._written + _SECONDS_BETWEEN_WRITES - time.monotonic()
                self._is_writing = bool(self._held) and left <= 0
                if self._is_writing:
                    return True
                self._wakeup.wait(left if self._held else None)
            return False

    def _write_held(self) -> None:
        # The best first: the last checkpoint refers to it. So if the best cannot be written, the
        # last waits; and neither is taken from what is offered while the other is written.
        with self._wakeup:
            states, self._held = self._held, {}
        for name in (BEST, LAST):
            if name in states:
                if not self._write(name, states[name]):
                    with self._wakeup:
                        self._held = states | self._held
                    break
                del states[name]
        else:
            self._recovered()
        self._written = time.monotonic()

    def _write(self, name: str, state: State) -> bool:
        path = self._directory / name
        previous = self._directory / PREVIOUS if name == LAST else None
        try:
            save_checkpoint(path, state, previous=previous)
        except RunError as error:
            self._refused(error)
        except Exception as error:  # or the thread would end, and with it all checkpoints
            reason = f"{type(error).__name__}: {error}"
            self._refused(RunError(f"The checkpoint {path} could not be written: {reason}."))
        else:
            return True
        return False

    def _refused(self, error: RunError) -> None:
        if self._failure is None:
            _log.warning("%s Training goes on, and it is tried again.", error.message)
        self._failure = error

    def _recovered(self) -> None:
        if self._failure is not None:
            self._failure = None
            _log.warning("The checkpoints in %s are written again.", self._directory)


class CheckpointClock:
    """Decides, equally on all ranks, after which steps inside an epoch a checkpoint is due.

    Minutes are measured by rank 0's clock. A broadcast in every step would make the ranks wait for
    each other: they ask at intervals that shrink as the time approaches.

    Args:
        config: The `checkpoint` keys.
        clock: A monotonic clock, in seconds.
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
        """Whether it is time, and in how many steps to ask again: half of the steps left."""
        elapsed = self._clock() - self._since
        done = step - self._since_step
        left = done * (seconds - elapsed) / max(elapsed, 1e-6)
        return elapsed >= seconds, max(1, int(min(left / 2, done + 1)))
