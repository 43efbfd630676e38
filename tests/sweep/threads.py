"""Trials in threads instead of processes: quick, and what stands in for training is seen there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any


class ThreadProcess(threading.Thread):
    """What a pool needs of a process; it has an end of the pipe of its own, as a process has."""

    pid = None
    exitcode = 0

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...]) -> None:
        super().__init__(target=target, args=args, daemon=True)
        self._end, self._rest = args[0], args[1:]

    @classmethod
    def launch(
        cls, target: Callable[..., None], arguments: Sequence[Any], **_: object
    ) -> ThreadProcess:
        """Stands in for `distributed.processes.start_process`."""
        process = cls(target, tuple(arguments))
        process.start()
        return process

    def start(self) -> None:
        """As a process: the parent's copy of the connection may be closed after it."""
        self._own = Connection(os.dup(self._end.fileno()))
        super().start()

    def run(self) -> None:
        """Serve."""
        assert self._target is not None  # type: ignore[attr-defined]
        self._target(self._own, *self._rest)  # type: ignore[attr-defined]

    def kill(self) -> None:
        """A thread ends by itself."""
