"""Checkpoints of a run: all ranks save after the same step, a thread of rank 0 writes."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gnntrain.config import CheckpointConfig
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import RunError
from gnntrain.training.callbacks import Callback
from gnntrain.training.checkpoint import (
    BEST,
    LAST,
    PREVIOUS,
    State,
    remove_stale_files,
    save_checkpoint,
)
from gnntrain.training.divergence import refuse_loss, refuse_weights
from gnntrain.training.records import EpochRecord
from gnntrain.training.snapshot import EpochTotals

if TYPE_CHECKING:
    from gnntrain.training.trainer import Trainer

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
        closing = False
        while not closing:
            with self._wakeup:
                while not self._closing:  # sleep until a state is due
                    left = self._written + _SECONDS_BETWEEN_WRITES - time.monotonic()
                    self._is_writing = bool(self._held) and left <= 0
                    if self._is_writing:
                        break
                    self._wakeup.wait(left if self._held else None)
                closing = self._closing
                states, self._held = self._held, {}
            # The best first: the last checkpoint refers to it. So if the best cannot be written,
            # the last waits; and neither is taken from what is offered while the other is written.
            for name in (BEST, LAST):
                if name in states:
                    if not self._write(self._directory / name, states[name]):
                        with self._wakeup:
                            self._held = states | self._held
                        break
                    del states[name]
            else:
                if self._failure is not None:
                    self._failure = None
                    _log.warning("The checkpoints in %s are written again.", self._directory)
            self._written = time.monotonic()
        self._is_writing = False

    def _write(self, path: Path, state: State) -> bool:
        previous = self._directory / PREVIOUS if path.name == LAST else None
        try:
            save_checkpoint(path, state, previous=previous)
        except Exception as error:  # or the thread would end, and with it all checkpoints
            if not isinstance(error, RunError):
                reason = f"{type(error).__name__}: {error}"
                error = RunError(f"The checkpoint {path} could not be written: {reason}.")
            if self._failure is None:
                _log.warning("%s Training goes on, and it is tried again.", error.message)
            self._failure = error
            return False
        return True


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


class Checkpointing(Callback):
    """Saves after every epoch, and inside one when the clock says so or `save` is called.

    Args:
        directory: Where `last.pt` and `best.pt` go; None: nothing is written, as on other ranks
            than 0.
        config: When to save inside an epoch.
        context: This rank.
    """

    def __init__(
        self, directory: Path | None, config: CheckpointConfig, context: DistributedContext
    ) -> None:
        self._writer = None if directory is None else CheckpointWriter(directory)
        if self._writer is not None:
            context.control.is_writing = self._writer.is_writing
        self._clock = CheckpointClock(config, context)

    def on_fit_start(self, trainer: Trainer) -> None:
        """Start the clock."""
        self._clock.restart(trainer.step)

    def after_step(self, trainer: Trainer, totals: EpochTotals) -> None:  # noqa: ARG002
        """Save if it is due. Collective."""
        if self._clock.is_due(trainer.step):
            self.save(trainer)

    def after_epoch(self, trainer: Trainer, record: EpochRecord) -> None:
        """Save, also as the best one if it is. Collective."""
        self.save(trainer, is_best=record.epoch == trainer.result.best_epoch)

    def on_fit_end(self, trainer: Trainer) -> None:  # noqa: ARG002
        """Write the pending states."""
        if self._writer is not None:
            self._writer.close()

    def save(self, trainer: Trainer, *, is_best: bool = False, at_once: bool = False) -> None:
        """Save where training stands. Collective.

        Args:
            trainer: Inside an epoch its sums so far are saved, too.
            is_best: Whether it is the best epoch so far.
            at_once: Write it now, however short ago the one before was.

        Raises:
            Diverged: A number is not finite: resuming from it would fail again.
        """
        if trainer.totals is not None:
            refuse_loss(trainer, trainer.totals)
        refuse_weights(trainer)
        ranks = trainer.gather_rank_states()
        if self._writer is not None:
            self._writer.offer(trainer.state_dict(ranks), best=is_best, at_once=at_once)
        self._clock.restart(trainer.step)

    def raise_failure(self) -> None:
        """Raises RunError where the newest states could not be written."""
        if self._writer is not None:
            self._writer.raise_failure()
