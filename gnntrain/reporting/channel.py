"""The events of a run through a pipe, to a parent process that shows them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Literal

from gnntrain.errors import Interrupted
from gnntrain.training.records import EpochRecord, Pruned, RunInfo, StepProgress, Summary

Event = tuple[Literal["start", "step", "epoch", "message", "end"], Any]
"""A message to the parent: kind and content."""

_STEP_SECONDS = 0.2


class Channel:
    """Sends the events of a run to a parent process, which may prune the run after an epoch.

    Can be pickled to a spawned rank. Where the parent is gone, the run ends as by SIGTERM.

    Args:
        connection: To the parent, which answers each epoch with (epoch, whether to prune).
        clock: A monotonic clock, seconds.
    """

    def __init__(self, connection: Connection, clock: Callable[[], float] = time.monotonic) -> None:
        self._connection, self._clock, self._sent = connection, clock, clock()

    def on_start(self, info: RunInfo) -> None:
        """Send."""
        self._send(("start", info))

    def on_step(self, progress: StepProgress) -> None:
        """Send, five times a second at most."""
        if self._clock() - self._sent >= _STEP_SECONDS:
            self._sent = self._clock()
            self._send(("step", progress))

    def on_epoch(self, record: EpochRecord) -> None:
        """Send and wait for the answer; raises `Pruned` if it says so."""
        self._send(("epoch", record))
        answered, is_hopeless = 0, False
        while answered != record.epoch:  # answers to a rank that was killed are skipped
            answered, is_hopeless = self._with_parent(self._connection.recv)
        if is_hopeless:
            raise Pruned

    def on_message(self, text: str) -> None:
        """Send."""
        self._send(("message", text))

    def on_finish(self, summary: Summary) -> None:
        """Nothing: the process that waits for the end of the run sends it."""

    def _send(self, event: Event) -> None:
        self._with_parent(self._connection.send, event)

    def _with_parent(self, call: Callable[..., Any], *arguments: Event) -> Any:
        try:
            return call(*arguments)
        except (EOFError, OSError) as error:
            raise Interrupted(signal.SIGTERM) from error
