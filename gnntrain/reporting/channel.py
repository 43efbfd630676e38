"""What a run tells a parent process instead of a person: the same events, through a pipe."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Literal

from gnntrain.errors import Interrupted
from gnntrain.training.records import EpochRecord, Pruned, RunInfo, StepProgress, Summary

Event = tuple[Literal["start", "step", "epoch", "message", "end"], Any]
"""What goes to the parent: its kind, and what it is about."""

_STEP_SECONDS = 0.2


class Channel:
    """Tells a parent process of a run, and asks it after each epoch whether to go on.

    It survives pickling to a spawned rank. Where the parent is gone, the run ends as by SIGTERM:
    nobody would know of its results.

    Args:
        connection: To the parent, which answers each epoch with (epoch, whether to prune).
        clock: Seconds that only grow.
    """

    def __init__(self, connection: Connection, clock: Callable[[], float] = time.monotonic) -> None:
        self._connection = connection
        self._clock = clock
        self._told = clock()

    def on_start(self, info: RunInfo) -> None:
        """Passed on."""
        self._send(("start", info))

    def on_step(self, progress: StepProgress) -> None:
        """Passed on, five times a second at most."""
        if self._clock() - self._told >= _STEP_SECONDS:
            self._told = self._clock()
            self._send(("step", progress))

    def on_epoch(self, record: EpochRecord) -> None:
        """Passed on; raises `Pruned` where the parent says so."""
        self._send(("epoch", record))
        if self._verdict(record.epoch):
            raise Pruned

    def on_message(self, text: str) -> None:
        """Passed on."""
        self._send(("message", text))

    def on_finish(self, summary: Summary) -> None:
        """Told by whoever waits for the run's end."""

    def _send(self, event: Event) -> None:
        try:
            self._connection.send(event)
        except OSError as error:
            raise Interrupted(signal.SIGTERM) from error

    def _verdict(self, epoch: int) -> bool:
        """The answer to an epoch; one to an epoch of a rank that was killed is passed over."""
        while True:
            try:
                answered, is_hopeless = self._connection.recv()
            except (EOFError, OSError) as error:
                raise Interrupted(signal.SIGTERM) from error
            if answered == epoch:
                return bool(is_hopeless)
