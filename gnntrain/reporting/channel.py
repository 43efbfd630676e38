"""The events of a run through a pipe, to a parent process that shows them."""

from __future__ import annotations

import signal
import time
from multiprocessing.connection import Connection
from typing import Any

from gnntrain.errors import Interrupted
from gnntrain.training.records import EpochRecord, Listener, Pruned, RunInfo, StepProgress

_STEP_SECONDS = 0.2


class Channel(Listener):
    """Sends the events of a run, kind and content, to a parent process, which may prune the run
    after an epoch. Where the parent is gone, the run ends as by SIGTERM.

    Args:
        connection: To the parent, which answers each epoch with (epoch, whether to prune).
    """

    def __init__(self, connection: Connection) -> None:
        self._connection, self._sent = connection, time.monotonic()

    def on_start(self, info: RunInfo) -> None:
        self._send("start", info)

    def on_step(self, progress: StepProgress) -> None:
        """Send, five times a second at most."""
        if time.monotonic() - self._sent >= _STEP_SECONDS:
            self._sent = time.monotonic()
            self._send("step", progress)

    def on_epoch(self, record: EpochRecord) -> None:
        """Send and wait for the answer; raises `Pruned` if it says so."""
        self._send("epoch", record)
        try:
            epoch, is_hopeless = 0, False
            while epoch != record.epoch:  # answers to a rank that was killed are skipped
                epoch, is_hopeless = self._connection.recv()
        except (EOFError, OSError) as error:
            raise Interrupted(signal.SIGTERM) from error
        if is_hopeless:
            raise Pruned

    def on_message(self, text: str) -> None:
        self._send("message", text)

    def _send(self, kind: str, content: Any) -> None:
        try:
            self._connection.send((kind, content))
        except OSError as error:
            raise Interrupted(signal.SIGTERM) from error
